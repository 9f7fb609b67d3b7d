"""Maximum-likelihood fits of an ensemble to transitions: for a number of steps, or until held-out data stop it."""

from __future__ import annotations

import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from eqr_torchrl.functional import rarity_weights
from eqr_torchrl.networks._cpu import onednn_matmul
from eqr_torchrl.networks.layers import check_counts
from eqr_torchrl.world_models.gaussian import GaussianEnsemble
from eqr_torchrl.world_models.rows import Rows, mean_errors
from eqr_torchrl.world_models.termination import EndBatches

_REPORTED_ROWS = 4096  # on which errors are reported


class WorldModelFit(ABC):
    """Fits an ensemble repeatedly as data come in: weights and optimiser continue from the last fit.

    Each call recomputes the standardisation from all data. Subclasses decide on which transitions, and for how long,
    each member is trained. The arguments are those of :class:`FixedStepsFit`.
    """

    def __init__(
        self, world_model: GaussianEnsemble, lr: float, weight_decay: float, batch_size: int, variance_weight: float
    ) -> None:
        if not isinstance(world_model, GaussianEnsemble):
            raise ValueError(f"world_model must be a GaussianEnsemble, got {type(world_model).__name__}.")
        check_counts(batch_size=batch_size)
        if not 0 <= variance_weight <= 1:
            raise ValueError(f"variance_weight must be in [0, 1], got {variance_weight}.")
        self.world_model = world_model
        self.optimizer = torch.optim.Adam(world_model.parameters(), lr=lr, weight_decay=weight_decay, fused=True)
        self.batch_size, self.variance_weight = batch_size, variance_weight

    @onednn_matmul()
    def __call__(self, data: TensorDictBase) -> dict[str, Any]:
        """Fits the model to transitions.

        Args:
            data: transitions, batch size ``[n]``, or a replay buffer of them, with ``"observation"``, ``"action"``,
                ``("next", "observation")`` and what the model predicts of ``("next", "reward")`` and
                ``("next", "terminated")``.

        Returns:
            Plain numbers: ``train_rows``, ``seconds``, and errors of each member, means over transitions and entries:
            ``..._mse`` in squared units of the environment, ``..._nll`` in twice nats without the constant.
        """
        start = time.perf_counter()
        rows = Rows(self.world_model, data if isinstance(data, TensorDictBase) else data[:])
        if not self.world_model.normalize_targets and (rows.targets.std(0) >= 100).any():
            needed = "targets must have standard deviations near 1 for normalize_targets=False, got more than 100"
            warnings.warn(f"{needed}: set normalize_targets=True, or scale the rewards.", stacklevel=3)
        report = self._fit(rows)
        return {**report, "seconds": time.perf_counter() - start}

    @abstractmethod
    def _fit(self, rows: Rows) -> dict[str, Any]:
        """Trains the members and reports."""

    def _end_batches(self, rows: Rows, index: Tensor | slice) -> EndBatches | None:
        """Batches for the networks of terminations, if there are any, from the transitions at ``index``."""
        if rows.ends is None or self.world_model.termination is None:
            return None
        return EndBatches(self.world_model.termination, *(value[index] for value in rows.ends))

    def _step(self, rows: Rows, index: Tensor, ends: EndBatches | None, members: Tensor | slice = slice(None)) -> None:
        """One gradient step of the given ``members`` on the transitions at ``index``, shape ``[M, B]``."""
        losses = self.world_model.loss(*rows.take(index), variance_weight=self.variance_weight)
        if ends is not None:
            losses = losses + ends.loss(index.shape[1])
        # divided by all members, so that what one member learns does not depend on which others continue
        loss = losses[members].sum() / self.world_model.num_members
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """State of the optimiser; the weights are state of the model."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores the state from :meth:`state_dict`."""
        self.optimizer.load_state_dict(dict(state_dict))


