"""Maximum-likelihood fit of an ensemble to transitions."""

from __future__ import annotations

import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from eqr_torchrl.functional import gaussian_nll, onednn_products
from eqr_torchrl.world_models._transitions import regression_data
from eqr_torchrl.world_models.gaussian import GaussianEnsemble

#: Rows of each member that are evaluated at once.
_EVALUATION_ROWS = 4096

Progress = Callable[[dict[str, Any]], None]


class WorldModelFit(ABC):
    r"""Fits an ensemble repeatedly as data come in: weights and optimiser continue from the last fit.

    Each call recomputes the normalisation from all data. The model and the optimiser are complete when a call returns
    or raises. Subclasses decide on which rows, and for how long, each member is trained: :class:`FixedStepsFit`, and
    :class:`EarlyStoppingFit` as published.

    Args:
        world_model: ensemble to fit.
        lr: step size of Adam.
        weight_decay: L2 penalty in Adam's gradient.
        batch_size: rows of each member in one step. With fewer training rows, all of them make one batch.
        variance_weight: :math:`\beta` of :meth:`GaussianEnsemble.loss`; 0 is plain likelihood.

    Raises:
        ValueError: if an argument is out of its range.
    """

    def __init__(
        self,
        world_model: GaussianEnsemble,
        *,
        lr: float,
        weight_decay: float,
        batch_size: int,
        variance_weight: float,
    ) -> None:
        if not isinstance(world_model, GaussianEnsemble):
            raise ValueError(f"world_model must be a GaussianEnsemble, got {type(world_model).__name__}.")
        if batch_size < 1:
            raise ValueError(f"batch_size must be positive, got {batch_size}.")
        for name, value in (("lr", lr), ("weight_decay", weight_decay)):
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name} must be finite and not negative, got {value}.")
        if not 0 <= variance_weight <= 1:
            raise ValueError(f"variance_weight must be in [0, 1], got {variance_weight}.")
        self.world_model = world_model
        self.optimizer = torch.optim.Adam(world_model.parameters(), lr=lr, weight_decay=weight_decay, fused=True)
        self.batch_size, self.variance_weight = batch_size, variance_weight
        self._scale_warned = False

    @onednn_products()
    def __call__(
        self,
        data: TensorDictBase,
        *,
        generator: torch.Generator | None = None,
        progress: Progress | None = None,
    ) -> dict[str, Any]:
        """Fits the model to transitions.

        Args:
            data: transitions, batch size ``[n]``, with ``"observation"``, ``"action"``, ``("next", "observation")``
                and, if the model predicts rewards, ``("next", "reward")``, in units of the environment; or a replay
                buffer of them.
            generator: source of randomness. Defaults to torch's global one.
            progress: called regularly with plain numbers, the progress of the fit.

        Returns:
            Plain numbers. Errors of each member are means over rows and entries: ``..._mse`` in squared units of the
            environment, ``..._nll`` in twice nats without the constant, entries that never changed left out;
            ``train_rows`` and ``seconds``; and what a subclass adds.

        Raises:
            ValueError: if ``data`` lack a key, have another shape or fewer than two rows, or are not finite.
        """
        start = time.perf_counter()
        if not isinstance(data, TensorDictBase):
            data = data[:]
        inputs, targets = regression_data(self.world_model, data)
        if len(inputs) < 2:
            raise ValueError(f"data must hold at least two transitions, got {len(inputs)}.")
        self.world_model.update_statistics(inputs, targets)
        self._warn_of_scale(targets)
        report = self._fit(Rows(self.world_model, inputs, targets), generator, progress)
        return {**report, "seconds": time.perf_counter() - start}

    def _warn_of_scale(self, targets: Tensor) -> None:
        """Warns once where targets in units of the environment are too large for the networks to learn."""
        if self._scale_warned or self.world_model.normalize_targets or (spread := targets.std(0).max().item()) < 100:
            return
        self._scale_warned = True
        warnings.warn(
            f"targets must have deviations near 1 for a model with normalize_targets=False, got {spread:.2g}: set "
            "normalize_targets=True, or scale the rewards.",
            stacklevel=3,
        )

    @abstractmethod
    def _fit(self, rows: Rows, generator: torch.Generator | None, progress: Progress | None) -> dict[str, Any]:
        """Trains the members and reports."""

    def _step(self, rows: Rows, index: Tensor, members: list[int]) -> None:
        """One gradient step on the rows at ``index``, shape ``[m, B]``, of the given members."""
        inputs, targets = rows.take(index, members)
        losses = self.world_model.loss(inputs, targets, variance_weight=self.variance_weight)
        # divided by all members, so that what one member learns does not depend on which others continue
        loss = losses.sum() / self.world_model.num_members
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """State of the optimiser; the weights are the model's own state."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores the state from :meth:`state_dict`."""
        self.optimizer.load_state_dict(dict(state_dict))


class Rows:
    """Normalised inputs and targets of each member; the member's prior is subtracted from the targets."""

    def __init__(self, world_model: GaussianEnsemble, inputs: Tensor, targets: Tensor) -> None:
        self.num_rows, self.num_inputs = inputs.shape
        self.targets = targets  # in units of the environment
        raw, inputs, targets = inputs, world_model.normalizer(inputs), world_model.normalize(targets)
        self.per_member = world_model.prior is not None
        if world_model.prior is not None:
            inputs = inputs.expand(world_model.num_members, *inputs.shape)
            prior = world_model.prior(world_model.prior_normalizer(raw).expand_as(inputs))
            targets = targets - world_model.prior_weight * prior
        self.rows = torch.cat([inputs, targets], -1).flatten(0, -2)  # [n or M * n, S + A + D]: one gather a batch

    def take(self, index: Tensor, members: list[int]) -> tuple[Tensor, Tensor]:
        """Inputs ``[m, B, S + A]`` and targets ``[m, B, D]`` at ``index``, shape ``[m, B]``, of the given members."""
        if self.per_member:
            index = index + self.num_rows * torch.tensor(members, device=index.device).unsqueeze(-1)
        batch = self.rows.index_select(0, index.flatten()).view(*index.shape, -1)
        return batch[..., : self.num_inputs], batch[..., self.num_inputs :]


@torch.no_grad()
def errors(
    world_model: GaussianEnsemble, rows: Rows, index: Tensor, members: list[int], *, units: bool = False
) -> Tensor:
    """Squared error and likelihood loss of the given members at ``index``, ``[2, m]``, mean over rows and entries.

    On the networks' scale, or in units of the environment.
    """
    mse, nll = rows.rows.new_zeros(2, len(members))
    scale = world_model.target_scale if units else torch.ones_like(world_model.target_scale)
    changing = world_model.target_scale > 0
    for chunk in index.split(_EVALUATION_ROWS):
        inputs, targets = rows.take(chunk.expand(len(members), -1), members)
        mean, log_var = world_model.predict(inputs)
        mse += ((mean - targets) * scale).square().mean(-1).sum(-1)
        entries = gaussian_nll(mean, log_var, targets) + 2 * torch.where(changing, scale, 1.0).log()
        nll += (entries * changing).sum((-1, -2)) / changing.sum().clamp(min=1)
    return torch.stack([mse, nll]) / len(index)
