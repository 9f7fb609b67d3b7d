"""The critic: quantiles of the distribution over values, or a scalar value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.envs import EnvBase

from eqr_torchrl.networks.actor import action_bounds
from eqr_torchrl.networks.layers import Normalizer, Tanh, check_counts, mlp


class StateActionNetwork(nn.Module):
    """Reads actions in units of their half-range, so that small ones count as much as large ones.

    With a normalizer, observations are read in standard deviations, and values are the network's output times
    ``value_unit``, so that observations and rewards of any size are learned alike.
    """

    action_mid: Tensor
    action_half: Tensor
    value_unit: Tensor
    has_unit: Tensor

    def __init__(
        self, network: nn.Sequential, bounds: tuple[Tensor, Tensor] | None, action_dim: int, normalizer: Any = None
    ) -> None:
        super().__init__()
        self.normalizer, self.network = normalizer, network
        low, high = bounds or (-torch.ones(action_dim), torch.ones(action_dim))
        self.register_buffer("action_mid", (low + high) / 2)
        self.register_buffer("action_half", (high - low) / 2)
        self.register_buffer("value_unit", torch.ones(()))
        self.register_buffer("has_unit", torch.zeros(()))  # a number: TorchRL asks all that it holds for gradients

    def set_value_unit(self, unit: Tensor) -> None:
        """The first unit scales the values, and a later one keeps them: the last layer is divided by its growth."""
        if self.normalizer is None:
            return
        last = self.network[-1]
        growth = torch.where(self.has_unit > 0, unit / self.value_unit, 1.0)
        for parameter in last.parameters():
            parameter.div_(growth)
        self.value_unit.copy_(unit)
        self.has_unit.fill_(1.0)

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        action = (action - self.action_mid) / self.action_half
        if self.normalizer is None:
            return self.network(torch.cat([observation, action], -1))
        return self.network(torch.cat([self.normalizer(observation), action], -1)) * self.value_unit


def make_critic(
    env: EnvBase,
    *,
    num_quantiles: int = 51,
    num_cells: Sequence[int] = (256, 256),
    activation_class: Callable[[], nn.Module] = Tanh,
    layer_norm: bool = False,
    normalize: bool = False,
) -> TensorDictModule:
    """Quantile critic from ``observation`` and ``action`` to ``state_action_value`` ``[..., N]``, in units of return.

    Args:
        env: environment with a vector ``observation``, shape ``[S]``, and ``action``, shape ``[A]``. Finite bounds of
            the action are mapped to [-1, 1] inside the critic.
        num_quantiles: number of quantiles, ``N``; ``1`` makes a scalar critic, as TorchRL's ``SACLoss`` reads it.
        num_cells: sizes of the hidden layers. Defaults to the paper's 2 x 256.
        activation_class: makes the hidden activations.
        layer_norm: see :func:`~eqr_torchrl.networks.mlp`.
        normalize: whether observations pass a :class:`~eqr_torchrl.networks.Normalizer`, and values are multiplied by a
            unit: :meth:`~eqr_torchrl.objectives.SoftActorCriticLoss.set_scales` sets both. Defaults to ``False``.

    Examples:
        >>> env = toy_env()
        >>> make_critic(env, num_quantiles=7)(env.rand_action(env.reset()))["state_action_value"].shape
        torch.Size([7])
    """
    check_counts(num_quantiles=num_quantiles)
    spec = env.action_spec_unbatched
    action_dim = spec.shape[-1]
    observation_dim = env.observation_spec["observation"].shape[-1]
    sizes = observation_dim + action_dim, num_cells, num_quantiles
    network = mlp(*sizes, activation_class=activation_class, layer_norm=layer_norm)
    normalizer = Normalizer(observation_dim) if normalize else None
    module = StateActionNetwork(network, action_bounds(spec), action_dim, normalizer)
    return TensorDictModule(module, ["observation", "action"], ["state_action_value"])
