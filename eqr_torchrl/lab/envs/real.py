"""Real environments by name, or the user's own, with the interface that the library expects."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from torchrl.envs import EnvBase, ParallelEnv, SerialEnv, TransformedEnv
from torchrl.envs.transforms import RewardScaling, StepCounter

from eqr_torchrl.lab.envs._layers import check_running_statistics
from eqr_torchrl.lab.envs._readers import VectorReader
from eqr_torchrl.lab.envs._simulators import open_simulator
from eqr_torchrl.lab.envs._spaces import check_specs, observation_leaves
from eqr_torchrl.lab.envs.guards import NonFiniteGuard
from eqr_torchrl.lab.envs.transforms import ActionCost, VectorObservation

if TYPE_CHECKING:
    import gymnasium


def make_env(
    name: str | EnvBase | gymnasium.Env | Callable[..., Any],
    *,
    seed: int | None = None,
    reward_scale: float = 1.0,
    action_cost: float = 0.0,
    max_episode_steps: int | None = None,
    num_envs: int = 1,
    parallel: bool = True,
    **kwargs: Any,
) -> TransformedEnv:
    r"""Builds a real environment whose observation, action and reward are float32 vectors.

    The reward of each step is :math:`c\,(r - \rho \sum_i a_i^2)` with :math:`c` = ``reward_scale`` and :math:`\rho` =
    ``action_cost``. The end of the time limit is ``truncated``, never ``terminated``. Several observation entries
    (DeepMind Control) are joined in alphabetical order. The episode is truncated when a simulator diverges, see
    :class:`~eqr_torchrl.lab.envs.NonFiniteGuard`.

    With ``num_envs`` above 1, that many simulators run side by side, and every entry has a first dimension of this
    size: batch size ``[num_envs]``. Guards, costs and scales act on each row; an episode that ends is reset alone.

    Args:
        name: ``"dmc/cheetah-run"`` (any task of the DeepMind Control suite), a Gymnasium id (``"Pendulum-v1"`` or
            ``"gym/Pendulum-v1"``), ``"package.module:MyEnv"``, a :class:`gymnasium.Env` with Box spaces, a TorchRL
            environment, or a callable that returns one of these.
        seed: seed of the environment; ``None`` leaves it unseeded. ``env.set_seed(seed)`` does the same later. Each of
            several simulators has a seed of its own that follows from it.
        reward_scale: factor on every reward, above zero.
        action_cost: cost of effort, at least zero, in units of the environment's own reward.
        max_episode_steps: time limit in environment steps, in place of the environment's own. A TorchRL environment
            keeps its own too, so a longer one is refused.
        num_envs: simulators that step together. Above 1, ``name`` must be a name or a callable, not a built object.
        parallel: with several, each has a process of its own (TorchRL's ``ParallelEnv``); if false, they take turns in
            this one (``SerialEnv``).
        **kwargs: passed on to the simulator: task arguments for ``dmc/``, those of :func:`gymnasium.make` for ids, or
            of the callable.

    Returns:
        An environment with float32 ``observation`` ``[S]``, ``action`` ``[A]`` in environment units and ``reward``
        ``[1]``, and an attribute ``env_name``. Closing it closes the simulators.

    Raises:
        ValueError: if the name is unknown, the spaces do not fit (vectors; floats with finite bounds for actions), a
            wrapper collects running statistics, or an argument is out of range.
        ImportError: if the simulator is not installed; the message names the extra.

    Examples:
        >>> env = make_env("Pendulum-v1", seed=0, max_episode_steps=5)
        >>> env.rollout(100)["observation"].shape
        torch.Size([5, 3])
        >>> make_env("Pendulum-v1", num_envs=2, parallel=False).rollout(7)["observation"].shape
        torch.Size([2, 7, 3])
    """
    if not 0.0 < reward_scale < float("inf"):
        raise ValueError(f"reward_scale must be a finite number above 0: got {reward_scale}.")
    if not 0.0 <= action_cost < float("inf"):
        raise ValueError(f"action_cost must be a finite number of at least 0: got {action_cost}.")
    if max_episode_steps is not None and max_episode_steps < 1:
        raise ValueError(f"max_episode_steps must be at least 1: got {max_episode_steps}.")
    built = isinstance(name, EnvBase) or not (isinstance(name, str) or callable(name))
    if num_envs < 1 or (built and num_envs > 1):
        raise ValueError(
            f"num_envs must be at least 1, and 1 for an environment that is already built: got {num_envs}."
        )
    base, label = open_simulator(name, max_episode_steps, kwargs)
    check_specs(base, label)
    check_running_statistics(base, label)
    reads_vectors = isinstance(base, VectorReader)  # and the simulator itself has the time limit
    if num_envs > 1:
        base.close()
        several = ParallelEnv if parallel else SerialEnv
        template, base = base, several(num_envs, functools.partial(_open, os.getpid(), name, max_episode_steps, kwargs))
        vars(base)["template"] = template  # answers what is asked about the simulator; not as a submodule
    env = TransformedEnv(base, NonFiniteGuard(label), auto_unwrap=False)
    if not reads_vectors:
        env.insert_transform(0, VectorObservation(list(observation_leaves(base))))
    if action_cost:
        env.append_transform(ActionCost(action_cost))
    if reward_scale != 1.0:
        env.append_transform(RewardScaling(loc=0.0, scale=reward_scale))
    if max_episode_steps is not None and not reads_vectors:
        env.append_transform(StepCounter(max_episode_steps))
    env.env_name = label
    if seed is not None:
        env.set_seed(seed)
    return env


def renew_noise(env: EnvBase, seed: int) -> None:
    """Gives the simulator of one environment other random numbers without a reset, if it draws random numbers.

    Use it for episodes that start alike and then differ. It supports only simulators of Gymnasium and DeepMind Control.

    Args:
        env: from :func:`make_env`.
        seed: of the random numbers from here on.

    Examples:
        >>> env = make_env("Pendulum-v1", seed=0)
        >>> start = env.reset()
        >>> renew_noise(env, 7)
    """
    simulator: Any = env
    if isinstance(getattr(simulator, "np_random", None), np.random.Generator):
        simulator.unwrapped.np_random = np.random.default_rng(seed)
    elif isinstance(getattr(getattr(simulator, "task", None), "random", None), np.random.RandomState):
        simulator.task.random.seed(seed)


def _open(main_process: int, *arguments: Any) -> EnvBase:
    if os.getpid() != main_process:  # Ctrl-C reaches all processes of a terminal: the main one ends the others
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return open_simulator(*arguments)[0]
