"""Transitions of a replay buffer as the rows that a world model is fitted to."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor

from eqr_torchrl.world_models.gaussian import GaussianEnsemble


def regression_data(world_model: GaussianEnsemble, data: TensorDictBase) -> tuple[Tensor, Tensor]:
    """Raw inputs ``[n, S + A]`` (observation, action) and targets ``[n, D]`` (change of observation, reward)."""
    observation = _column(world_model, data, "observation", world_model.observation_dim)
    action = _column(world_model, data, "action", world_model.action_dim)
    next_observation = _column(world_model, data, ("next", "observation"), world_model.observation_dim)
    targets = [next_observation - observation]
    if world_model.predicts_reward:
        targets.append(_column(world_model, data, ("next", "reward"), 1))
    return torch.cat([observation, action], -1), torch.cat(targets, -1)


def _column(world_model: GaussianEnsemble, data: TensorDictBase, key: NestedKey, size: int) -> Tensor:
    value = data.get(key, None)
    if value is None:
        raise ValueError(f"data must hold {key!r}, got the keys {sorted(map(str, data.keys(True, True)))}.")
    if value.ndim != 2 or value.shape[-1] != size:
        raise ValueError(f"data[{key!r}] must be of shape [n, {size}], got {tuple(value.shape)}.")
    bad = int((~torch.isfinite(value)).any(-1).sum())
    if bad:
        raise ValueError(f"data[{key!r}] must be finite, got NaN or infinity in {bad} of {len(value)} rows.")
    return value.detach().to(world_model.normalizer.mean)  # a rollout outside no_grad keeps the policy's graph
