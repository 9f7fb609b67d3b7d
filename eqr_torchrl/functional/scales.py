"""Scales that follow from the data: of rewards, and of how rare a transition is."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_SAME = 0.01  # of the reward unit: rewards that are so near to each other count as equal
_RARE = 0.01  # share of the transitions below which another reward counts as rare


def reward_unit(rewards: Tensor, bounds: Sequence[float] | None = None) -> float:
    """A scale of the rewards: the length of the interval that holds 0 and the bounds, or 0 and the rewards seen.

    Args:
        rewards: of any transitions, in units of the environment.
        bounds: smallest and largest reward of a step, if known.

    Returns:
        In units of the environment; 1 if that length is 0.

    Examples:
        >>> reward_unit(torch.tensor([-3.0, -1.0])), reward_unit(torch.zeros(2)), reward_unit(torch.zeros(2), (0, 5))
        (3.0, 1.0, 5.0)
    """
    low, high = bounds if bounds is not None else (float(rewards.min()), float(rewards.max()))
    return float(max(high, 0.0) - min(low, 0.0)) or 1.0


def plausible_reward(rewards: Tensor, bounds: Sequence[float] | None = None, *, share: float = 0.5) -> float:
    """How far an unseen reward may plausibly lie from the rewards that were seen: the scale of a prior.

    Where rewards vary, it is their standard deviation. Where fewer than 1 % of them differ from their median by more
    than 1 % of the :func:`reward_unit`, the data do not determine it, and it is a share of that unit.

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


def rarity_weights(values: Tensor, threshold: float) -> Tensor:
    r"""Sampling weights that oversample transitions with outlying values.

    .. math:: w_i = \max\Big(1, \max_j \frac{|v_{ij} - \bar v_j|}{c\, \mathrm{std}(v_j)}\Big)

    A value of 1 among zeros, in a share :math:`p` of the transitions, lies :math:`\sqrt{(1 - p) / p}` standard
    deviations from the mean: such transitions are a share near :math:`\sqrt{p} / c` of the samples while they are rare,
    and are not oversampled once they are common. Entries that never vary are ignored. Takes values ``[n, D]``, in any
    units, and returns weights ``[n]``. A transition counts as rare beyond ``threshold`` standard deviations, :math:`c`.

    Examples:
        >>> rarity_weights(torch.tensor([[0.0]] * 99 + [[1.0]]), 1.0)[-2:]  # sqrt(99)
        tensor([1.0000, 9.9499])
    """
    std, mean = torch.std_mean(values.double(), 0, correction=0)  # float64: a small spread around a large mean
    deviations = ((values - mean).abs() / std).nan_to_num(nan=0.0).amax(-1)
    return (deviations / threshold).clamp(min=1.0).float()
