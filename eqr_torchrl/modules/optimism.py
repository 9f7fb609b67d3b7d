"""A family of policies and values, indexed by how optimistic the policy is."""

from __future__ import annotations

from typing import Literal

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import nn

OPTIMISM = "optimism"  # 1: the policy that explores; 0: the one that is reported


class OptimismPolicy(TensorDictModuleBase):
    """One policy of a family whose networks read ``"optimism"``, shape ``[..., 1]``.

    Args:
        actor: reads ``observation`` and ``optimism``.
        optimism: 0, 1, or ``None``: either, drawn for each row.
    """

    def __init__(self, actor: nn.Module, optimism: Literal[0, 1] | None = None) -> None:
        super().__init__()
        self.actor, self.optimism = actor, optimism
        self.in_keys, self.out_keys = ["observation"], list(actor.out_keys)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        tensordict = draw_optimism(tensordict, self.optimism)
        return self.actor(tensordict)


def draw_optimism(tensordict: TensorDictBase, optimism: Literal[0, 1] | None = None) -> TensorDictBase:
    """Writes ``"optimism"`` beside ``observation``, and the same under ``"next"`` if that is ``[*B, M, K]``."""
    observation = tensordict["observation"]
    size = (*observation.shape[:-1], 1)
    if optimism is None:
        value = torch.randint(2, size, device=observation.device).to(observation.dtype)
    else:
        value = observation.new_full(size, float(optimism))
    tensordict.set(OPTIMISM, value)
    successors = tensordict.get("next", None)
    if successors is not None and successors.get("observation", None) is not None:
        following = successors["observation"]
        extra = following.ndim - observation.ndim
        value = value.view(*size[:-1], *[1] * extra, 1).expand(*following.shape[:-1], 1)
        successors.set(OPTIMISM, value)
    return tensordict
