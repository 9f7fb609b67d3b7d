"""Returns of a policy in an environment, measured without changing the state of training."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypedDict

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import nn
from torchrl.checkpoint import GlobalRNGState
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, set_exploration_type, step_mdp

__all__ = ["EpisodeRow", "evaluate"]


class EpisodeRow(TypedDict):
    """One evaluation episode; the keys are columns of ``evaluations.csv``."""

    episode: int
    episode_return: float
    episode_length: int


_ENDLESS = 20_000  # steps


def evaluate(
    env: EnvBase,
    policy: Callable[[TensorDictBase], TensorDictBase],
    *,
    num_episodes: int = 1,
    max_steps: int | None = None,
    seed: int | None = None,
) -> list[EpisodeRow]:
    """Undiscounted returns of the deterministic policy; training state is as before, bit for bit.

    Actions are the policy's deterministic ones (for a tanh-normal policy the tanh of the mean, as in the paper).
    Train and eval modes, running statistics of ``VecNorm`` transforms, and the global random states of torch, numpy
    and Python are restored at the end, also after an error.

    Args:
        env: one environment: batch size ``[]`` or ``[1]``. The one that collects data would lose its episode.
        policy: reads ``observation``, writes ``action``. Modules are run in eval mode and without gradients.
        num_episodes: episodes to run.
        max_steps: longest episode, in environment steps. Defaults to ``None``: the environment must end each itself.
        seed: seeds the environment and the global generators for the duration of this call. Defaults to ``None``: the
            environment's own generator continues.

    Returns:
        One row per episode: ``episode`` from 0, ``episode_return`` in units of reward, ``episode_length`` in steps. An
        episode that :class:`~eqr_torchrl.lab.envs.NonFiniteGuard` cuts has the return up to that step.

    Raises:
        ValueError: if ``num_episodes`` or ``max_steps`` is not positive, or ``env`` holds more than one environment.
        RuntimeError: if ``max_steps`` is ``None`` and an episode has not ended after 20,000 steps.

    Examples:
        >>> evaluate(toy_env(), toy_actor(), num_episodes=2, max_steps=5, seed=0)[1]["episode_length"]
        5
    """
    if num_episodes < 1:
        raise ValueError(f"num_episodes must be positive: got {num_episodes}.")
    if max_steps is not None and max_steps < 1:
        raise ValueError(f"max_steps must be positive or None: got {max_steps}.")
    if env.batch_size.numel() != 1:
        raise ValueError(f"env must hold one environment: got batch size {list(env.batch_size)}.")

    modules = [module for module in (env, policy) if isinstance(module, nn.Module)]
    rows: list[EpisodeRow] = []
    with (
        isolated_rng(seed),
        evaluation_mode(*modules),
        torch.no_grad(),
        set_exploration_type(ExplorationType.DETERMINISTIC),
    ):
        if seed is not None:
            env.set_seed(seed % 2**32)  # numpy, and so DeepMind Control, takes no larger ones
        for episode in range(num_episodes):
            episode_return, length = _run_episode(env, policy, max_steps)
            rows.append({"episode": episode, "episode_return": episode_return, "episode_length": length})
    return rows


def _run_episode(
    env: EnvBase, policy: Callable[[TensorDictBase], TensorDictBase], max_steps: int | None
) -> tuple[float, int]:
    """Return and length of one episode; a plain loop, because ``env.rollout`` costs twice as much for each step."""
    policy_device = device_of(policy) if isinstance(policy, nn.Module) else None
    tensordict = env.reset()
    episode_return, length, done = 0.0, 0, False
    while not done and length != max_steps:
        if max_steps is None and length == _ENDLESS:
            raise RuntimeError(
                f"an episode has not ended after {length:,} steps: pass max_episode_steps to make_env (on a command "
                "line env.max_episode_steps=1000), or max_steps to evaluate."
            )
        if policy_device is not None:
            tensordict = tensordict.to(policy_device)
        tensordict = policy(tensordict)
        if env.device is not None:
            tensordict = tensordict.to(env.device)
        tensordict = env.step(tensordict)
        reward = tensordict["next", "reward"].item()
        length += 1
        done = tensordict["next", "done"].any().item()  # terminated or truncated
        if done and math.isnan(reward) and not tensordict["next", "terminated"].any():  # cut by NonFiniteGuard
            break
        episode_return += reward
        tensordict = step_mdp(tensordict)
    return episode_return, length


def device_of(module: nn.Module) -> torch.device | None:
    """Device of the parameters; ``None`` if there are none."""
    return next((parameter.device for parameter in module.parameters()), None)


@contextmanager
def evaluation_mode(*modules: nn.Module) -> Iterator[None]:
    """Eval mode and frozen running statistics, each submodule's own setting restored at the end."""
    # `frozen` is how TorchRL's VecNorm transforms stop collecting statistics; they ignore eval mode.
    flags = [(s, name) for module in modules for s in module.modules() for name in ("training", "frozen")]
    before = [(s, name, getattr(s, name)) for s, name in flags if isinstance(getattr(s, name, None), bool)]
    try:
        for submodule, name, _ in before:
            setattr(submodule, name, name == "frozen")
        yield
    finally:
        for submodule, name, value in before:
            setattr(submodule, name, value)


@contextmanager
def isolated_rng(seed: int | None = None) -> Iterator[None]:
    """Global generators of torch, numpy and Python: seeded inside if ``seed`` is given, as before at the end."""
    generators = GlobalRNGState()
    before = generators.state_dict()
    try:
        if seed is not None:
            torch.manual_seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002, the global state itself is meant
            random.seed(seed)
        yield
    finally:
        generators.load_state_dict(before)
