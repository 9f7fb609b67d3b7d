"""Errors of Gaussian predictions, the same for a fit and for held-out data."""

from __future__ import annotations

import torch
from torch import Tensor


def prediction_errors(mean: Tensor, scale: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Squared errors, squared standardised errors and the likelihood loss, entry by entry.

    .. math:: (\mu - y)^2, \quad z^2 = (\mu - y)^2 / \sigma^2, \quad z^2 + 2 \log \sigma

    An entry that never changed in a fit is predicted without noise, :math:`\sigma = 0`. It counts nothing where it came
    as predicted (:math:`z^2 = 0`, a loss of 0), and is infinitely unlikely where it did not.

    Args:
        mean: predicted means, shape ``[..., D]``.
        scale: predicted standard deviations, zero or more, shape ``[..., D]``.
        target: observed values, shape ``[..., D]``.

    Returns:
        Three tensors of shape ``[..., D]``; the loss is twice the negative log-likelihood in nats, without constant.

    Examples:
        >>> prediction_errors(torch.tensor([1.0, 3.0]), torch.tensor([0.5, 0.0]), torch.tensor([2.0, 3.0]))
        (tensor([1., 0.]), tensor([4., 0.]), tensor([2.6137, 0.0000]))
    """
    squared, noisy = (mean - target).square(), scale > 0
    certain = torch.where(torch.isclose(mean, target), 0.0, torch.inf)  # rounding is no surprise
    safe = torch.where(noisy, scale, 1.0)
    standardised = torch.where(noisy, squared / safe.square(), certain)
    return squared, standardised, standardised + 2 * safe.log()
