"""A fixed number of gradient steps on all data."""

from __future__ import annotations

from typing import Any

import torch

from eqr_torchrl.functional import rarity_weights
from eqr_torchrl.networks.layers import check_counts
from eqr_torchrl.world_models.fit import Progress, WorldModelFit
from eqr_torchrl.world_models.gaussian import GaussianEnsemble
from eqr_torchrl.world_models.rows import Rows, mean_errors

_REPORTED_ROWS = 4096  # on which errors are reported


class FixedStepsFit(WorldModelFit):
    r"""Trains each member for a fixed number of steps on its own bootstrap sample, and oversamples rare targets.

    There is no validation split. The bootstrap sample (bagging; section 4 of `Chua et al. (2018)
    <https://arxiv.org/abs/1805.12114>`_) is drawn anew in each call, and lets members differ where data are scarce. A
    transition with a target more than ``rare_threshold`` standard deviations from its mean, such as a first reward
    among zeros, counts as often as it exceeds the threshold (:func:`~eqr_torchrl.functional.rarity_weights`), in every
    member. Rare states are not oversampled.

    Args:
        world_model: ensemble to fit.
        num_steps: gradient steps of each call.
        lr: step size of Adam.
        weight_decay: L2 penalty in Adam's gradient.
        batch_size: transitions of each member in one step, or as many as there are.
        variance_weight: :math:`\beta` of :meth:`GaussianEnsemble.loss`; 0 is plain likelihood.
        rare_threshold: standard deviations of a target beyond which a transition is oversampled. ``None``: none is.

    Examples:
        >>> model = GaussianEnsemble(3, 1, num_members=2, num_cells=(8,))
        >>> metrics = FixedStepsFit(model, num_steps=30)(toy_env().rollout(20))
        >>> metrics["train_rows"], len(metrics["train_mse"])
        (20, 2)
    """

    def __init__(
        self,
        world_model: GaussianEnsemble,
        *,
        num_steps: int = 250,
        lr: float = 1e-3,
        weight_decay: float = 5e-5,
        batch_size: int = 256,
        variance_weight: float = 0.5,
        rare_threshold: float | None = 3.0,
    ) -> None:
        super().__init__(
            world_model, lr=lr, weight_decay=weight_decay, batch_size=batch_size, variance_weight=variance_weight
        )
        check_counts(num_steps=num_steps)
        if rare_threshold is not None and not rare_threshold > 0:
            raise ValueError(f"rare_threshold must be positive or None, got {rare_threshold}.")
        self.num_steps, self.rare_threshold = num_steps, rare_threshold

    def _fit(self, rows: Rows, generator: torch.Generator | None, progress: Progress | None) -> dict[str, Any]:
        num_rows, num_members, device = rows.num_rows, self.world_model.num_members, rows.targets.device
        draw, size = device if generator is None else generator.device, min(self.batch_size, num_rows)
        weight = torch.ones(num_rows, device=draw)
        if self.rare_threshold is not None:
            weight = rarity_weights(rows.targets, self.rare_threshold).to(draw)
        sample = torch.randint(num_rows, (num_members, num_rows), generator=generator, device=draw)
        ones = torch.ones(1, 1, device=draw).expand_as(sample)
        copies = torch.zeros(num_members, num_rows, device=draw).scatter_add_(1, sample, ones)
        chances = torch.where(weight > 1, weight, copies)  # rare targets are in every member's sample
        index = chances.multinomial(self.num_steps * size, replacement=True, generator=generator).to(device)
        ends = self._end_batches(rows, slice(None), generator)
        for step, batch in enumerate(index.split(size, dim=1), 1):
            self._step(rows, batch, ends)
            if progress is not None:
                progress({"step": step, "num_steps": self.num_steps})
        shown = torch.randperm(num_rows, generator=generator, device=draw)[:_REPORTED_ROWS].to(device)
        mse, nll = mean_errors(self.world_model, rows, shown, units=True).tolist()
        counts = {"train_rows": num_rows, "rare_rows": int((weight > 1).sum())}
        if ends is not None:
            counts["terminated_rows"] = ends.num_ends
        return {"train_mse": mse, "train_nll": nll, **counts}
