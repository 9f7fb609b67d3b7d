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

__all__ = ["EpisodeRow", "evaluate", "seed_everything"]


class EpisodeRow(TypedDict):
    """One evaluation episode; the keys are columns of ``evaluations.csv``."""

    episode: int
    episode_return: float
    episode_length: int
    terminated: int


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
        env: one environment, or a batch of them such as a ``SerialEnv`` or ``ParallelEnv``, which runs an episode in
            each at a time. Do not pass the one that collects data: it would lose its episode.
        policy: reads ``observation``, writes ``action``. Modules are run in eval mode and without gradients.
        num_episodes: episodes to run. If it is no multiple of the batch, the last ones of the batch are left out.
        max_steps: longest episode, in environment steps. Defaults to ``None``: the environment must end each itself.
        seed: seeds the environment and the global generators for the duration of this call. Defaults to ``None``: the
            environment's own generator continues.

    Returns:
        One row per episode: ``episode`` from 0, ``episode_return`` in units of reward, ``episode_length`` in steps, and
        ``terminated``: 1 if the environment ended it, such as at a safety limit; 0 if a time limit, ``max_steps`` or
        :class:`~eqr_torchrl.lab.envs.NonFiniteGuard` truncated it, which leaves the return up to that step.

    Raises:
        ValueError: if ``num_episodes`` or ``max_steps`` is not positive.
        RuntimeError: if ``max_steps`` is ``None`` and an episode has not ended after 20,000 steps.

    Examples:
        >>> evaluate(toy_env(), toy_actor(), num_episodes=2, max_steps=5, seed=0)[1]["episode_length"]
        5
    """
    if num_episodes < 1:
        raise ValueError(f"num_episodes must be positive: got {num_episodes}.")
    if max_steps is not None and max_steps < 1:
        raise ValueError(f"max_steps must be positive or None: got {max_steps}.")

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
        while len(rows) < num_episodes:
            rows += _run_episodes(env, policy, max_steps, first=len(rows))
    return rows[:num_episodes]


def _run_episodes(
    env: EnvBase, policy: Callable[[TensorDictBase], TensorDictBase], max_steps: int | None, first: int
) -> list[EpisodeRow]:
    """One episode in each element of the batch; a plain loop, because ``env.rollout`` costs twice as much a step."""
    policy_device = device_of(policy) if isinstance(policy, nn.Module) else None
    tensordict = env.reset()
    count = env.batch_size.numel()
    returns, lengths, terminated = [0.0] * count, [0] * count, [0] * count
    running, step = set(range(count)), 0
    while running and step != max_steps:
        if max_steps is None and step == _ENDLESS:
            raise RuntimeError(
                f"an episode has not ended after {step:,} steps: pass max_episode_steps to make_env (on a command "
                "line env.max_episode_steps=1000), or max_steps to evaluate."
            )
        if policy_device is not None:
            tensordict = tensordict.to(policy_device)
        tensordict = policy(tensordict)
        if env.device is not None:
            tensordict = tensordict.to(env.device)
        tensordict = env.step(tensordict)
        step += 1
        reward, done, ended = (tensordict["next", key].flatten().tolist() for key in ("reward", "done", "terminated"))
        for i in list(running):
            lengths[i] = step
            if done[i]:  # terminated or truncated
                running.remove(i)
                terminated[i] = int(ended[i])
                if math.isnan(reward[i]):  # of a simulator that has diverged
                    continue
            returns[i] += reward[i]
        tensordict = step_mdp(tensordict)
        if running and any(done):  # a batch is stepped as a whole, until its last episode ends
            tensordict = env.maybe_reset(tensordict)
    return [
        {"episode": first + i, "episode_return": returns[i], "episode_length": lengths[i], "terminated": terminated[i]}
        for i in range(count)
    ]


def device_of(module: nn.Module) -> torch.device | None:
    """Device of the parameters; ``None`` if there are none."""
    return next((parameter.device for parameter in module.parameters()), None)


@contextmanager
def evaluation_mode(*modules: nn.Module) -> Iterator[None]:
    """Eval mode and frozen running statistics, each submodule's own setting restored at the end."""
    # `frozen` is how TorchRL's VecNorm transforms stop collecting statistics; they ignore eval mode.
    flags = [(s, name) for module in modules for s in module.modules() for name in ("training", "frozen")]
    before = [(s, name, vars(s)[name]) for s, name in flags if isinstance(vars(s).get(name), bool)]
    try:
        for submodule, name, _ in before:
            setattr(submodule, name, name == "frozen")
        yield
    finally:
        for submodule, name, value in before:
            setattr(submodule, name, value)


def seed_everything(seed: int) -> None:
    """Seeds the global generators of torch, NumPy (which environments may draw from) and Python.

    Examples:
        >>> seed_everything(1)
        >>> a = torch.rand(1)
        >>> seed_everything(1)
        >>> torch.equal(a, torch.rand(1))
        True
    """
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the global generator is meant
    random.seed(seed)


@contextmanager
def isolated_rng(seed: int | None = None) -> Iterator[None]:
    """Global generators of torch, numpy and Python: seeded inside if ``seed`` is given, as before at the end."""
    generators = GlobalRNGState()
    before = generators.state_dict()
    try:
        if seed is not None:
            seed_everything(seed)
        yield
    finally:
        generators.load_state_dict(before)
