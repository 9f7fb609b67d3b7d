"""The stochastic policy: a Gaussian squashed into the action bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType
from torchrl.modules import ProbabilisticActor, TanhNormal

from eqr_torchrl.functional.products import Precision
from eqr_torchrl.modules.layers import Tanh, layer_norm_mlp, mlp
from eqr_torchrl.modules.normalizer import Normalizer
from eqr_torchrl.modules.optimism import OPTIMISM


class NormalizedMLP(nn.Module):
    """A network of normalised observations and further inputs that are of unit size."""

    def __init__(self, network: nn.Module, observation_dim: int) -> None:
        super().__init__()
        self.normalizer, self.network = Normalizer(observation_dim), network

    def forward(self, observation: Tensor, *others: Tensor) -> Tensor:
        return self.network(torch.cat([self.normalizer(observation), *others], -1))


class GaussianHead(nn.Module):
    r"""Splits features into a mean and a standard deviation whose logarithm is clamped.

    Args:
        network: maps ``[..., S]`` to ``[..., 2 A]``: means, then log standard deviations.
        log_std_bounds: smallest and largest log standard deviation, before squashing.

    Raises:
        ValueError: if the bounds are not increasing.

    Examples:
        >>> loc, scale = GaussianHead(nn.Linear(3, 2 * 2))(torch.zeros(5, 3))
        >>> loc.shape, scale.shape
        (torch.Size([5, 2]), torch.Size([5, 2]))
    """

    def __init__(self, network: nn.Module, log_std_bounds: tuple[float, float] = (-20.0, 2.0)) -> None:
        super().__init__()
        low, high = log_std_bounds
        if not low < high:
            raise ValueError(f"log_std_bounds must increase, got {(low, high)}.")
        self.network = network
        self.low, self.high = low, high

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation before squashing, each of shape ``[..., A]``."""
        loc, log_std = self.network(*inputs).chunk(2, -1)
        return loc, log_std.clamp(self.low, self.high).exp()


def make_actor(
    env: EnvBase,
    *,
    num_cells: Sequence[int] = (128, 128),
    activation_class: Callable[[], nn.Module] = Tanh,
    log_std_bounds: tuple[float, float] = (-20.0, 2.0),
    layer_norm: bool = False,
    normalize: bool = False,
    optimism_input: bool = False,
    precision: Precision = "auto",
) -> ProbabilisticActor:
    """Squashed Gaussian policy for an environment with a bounded action vector.

    Args:
        env: environment with a vector ``observation``, shape ``[S]``, and a bounded ``action``, shape ``[A]``.
        num_cells: sizes of the hidden layers. Defaults to the paper's 2 x 128.
        activation_class: makes the hidden activations.
        log_std_bounds: bounds of the log standard deviation before squashing.
        layer_norm: whether the network is made of (linear, layer normalisation, ReLU) in place of the paper's layers.
        normalize: whether observations are normalised by statistics that ``update_normalizers`` sets.
        precision: format of products without gradient, see :class:`~eqr_torchrl.modules.MLP`.

    Returns:
        A policy from ``observation`` to ``loc``, ``scale`` and ``action``, the latter in environment units.

    Raises:
        ValueError: if the action has no finite bounds, or equal ones, or ``precision`` is unknown.

    Examples:
        >>> env = toy_env()
        >>> make_actor(env)(env.reset())["action"].shape
        torch.Size([1])
    """
    spec = env.action_spec_unbatched
    space = getattr(spec, "space", None)
    low, high = getattr(space, "low", None), getattr(space, "high", None)
    # the range of an unbounded spec of TorchRL, whose bounds are the largest numbers, overflows
    if low is None or high is None or not ((high > low) & (high - low).isfinite()).all():
        found = type(spec).__name__ if low is None or high is None else f"{low.tolist()} to {high.tolist()}"
        raise ValueError(f"env must have a continuous action with finite bounds, low below high: got {found}.")
    observation_dim = env.observation_spec["observation"].shape[-1]
    sizes = observation_dim + int(optimism_input), num_cells, 2 * spec.shape[-1]
    in_keys = ["observation", OPTIMISM] if optimism_input else ["observation"]
    network: nn.Module
    if layer_norm:
        network = layer_norm_mlp(*sizes, precision=precision)
    else:
        network = mlp(*sizes, activation_class=activation_class, precision=precision)
    if layer_norm:  # no preferred action before the first update
        nn.init.zeros_(network[-1].weight)
        nn.init.zeros_(network[-1].bias)
    if normalize:
        network = NormalizedMLP(network, observation_dim)
    return ProbabilisticActor(
        TensorDictModule(GaussianHead(network, log_std_bounds), in_keys=in_keys, out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=spec,
        distribution_class=TanhNormal,
        distribution_kwargs={"low": low.float(), "high": high.float(), "event_dims": 1},
        default_interaction_type=ExplorationType.RANDOM,
    )
