"""Sampling weights that oversample transitions with outlying values."""

from __future__ import annotations

import torch
from torch import Tensor


def rarity_weights(values: Tensor, threshold: float) -> Tensor:
    r"""Sampling weights that oversample transitions with outlying values.

    .. math:: w_i = \max\Big(1, \max_j \frac{|v_{ij} - \bar v_j|}{c\, \mathrm{std}(v_j)}\Big)

    A value of 1 among zeros, in a share :math:`p` of the transitions, lies :math:`\sqrt{(1 - p) / p}` standard
    deviations from the mean: such transitions are a share near :math:`\sqrt{p} / c` of the samples while they are rare,
    and are not oversampled once they are common. Entries that never vary are ignored.
    Of values ``[n, D]``, in any units; the weights are ``[n]``. Beyond ``threshold`` standard deviations, :math:`c`, a
    transition counts as rare.

    Examples:
        >>> rarity_weights(torch.tensor([[0.0]] * 99 + [[1.0]]), 1.0)[-2:]  # sqrt(99)
        tensor([1.0000, 9.9499])
    """
    std, mean = torch.std_mean(values.double(), 0, correction=0)  # float64: a small spread around a large mean
    deviations = ((values - mean).abs() / std).nan_to_num(nan=0.0).amax(-1)
    return (deviations / threshold).clamp(min=1.0).float()
