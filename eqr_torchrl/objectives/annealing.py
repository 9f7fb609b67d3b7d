"""Step sizes, and the optimism of the policy, that fall towards the end of training."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from eqr_torchrl.utility import OptimisticUtility


class Annealing:
    r"""Lowers step sizes and optimism as training goes on, so that what was found is kept.

    Both stay as they are up to a share ``start`` of training. Step sizes then fall linearly to ``final_rate`` of what
    they were at the end. The ``scale`` of an :class:`~eqr_torchrl.utility.OptimisticUtility` falls linearly to 0 at a
    share ``mean_from``: from there on the policy ascends the mean. Other utilities stay as they are.

    It has no state: what it sets follows only from the share, and from the step sizes and the scale at construction.

    Args:
        optimizer: its groups' step sizes are set.
        utility: what the policy ascends.
        start: share of training, in ``[0, 1]``; 1 lowers nothing.
        mean_from: share of training, above ``start``.
        final_rate: in ``(0, 1]``.

    Examples:
        >>> optimizer, utility = torch.optim.Adam([nn.Parameter(torch.zeros(1))], lr=1e-3), OptimisticUtility(2.0)
        >>> anneal = Annealing(optimizer, utility, start=0.4, mean_from=0.8, final_rate=0.1)
        >>> anneal(0.7)  # half the way from 0.4 to 1, three quarters of that from 0.4 to 0.8
        >>> round(optimizer.param_groups[0]["lr"], 6), round(utility.scale, 3)
        (0.00055, 0.5)
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        utility: nn.Module | None = None,
        *,
        start: float = 0.4,
        mean_from: float = 0.7,
        final_rate: float = 0.1,
    ) -> None:
        if not 0 <= start < mean_from:
            raise ValueError(f"start must be at least 0 and below mean_from, got {start} and {mean_from}.")
        if start > 1 or not 0 < final_rate <= 1:
            raise ValueError(f"start must be at most 1 and final_rate in (0, 1], got {start} and {final_rate}.")
        self.optimizer, self.utility = optimizer, utility
        self.start, self.mean_from, self.final_rate = start, mean_from, final_rate
        self.rates = [group["lr"] for group in optimizer.param_groups]
        self.scale = utility.scale if isinstance(utility, OptimisticUtility) else 0.0

    def __call__(self, share: float) -> None:
        """Sets step sizes and optimism for ``share`` of the training, 0 at its start and 1 at its end."""
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * (1 - _passed(share, self.start, 1.0) * (1 - self.final_rate))
        if self.scale > 0:  # caution stays
            utility: Any = self.utility
            utility.scale = self.scale * (1 - _passed(share, self.start, self.mean_from))


def _passed(share: float, begin: float, end: float) -> float:
    """Part of the way from ``begin`` to ``end`` that lies behind, in ``[0, 1]``."""
    return 0.0 if share <= begin else min((share - begin) / max(end - begin, 1e-9), 1.0)
