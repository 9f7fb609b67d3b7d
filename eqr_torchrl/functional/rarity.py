"""Sampling weights that oversample rows with outlying values."""

from __future__ import annotations

import torch
from torch import Tensor


def check_rare_threshold(threshold: float | None) -> float | None:
    """The threshold of :func:`rarity_weights`, or ``None``; a ValueError if it is neither."""
    if threshold is not None and not threshold > 0:
        raise ValueError(f"rare_threshold must be positive or None, got {threshold}.")
    return threshold


def rarity_weights(values: Tensor, threshold: float) -> Tensor:
    r"""Sampling weights that oversample rows with outlying values.

    .. math:: w_i = \max\Big(1, \max_j \frac{|v_{ij} - \bar v_j|}{c\, \mathrm{std}(v_j)}\Big)

    A value of 1 among zeros, seen in a share :math:`p` of the rows, lies :math:`\sqrt{(1 - p) / p}` standard deviations
    from the mean: its rows are a share near :math:`\sqrt{p} / c` of the samples while they are rare, and no more than
    others once they are common. Columns that never vary are ignored.

    Args:
        values: one row for each transition, in any units, shape ``[n, D]``.
        threshold: :math:`c`, standard deviations beyond which a row counts as rare.

    Returns:
        Weights of at least 1, shape ``[n]``.

    Examples:
        >>> rarity_weights(torch.tensor([[0.0]] * 99 + [[1.0]]), 1.0)[-2:]  # sqrt(99)
        tensor([1.0000, 9.9499])
    """
    std, mean = torch.std_mean(values.double(), 0, correction=0)  # float64: a small spread around a large mean
    deviations = ((values - mean).abs() / std).nan_to_num(nan=0.0).amax(-1)
    return (deviations / threshold).clamp(min=1.0).float()