class FixedStepsFit(WorldModelFit):
    r"""Trains each member for a fixed number of steps on its own bootstrap sample, and oversamples rare targets.

    There is no validation split. The bootstrap sample (bagging; section 4 of
    `Chua et al. (2018) <https://arxiv.org/abs/1805.12114>`_) is drawn anew in each call, and lets members differ where
    data are scarce. A transition with a target more than ``rare_threshold`` standard deviations from its mean, such as
    a first reward among zeros, has that distance divided by the threshold as sampling weight
    (:func:`~eqr_torchrl.functional.rarity_weights`), in every member. Rare states are not oversampled.

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
        super().__init__(world_model, lr, weight_decay, batch_size, variance_weight)
        check_counts(num_steps=num_steps)
        if rare_threshold is not None and not rare_threshold > 0:
            raise ValueError(f"rare_threshold must be positive or None, got {rare_threshold}.")
        self.num_steps, self.rare_threshold = num_steps, rare_threshold

    def _fit(self, rows: Rows) -> dict[str, Any]:
        num_rows, num_members, device = rows.num_rows, self.world_model.num_members, rows.targets.device
        size, threshold = min(self.batch_size, num_rows), self.rare_threshold
        weight = rarity_weights(rows.targets, torch.inf if threshold is None else threshold)
        sample = torch.randint(num_rows, (num_members, num_rows), device=device)
        ones = torch.ones(1, 1, device=device).expand_as(sample)
        copies = torch.zeros(num_members, num_rows, device=device).scatter_add_(1, sample, ones)
        chances = torch.where(weight > 1, weight, copies)  # rare targets are in every member's sample
        index = chances.multinomial(self.num_steps * size, replacement=True)
        ends = self._end_batches(rows, slice(None))
        for batch in index.split(size, dim=1):
            self._step(rows, batch, ends)
        shown = torch.randperm(num_rows, device=device)[:_REPORTED_ROWS]
        mse, nll = mean_errors(self.world_model, rows, shown, units=True).tolist()
        counts = {"train_rows": num_rows, "rare_rows": int((weight > 1).sum())}
        if ends is not None:
            counts["terminated_rows"] = ends.num_ends
        return {"train_mse": mse, "train_nll": nll, **counts}


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
        super().__init__(world_model, lr, weight_decay, batch_size, variance_weight)
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

    def _fit(self, rows: Rows) -> dict[str, Any]:
        model, num_rows, num_members = self.world_model, rows.num_rows, self.world_model.num_members
        device = rows.targets.device
        order = torch.randperm(num_rows, device=device)
        num_validation = min(max(1, int(self.validation_fraction * num_rows)), num_rows - 1)
        num_train = num_rows - num_validation
        validation = order[num_train:]
        bootstrap = order[torch.randint(num_train, (num_members, num_train), device=device)]  # [M, n]

        score = 0 if self.min_likelihood_improvement is None else 1  # row of the reference
        least = torch.inf if self.min_likelihood_improvement is None else self.min_likelihood_improvement
        reference = mean_errors(model, rows, validation)  # [2, M]; later of the last fall that counted
        best, active = reference[score], torch.ones(num_members, dtype=torch.bool, device=device)
        since_fall, member_epochs = torch.zeros(2, num_members, dtype=torch.long, device=device)
        parameters = list(model.layers.parameters())
        best_weights = [parameter.detach().clone() for parameter in parameters]
        end_parameters = [] if model.termination is None else list(model.termination.parameters())
        last_weights = [p.detach().clone() for p in end_parameters]  # held-out errors do not measure terminations
        ends, epoch = self._end_batches(rows, order[:num_train]), 0
        try:
            while active.any() and (self.max_epochs is None or epoch < self.max_epochs):
                epoch += 1
                shuffle = torch.randperm(num_train, device=device)
                for index in bootstrap[:, shuffle].split(self.batch_size, dim=1):
                    self._step(rows, index, ends, active)
                errors = mean_errors(model, rows, validation)
                improved = active & (errors[score] < best)
                best = torch.where(improved, errors[score], best)
                for kept, parameter in zip(best_weights, parameters, strict=True):
                    kept[improved] = parameter.detach()[improved]
                fell = errors < torch.stack([reference[0] * (1 - self.min_improvement), reference[1] - least])
                for kept, parameter in zip(last_weights, end_parameters, strict=True):
                    kept[active] = parameter.detach()[active]
                reference = torch.where(fell, errors, reference)
                since_fall = torch.where(fell.any(0), 0, since_fall + 1)
                member_epochs += active
                active = active & (since_fall < self.patience)
        finally:
            kept_weights = [*best_weights, *last_weights]
            for kept, parameter in zip(kept_weights, [*parameters, *end_parameters], strict=True):
                parameter.data.copy_(kept)
        mse, nll = mean_errors(model, rows, validation, units=True).tolist()
        counts = {"train_rows": num_train, "validation_rows": num_validation}
        epochs = {"epochs": epoch, "member_epochs": member_epochs.tolist()}
        return {**epochs, "validation_mse": mse, "validation_nll": nll, **counts}
