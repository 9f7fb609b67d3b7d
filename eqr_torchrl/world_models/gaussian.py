"""An ensemble of Gaussian networks, evaluated as one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from torchrl.envs import EnvBase

from eqr_torchrl.functional import gaussian_nll, soft_clamp
from eqr_torchrl.modules.ensemble import EnsembleLinear
from eqr_torchrl.world_models.base import WorldModel
from eqr_torchrl.world_models.normalizer import Normalizer

#: Rows of each member that pass through the network at once on a CPU, so that the activations stay in its caches.
_CHUNK_ROWS = 1024


class GaussianEnsemble(WorldModel):
    r"""``M`` probabilistic networks that predict the change of the observation, and the reward.

    .. math:: (s' - s, r) \sim \mathcal N\big(\mu_m(s, a), \mathrm{diag}\, e^{\ell_m(s, a)}\big)

    The probabilistic ensemble of `Chua et al. (2018) <https://arxiv.org/abs/1805.12114>`_ with the sizes of `Luis et
    al. (2024) <https://arxiv.org/abs/2308.06590>`_. All members are evaluated by batched products, without a loop.
    Inputs are normalised and clipped (:class:`Normalizer`); targets are not, so the bounds below are in squared units
    of the environment: with the default upper bound a member cannot state a noise above :math:`e^{0.25} \approx 1.3`.
    Scale the reward, or raise the bound, where the noise is larger.

    Args:
        observation_dim: number of entries of an observation, ``S``.
        action_dim: number of entries of an action, ``A``.
        num_members: number of members, ``M``.
        num_cells: sizes of the hidden layers, each followed by a SiLU. The paper has 400 cells for the quadruped.
        learn_reward: whether the reward is predicted, as last entry. If not, the environment built on the model needs a
            reward function.
        log_var_bounds: bounds of the log-variance :math:`\ell`, softly enforced for any input.
        learn_log_var_bounds: whether the bounds are parameters, one set for each member, pulled towards each other by
            :attr:`BOUND_PENALTY` times their distance. Defaults to fixed bounds.

    Raises:
        ValueError: if a size is not positive, or the bounds do not increase.

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

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        *,
        num_members: int = 5,
        num_cells: Sequence[int] = (200, 200, 200, 200),
        learn_reward: bool = True,
        log_var_bounds: tuple[float, float] = (-10.0, 0.5),
        learn_log_var_bounds: bool = False,
    ) -> None:
        super().__init__(observation_dim, num_members=num_members, predicts_reward=learn_reward)
        low, high = log_var_bounds
        if not low < high:
            raise ValueError(f"log_var_bounds must increase, got {(low, high)}.")
        if action_dim < 1:
            raise ValueError(f"action_dim must be positive, got {action_dim}.")
        self.action_dim = action_dim
        self.normalizer = Normalizer(observation_dim + action_dim)
        sizes = [observation_dim + action_dim, *num_cells, 2 * self.noise_dim]
        self.layers = nn.ModuleList(
            EnsembleLinear(num_members, size_in, size_out) for size_in, size_out in pairwise(sizes)
        )
        self.learn_log_var_bounds = learn_log_var_bounds
        for name, value in (("min_log_var", low), ("max_log_var", high)):
            bound = torch.full((num_members, 1, self.noise_dim), float(value))
            if learn_log_var_bounds:
                self.register_parameter(name, nn.Parameter(bound))
            else:
                self.register_buffer(name, bound[:1])

    def forward(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Predicts the next observation, and the reward as last entry if ``predicts_reward``.

        Args:
            observation: current observations, in units of the environment, shape ``[M, B, S]``.
            action: actions, in units of the environment, shape ``[M, B, A]``.

        Returns:
            Mean and standard deviation, in units of the environment, each ``[M, B, D]``.
        """
        rows = observation.shape[1]
        whole = rows <= _CHUNK_ROWS or observation.device.type != "cpu"
        if whole or torch.is_grad_enabled() or torch.compiler.is_compiling():
            return self._distribution(observation, action)
        loc = observation.new_empty(*observation.shape[:2], self.noise_dim, dtype=self.min_log_var.dtype)
        scale = torch.empty_like(loc)
        for start in range(0, rows, _CHUNK_ROWS):
            chunk = slice(start, start + _CHUNK_ROWS)
            loc[:, chunk], scale[:, chunk] = self._distribution(observation[:, chunk], action[:, chunk])
        return loc, scale

    def _distribution(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        delta, log_var = self.predict(self.normalizer(torch.cat([observation, action], -1)))
        next_observation = observation + delta[..., : self.observation_dim]
        return torch.cat([next_observation, delta[..., self.observation_dim :]], -1), (0.5 * log_var).exp()

    def predict(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of the change of the observation and of the reward.

        Args:
            inputs: normalised observations and actions, shape ``[M, B, S + A]``.

        Returns:
            Means and log-variances, in units of the environment, each ``[M, B, D]``.
        """
        hidden = inputs
        for layer in self.layers[:-1]:
            hidden = silu(layer(hidden), inplace=not torch.is_grad_enabled())
        mean, log_var = self.layers[-1](hidden).to(self.min_log_var.dtype).chunk(2, -1)
        return mean, soft_clamp(log_var, self.min_log_var, self.max_log_var)

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        r"""Training loss of each member, twice the negative log-likelihood per entry up to a constant.

        Args:
            inputs: normalised observations and actions, shape ``[M, B, S + A]``.
            targets: observed changes of the observation, and rewards, in units of the environment, ``[M, B, D]``.

        Returns:
            One loss per member, shape ``[M]``, each averaged over rows and entries.
        """
        mean, log_var = self.predict(inputs)
        loss = gaussian_nll(mean, log_var, targets).mean((1, 2))
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
