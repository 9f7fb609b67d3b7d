"""When an imagined episode ends: a function of predicted states, since a world model has no simulator to ask."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

TerminationFn = Callable[[Tensor, Tensor], Tensor]
"""``fn(next_observation [*B, S], action [*B, A]) -> terminated [*B, 1]``, bool, in units of the environment.

Time limits are not terminations."""


def never_terminates(next_observation: Tensor, action: Tensor | None = None) -> Tensor:
    """For tasks that only a time limit ends, such as those of DeepMind Control: always ``False``.

    Examples:
        >>> never_terminates(torch.zeros(2, 5)).tolist()
        [[False], [False]]
    """
    return torch.zeros_like(next_observation[..., :1], dtype=torch.bool)
