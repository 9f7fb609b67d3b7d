"""Transitions as tensors that a world model is fitted to, and the errors of its predictions."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor

from eqr_torchrl.world_models.gaussian import GaussianEnsemble

_EVALUATION_ROWS = 4096  # of each member at once


def prediction_errors(mean: Tensor, scale: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Squared errors, squared standardised errors and the likelihood loss, entry by entry.

    .. math:: (\mu - y)^2, \quad z^2 = (\mu - y)^2 / \sigma^2, \quad z^2 + 2 \log \sigma

    Of means, standard deviations and observed values ``[..., D]``; the loss is in twice nats, without its constant. An
    entry that never changed in a fit, :math:`\sigma = 0`, counts as 0 if it was predicted exactly, else as infinity.
    """
    squared, noisy = (mean - target).square(), scale > 0
    certain = torch.where(torch.isclose(mean, target), 0.0, torch.inf)  # rounding is no surprise
    safe = torch.where(noisy, scale, 1.0)
    standardised = torch.where(noisy, squared / safe.square(), certain)
    return squared, standardised, standardised + 2 * safe.log()


class Rows:
    """Normalised inputs and targets of each member, the prior of the member subtracted from its targets.

    Replaces the statistics of the world model by those of the data. ``targets``, ``[n, D]``, are in units of the
    environment. ``ends`` are normalised next observations and actions, and whether the episode ended, bool ``[n]``;
    ``None`` if the model does not learn terminations.
    """

    def __init__(self, world_model: GaussianEnsemble, data: TensorDictBase) -> None:
        size, reference = world_model.observation_dim, world_model.normalizer.mean
        observation = _column(data, "observation", size, reference)
        action = _column(data, "action", world_model.action_dim, reference)
        next_observation = _column(data, ("next", "observation"), size, reference)
        targets = [next_observation - observation]
        if world_model.predicts_reward:
            targets.append(_column(data, ("next", "reward"), 1, reference))
        has_ends = world_model.predicts_termination or data.get(("next", "terminated"), None) is not None
        ended = _column(data, ("next", "terminated"), 1, reference) if has_ends else None
        if len(observation) < 2:
            raise ValueError(f"data must hold at least two transitions, got {len(observation)}.")
        if world_model.predicts_reward and ended is not None:  # what an end earns follows the end
            last, reward = ended > 0, targets[-1]
            if last.any() and not last.all():
                world_model.terminal_reward.copy_(reward[last].mean() - reward[~last].mean())
            targets[-1] = reward - world_model.terminal_reward * ended
        raw, self.targets = torch.cat([observation, action], -1), torch.cat(targets, -1)
        world_model.update_statistics(raw, self.targets)
        self.num_rows, self.num_inputs = raw.shape
        inputs, normalized = world_model.normalizer(raw), world_model.normalize(self.targets)
        self.member_offset = torch.zeros(world_model.num_members, 1, dtype=torch.long, device=raw.device)
        if world_model.prior is not None:  # targets differ between members
            raw, inputs = (value.expand(world_model.num_members, *value.shape) for value in (raw, inputs))
            normalized = normalized - world_model.scaled_prior(raw)
            self.member_offset += self.num_rows * torch.arange(world_model.num_members, device=raw.device)[:, None]
        self.rows = torch.cat([inputs, normalized], -1).flatten(0, -2)  # [n or M * n, S + A + D]: one gather a batch
        self.ends: tuple[Tensor, Tensor] | None = None
        if world_model.predicts_termination and ended is not None:
            self.ends = world_model.normalizer(torch.cat([next_observation, action], -1)), ended.squeeze(-1) > 0

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs ``[M, B, S + A]`` and targets ``[M, B, D]`` at ``index``, shape ``[M, B]``."""
        batch = self.rows.index_select(0, (index + self.member_offset).flatten()).view(*index.shape, -1)
        return batch[..., : self.num_inputs], batch[..., self.num_inputs :]


@torch.no_grad()
def mean_errors(world_model: GaussianEnsemble, rows: Rows, index: Tensor, *, units: bool = False) -> Tensor:
    """Squared error and likelihood loss of each member, ``[2, M]``, mean over the transitions at ``index`` and entries.

    On the networks' scale, or in units of the environment. Entries that never changed are left out of the likelihood.
    """
    changing = world_model.target_scale > 0
    unit = world_model.target_scale if units else changing.to(world_model.target_scale)
    total = rows.rows.new_zeros(2, world_model.num_members)
    for chunk in index.split(_EVALUATION_ROWS):
        inputs, targets = rows.take(chunk.expand(world_model.num_members, -1))
        mean, log_var = world_model.predict(inputs)
        squared, _, nll = prediction_errors(unit * mean, unit * (0.5 * log_var).exp(), unit * targets)
        total += torch.stack([squared.mean(-1).sum(-1), nll.sum((-1, -2)) / changing.sum().clamp(min=1)])
    return total / len(index)


def _column(data: TensorDictBase, key: NestedKey, size: int, reference: Tensor) -> Tensor:
    value = data[key]
    if value.ndim != 2 or value.shape[-1] != size:
        raise ValueError(f"data[{key!r}] must be of shape [n, {size}], got {tuple(value.shape)}.")
    bad = int((~torch.isfinite(value)).any(-1).sum())
    if bad:
        raise ValueError(f"data[{key!r}] must be finite, got NaN or infinity in {bad} of {len(value)} rows.")
    return value.detach().to(reference)  # a rollout outside no_grad keeps the policy's graph
