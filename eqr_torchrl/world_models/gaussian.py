"""An ensemble of Gaussian networks, evaluated as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from torchrl.envs import EnvBase

from eqr_torchrl.functional import gaussian_nll, soft_clamp
from eqr_torchrl.functional.products import Precision, uses_bf16
from eqr_torchrl.modules.ensemble import EnsembleLinear
from eqr_torchrl.world_models.base import WorldModel
from eqr_torchrl.modules.normalizer import Normalizer
from eqr_torchrl.world_models.prior import RandomPrior

#: Rows of each member that pass through the network at once on a CPU: the activations stay in its caches, and blocks
#: are small enough for the allocator to keep, where larger ones cost a page fault for every 4 KiB.
_CHUNK_ROWS = 256

#: Rows of each member below which products in bfloat16 gain nothing.
_FEW_ROWS = 64

#: Standard deviation of the reward, relative to its range, from which on it counts as seen.
_SEEN = 0.01

#: Standard deviation of a target, relative to its mean, below which it counts as constant.
_SMALLEST_SPREAD = 1e-6


def reward_prior(spread: float, unit: float, scale: float) -> float:
    """Scale of the reward's prior: ``scale`` of its range while it has hardly been seen to vary, then its spread.

    A prior much larger than the rewards that are there to be learnt hides them: members fit both with one precision.

    Args:
        spread: standard deviation of the rewards seen.
        unit: their range, known or seen.
        scale: share of the range that is thought possible before anything was seen.

    Examples:
        >>> reward_prior(0.0, 1.0, 0.5), reward_prior(0.05, 1.0, 0.5)
        (0.5, 0.05)
    """
    unseen = max(0.0, 1 - spread / (_SEEN * unit))
    return max(spread, unseen * scale * unit) if scale else 0.0


class GaussianEnsemble(WorldModel):
    r"""``M`` probabilistic networks that predict the change of the observation, and the reward.

    .. math:: (s' - s, r) \sim \mathcal N\big(\bar y + \sigma_y (\mu_m(x) + \tfrac{b}{\sigma_y} p_m(x)),\;
              \sigma_y^2\, \mathrm{diag}\, e^{\ell_m(x)}\big), \quad \sigma_y^2 = \mathrm{std}(y)^2 + b^2

    The probabilistic ensemble of `Chua et al. (2018) <https://arxiv.org/abs/1805.12114>`_ with the sizes of `Luis et
    al. (2024) <https://arxiv.org/abs/2308.06590>`_. All members are evaluated by batched products, without a loop.

    The networks work on a scale of their own: inputs :math:`x` are normalised and clipped (:class:`Normalizer`), and
    targets are shifted by their mean over the data and divided by :math:`\sigma_y`, entry by entry, so that rewards
    of any size are learned alike. An entry that never changed is predicted as it was, without noise. The paper's code
    does not normalise targets (``normalize_targets=False``): a member then cannot predict a noise above
    :math:`e^{0.25} \approx 1.3` in units of the environment, and misses rewards much larger or smaller than 1.

    With a prior scale :math:`b > 0`, fixed random networks :math:`p_m` (:class:`RandomPrior`) make members disagree by
    about :math:`b` where there are no data.

    Args:
        observation_dim: number of entries of an observation, ``S``.
        action_dim: number of entries of an action, ``A``.
        num_members: number of members, ``M``.
        num_cells: sizes of the hidden layers, each followed by a SiLU. The paper has 400 cells for the quadruped.
        learn_reward: whether the reward is predicted, as last entry. If not, the environment built on the model needs a
            reward function.
        normalize_targets: whether the networks predict targets on the scale of the data, see above.
        prior_scale: :math:`b` of the change of the observation, in standard deviations of its entries in the data.
        reward_prior_scale: :math:`b` of the reward, in units of the environment: how far a reward that was never seen
            may plausibly lie from those that were.
        log_var_bounds: bounds of the log-variance :math:`\ell`, on the networks' scale, softly enforced for any input.
        learn_log_var_bounds: whether the bounds are parameters, one set for each member, pulled towards each other by
            :attr:`BOUND_PENALTY` times their distance. Defaults to fixed bounds.
        precision: format of products between hidden layers on a CPU, in :meth:`loss` and in :meth:`forward` without
            gradient: ``"fp32"``, ``"bf16"``, or ``"auto"``, which is bfloat16 where the CPU has instructions for it.
            Weights, their optimiser, inputs and outputs are in float32.

    Attributes:
        target_mean: :math:`\bar y`, in units of the environment, shape ``[D]``; zero if not normalised.
        target_scale: :math:`\sigma_y`, in units of the environment, shape ``[D]``; one if not normalised.

    Raises:
        ValueError: if a size is not positive, the bounds do not increase, a prior scale is negative, or
            ``precision`` is unknown.

    Examples:
        >>> model = GaussianEnsemble(3, 1, num_members=5, num_cells=(32, 32))
        >>> loc, scale = model(torch.zeros(5, 4, 3), torch.zeros(5, 4, 1))
        >>> loc.shape, scale.shape  # three entries of the next observation, and the reward
        (torch.Size([5, 4, 4]), torch.Size([5, 4, 4]))
    """

    #: Weight of the learned bounds' distance in the loss, summed over outputs; appendix A.1 of Chua et al. (2018).
    BOUND_PENALTY = 0.01

    min_log_var: Tensor
    max_log_var: Tensor
    target_mean: Tensor
    target_scale: Tensor
    prior_weight: Tensor
    prior_std: Tensor
    prior_is_fixed: Tensor
    reward_unit: Tensor

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
        reward_prior_scale: float = 0.0,
        log_var_bounds: tuple[float, float] = (-10.0, 0.5),
        learn_log_var_bounds: bool = False,
        precision: Precision = "auto",
    ) -> None:
        super().__init__(observation_dim, num_members=num_members, predicts_reward=learn_reward)
        low, high = log_var_bounds
        if not low < high:
            raise ValueError(f"log_var_bounds must increase, got {(low, high)}.")
        if action_dim < 1:
            raise ValueError(f"action_dim must be positive, got {action_dim}.")
        for name, value in (("prior_scale", prior_scale), ("reward_prior_scale", reward_prior_scale)):
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name} must be finite and not negative, got {value}.")
        self.action_dim = action_dim
        self.uses_bf16 = uses_bf16(precision)
        self.normalize_targets = normalize_targets
        self.prior_scale, self.reward_prior_scale = prior_scale, reward_prior_scale
        num_inputs = observation_dim + action_dim
        self.normalizer = Normalizer(num_inputs)
        self.register_buffer("target_mean", torch.zeros(self.noise_dim))
        self.register_buffer("target_scale", torch.ones(self.noise_dim))
        self.register_buffer("prior_weight", torch.zeros(self.noise_dim))  # b / sigma_y
        sizes = [num_inputs, *num_cells, 2 * self.noise_dim]
        self.layers = nn.ModuleList(
            EnsembleLinear(num_members, size_in, size_out) for size_in, size_out in pairwise(sizes)
        )
        has_prior = prior_scale > 0 or (learn_reward and reward_prior_scale > 0)
        # what the prior is made of is fixed by the first data: one function for ever
        self.prior_normalizer = Normalizer(num_inputs)
        self.register_buffer("prior_std", torch.zeros(self.noise_dim, dtype=torch.float64))
        self.register_buffer("prior_is_fixed", torch.tensor(False))
        self.register_buffer("reward_unit", torch.ones((), dtype=torch.float64))
        self.prior = RandomPrior(num_members, num_inputs, self.noise_dim) if has_prior else None
        self.learn_log_var_bounds = learn_log_var_bounds
        for name, value in (("min_log_var", low), ("max_log_var", high)):
            bound = torch.full((num_members, 1, self.noise_dim), float(value))
            if learn_log_var_bounds:
                self.register_parameter(name, nn.Parameter(bound))
            else:
                self.register_buffer(name, bound[:1])

    @torch.no_grad()
    def update_statistics(self, inputs: Tensor, targets: Tensor) -> None:
        """Replaces the statistics by which inputs and targets are normalised.

        Args:
            inputs: observations and actions, in units of the environment, shape ``[n, S + A]``.
            targets: changes of the observation, and rewards, in units of the environment, shape ``[n, D]``.
        """
        self.normalizer.update(inputs)
        # float64: float32 sums lose an entry's small spread around a large mean
        var, mean = torch.var_mean(targets.double(), 0, correction=min(1, len(targets) - 1))
        std = var.sqrt()
        std = torch.where(std > _SMALLEST_SPREAD * mean.abs(), std, 0.0)  # rounding is no change
        if not self.prior_is_fixed:
            self.prior_normalizer.update(inputs)
            self.prior_std.copy_(self.prior_scale * std)
            self.prior_is_fixed.fill_(True)
        prior = self.prior_std.clone()
        if self.predicts_reward:
            prior[-1] = reward_prior(float(std[-1]), float(self.reward_unit), self.reward_prior_scale)
        if self.normalize_targets:
            self.target_mean.copy_(mean)
            self.target_scale.copy_((std.square() + prior.square()).sqrt())
        scale = self.target_scale.double()
        self.prior_weight.copy_(torch.where(scale > 0, prior / scale, 0.0))

    def normalize(self, targets: Tensor) -> Tensor:
        """Targets ``[..., D]`` on the networks' scale; entries that never changed are 0."""
        return torch.where(self.target_scale > 0, (targets - self.target_mean) / self.target_scale, 0.0)

    def forward(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Predicts the next observation, and the reward as last entry if ``predicts_reward``.

        Args:
            observation: current observations, in units of the environment, shape ``[M, B, S]``.
            action: actions, in units of the environment, shape ``[M, B, A]``.

        Returns:
            Mean and standard deviation, in units of the environment, each ``[M, B, D]``.
        """
        rows = observation.shape[1]
        if torch.is_grad_enabled():
            return self._distribution(observation, action, list(self.layers))
        layers = self._layers_for(observation)
        if observation.device.type != "cpu" or rows <= _CHUNK_ROWS or torch.compiler.is_compiling():
            return self._distribution(observation, action, layers)
        loc = observation.new_empty(*observation.shape[:2], self.noise_dim, dtype=self.min_log_var.dtype)
        scale = torch.empty_like(loc)
        for start in range(0, rows, _CHUNK_ROWS):
            chunk = slice(start, start + _CHUNK_ROWS)
            loc[:, chunk], scale[:, chunk] = self._distribution(observation[:, chunk], action[:, chunk], layers)
        return loc, scale

    def _layers_for(self, inputs: Tensor) -> list[Any]:
        """The layers as functions; products between hidden layers in bfloat16 where that is wanted and gains time."""
        layers: list[Any] = list(self.layers)
        large = inputs.device.type == "cpu" and inputs.shape[1] > _FEW_ROWS
        if self.uses_bf16 and large and layers[0].weight.dtype == torch.float32:
            layers[1:-1] = [layer.rounded() for layer in layers[1:-1]]
        return layers

    def _distribution(
        self, observation: Tensor, action: Tensor, layers: Sequence[Callable[[Tensor], Tensor]]
    ) -> tuple[Tensor, Tensor]:
        raw = torch.cat([observation, action], -1)
        mean, log_var = self._predict(self.normalizer(raw), layers)
        if self.prior is not None:
            mean = torch.addcmul(mean, self.prior_weight, self.prior(self.prior_normalizer(raw)))
        delta = torch.addcmul(self.target_mean, self.target_scale, mean)
        next_observation = observation + delta[..., : self.observation_dim]
        scale = (0.5 * log_var).exp() * self.target_scale
        return torch.cat([next_observation, delta[..., self.observation_dim :]], -1), scale

    def predict(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Output of the trained networks, on their own scale and without the prior.

        Args:
            inputs: normalised observations and actions, shape ``[M, B, S + A]``.

        Returns:
            Means and log-variances of the normalised targets, each ``[M, B, D]``.
        """
        return self._predict(inputs, list(self.layers))

    def _predict(self, inputs: Tensor, layers: Sequence[Callable[[Tensor], Tensor]]) -> tuple[Tensor, Tensor]:
        hidden = inputs
        for layer in layers[:-1]:
            hidden = silu(layer(hidden), inplace=not torch.is_grad_enabled())
        mean, log_var = layers[-1](hidden.to(self.min_log_var.dtype)).chunk(2, -1)
        return mean, soft_clamp(log_var, self.min_log_var, self.max_log_var)

    def loss(self, inputs: Tensor, targets: Tensor, *, variance_weight: float = 0.0) -> Tensor:
        r"""Training loss of each member, twice the negative log-likelihood per entry up to a constant.

        With a variance weight :math:`\beta`, each entry's likelihood counts :math:`\sigma^{2\beta}` times, without
        gradient in the weight (eq. 5 of `Seitzer et al. (2022) <https://arxiv.org/abs/2203.09168>`_). Plain likelihood
        weighs squared errors by :math:`\sigma^{-2}`, so that what is predicted worst is learned last.

        Args:
            inputs: normalised observations and actions, shape ``[M, B, S + A]``.
            targets: normalised targets, less the prior of the member, shape ``[M, B, D]``.
            variance_weight: :math:`\beta`, in ``[0, 1]``; 0 is the likelihood, 1 weighs squared errors evenly.

        Returns:
            One loss per member, shape ``[M]``, each averaged over rows and entries.
        """
        mean, log_var = self._predict(inputs, self._layers_for(inputs))
        nll = gaussian_nll(mean, log_var, targets)
        if variance_weight:
            nll = nll * (variance_weight * log_var.detach()).exp()
        # entries that never changed are predicted without the networks, and must not count as precise
        loss = (nll * (self.target_scale > 0)).mean((1, 2))
        if self.learn_log_var_bounds:
            loss = loss + self.BOUND_PENALTY * (self.max_log_var - self.min_log_var).sum((1, 2))
        return loss


def make_world_model(env: EnvBase, **kwargs: Any) -> GaussianEnsemble:
    """A :class:`GaussianEnsemble` of the sizes of an environment.

    Args:
        env: environment with a vector ``observation``, shape ``[S]``, and a vector ``action``, shape ``[A]``.
        **kwargs: further arguments of :class:`GaussianEnsemble`.

    Returns:
        An untrained world model.

    Examples:
        >>> make_world_model(toy_env(), num_members=2, num_cells=(8,)).noise_dim
        4
    """
    observation_dim = env.observation_spec["observation"].shape[-1]
    return GaussianEnsemble(observation_dim, env.action_spec_unbatched.shape[-1], **kwargs)
