"""The stochastic policy: a Gaussian squashed into the action bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType
from torchrl.modules import ProbabilisticActor, TanhNormal

from eqr_torchrl.networks.layers import Normalizer, Tanh, mlp


class GaussianHead(nn.Module):
    r"""Splits outputs of a network into a mean and a standard deviation whose logarithm is clamped.

    ``network`` maps ``[..., S]`` to ``[..., 2 A]``: means, then log standard deviations kept in ``log_std_bounds``.

    Examples:
        >>> GaussianHead(nn.Linear(3, 2 * 2))(torch.zeros(5, 3))[0].shape
        torch.Size([5, 2])
    """

    def __init__(self, network: nn.Module, log_std_bounds: tuple[float, float] = (-20.0, 2.0)) -> None:
        super().__init__()
        low, high = log_std_bounds
        if not low < high:
            raise ValueError(f"log_std_bounds must increase, got {(low, high)}.")
        self.network = network
        self.low, self.high = low, high

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation before squashing, each of shape ``[..., A]``."""
        outputs = self.network(observation)
        if outputs.shape[-1] % 2:
            raise ValueError(f"network must have two outputs for each entry of an action: got {outputs.shape[-1]}.")
        loc, log_std = outputs.chunk(2, -1)
        return loc, log_std.clamp(self.low, self.high).exp()


def action_bounds(spec: Any) -> tuple[Tensor, Tensor] | None:
    """Bounds ``[A]`` of a continuous action, ``None`` if there are no finite ones or they are equal."""
    space = getattr(spec, "space", None)
    low, high = getattr(space, "low", None), getattr(space, "high", None)
    # the range of an unbounded spec of TorchRL, whose bounds are the largest numbers, overflows
    if low is None or high is None or not ((high > low) & (high - low).isfinite()).all():
        return None
    # of a spec with a batch of environments, those of one
    return low.reshape(-1, *low.shape[-1:])[0].float(), high.reshape(-1, *high.shape[-1:])[0].float()


def log_half_range(spec: Any) -> float:
    """Sum of the log half-ranges of a bounded action: its entropy minus that of the same action in [-1, 1]; else 0."""
    bounds = action_bounds(spec)
    return 0.0 if bounds is None else ((bounds[1] - bounds[0]) / 2).log().sum().item()


def make_actor(
    env: EnvBase,
    *,
    num_cells: Sequence[int] = (128, 128),
    activation_class: Callable[[], nn.Module] = Tanh,
    log_std_bounds: tuple[float, float] = (-20.0, 2.0),
    layer_norm: bool = False,
    normalize: bool = False,
) -> ProbabilisticActor:
    """Squashed Gaussian policy from ``observation`` to ``loc``, ``scale`` and ``action``, in units of the environment.

    It is made on torch's default device: for another one use ``with torch.device("cuda"):``, because ``.to`` does not
    move the action bounds, which are then copied in each call.

    Args:
        env: environment with a vector ``observation``, shape ``[S]``, and a bounded ``action``, shape ``[A]``.
        num_cells: sizes of the hidden layers. Defaults to the paper's 2 x 128.
        activation_class: makes the hidden activations.
        log_std_bounds: bounds of the log standard deviation before squashing.
        layer_norm: see :func:`~eqr_torchrl.networks.mlp`.
        normalize: whether a :class:`~eqr_torchrl.networks.Normalizer` comes first, whose statistics
            :meth:`~eqr_torchrl.objectives.SoftActorCriticLoss.set_scales` replaces. Defaults to ``False``.

    Examples:
        >>> env = toy_env()
        >>> make_actor(env)(env.reset())["action"].shape
        torch.Size([1])
    """
    spec = env.action_spec_unbatched
    bounds = action_bounds(spec)
    if bounds is None:
        space: Any = getattr(spec, "space", None)
        found = f"{space.low.tolist()} to {space.high.tolist()}" if hasattr(space, "low") else type(spec).__name__
        raise ValueError(f"env must have a continuous action with finite bounds, low below high: got {found}.")
    num_inputs, device = env.observation_spec["observation"].shape[-1], torch.get_default_device()
    network = mlp(num_inputs, num_cells, 2 * spec.shape[-1], activation_class=activation_class, layer_norm=layer_norm)
    if normalize:
        network = nn.Sequential(Normalizer(num_inputs), *network)
    return ProbabilisticActor(
        TensorDictModule(GaussianHead(network, log_std_bounds), in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=spec,
        distribution_class=TanhNormal,
        distribution_kwargs={"low": bounds[0].to(device), "high": bounds[1].to(device), "event_dims": 1},
        default_interaction_type=ExplorationType.RANDOM,
    )
