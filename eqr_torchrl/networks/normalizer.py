"""Inputs of a network on a common scale."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Normalizer(nn.Module):
    r"""Shifts and scales each entry by fixed statistics: :math:`\mathrm{clip}((x - \mu) / \sigma, \pm c)`.

    The statistics change only in :meth:`update`, so evaluating a model never alters it. Entries whose standard
    deviation is below ``min_std`` count as constant and keep their unit, so that nothing is divided by a tiny number.

    Args:
        num_features: number of entries, ``F``.
        clip: largest magnitude of a normalised entry, in standard deviations.
        min_std: standard deviation, in units of the input, below which an entry is only centred.

    Examples:
        >>> normalizer = Normalizer(2)
        >>> normalizer.update(torch.tensor([[0.0, 7.0], [1.0, 7.0], [2.0, 7.0]]))
        >>> normalizer(torch.tensor([[3.0, 8.0], [1e9, 7.0]]))
        tensor([[ 2.,  1.],
                [20.,  0.]])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, num_features: int, *, clip: float = 20.0, min_std: float = 1e-5) -> None:
        super().__init__()
        for name, value in (("num_features", num_features), ("clip", clip), ("min_std", min_std)):
            if not value > 0:
                raise ValueError(f"{name} must be positive, got {value}.")
        self.clip, self.min_std = clip, min_std
        self.register_buffer("mean", torch.zeros(num_features))
        self.register_buffer("std", torch.ones(num_features))

    @torch.no_grad()
    def update(self, data: Tensor) -> None:
        """Replaces the statistics by those of samples ``[n, F]``; standard deviations of a single one are 1."""
        if data.ndim != 2 or data.shape[1] != self.mean.numel() or not len(data):
            raise ValueError(f"data must be [n, {self.mean.numel()}] with n > 0, got {tuple(data.shape)}.")
        # float64: float32 sums lose an entry's small spread around a large mean
        var, mean = torch.var_mean(data.double(), 0, correction=min(1, len(data) - 1))
        std = var.sqrt()
        self.mean.copy_(mean)
        self.std.copy_(torch.where(std < self.min_std, torch.ones_like(std), std))

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalises ``[..., F]``."""
        return ((inputs - self.mean) / self.std).clamp(-self.clip, self.clip)
