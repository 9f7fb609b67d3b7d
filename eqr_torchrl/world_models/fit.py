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

from eqr_torchrl.networks._cpu import onednn_matmul
from eqr_torchrl.networks.layers import check_counts
from eqr_torchrl.world_models.gaussian import GaussianEnsemble
from eqr_torchrl.world_models.rows import Rows
from eqr_torchrl.world_models.termination import EndBatches

Progress = Callable[[dict[str, Any]], None]


class WorldModelFit(ABC):
    """Fits an ensemble repeatedly as data come in: weights and optimiser continue from the last fit.

    Each call recomputes the standardisation from all data. Subclasses decide on which transitions, and for how long,
    each member is trained. The arguments are those of :class:`FixedStepsFit`.
    """

    def __init__(
        self, world_model: GaussianEnsemble, *, lr: float, weight_decay: float, batch_size: int, variance_weight: float
    ) -> None:
        if not isinstance(world_model, GaussianEnsemble):
            raise ValueError(f"world_model must be a GaussianEnsemble, got {type(world_model).__name__}.")
        check_counts(batch_size=batch_size)
        if not 0 <= variance_weight <= 1:
            raise ValueError(f"variance_weight must be in [0, 1], got {variance_weight}.")
        self.world_model = world_model
        self.optimizer = torch.optim.Adam(world_model.parameters(), lr=lr, weight_decay=weight_decay, fused=True)
        self.batch_size, self.variance_weight = batch_size, variance_weight
        self._scale_warned = False

    @onednn_matmul()
    def __call__(
        self, data: TensorDictBase, *, generator: torch.Generator | None = None, progress: Progress | None = None
    ) -> dict[str, Any]:
        """Fits the model to transitions.

        Args:
            data: transitions, batch size ``[n]``, or a replay buffer of them, with ``"observation"``, ``"action"``,
                ``("next", "observation")`` and what the model predicts of ``("next", "reward")`` and
                ``("next", "terminated")``.
            generator: source of randomness. Defaults to torch's global one.
            progress: called regularly with plain numbers, the progress of the fit.

        Returns:
            Plain numbers: ``train_rows``, ``seconds``, and errors of each member, means over transitions and entries:
            ``..._mse`` in squared units of the environment, ``..._nll`` in twice nats without the constant.
        """
        start = time.perf_counter()
        rows = Rows(self.world_model, data if isinstance(data, TensorDictBase) else data[:])
        if not (self.world_model.normalize_targets or self._scale_warned):
            self._scale_warned = (spread := rows.targets.std(0).max().item()) >= 100
            if self._scale_warned:
                warnings.warn(
                    f"targets must have standard deviations near 1 for a model with normalize_targets=False, got "
                    f"{spread:.2g}: set normalize_targets=True, or scale the rewards.",
                    stacklevel=3,  # outside of the decorator
                )
        report = self._fit(rows, generator, progress)
        return {**report, "seconds": time.perf_counter() - start}

    @abstractmethod
    def _fit(self, rows: Rows, generator: torch.Generator | None, progress: Progress | None) -> dict[str, Any]:
        """Trains the members and reports."""

    def _end_batches(self, rows: Rows, index: Tensor | slice, generator: torch.Generator | None) -> EndBatches | None:
        """Batches for the networks of terminations, if there are any, from the transitions at ``index``."""
        if rows.ends is None or self.world_model.termination is None:
            return None
        inputs, ended = (value[index] for value in rows.ends)
        return EndBatches(self.world_model.termination, inputs, ended, generator)

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
