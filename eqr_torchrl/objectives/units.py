"""Statistics by which networks see observations, and the unit in which they learn values."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from eqr_torchrl.modules.critic import ScaledCritic
from eqr_torchrl.modules.normalizer import Normalizer


def reward_unit(rewards: Tensor, bounds: tuple[float, float] | None = None) -> float:
    """Scale of the rewards: the range of 0 and the known bounds, else of 0 and what was seen; 1 if that is nothing.

    Examples:
        >>> reward_unit(torch.tensor([-3.0, -1.0])), reward_unit(torch.zeros(2)), reward_unit(torch.zeros(2), (0, 5))
        (3.0, 1.0, 5.0)
    """
    low, high = bounds if bounds is not None else (float(rewards.min()), float(rewards.max()))
    return (max(high, 0.0) - min(low, 0.0)) or 1.0


@torch.no_grad()
def update_units(loss, networks: list[nn.Module], observations: Tensor, unit: float) -> None:
    """Normalises observations by the statistics of the data, and learns values in ``unit``; values stay as they are.

    Args:
        loss: an actor-critic loss; its temperature stays the same fraction of the unit.
        networks: actors and critics that were given to the loss.
        observations: real states, shape ``[n, S]``.
        unit: a scale of the rewards, as of :func:`reward_unit`.
    """
    parameters, targets = loss.qvalue_network_params, loss.target_qvalue_network_params
    for module in (module for network in networks for module in network.modules()):
        if isinstance(module, Normalizer):
            module.update(observations)
        if isinstance(module, ScaledCritic):
            ratio = module.unit / unit
            last = module.network[-1]
            for key, value in parameters.items(True, True):
                if value is last.weight or value is last.bias:
                    value.data.mul_(ratio)
                    targets[key].data.mul_(ratio)
            module.unit.fill_(unit)
    for key, value in parameters.items(True, True):
        if not value.requires_grad:
            targets[key].data.copy_(value.data)
    loss.reward_unit.fill_(unit)
