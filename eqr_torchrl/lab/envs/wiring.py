"""What a training script does with its environments: opens and closes them, names their rules, adds the guards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torchrl.envs import EnvBase

from eqr_torchrl.imagination.terminations import TerminationFn
from eqr_torchrl.lab.envs.guards import RewardGuard, TerminationGuard
from eqr_torchrl.lab.envs.lookup import import_by_name
from eqr_torchrl.lab.envs.terminations import termination_for


@contextmanager
def open_envs(build: Callable[..., EnvBase], *, evaluate: bool = True, **changes: Any) -> Iterator[list[EnvBase]]:
    """Opens the environment that collects and one for evaluations, and closes both at the end, after errors too.

    Args:
        build: makes an environment.
        evaluate: whether an environment for evaluations is needed.
        **changes: arguments of ``build`` for the evaluations, such as ``num_envs=1``.

    Examples:
        >>> with open_envs(toy_env) as (env, eval_env):
        ...     env is eval_env
        False
    """
    with ExitStack() as stack:
        envs: list[EnvBase] = []
        for arguments in ({}, changes)[: 1 + evaluate]:
            envs.append(build(**arguments))
            stack.callback(envs[-1].close, raise_if_closed=False)  # a collector may have closed it
        yield envs


def rules_for(
    env: EnvBase | str, termination_fn: Any = None, reward_fn: Any = None, *, learned: bool = False
) -> dict[str, Any]:
    """The functions of :class:`~eqr_torchrl.imagination.ModelBasedEnv` that settings name.

    Args:
        env: an environment or its name, whose own rule is used if none is named, as by :func:`termination_for`.
        termination_fn: a rule, or its name ``"module:function"``.
        reward_fn: a reward function or its name. Defaults to ``None``: the models predict rewards.
        learned: whether the models predict terminations, so that there is no rule.

    Examples:
        >>> rules_for("Pendulum-v1")["termination_fn"].__name__, rules_for("Pendulum-v1", learned=True)
        ('never_terminates', {'termination_fn': None, 'reward_fn': None})
    """
    return {
        "termination_fn": None if learned else termination_for(env, termination_fn),
        "reward_fn": import_by_name(reward_fn) if isinstance(reward_fn, str) else reward_fn,
    }


def add_guards(
    env: Any, *, termination_fn: TerminationFn | None = None, reward_bounds: Sequence[float] | None = None
) -> None:
    """Appends the guards of what imagination assumes: :class:`TerminationGuard`, :class:`RewardGuard`.

    Args:
        env: a transformed environment, changed in place.
        termination_fn: the rule of imagined episodes, if there is one.
        reward_bounds: smallest and largest imagined reward, if they are clipped.
    """
    if termination_fn is not None:
        env.append_transform(TerminationGuard(termination_fn, env.env_name))
    if reward_bounds:
        env.append_transform(RewardGuard(reward_bounds, env.env_name))
