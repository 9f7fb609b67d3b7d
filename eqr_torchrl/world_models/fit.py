"""Maximum-likelihood fit of an ensemble, each member on its own resampling of the data."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from eqr_torchrl.functional import gaussian_nll, onednn_products
from eqr_torchrl.world_models._active_members import ActiveMembers
from eqr_torchrl.world_models._transitions import regression_data
from eqr_torchrl.world_models.gaussian import GaussianEnsemble

#: Rows of each member that are evaluated at once on held-out data.
_EVALUATION_ROWS = 4096


class WorldModelFit:
    r"""Fits every member to its own bootstrap sample of the data, until held-out data stop it.

    The weights start where they are, and the optimiser keeps its state, so that the model can be fitted again and again
    while data come in. Each call recomputes the normalisation from all data, draws a new held-out split, the same for
    all members, and for each member a bootstrap sample of the rest (bagging; section 4 of `Chua et al. (2018)
    <https://arxiv.org/abs/1805.12114>`_), which lets members differ where data are scarce.

    A member stops when its held-out squared error has not fallen by more than ``min_improvement``, relative to the
    last such fall, for ``patience`` epochs. It then gets the weights of its lowest held-out error back. (Keeping only
    weights that pass ``min_improvement`` would undo most late fits, which gain less.) Members that have stopped cost
    nothing. The model and the optimiser are whole again when a call returns, or raises.

    Held-out errors say nothing of a rare row that is not held out. If the weights of before the fit may come back
    (``keep_initial=True``), what such a row teaches is undone at each fit; by default one epoch at least is kept.

    Args:
        world_model: ensemble to fit.
        lr: step size of Adam.
        weight_decay: L2 penalty in Adam's gradient.
        batch_size: rows of each member in one step. With fewer training rows, all of them make one batch.
        variance_weight: :math:`\beta` of :meth:`GaussianEnsemble.loss`; 0, plain likelihood, in the published code.
        bootstrap: whether each member draws its own training rows with replacement; if not, all see each row once.
        validation_fraction: fraction of the data that is held out, at least one row.
        patience: epochs without improvement after which a member stops.
        min_improvement: smallest relative fall of the squared error that counts as improvement.
        min_likelihood_improvement: smallest fall of the likelihood loss that counts as well, for instance 0.01, worth
            as much as a hundredth of the squared error once the stated noise fits; the weights of the lowest likelihood
            loss are then kept. Defaults to ``None``: squared errors alone decide, as in the published code.
        keep_initial: whether a member without a better epoch gets the weights of before the fit back.
        max_epochs: most epochs of any member. Defaults to no limit.

    Raises:
        ValueError: if an argument is out of its range.

    Examples:
        >>> model = GaussianEnsemble(3, 1, num_members=2, num_cells=(8,))
        >>> fit = WorldModelFit(model, lr=1e-2, max_epochs=3)
        >>> metrics = fit(toy_env().rollout(20))
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
        variance_weight: float = 0.5,
        bootstrap: bool = True,
        validation_fraction: float = 0.2,
        patience: int = 5,
        min_improvement: float = 0.01,
        min_likelihood_improvement: float | None = None,
        keep_initial: bool = False,
        max_epochs: int | None = None,
    ) -> None:
        if not isinstance(world_model, GaussianEnsemble):
            raise ValueError(f"world_model must be a GaussianEnsemble, got {type(world_model).__name__}.")
        for name, value in (("batch_size", batch_size), ("patience", patience)):
            if value < 1:
                raise ValueError(f"{name} must be positive, got {value}.")
        for name, value in (("validation_fraction", validation_fraction), ("min_improvement", min_improvement)):
            if not 0 <= value < 1 or (name == "validation_fraction" and value == 0):
                raise ValueError(f"{name} must be a fraction below 1, got {value}.")
        if min_likelihood_improvement is not None and not min_likelihood_improvement >= 0:
            raise ValueError(f"min_likelihood_improvement must not be negative, got {min_likelihood_improvement}.")
        if max_epochs is not None and max_epochs < 0:
            raise ValueError(f"max_epochs must not be negative, got {max_epochs}.")
        for name, value in (("lr", lr), ("weight_decay", weight_decay)):
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name} must be finite and not negative, got {value}.")
        self.world_model = world_model
        self.optimizer = torch.optim.Adam(world_model.parameters(), lr=lr, weight_decay=weight_decay, fused=True)
        if not 0 <= variance_weight <= 1:
            raise ValueError(f"variance_weight must be in [0, 1], got {variance_weight}.")
        self.variance_weight = variance_weight
        self.batch_size, self.bootstrap, self.validation_fraction = batch_size, bootstrap, validation_fraction
        self.patience, self.min_improvement = patience, min_improvement
        self.min_likelihood_improvement = min_likelihood_improvement
        self.keep_initial, self.max_epochs = keep_initial, max_epochs

    @onednn_products()
    def __call__(
        self,
        data: TensorDictBase,
        *,
        generator: torch.Generator | None = None,
        progress: Callable[[dict[str, Any]], None] | None = None,
    ) -> dict[str, Any]:
        """Fits the model to transitions.

        Args:
            data: transitions, batch size ``[n]``, with ``"observation"``, ``"action"``, ``("next", "observation")``
                and, if the model predicts rewards, ``("next", "reward")``, in units of the environment; or a replay
                buffer of them.
            generator: source of randomness. Defaults to torch's global one.
            progress: called after each epoch with ``epoch``, ``validation_mse`` (of the best weights of each member so
                far; ``validation_nll`` where that is what they are kept for; both on the networks' scale) and
                ``active_members`` (those that continue).

        Returns:
            Plain numbers: ``epochs`` (of the last member), ``member_epochs``, ``validation_mse`` and ``validation_nll``
            (of the weights that are kept, per member; mean over rows and entries, in squared units of the environment,
            and twice nats without the constant, entries that never changed left out), ``train_rows``,
            ``validation_rows`` and ``seconds``.

        Raises:
            ValueError: if ``data`` lack a key, have another shape or fewer than two rows, or are not finite.
        """
        start = time.perf_counter()
        world_model = self.world_model
        if not isinstance(data, TensorDictBase):
            data = data[:]
        inputs, targets = regression_data(world_model, data)
        num_rows, num_members, device = len(inputs), world_model.num_members, inputs.device
        if num_rows < 2:
            raise ValueError(f"data must hold at least two transitions, got {num_rows}.")
        world_model.update_statistics(inputs, targets)
        rows = _Rows(world_model, inputs, targets)
        draw = {"generator": generator, "device": device if generator is None else generator.device}
        order = torch.randperm(num_rows, **draw).to(device)
        num_validation = min(max(1, int(self.validation_fraction * num_rows)), num_rows - 1)
        num_train = num_rows - num_validation
        validation = order[num_train:]
        if self.bootstrap:
            index = order[torch.randint(num_train, (num_members, num_train), **draw).to(device)]  # [M, n]
        else:
            index = order[:num_train].expand(num_members, num_train)

        members = ActiveMembers(world_model, self.optimizer, num_members)
        likelihood_counts = self.min_likelihood_improvement is not None
        least_mse, least_nll = _validate(world_model, rows, validation, members.active).tolist()
        lowest = list(least_nll if likelihood_counts else least_mse)  # of the weights that are kept
        if not self.keep_initial:
            lowest = [float("inf")] * num_members
        stale, member_epochs, epoch = [0] * num_members, [0] * num_members, 0
        try:
            while members.active and (self.max_epochs is None or epoch < self.max_epochs):
                epoch += 1
                shuffle = torch.randperm(num_train, **draw).to(device)
                self._train_epoch(rows, index[members.active][:, shuffle], members.active)
                mse, nll = _validate(world_model, rows, validation, members.active).tolist()  # one host sync
                improved = []
                for position, member in enumerate(members.active):
                    member_epochs[member] = epoch
                    score = nll[position] if likelihood_counts else mse[position]
                    if score < lowest[member]:
                        lowest[member] = score
                        improved.append(position)
                    stale[member] += 1
                    if mse[position] < least_mse[member] * (1 - self.min_improvement):
                        least_mse[member], stale[member] = mse[position], 0
                    if likelihood_counts and nll[position] < least_nll[member] - self.min_likelihood_improvement:
                        least_nll[member], stale[member] = nll[position], 0
                members.keep_best(improved)
                going = [position for position, member in enumerate(members.active) if stale[member] < self.patience]
                if len(going) < len(members.active):
                    members.keep_only(going)
                if progress is not None:
                    name = "validation_nll" if likelihood_counts else "validation_mse"
                    progress({"epoch": epoch, name: list(lowest), "active_members": list(members.active)})
        finally:
            members.restore()
        mse, nll = _validate(world_model, rows, validation, list(range(num_members)), units=True)
        return {
            "epochs": epoch,
            "member_epochs": member_epochs,
            "validation_mse": mse.tolist(),
            "validation_nll": nll.tolist(),
            "train_rows": num_train,
            "validation_rows": num_validation,
            "seconds": time.perf_counter() - start,
        }

    def _train_epoch(self, rows: _Rows, index: Tensor, active: list[int]) -> None:
        """One pass over the rows that ``index``, shape ``[active M, n]``, names for each active member."""
        for batch_index in index.split(self.batch_size, dim=1):
            inputs, targets = rows.take(batch_index, active)
            # divided by all members, so that what one member learns does not depend on which others continue
            losses = self.world_model.loss(inputs, targets, variance_weight=self.variance_weight)
            loss = losses.sum() / self.world_model.num_members
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """State of the optimiser; the weights are the model's own state."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Puts back what :meth:`state_dict` gave."""
        self.optimizer.load_state_dict(dict(state_dict))


