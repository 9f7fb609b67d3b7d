"""Rules that a user names in the configuration: every step pays 3, and the first one is the last."""

from __future__ import annotations

import torch
from torch import Tensor


def ends_at_once(next_observation: Tensor, action: Tensor) -> Tensor:
    return torch.ones_like(next_observation[..., :1], dtype=torch.bool)


def pays_three(observation: Tensor, action: Tensor, next_observation: Tensor) -> Tensor:
    return torch.full_like(observation[..., :1], 3.0)
