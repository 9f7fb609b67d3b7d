"""The unit in which values are learnt."""

from __future__ import annotations

from torch import Tensor


def reward_unit(rewards: Tensor, bounds: tuple[float, float] | None = None) -> float:
    """Scale of the rewards: the range of 0 and the known bounds, else of 0 and what was seen; 1 if that is nothing.

    Examples:
        >>> reward_unit(torch.tensor([-3.0, -1.0])), reward_unit(torch.zeros(2)), reward_unit(torch.zeros(2), (0, 5))
        (3.0, 1.0, 5.0)
    """
    low, high = bounds if bounds is not None else (float(rewards.min()), float(rewards.max()))
    return (max(high, 0.0) - min(low, 0.0)) or 1.0
