"""Scales of a task that follow from its rewards."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

_SAME = 0.01  # of the reward unit: rewards that are so near to each other count as equal
_RARE = 0.01  # share of the transitions below which another reward counts as rare


def reward_unit(rewards: Tensor, bounds: Sequence[float] | None = None) -> float:
    """A scale of the rewards: the length of the interval that holds 0 and the bounds, or 0 and the rewards seen.

    Args:
        rewards: of any transitions, in units of the environment.
        bounds: smallest and largest reward of a step, if known.

    Returns:
        In units of the environment; 1 if that is nothing.

    Examples:
        >>> reward_unit(torch.tensor([-3.0, -1.0])), reward_unit(torch.zeros(2)), reward_unit(torch.zeros(2), (0, 5))
        (3.0, 1.0, 5.0)
    """
    low, high = bounds if bounds is not None else (float(rewards.min()), float(rewards.max()))
    return float(max(high, 0.0) - min(low, 0.0)) or 1.0


def plausible_reward(rewards: Tensor, bounds: Sequence[float] | None = None, *, share: float = 0.5) -> float:
    """How far a reward that was never seen may plausibly lie from those that were: the scale of a prior.

    Where rewards vary, their standard deviation says it. Where fewer than 1 % of them differ from their median by more
    than 1 % of the :func:`reward_unit`, nothing that is seen says it, and it is a share of that unit.

    Args:
        rewards: of the first transitions, in units of the environment, shape ``[n]``.
        bounds: smallest and largest reward of a step, if known.
        share: of the reward unit, where rewards are rare.

    Returns:
        In units of the environment.

    Examples:
        >>> plausible_reward(torch.zeros(500), (0.0, 1.0)), plausible_reward(torch.tensor([1.0, 3.0]))
        (0.5, 1.4142135381698608)
    """
    unit = reward_unit(rewards, bounds)
    differing = ((rewards - rewards.median()).abs() > _SAME * unit).float().mean()
    return share * unit if differing < _RARE else float(rewards.std())
