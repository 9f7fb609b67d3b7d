"""Errors of the world model on held-out transitions, member by member."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from tensordict import TensorDictBase
from torch import Tensor

from eqr_torchrl.lab.evaluation import device_of, evaluation_mode
from eqr_torchrl.world_models import WorldModel
from eqr_torchrl.world_models.rows import prediction_errors

_CHUNK = 4096  # transitions predicted at once


class ModelErrors(NamedTuple):
    """Errors of each member on data that it was not fitted to; see :func:`held_out_errors`."""

    mse: Tensor
    explained: Tensor
    standardised: Tensor
    nll: Tensor


@torch.no_grad()
def held_out_errors(world_model: WorldModel, data: TensorDictBase) -> ModelErrors:
    r"""One-step errors of each member on transitions.

    Args:
        world_model: M members that predict D entries: the next observation, and the reward last if they predict it.
        data: transitions with ``observation``, ``action``, ``next`` ``observation`` (and ``reward``), batch size
            ``[n]``, in units of the environment.

    Returns:
        ``mse``, mean squared errors in squared units of the environment, shape ``[M, D]``; ``explained``, the share of
        the variance of the *change* of each entry (of the reward itself) that is explained, 1 at best, NaN where
        nothing varies, shape ``[M, D]``; ``standardised``, root mean square of the error in predicted standard
        deviations, 1 if the predicted noise is right, shape ``[M, D]``; ``nll``, negative log-likelihood in nats per
        transition, shape ``[M]``. An entry that a member predicts without noise, since it never changed in the fit, has
        ``standardised`` 0 and does not count in ``nll`` if it came as predicted; if not, both are infinite.

    Raises:
        ValueError: if ``data`` is not of batch size ``[n]`` with n > 0, or the targets are not finite.

    Examples:
        >>> from eqr_torchrl.world_models import GaussianEnsemble
        >>> model = GaussianEnsemble(3, 1, num_members=5, num_cells=(8,))
        >>> held_out_errors(model, toy_batch(B=10)).mse.shape
        torch.Size([5, 4])
    """
    if data.batch_dims != 1 or not len(data):
        raise ValueError(f"data must have batch size [n], n > 0, got {list(data.batch_size)}.")
    target = data["next", "observation"]
    change = target - data["observation"]
    if world_model.predicts_reward:
        reward = data["next", "reward"]
        target, change = torch.cat([target, reward], -1), torch.cat([change, reward], -1)
    if not torch.isfinite(target).all():
        raise ValueError(f"data must be finite, got {int((~torch.isfinite(target)).sum())} entries that are not.")

    device = device_of(world_model) or target.device
    predictions = []
    with evaluation_mode(world_model):
        for part in data.split(_CHUNK):
            inputs = (part[key].to(device).expand(world_model.num_members, -1, -1) for key in ("observation", "action"))
            predictions.append(world_model(*inputs))
    loc, scale = (torch.cat(parts, 1) for parts in zip(*predictions, strict=True))  # [M, n, D]
    target = target.to(loc)
    if world_model.predicts_reward and (ended := data.get(("next", "terminated"), None)) is not None:
        loc[..., -1:] += world_model.terminal_reward * ended.to(loc)
    squared, standardised, nll = prediction_errors(loc, scale, target)
    nll = 0.5 * (nll + math.log(2 * math.pi) * (scale > 0))
    mse, variance = squared.mean(1), change.to(loc).var(0, correction=0)
    explained = torch.where(variance > 0, 1 - mse / variance, torch.nan)
    return ModelErrors(mse, explained, standardised.mean(1).sqrt(), nll.sum(-1).mean(1))
