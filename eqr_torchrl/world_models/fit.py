"""Maximum-likelihood fit of an ensemble, each member on its own resampling of the data."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.optim import Optimizer

from eqr_torchrl.functional import gaussian_nll
from eqr_torchrl.world_models._active_members import ActiveMembers
from eqr_torchrl.world_models._transitions import regression_data
from eqr_torchrl.world_models.gaussian import GaussianEnsemble

#: Rows of each member that are evaluated at once on held-out data.
_EVALUATION_ROWS = 4096


def fit_world_model(
    world_model: GaussianEnsemble,
    data: TensorDictBase,
    *,
    optimizer: Optimizer,
    batch_size: int = 256,
    validation_fraction: float = 0.2,
    patience: int = 5,
    min_improvement: float = 0.01,
    min_likelihood_improvement: float | None = None,
    max_epochs: int | None = None,
    generator: torch.Generator | None = None,
    progress: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    r"""Fits every member to its own bootstrap sample of the data, until held-out data stop it.

    The weights start where they are, and the optimiser keeps its state, so that the model can be fitted again and again
    while data come in. Each call recomputes the normaliser from all data, draws a new held-out split, the same for all
    members, and for each member a bootstrap sample of the rest (bagging; section 4 of `Chua et al. (2018)
    <https://arxiv.org/abs/1805.12114>`_), which lets members differ where data are scarce.

    A member stops when its held-out squared error has not fallen by more than ``min_improvement``, relative to the
    last such fall, for ``patience`` epochs. It then gets the weights of its lowest held-out error back, those before
    the fit if no epoch was better. (Keeping only weights that pass ``min_improvement`` would undo most late fits, which
    gain less.) Members that have stopped cost nothing. The model and the optimiser are whole again when this returns,
    or raises.

    Squared errors alone, as in the published code, let a member whose mean is soon good enough stop before it has
    learnt its noise: with some hundred rows, its imagined transitions may be noise throughout. With
    ``min_likelihood_improvement`` a fall of the held-out likelihood loss counts as well, and the weights of the lowest
    likelihood loss are kept. That takes more epochs and predicts unseen data better.

    Args:
        world_model: ensemble to fit.
        data: transitions, batch size ``[n]``, with ``"observation"``, ``"action"``, ``("next", "observation")`` and, if
            the model predicts rewards, ``("next", "reward")``, in units of the environment; or a replay buffer of them.
        optimizer: optimiser of all parameters of ``world_model``, for example
            ``torch.optim.Adam(world_model.parameters(), lr=1e-3, weight_decay=5e-5, fused=True)``.
        batch_size: rows of each member in one step. With fewer training rows, all of them make one batch.
        validation_fraction: fraction of the data that is held out, at least one row.
        patience: epochs without improvement after which a member stops.
        min_improvement: smallest relative fall of the squared error that counts as improvement.
        min_likelihood_improvement: smallest fall of ``validation_nll`` that counts as well, for instance 0.01, worth
            as much as a hundredth of the squared error once the stated noise fits. Defaults to ``None``: none counts.
        max_epochs: most epochs of any member. Defaults to no limit.
        generator: source of randomness. Defaults to torch's global one.
        progress: called after each epoch with ``epoch``, ``validation_mse`` (of the best weights of each member so
            far; ``validation_nll`` where that is what they are kept for) and ``active_members`` (those that go on).

    Returns:
        Plain numbers: ``epochs`` (of the last member), ``member_epochs``, ``validation_mse`` and ``validation_nll`` (of
        the weights that are kept, per member; squared units of the environment, and twice nats per entry without the
        constant), ``train_rows``, ``validation_rows`` and ``seconds``.

    Raises:
        ValueError: if an argument is out of its range, ``data`` lack a key, have another shape or fewer than two rows,
            or are not finite, or ``optimizer`` does not hold the parameters of ``world_model``.

    Examples:
        >>> model = GaussianEnsemble(3, 1, num_members=2, num_cells=(8,))
        >>> adam = torch.optim.Adam(model.parameters(), lr=1e-2)
        >>> metrics = fit_world_model(model, toy_env().rollout(20), optimizer=adam, max_epochs=3)
        >>> metrics["train_rows"], metrics["validation_rows"], len(metrics["validation_mse"])
        (16, 4, 2)
    """
    start = time.perf_counter()
    check_fit_arguments(
        world_model,
        optimizer,
        batch_size=batch_size,
        validation_fraction=validation_fraction,
        patience=patience,
        min_improvement=min_improvement,
        min_likelihood_improvement=min_likelihood_improvement,
        max_epochs=max_epochs,
    )
    if not isinstance(data, TensorDictBase):
        data = data[:]
    inputs, targets = regression_data(world_model, data)
    num_rows, num_members, device = len(inputs), world_model.num_members, inputs.device
    if num_rows < 2:
        raise ValueError(f"data must hold at least two transitions, got {num_rows}.")
    world_model.normalizer.update(inputs)
    rows = torch.cat([world_model.normalizer(inputs), targets], -1)  # [n, S + A + D]: one gather fetches a batch
    draw = {"generator": generator, "device": device if generator is None else generator.device}
    order = torch.randperm(num_rows, **draw).to(device)
    num_validation = min(max(1, int(validation_fraction * num_rows)), num_rows - 1)
    num_train = num_rows - num_validation
    validation = rows[order[num_train:]]
    bootstrap = order[torch.randint(num_train, (num_members, num_train), **draw).to(device)]  # [M, n]

    members = ActiveMembers(world_model, optimizer, num_members)
    least_mse, least_nll = (scores.tolist() for scores in _validate(world_model, validation, num_members))
    judged = min_likelihood_improvement is not None  # by likelihood
    lowest = list(least_nll if judged else least_mse)  # of the weights that are kept; those above are to be undercut
    stale, member_epochs, epoch = [0] * num_members, [0] * num_members, 0
    try:
        while members.active and (max_epochs is None or epoch < max_epochs):
            epoch += 1
            shuffle = torch.randperm(num_train, **draw).to(device)
            _train_epoch(world_model, rows, bootstrap[members.active][:, shuffle], optimizer, batch_size)
            mse, nll = torch.stack(_validate(world_model, validation, len(members.active))).tolist()  # one host sync
            improved = []
            for position, member in enumerate(members.active):
                member_epochs[member] = epoch
                score = nll[position] if judged else mse[position]
                if score < lowest[member]:
                    lowest[member] = score
                    improved.append(position)
                stale[member] += 1
                if mse[position] < least_mse[member] * (1 - min_improvement):
                    least_mse[member], stale[member] = mse[position], 0
                if judged and nll[position] < least_nll[member] - min_likelihood_improvement:
                    least_nll[member], stale[member] = nll[position], 0
            members.keep_best(improved)
            going = [position for position, member in enumerate(members.active) if stale[member] < patience]
            if len(going) < len(members.active):
                members.keep_only(going)
            if progress is not None:
                best = "validation_nll" if judged else "validation_mse"
                progress({"epoch": epoch, best: list(lowest), "active_members": list(members.active)})
    finally:
        members.restore()
    mse, nll = _validate(world_model, validation, num_members)
    return {
        "epochs": epoch,
        "member_epochs": member_epochs,
        "validation_mse": mse.tolist(),
        "validation_nll": nll.tolist(),
        "train_rows": num_train,
        "validation_rows": num_validation,
        "seconds": time.perf_counter() - start,
    }


def _train_epoch(
    world_model: GaussianEnsemble, rows: Tensor, index: Tensor, optimizer: Optimizer, batch_size: int
) -> None:
    """One pass over the rows that ``index``, shape ``[active M, n]``, names for each active member."""
    num_inputs = world_model.normalizer.mean.numel()
    for batch_index in index.split(batch_size, dim=1):
        batch = rows.index_select(0, batch_index.flatten()).view(*batch_index.shape, -1)
        # divided by all members, so that what one member learns does not depend on which others go on
        loss = world_model.loss(batch[..., :num_inputs], batch[..., num_inputs:]).sum() / world_model.num_members
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()


@torch.no_grad()
def _validate(world_model: GaussianEnsemble, rows: Tensor, num_active: int) -> tuple[Tensor, Tensor]:
    """Squared error and likelihood loss of each active member, averaged over rows and entries, each ``[active M]``."""
    num_inputs = world_model.normalizer.mean.numel()
    mse, nll = rows.new_zeros(2, num_active)
    for chunk in rows.split(_EVALUATION_ROWS):
        inputs, targets = chunk.expand(num_active, *chunk.shape).tensor_split([num_inputs], dim=-1)
        mean, log_var = world_model.predict(inputs)
        mse += (mean - targets).square().mean(-1).sum(-1)
        nll += gaussian_nll(mean, log_var, targets).mean(-1).sum(-1)
    return mse / len(rows), nll / len(rows)


def check_fit_arguments(
    world_model: GaussianEnsemble,
    optimizer: Optimizer,
    *,
    batch_size: int = 256,
    validation_fraction: float = 0.2,
    patience: int = 5,
    min_improvement: float = 0.01,
    min_likelihood_improvement: float | None = None,
    max_epochs: int | None = None,
) -> None:
    """Complains about arguments of :func:`fit_world_model` before there are data to fit.

    Args:
        world_model: ensemble to fit.
        optimizer: optimiser of all its parameters.
        batch_size: rows of each member in one step, positive.
        validation_fraction: fraction of the data that is held out, in ``(0, 1)``.
        patience: epochs without improvement after which a member stops, positive.
        min_improvement: smallest relative fall of the squared error that counts, in ``[0, 1)``.
        min_likelihood_improvement: smallest fall of the likelihood loss that counts, not negative, or ``None``.
        max_epochs: most epochs of any member, or ``None``.

    Raises:
        ValueError: if an argument is out of its range; it is named.

    Examples:
        >>> model = GaussianEnsemble(3, 1, num_members=2, num_cells=(8,))
        >>> check_fit_arguments(model, torch.optim.Adam(model.parameters()), patience=0)
        Traceback (most recent call last):
        ValueError: patience must be positive, got 0.
    """
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
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    missing = [name for name, p in world_model.named_parameters() if id(p) not in held]
    if missing:
        raise ValueError(f"optimizer must hold all parameters of world_model, got none of {missing}.")