class _Rows:
    """Normalised inputs and targets, of which each member takes its own: targets are less the member's prior."""

    def __init__(self, world_model: GaussianEnsemble, inputs: Tensor, targets: Tensor) -> None:
        self.num_rows, self.num_inputs = inputs.shape
        inputs, targets = world_model.normalizer(inputs), world_model.normalize(targets)
        self.per_member = world_model.prior is not None
        if world_model.prior is not None:
            inputs = inputs.expand(world_model.num_members, *inputs.shape)
            targets = targets - world_model.prior_weight * world_model.prior(inputs)
        self.rows = torch.cat([inputs, targets], -1).flatten(0, -2)  # [n or M * n, S + A + D]: one gather a batch

    def take(self, index: Tensor, members: list[int]) -> tuple[Tensor, Tensor]:
        """Inputs ``[m, B, S + A]`` and targets ``[m, B, D]`` at ``index``, shape ``[m, B]``, of the given members."""
        if self.per_member:
            index = index + self.num_rows * torch.tensor(members, device=index.device).unsqueeze(-1)
        batch = self.rows.index_select(0, index.flatten()).view(*index.shape, -1)
        return batch[..., : self.num_inputs], batch[..., self.num_inputs :]


@torch.no_grad()
def _validate(
    world_model: GaussianEnsemble, rows: _Rows, index: Tensor, members: list[int], *, units: bool = False
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
