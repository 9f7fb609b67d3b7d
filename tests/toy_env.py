"""One-dimensional environments whose returns are known by hand."""

from __future__ import annotations

import os
import random
import signal

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Binary, Bounded, Composite, Unbounded
from torchrl.envs import EnvBase

from eqr_torchrl.testing import ToyEnv


class WalkEnv(EnvBase):
    """``s' = s + a``, reward ``a``; ends as ``terminated`` at ``s >= goal`` and as ``truncated`` after ``time_limit``.

    With ``noise`` the start is drawn from the global generators of torch, numpy and Python, all three.
    """

    def __init__(self, *, goal: float = 1e9, time_limit: int = 10**9, noise: float = 0.0) -> None:
        super().__init__(device=torch.device("cpu"), batch_size=[])
        self.goal, self.time_limit, self.noise = goal, time_limit, noise
        self.observation_spec = Composite(observation=Unbounded(1))
        self.action_spec = Bounded(-1.0, 1.0, shape=(1,))
        self.reward_spec = Unbounded(1)
        self.full_done_spec = Composite(
            {key: Binary(1, dtype=torch.bool) for key in ("done", "terminated", "truncated")}
        )

    def _set_seed(self, seed: int | None) -> None:
        self.seed_seen = seed

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: object) -> TensorDictBase:
        self.steps = 0
        start = self.noise * (torch.randn(1) + np.random.randn() + random.gauss(0, 1))  # noqa: NPY002
        false = torch.zeros(1, dtype=torch.bool)
        return TensorDict(observation=start.float(), done=false, terminated=false.clone(), truncated=false.clone())

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.steps += 1
        observation = tensordict["observation"] + tensordict["action"]
        terminated = observation >= self.goal
        truncated = torch.full((1,), self.steps >= self.time_limit)
        return TensorDict(
            observation=observation,
            reward=tensordict["action"].clone(),
            done=terminated | truncated,
            terminated=terminated,
            truncated=truncated,
        )


class PointEnv(ToyEnv):
    """``s' = 0.9 s + 0.5 a + noise``, reward ``-s^2``: from 1, idling costs 5.2 and pushing back at once about 1.3."""

    def __init__(self) -> None:
        super().__init__(1, 1, noise=0.02)
        self.push = 5 * self.push


class MortalEnv(PointEnv):
    """Takes its process along in its 85th step, if its first seed was 0."""

    def __init__(self) -> None:
        super().__init__()
        self.seeds, self.total = [], 0

    def _set_seed(self, seed: int | None) -> None:
        super()._set_seed(seed)
        self.seeds.append(seed)

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        self.total += 1
        if self.total == 85 and self.seeds[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._step(tensordict)
