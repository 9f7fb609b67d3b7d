"""A fixed number of gradient steps on all data."""

from __future__ import annotations

from typing import Any

import torch

from eqr_torchrl.functional.rarity import check_rare_threshold, rarity_weights
from eqr_torchrl.world_models.fit import Progress, Rows, WorldModelFit, errors
from eqr_torchrl.world_models.gaussian import GaussianEnsemble

#: Rows on which errors are reported.
_REPORTED_ROWS = 4096


class FixedStepsFit(WorldModelFit):
    r"""Trains each member for a fixed number of steps, on its own bootstrap sample, with rare rows drawn more often.

    No data are held out, so that every transition teaches, and the cost of a fit does not grow with the data. The
    bootstrap sample (bagging; section 4 of `Chua et al. (2018) <https://arxiv.org/abs/1805.12114>`_) is drawn anew in
    each call, and lets members differ where data are scarce.

    A reward seen once among thousands of zeros would be drawn once in a pass over the data, which is too seldom to
    learn it. A row with a target more than ``rare_threshold`` standard deviations from its mean counts as often as it
    exceeds the threshold (:func:`~eqr_torchrl.functional.rarity_weights`), in every member. Rows are weighed by their
    targets alone: a rare *place* is left to the bootstrap.

    Args:
        world_model: ensemble to fit.
        num_steps: gradient steps of each call.
        lr: step size of Adam.
        weight_decay: L2 penalty in Adam's gradient.
        batch_size: rows of each member in one step. With fewer rows, each step draws as many as there are.
        variance_weight: :math:`\beta` of :meth:`GaussianEnsemble.loss`; 0 is plain likelihood.
        rare_threshold: standard deviations of a target beyond which a row is drawn more often. ``None`` draws all rows
            alike.

    Raises:
        ValueError: if an argument is out of its range.

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
        final_lr: float = 1.0,
    ) -> None:
        super().__init__(
            world_model, lr=lr, weight_decay=weight_decay, batch_size=batch_size, variance_weight=variance_weight
        )
        if num_steps < 1:
            raise ValueError(f"num_steps must be positive, got {num_steps}.")
        self.lr, self.final_lr = lr, final_lr  # of each fit; the last as a fraction of the first
        self.num_steps, self.rare_threshold = num_steps, check_rare_threshold(rare_threshold)

    def _fit(self, rows: Rows, generator: torch.Generator | None, progress: Progress | None) -> dict[str, Any]:
        num_rows, num_members = rows.num_rows, self.world_model.num_members
        device = rows.targets.device
        members, draw = list(range(num_members)), device if generator is None else generator.device
        size = min(self.batch_size, num_rows)
        weight = torch.ones(num_rows, device=draw)
        if self.rare_threshold is not None:
            weight = rarity_weights(rows.targets, self.rare_threshold).to(draw)
        sample = torch.randint(num_rows, (num_members, num_rows), generator=generator, device=draw)
        copies = torch.zeros(num_members, num_rows, device=draw).scatter_add_(
            1, sample, torch.ones(1, 1, device=draw).expand_as(sample)
        )
        chances = torch.where(weight > 1, weight, copies)  # rare rows are in every member's sample
        index = chances.multinomial(self.num_steps * size, replacement=True, generator=generator).to(device)
        for step, batch in enumerate(index.split(size, dim=1), 1):
            for group in self.optimizer.param_groups:
                group["lr"] = self.lr * (1 - (1 - self.final_lr) * (step - 1) / self.num_steps)
            self._step(rows, batch, members)
            if progress is not None:
                progress({"step": step, "num_steps": self.num_steps})
        shown = torch.randperm(num_rows, generator=generator, device=draw)[:_REPORTED_ROWS].to(device)
        mse, nll = errors(self.world_model, rows, shown, members, units=True).tolist()
        return {"train_mse": mse, "train_nll": nll, "train_rows": num_rows, "rare_rows": int((weight > 1).sum())}
