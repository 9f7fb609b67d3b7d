"""Fitting until held-out data stop it, as published."""

from __future__ import annotations

from typing import Any

import torch

from eqr_torchrl.networks.layers import check_counts
from eqr_torchrl.world_models.fit import Progress, WorldModelFit
from eqr_torchrl.world_models.gaussian import GaussianEnsemble
from eqr_torchrl.world_models.rows import Rows, mean_errors


class EarlyStoppingFit(WorldModelFit):
    r"""Trains each member on its own bootstrap sample, until held-out data stop it, as in the paper's code.

    Each call draws a new hold-out split, the same for all members, and for each member a bootstrap sample of the rest
    (bagging; section 4 of `Chua et al. (2018) <https://arxiv.org/abs/1805.12114>`_). A member stops when its held-out
    squared error has not fallen by more than ``min_improvement``, relative to the last such fall, for ``patience``
    epochs. It then gets the weights of its lowest held-out error back, those of before the fit if no epoch was better.

    Squared errors alone let a member stop before it has learned its noise. With ``min_likelihood_improvement`` a fall
    of the held-out likelihood loss counts as well, and the weights of the lowest one are kept.

    Args:
        world_model, lr, weight_decay, batch_size, variance_weight: see :class:`FixedStepsFit`.
        validation_fraction: fraction of the data that is held out, at least one transition.
        patience: epochs without improvement after which a member stops.
        min_improvement: smallest relative fall of the squared error that counts as improvement.
        min_likelihood_improvement: smallest fall of the likelihood loss that counts as well, for instance 0.01.
        max_epochs: most epochs of any member. Defaults to no limit.

    Examples:
        >>> model = GaussianEnsemble(3, 1, num_members=2, num_cells=(8,))
        >>> metrics = EarlyStoppingFit(model, lr=1e-2, max_epochs=3)(toy_env().rollout(20))
        >>> metrics["train_rows"], metrics["validation_rows"], len(metrics["validation_mse"])
        (16, 4, 2)
    """

    def __init__(
        self,
        world_model: GaussianEnsemble,
        *,
        lr: float = 1e-3,
        weight_decay: float = 5e-5,
        batch_size: int = 256,
        variance_weight: float = 0.0,
        validation_fraction: float = 0.2,
        patience: int = 5,
        min_improvement: float = 0.01,
        min_likelihood_improvement: float | None = None,
        max_epochs: int | None = None,
    ) -> None:
        super().__init__(
            world_model, lr=lr, weight_decay=weight_decay, batch_size=batch_size, variance_weight=variance_weight
        )
        check_counts(patience=patience)
        if not 0 < validation_fraction < 1:
            raise ValueError(f"validation_fraction must be a fraction above 0 and below 1, got {validation_fraction}.")
        if not 0 <= min_improvement < 1:
            raise ValueError(f"min_improvement must be a fraction below 1, got {min_improvement}.")
        limits = {"min_likelihood_improvement": min_likelihood_improvement, "max_epochs": max_epochs}
        for name, limit in limits.items():
            if limit is not None and not limit >= 0:
                raise ValueError(f"{name} must not be negative, got {limit}.")
        self.validation_fraction, self.patience, self.max_epochs = validation_fraction, patience, max_epochs
        self.min_improvement, self.min_likelihood_improvement = min_improvement, min_likelihood_improvement

    def _fit(self, rows: Rows, generator: torch.Generator | None, progress: Progress | None) -> dict[str, Any]:
        model, num_rows, num_members = self.world_model, rows.num_rows, self.world_model.num_members
        device = rows.targets.device
        draw: dict[str, Any] = {"generator": generator, "device": device if generator is None else generator.device}
        order = torch.randperm(num_rows, **draw).to(device)
        num_validation = min(max(1, int(self.validation_fraction * num_rows)), num_rows - 1)
        num_train = num_rows - num_validation
        validation = order[num_train:]
        bootstrap = order[torch.randint(num_train, (num_members, num_train), **draw).to(device)]  # [M, n]

        least = self.min_likelihood_improvement
        score_name, score = ("validation_mse", 0) if least is None else ("validation_nll", 1)  # on the networks' scale
        least = torch.inf if least is None else least
        reference = mean_errors(model, rows, validation)  # [2, M]; later of the last fall that counted
        best, active = reference[score], torch.ones(num_members, dtype=torch.bool, device=device)
        since_fall, member_epochs = torch.zeros(2, num_members, dtype=torch.long, device=device)
        parameters = list(model.layers.parameters())  # not those of terminations, which held-out errors do not measure
        best_weights = [parameter.detach().clone() for parameter in parameters]
        ends, epoch = self._end_batches(rows, order[:num_train], generator), 0
        try:
            while active.any() and (self.max_epochs is None or epoch < self.max_epochs):
                epoch += 1
                shuffle = torch.randperm(num_train, **draw).to(device)
                for index in bootstrap[:, shuffle].split(self.batch_size, dim=1):
                    self._step(rows, index, ends, active)
                errors = mean_errors(model, rows, validation)
                improved = active & (errors[score] < best)
                best = torch.where(improved, errors[score], best)
                for kept, parameter in zip(best_weights, parameters, strict=True):
                    kept[improved] = parameter.detach()[improved]
                fell = errors < torch.stack([reference[0] * (1 - self.min_improvement), reference[1] - least])
                reference = torch.where(fell, errors, reference)
                since_fall = torch.where(fell.any(0), 0, since_fall + 1)
                member_epochs += active
                active = active & (since_fall < self.patience)
                if progress is not None:
                    members = active.nonzero().flatten().tolist()
                    progress({"epoch": epoch, score_name: best.tolist(), "active_members": members})
        finally:
            for kept, parameter in zip(best_weights, parameters, strict=True):
                parameter.data.copy_(kept)
        mse, nll = mean_errors(model, rows, validation, units=True).tolist()
        counts = {"train_rows": num_train, "validation_rows": num_validation}
        epochs = {"epochs": epoch, "member_epochs": member_epochs.tolist()}
        return {**epochs, "validation_mse": mse, "validation_nll": nll, **counts}
