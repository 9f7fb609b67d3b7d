"""Conjugate posterior over mean rewards."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eqr_torchrl.tabular.mdp import select_actions
from eqr_torchrl.tabular.statistics import TransitionStatistics


@dataclass(frozen=True, eq=False)
class NormalPosterior:
    r"""Normal posterior over mean rewards whose observation noise is known.

    .. math:: \tau' = \tau + n \tau_x, \qquad \mu' = \frac{\tau \mu + \tau_x \sum r}{\tau'}

    Args:
        mean: in units of reward, shape ``[*B, S, A]``.
        precision: inverse variance of the mean reward, shape ``[*B, S, A]``; infinite pins it.
        observation_precision: inverse variance of one observed reward.

    Raises:
        ValueError: if the shapes differ or a precision is not positive.

    Examples:
        >>> prior = NormalPosterior.prior(num_states=1, num_actions=1, observation_precision=3.0)
        >>> one = torch.ones(1, 1, 1, dtype=torch.float64)
        >>> posterior = prior.update(TransitionStatistics(one, 2 * one[0]))  # one reward of 2
        >>> posterior.mean, posterior.precision
        (tensor([[1.5000]], dtype=torch.float64), tensor([[4.]], dtype=torch.float64))
    """

    mean: Tensor
    precision: Tensor
    observation_precision: float = 1e6

    def __post_init__(self) -> None:
        if self.mean.shape != self.precision.shape:
            raise ValueError(f"precision must be of shape {tuple(self.mean.shape)}, got {tuple(self.precision.shape)}.")
        if not bool((self.precision > 0).all()) or not self.observation_precision > 0:
            raise ValueError("precision and observation_precision must be positive.")

    @classmethod
    def prior(
        cls,
        num_states: int,
        num_actions: int,
        *,
        mean: float = 0.0,
        precision: float = 1.0,
        observation_precision: float = 1e6,
        terminal_states: tuple[int, ...] = (),
        device=None,
    ) -> NormalPosterior:
        """The same prior everywhere, float64, except for terminal states, whose reward is known to be zero."""
        means = torch.full((num_states, num_actions), mean, dtype=torch.float64, device=device)
        precisions = torch.full_like(means, precision)
        means[list(terminal_states)], precisions[list(terminal_states)] = 0.0, torch.inf
        return cls(means, precisions, observation_precision)

    def update(self, statistics: TransitionStatistics) -> NormalPosterior:
        """The posterior after ``statistics``."""
        precision = self.precision + self.observation_precision * statistics.visits.to(self.mean)
        prior_weight = torch.where(self.precision.isinf(), 1.0, self.precision / precision)
        mean = prior_weight * self.mean + self.observation_precision * statistics.reward_sums.to(self.mean) / precision
        return replace(self, mean=mean, precision=precision.expand_as(mean))

    def sample(self, sample_shape: tuple[int, ...] = (), *, policy: Tensor | None = None, generator=None) -> Tensor:
        """Draws of mean rewards, shape ``[*Q, *B, S, A]``, or ``[*Q, *B, S]`` for the actions of ``policy``."""
        mean, precision = self.mean, self.precision
        if policy is not None:
            mean, precision = select_actions(mean, policy, 0), select_actions(precision, policy, 0)
        noise = torch.randn((*sample_shape, *mean.shape), generator=generator, dtype=mean.dtype, device=mean.device)
        return mean + precision.rsqrt() * noise
