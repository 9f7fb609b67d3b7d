"""The critic: quantiles of the distribution over values, or a scalar value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.envs import EnvBase

from eqr_torchrl.functional.products import Precision
from eqr_torchrl.modules.layers import Tanh, layer_norm_mlp, mlp
from eqr_torchrl.modules.normalizer import Normalizer
from eqr_torchrl.modules.optimism import OPTIMISM


class _StateActionMLP(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        return self.network(torch.cat([observation, action], -1))


class ScaledCritic(nn.Module):
    """A critic without units inside: normalised observations, actions in [-1, 1], values in ``unit``.

    ``unit`` is a scale of the reward. :meth:`set_unit` changes it and leaves the values as they are.
    """

    unit: Tensor
    unit_is_known: Tensor
    action_mid: Tensor
    action_half: Tensor

    def __init__(self, network: nn.Sequential, low: Tensor, high: Tensor, observation_dim: int) -> None:
        super().__init__()
        self.network = network
        self.normalizer = Normalizer(observation_dim)
        self.register_buffer("action_mid", (low + high) / 2)
        self.register_buffer("action_half", (high - low) / 2)
        self.register_buffer("unit", torch.ones(()))
        self.register_buffer("unit_is_known", torch.tensor(False))

    @torch.no_grad()
    def set_unit(self, unit: float) -> None:
        """Learns in another unit from now on; what was learnt in the last one stays as it is."""
        if self.unit_is_known:
            last = cast(nn.Linear, self.network[-1])
            for parameter in (last.weight, last.bias):
                parameter.mul_(self.unit / unit)
        self.unit.fill_(unit)
        self.unit_is_known.fill_(True)

    def forward(self, observation: Tensor, action: Tensor, *others: Tensor) -> Tensor:
        action = (action - self.action_mid) / self.action_half
        return self.network(torch.cat([self.normalizer(observation), action, *others], -1)) * self.unit


def make_critic(
    env: EnvBase,
    *,
    num_quantiles: int = 51,
    num_cells: Sequence[int] = (256, 256),
    activation_class: Callable[[], nn.Module] = Tanh,
    layer_norm: bool = False,
    normalize: bool = False,
    optimism_input: bool = False,
    precision: Precision = "auto",
) -> TensorDictModule:
    """Quantile critic for an environment with vector observations and actions.

    Args:
        env: environment with a vector ``observation``, shape ``[S]``, and ``action``, shape ``[A]``.
        num_quantiles: number of quantiles, ``N``; ``1`` makes a scalar critic, as TorchRL's ``SACLoss`` reads it.
        num_cells: sizes of the hidden layers. Defaults to the paper's 2 x 256.
        activation_class: makes the hidden activations.
        layer_norm: whether the network is made of (linear, layer normalisation, ReLU) in place of the paper's layers.
        normalize: whether inputs and values are without units, see :class:`ScaledCritic`.
        precision: format of products without gradient, see :class:`~eqr_torchrl.modules.MLP`.

    Returns:
        A module from ``observation`` and ``action`` to ``state_action_value``, in units of return, shape ``[..., N]``.

    Raises:
        ValueError: if ``num_quantiles`` is not positive, or ``precision`` is unknown.

    Examples:
        >>> env = toy_env()
        >>> make_critic(env, num_quantiles=7)(env.rand_action(env.reset()))["state_action_value"].shape
        torch.Size([7])
    """
    if num_quantiles < 1:
        raise ValueError(f"num_quantiles must be positive, got {num_quantiles}.")
    num_inputs = env.observation_spec["observation"].shape[-1] + env.action_spec_unbatched.shape[-1]
    num_inputs += int(optimism_input)
    in_keys = ["observation", "action", OPTIMISM] if optimism_input else ["observation", "action"]
    if layer_norm:
        network = layer_norm_mlp(num_inputs, num_cells, num_quantiles, precision=precision)
    else:
        network = mlp(num_inputs, num_cells, num_quantiles, activation_class=activation_class, precision=precision)
    module: nn.Module = _StateActionMLP(network)
    if normalize:
        box = env.action_spec_unbatched.space
        observation_dim = env.observation_spec["observation"].shape[-1]
        module = ScaledCritic(network, box.low.float(), box.high.float(), observation_dim)
    return TensorDictModule(module, in_keys, ["state_action_value"])
