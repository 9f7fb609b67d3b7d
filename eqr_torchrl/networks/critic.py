"""The critic: quantiles of the distribution over values, or a scalar value."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.envs import EnvBase

from eqr_torchrl.networks.actor import action_bounds
from eqr_torchrl.networks.layers import Tanh, mlp
from eqr_torchrl.networks.normalizer import Normalizer


class _ObservationNormalizer(Normalizer):
    def forward(self, inputs: Tensor) -> Tensor:
        size = self.mean.numel()
        return torch.cat([super().forward(inputs[..., :size]), inputs[..., size:]], -1)


class _StateActionNetwork(nn.Module):
    """Reads actions in units of their half-range, so that small ones count as much as large ones."""

    action_mid: Tensor
    action_half: Tensor

    def __init__(self, network: nn.Module, bounds: tuple[Tensor, Tensor] | None, action_dim: int) -> None:
        super().__init__()
        self.network = network
        low, high = bounds or (-torch.ones(action_dim), torch.ones(action_dim))
        self.register_buffer("action_mid", (low + high) / 2)
        self.register_buffer("action_half", (high - low) / 2)

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        return self.network(torch.cat([observation, (action - self.action_mid) / self.action_half], -1))


def make_critic(
    env: EnvBase,
    *,
    num_quantiles: int = 51,
    num_cells: Sequence[int] = (256, 256),
    activation_class: Callable[[], nn.Module] = Tanh,
    layer_norm: bool = False,
    normalize: bool = False,
) -> TensorDictModule:
    """Quantile critic for an environment with vector observations and actions.

    Args:
        env: environment with a vector ``observation``, shape ``[S]``, and ``action``, shape ``[A]``. Finite bounds of
            the action are mapped to [-1, 1] inside the critic.
        num_quantiles: number of quantiles, ``N``; ``1`` makes a scalar critic, as TorchRL's ``SACLoss`` reads it.
        num_cells: sizes of the hidden layers. Defaults to the paper's 2 x 256.
        activation_class: makes the hidden activations.

    Returns:
        A module from ``observation`` and ``action`` to ``state_action_value``, in units of return, shape ``[..., N]``.

    Raises:
        ValueError: if ``num_quantiles`` is not positive.

    Examples:
        >>> env = toy_env()
        >>> make_critic(env, num_quantiles=7)(env.rand_action(env.reset()))["state_action_value"].shape
        torch.Size([7])
    """
    if num_quantiles < 1:
        raise ValueError(f"num_quantiles must be positive, got {num_quantiles}.")
    spec = env.action_spec_unbatched
    action_dim = spec.shape[-1]
    num_inputs = env.observation_spec["observation"].shape[-1] + action_dim
    network = mlp(num_inputs, num_cells, num_quantiles, activation_class=activation_class, layer_norm=layer_norm)
    if normalize:
        network = nn.Sequential(_ObservationNormalizer(num_inputs - action_dim), *network)
    module = _StateActionNetwork(network, action_bounds(spec), action_dim)
    return TensorDictModule(module, ["observation", "action"], ["state_action_value"])
