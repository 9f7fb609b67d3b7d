"""Fitting until held-out data stop it, as published."""

from __future__ import annotations

from typing import Any

import torch

from eqr_torchrl.world_models._active_members import ActiveMembers
from eqr_torchrl.world_models.fit import Progress, Rows, WorldModelFit, errors
from eqr_torchrl.world_models.gaussian import GaussianEnsemble


class EarlyStoppingFit(WorldModelFit):
    r"""Trains each member on its own bootstrap sample, until held-out data stop it, as in the paper's code.

    Each call draws a new held-out split, the same for all members, and for each member a bootstrap sample of the rest
    (bagging; section 4 of `Chua et al. (2018) <https://arxiv.org/abs/1805.12114>`_).

    A member stops when its held-out squared error has not fallen by more than ``min_improvement``, relative to the
    last such fall, for ``patience`` epochs. It then gets the weights of its lowest held-out error back, those of before
    the fit if no epoch was better. (Keeping only weights that pass ``min_improvement`` would undo most late fits, which
    gain less.) Members that have stopped cost nothing.

    Squared errors alone let a member whose mean is soon good enough stop before it has learned its noise. With
    ``min_likelihood_improvement`` a fall of the held-out likelihood loss counts as well, and the weights of the lowest
    likelihood loss are kept. Held-out errors do not measure a rare row: what it teaches may be undone at each fit.

    Args:
        world_model: ensemble to fit.
        lr: step size of Adam.
        weight_decay: L2 penalty in Adam's gradient.
        batch_size: rows of each member in one step. With fewer training rows, all of them make one batch.
        variance_weight: :math:`\beta` of :meth:`GaussianEnsemble.loss`; 0 is plain likelihood, as published.
        validation_fraction: fraction of the data that is held out, at least one row.
        patience: epochs without improvement after which a member stops.
        min_improvement: smallest relative fall of the squared error that counts as improvement.
        min_likelihood_improvement: smallest fall of the likelihood loss that counts as well, for instance 0.01, worth
            as much as a hundredth of the squared error once the stated noise fits. Defaults to ``None``: none counts.
        max_epochs: most epochs of any member. Defaults to no limit.

    Raises:
        ValueError: if an argument is out of its range.

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
        if patience < 1:
            raise ValueError(f"patience must be positive, got {patience}.")
        for name, value in (("validation_fraction", validation_fraction), ("min_improvement", min_improvement)):
            if not 0 <= value < 1 or (name == "validation_fraction" and value == 0):
                raise ValueError(f"{name} must be a fraction below 1, got {value}.")
        if min_likelihood_improvement is not None and not min_likelihood_improvement >= 0:
            raise ValueError(f"min_likelihood_improvement must not be negative, got {min_likelihood_improvement}.")
        if max_epochs is not None and max_epochs < 0:
            raise ValueError(f"max_epochs must not be negative, got {max_epochs}.")
        self.validation_fraction, self.patience, self.max_epochs = validation_fraction, patience, max_epochs
        self.min_improvement, self.min_likelihood_improvement = min_improvement, min_likelihood_improvement

    def _fit(self, rows: Rows, generator: torch.Generator | None, progress: Progress | None) -> dict[str, Any]:
        model, num_rows, num_members = self.world_model, rows.num_rows, self.world_model.num_members
        device = rows.targets.device
        draw = {"generator": generator, "device": device if generator is None else generator.device}
        order = torch.randperm(num_rows, **draw).to(device)
        num_validation = min(max(1, int(self.validation_fraction * num_rows)), num_rows - 1)
        num_train = num_rows - num_validation
        validation = order[num_train:]
        bootstrap = order[torch.randint(num_train, (num_members, num_train), **draw).to(device)]  # [M, n]

        members = ActiveMembers(model, self.optimizer, num_members)
        likelihood_counts = self.min_likelihood_improvement is not None
        least_mse, least_nll = errors(model, rows, validation, members.active).tolist()  # later ones are to undercut
        lowest = list(least_nll if likelihood_counts else least_mse)  # of the weights that are kept
        since_best, member_epochs, epoch = [0] * num_members, [0] * num_members, 0
        try:
            while members.active and (self.max_epochs is None or epoch < self.max_epochs):
                epoch += 1
                shuffle = torch.randperm(num_train, **draw).to(device)
                for index in bootstrap[members.active][:, shuffle].split(self.batch_size, dim=1):
                    self._step(rows, index, members.active)
                mse, nll = errors(model, rows, validation, members.active).tolist()  # one host sync
                improved = []
                for position, member in enumerate(members.active):
                    member_epochs[member] = epoch
                    score = nll[position] if likelihood_counts else mse[position]
                    if score < lowest[member]:
                        lowest[member] = score
                        improved.append(position)
                    since_best[member] += 1
                    if mse[position] < least_mse[member] * (1 - self.min_improvement):
                        least_mse[member], since_best[member] = mse[position], 0
                    if likelihood_counts and nll[position] < least_nll[member] - self.min_likelihood_improvement:
                        least_nll[member], since_best[member] = nll[position], 0
                members.keep_best(improved)
                going = [
                    position for position, member in enumerate(members.active) if since_best[member] < self.patience
                ]
                if len(going) < len(members.active):
                    members.keep_only(going)
                if progress is not None:
                    name = "validation_nll" if likelihood_counts else "validation_mse"  # on the networks' scale
                    progress({"epoch": epoch, name: list(lowest), "active_members": list(members.active)})
        finally:
            members.restore()
        mse, nll = errors(model, rows, validation, list(range(num_members)), units=True)
        return {
            "epochs": epoch,
            "member_epochs": member_epochs,
            "validation_mse": mse.tolist(),
            "validation_nll": nll.tolist(),
            "train_rows": num_train,
            "validation_rows": num_validation,
        }
