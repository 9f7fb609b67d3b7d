"""Reports in one sentence per topic whether an environment fits, and what to change."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDictBase
from torchrl.envs import EnvBase

from eqr_torchrl.envs import _findings as findings
from eqr_torchrl.envs._findings import Finding
from eqr_torchrl.envs.real import make_env
from eqr_torchrl.envs.terminations import TerminationFn

if TYPE_CHECKING:
    import gymnasium

    from eqr_torchrl.envs.model_based import RewardFn


def check_env(
    env: str | EnvBase | gymnasium.Env | Callable[..., Any],
    termination_fn: TerminationFn | None = None,
    num_steps: int = 1000,
    *,
    reward_fn: RewardFn | None = None,
    seed: int = 0,
    **kwargs: Any,
) -> list[Finding]:
    r"""Tries an environment with random actions and reports, topic by topic, whether it fits the library.

    Looks at observation and action spaces, data types, the size of rewards, the length of episodes, whether a seed
    reproduces an episode, and whether ``termination_fn`` and ``reward_fn`` give the environment's own ``terminated``
    flag and reward.

    Args:
        env: an environment, or anything that :func:`~eqr_torchrl.envs.make_env` takes. It is reset and stepped.
        termination_fn: the function that the model environment will use. Defaults to the known rule of the environment,
            see :func:`~eqr_torchrl.envs.termination_for`.
        num_steps: number of random steps, in environment steps.
        reward_fn: the known reward that the model environment will use, see :class:`~eqr_torchrl.envs.ModelBasedEnv`.
            Defaults to ``None``: the world model learns the reward, and there is nothing to compare.
        seed: seed of the environment and of the random actions; torch's global generator is left as it was.
        **kwargs: passed on to :func:`~eqr_torchrl.envs.make_env`.

    Returns:
        One :class:`Finding` per topic, those without fault included. ``ImportError`` and errors of the environment's
        own code become findings too.

    Raises:
        ValueError: if ``num_steps`` is not positive.

    Examples:
        >>> for finding in check_env("Pendulum-v1", num_steps=400):
        ...     print(finding)
        ok      observation  3 entries, float32, seen from -... to ...
        ok      action       1 entry, each from -2 to 2.
        ok      reward       per step from -... to ...
        ok      termination  never_terminates gives the environment's own flag in 400 of 400 steps (0 terminated).
        ok      episode      2 episodes ended within 400 steps, after 200 steps.
        ok      seed         the same seed gives the same episode.
    """
    if num_steps < 1:
        raise ValueError(f"num_steps must be at least 1: got {num_steps}.")
    with torch.random.fork_rng(devices=[]):
        try:
            real = make_env(env, **kwargs)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                data = _random_steps(real, num_steps, seed)
                again = _random_steps(real, min(num_steps, 100), seed)
        except Exception as error:  # whatever the user's code raises is the finding
            return [Finding("error", getattr(error, "topic", "environment"), findings.one_line(error))]
    cuts = [str(warning.message) for warning in caught if "non-finite" in str(warning.message)]
    found = [Finding("error", "observation", cuts[0])] if cuts else []
    found += [findings.observation(data), findings.action(real), findings.reward(data)]
    if reward_fn is not None:
        found.append(findings.known_reward(data, reward_fn))
    found.append(findings.termination(real, data, termination_fn))
    return [*found, findings.episode(data, kwargs.get("max_episode_steps")), findings.seed(data, again)]


def _random_steps(env: EnvBase, num_steps: int, seed: int) -> TensorDictBase:
    env.set_seed(seed)
    torch.manual_seed(seed)
    return env.rollout(num_steps, break_when_any_done=False).flatten()
