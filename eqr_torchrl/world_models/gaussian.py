"""An ensemble of Gaussian networks, evaluated as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from torchrl.envs import EnvBase

from eqr_torchrl.functional import gaussian_nll, plausible_reward, soft_clamp
from eqr_torchrl.networks._cpu import Precision, uses_bf16
from eqr_torchrl.networks.ensemble import EnsembleLinear, RandomPrior
from eqr_torchrl.networks.layers import Normalizer, check_counts
from eqr_torchrl.world_models.base import WorldModel
from eqr_torchrl.world_models.termination import TerminationNetwork

#: Rows of each member that pass through the network at once on a CPU: the activations stay in its caches, and blocks
#: are small enough for the allocator to keep, where larger ones cost a page fault for every 4 KiB.
_CHUNK_ROWS = 256
_FEW_ROWS = 64  # of each member, below which matmuls in bfloat16 gain nothing
_SMALLEST_SPREAD = 1e-6  # standard deviation of a target, relative to its mean, below which it counts as constant


class GaussianEnsemble(WorldModel):
    r"""``M`` probabilistic networks that predict the change of the observation, and the reward.

    .. math:: (s' - s, r) \sim \mathcal N\big(\bar y + \sigma_y (\mu_m(x) + \tfrac{b}{\sigma_y} p_m(x)),\;
              \sigma_y^2\, \mathrm{diag}\, e^{\ell_m(x)}\big), \quad \sigma_y^2 = \mathrm{std}(y)^2 + b^2

    The probabilistic ensemble of `Chua et al. (2018) <https://arxiv.org/abs/1805.12114>`_ with the sizes of
    `Luis et al. (2024) <https://arxiv.org/abs/2308.06590>`_. Inputs :math:`x` and targets are standardised, entry by
    entry. An entry that never changed is predicted as it was, without noise. What an end earns beyond other transitions
    is learned separately, as ``terminal_reward``: the difference of their means.

    With a prior scale :math:`b > 0`, fixed random networks :math:`p_m` (:class:`RandomPrior`) make members disagree by
    about :math:`b` where there are no data. The first fit that sees rewards differ fixes :math:`b` and the
    standardisation of their inputs (without ``learn_reward``, the first fit): from then on a prior is one function, in
    units of the environment. Before it, both follow the data, which may say little: a pendulum that hangs still.

    Args:
        observation_dim: number of entries of an observation, ``S``.
        action_dim: number of entries of an action, ``A``.
        num_members: number of members, ``M``.
        num_cells: sizes of the hidden layers, each followed by a SiLU. The paper has 400 cells for the quadruped.
        learn_reward: whether the reward is predicted, as last entry; if not, the imagined environment needs a function.
        normalize_targets: whether targets are standardised. The paper's code does not: its members cannot predict a
            noise above :math:`e^{0.25} \approx 1.3`, in units of the environment, and miss rewards far from 1 in size.
        prior_scale: :math:`b` of the change of the observation, in standard deviations of its entries when it is fixed.
        reward_prior_scale: :math:`b` of the reward, in its units: how far unseen rewards may lie from those seen; or a
            function that returns it for the rewards ``[n]`` of the first fit, less what an end earns.
        log_var_bounds: soft bounds of the log-variance :math:`\ell`, on the networks' scale.
        learn_termination: whether a small second network of each member learns when episodes end; if not, a rule is
            needed.
        precision: of matmuls between hidden layers on a CPU, in :meth:`loss` and without gradient: ``"fp32"``,
            ``"bf16"``, or ``"auto"``, which is bfloat16 where the CPU has instructions for it.

    Examples:
        >>> loc, scale = GaussianEnsemble(3, 1, num_members=5)(torch.zeros(5, 4, 3), torch.zeros(5, 4, 1))
        >>> loc.shape  # three entries of the next observation, and the reward
        torch.Size([5, 4, 4])
    """

    target_mean: Tensor
    target_scale: Tensor
    prior_size: Tensor
    prior_is_fixed: Tensor

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        *,
        num_members: int = 5,
        num_cells: Sequence[int] = (200, 200, 200, 200),
        learn_reward: bool = True,
        normalize_targets: bool = True,
        prior_scale: float = 0.0,
        reward_prior_scale: float | Callable[[Tensor], float] = 0.0,
        log_var_bounds: tuple[float, float] = (-10.0, 0.5),
        learn_termination: bool = False,
        precision: Precision = "auto",
    ) -> None:
        flags = {"predicts_reward": learn_reward, "predicts_termination": learn_termination}
        super().__init__(observation_dim, num_members=num_members, **flags)
        if not log_var_bounds[0] < log_var_bounds[1]:
            raise ValueError(f"log_var_bounds must increase, got {tuple(log_var_bounds)}.")
        check_counts(action_dim=action_dim)
        for name, value in (("prior_scale", prior_scale), ("reward_prior_scale", reward_prior_scale)):
            if not callable(value) and not 0 <= value < float("inf"):
                raise ValueError(f"{name} must be finite and not negative, got {value}.")
        self.action_dim, self.log_var_bounds, self.uses_bf16 = action_dim, tuple(log_var_bounds), uses_bf16(precision)
        self.normalize_targets, self.prior_scale = normalize_targets, prior_scale
        self.reward_prior_scale = reward_prior_scale
        num_inputs = observation_dim + action_dim
        self.normalizer = Normalizer(num_inputs)
        self.register_buffer("target_mean", torch.zeros(self.noise_dim))
        self.register_buffer("target_scale", torch.ones(self.noise_dim))
        self.register_buffer("prior_size", torch.zeros(self.noise_dim))  # b in units of the environment; 0: not fixed
        self.register_buffer("prior_is_fixed", torch.tensor(False))
        sizes = [num_inputs, *num_cells, 2 * self.noise_dim]
        self.layers = nn.ModuleList(EnsembleLinear(num_members, a, b) for a, b in pairwise(sizes))
        has_prior = prior_scale > 0 or (learn_reward and reward_prior_scale != 0)
        self.prior = RandomPrior(num_members, num_inputs, self.noise_dim) if has_prior else None
        self.prior_normalizer = Normalizer(num_inputs) if has_prior else None
        self.termination = TerminationNetwork(num_members, num_inputs) if learn_termination else None

    @torch.no_grad()
    def update_statistics(self, inputs: Tensor, targets: Tensor) -> None:
        """Replaces the statistics of inputs ``[n, S + A]`` and targets ``[n, D]``, and of a prior that is not fixed."""
        self.normalizer.update(inputs)
        std, mean = torch.std_mean(targets.double(), 0, correction=min(1, len(targets) - 1))
        std = torch.where(std > _SMALLEST_SPREAD * mean.abs(), std, 0.0)  # rounding is no change
        if self.prior_normalizer is not None:
            new, keep = self.prior_scale * std, self.prior_size > 0
            if self.predicts_reward and not keep[-1]:
                scale = self.reward_prior_scale
                new[-1] = scale(targets[:, -1]) if callable(scale) else scale
            if not self.prior_is_fixed:
                self.prior_normalizer.update(inputs)
                self.prior_is_fixed.fill_(not self.predicts_reward or bool(std[-1] > 0))
                keep[: self.observation_dim] = False  # that of the reward alone is chosen for good
            self.prior_size.copy_(torch.where(keep, self.prior_size, new))
        if self.normalize_targets:
            self.target_mean.copy_(mean)
            self.target_scale.copy_((std.square() + self.prior_size.double().square()).sqrt())

    def normalize(self, targets: Tensor) -> Tensor:
        """Targets ``[..., D]`` on the networks' scale; entries that never changed are 0."""
        return torch.where(self.target_scale > 0, (targets - self.target_mean) / self.target_scale, 0.0)

    def scaled_prior(self, inputs: Tensor) -> Tensor:
        """Priors of the members on the networks' scale, ``[M, B, D]``, at raw inputs ``[M, B, S + A]``."""
        if self.prior is None or self.prior_normalizer is None:
            return torch.zeros_like(self.target_scale)
        weight = torch.where(self.target_scale > 0, self.prior_size / self.target_scale, 0.0)
        return weight * self.prior(self.prior_normalizer(inputs))

    def forward(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation, see :meth:`WorldModel.forward`."""
        inputs = torch.cat([observation, action], -1)
        in_chunks = inputs.device.type == "cpu" and not torch.is_grad_enabled() and not torch.compiler.is_compiling()
        layers, outputs = self._layers_for(inputs), []
        for chunk in inputs.split(_CHUNK_ROWS, 1) if in_chunks else (inputs,):
            mean, log_var = self.predict(self.normalizer(chunk), layers)
            delta = torch.addcmul(self.target_mean, self.target_scale, mean + self.scaled_prior(chunk))
            outputs.append((delta, (0.5 * log_var).exp() * self.target_scale))
        delta, scale = (torch.cat(values, 1) for values in zip(*outputs, strict=True))
        next_observation = observation + delta[..., : self.observation_dim]
        return torch.cat([next_observation, delta[..., self.observation_dim :]], -1), scale

    def termination_probability(self, next_observation: Tensor, action: Tensor) -> Tensor:
        """Probability of an end, zero before one was seen; see :meth:`WorldModel.termination_probability`."""
        if self.termination is None:
            raise RuntimeError("learn_termination must be True to predict ends of episodes.")
        return self.termination(self.normalizer(torch.cat([next_observation, action], -1)))

    def _layers_for(self, inputs: Tensor) -> list[Any]:
        """The layers as functions; matmuls between hidden layers in bfloat16 where that is wanted and gains time."""
        layers: list[Any] = list(self.layers)
        large = inputs.device.type == "cpu" and inputs.shape[1] > _FEW_ROWS
        if self.uses_bf16 and large and layers[0].weight.dtype == torch.float32:
            layers[1:-1] = [layer.rounded() for layer in layers[1:-1]]
        return layers

    def predict(self, inputs: Tensor, layers: list[Any] | None = None) -> tuple[Tensor, Tensor]:
        """Means and log-variances of normalised targets without the prior, ``[M, B, D]``, at normalised inputs."""
        *hidden_layers, last = layers or self.layers
        hidden = inputs
        for layer in hidden_layers:
            hidden = silu(layer(hidden), inplace=not torch.is_grad_enabled())
        mean, log_var = last(hidden.to(self.target_mean.dtype)).chunk(2, -1)
        return mean, soft_clamp(log_var, *self.log_var_bounds)

    def loss(self, inputs: Tensor, targets: Tensor, *, variance_weight: float = 0.0) -> Tensor:
        r"""Training loss of each member, ``[M]``: twice the mean negative log-likelihood of an entry up to a constant.

        At normalised inputs ``[M, B, S + A]`` and targets less the prior, ``[M, B, D]``. Plain likelihood weighs
        squared errors by :math:`\sigma^{-2}`, so that what is predicted worst is learned last. Each entry's likelihood
        is weighed by :math:`\sigma^{2\beta}`, without gradient in the weight (eq. 5 of `Seitzer et al. (2022)
        <https://arxiv.org/abs/2203.09168>`_): :math:`\beta`, ``variance_weight``, of 1 weighs squared errors evenly.
        """
        mean, log_var = self.predict(inputs, self._layers_for(inputs))
        nll = gaussian_nll(mean, log_var, targets)
        if variance_weight:
            nll = nll * (variance_weight * log_var.detach()).exp()
        # entries that never changed are predicted without the networks, and must not count as precise
        return (nll * (self.target_scale > 0)).mean((1, 2))


def make_world_model(
    env: EnvBase,
    *,
    reward_prior_scale: float | None = 0.0,
    reward_bounds: Sequence[float] | None = None,
    **kwargs: Any,
) -> GaussianEnsemble:
    """A :class:`GaussianEnsemble` of the sizes of an environment.

    Args:
        env: environment with a vector ``observation``, shape ``[S]``, and a vector ``action``, shape ``[A]``.
        reward_prior_scale: see :class:`GaussianEnsemble`; ``None`` is the
            :func:`~eqr_torchrl.functional.plausible_reward` of the first data.
        reward_bounds: smallest and largest reward of a step, if known, for that scale.
        **kwargs: further arguments of :class:`GaussianEnsemble`.

    Examples:
        >>> make_world_model(toy_env(), num_members=2, num_cells=(8,)).noise_dim
        4
    """
    scale: Any = partial(plausible_reward, bounds=reward_bounds) if reward_prior_scale is None else reward_prior_scale
    sizes = env.observation_spec["observation"].shape[-1], env.action_spec_unbatched.shape[-1]
    return GaussianEnsemble(*sizes, reward_prior_scale=scale, **kwargs)
