"""Conjugate posteriors over mean rewards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eqr_torchrl.tabular.mdp import select_actions
from eqr_torchrl.tabular.statistics import TransitionStatistics


class RewardPosterior(ABC):
    """A posterior over the mean reward of each state and action."""

    @abstractmethod
    def update(self, statistics: TransitionStatistics) -> RewardPosterior:
        """The posterior after ``statistics``."""

    @abstractmethod
    def mean_reward(self) -> Tensor:
        """Expected mean rewards, in units of reward, shape ``[*B, S, A]``."""

    @abstractmethod
    def sample(self, sample_shape: tuple[int, ...] = (), *, policy: Tensor | None = None, generator=None) -> Tensor:
        """Draws of mean rewards, shape ``[*Q, *B, S, A]``, or ``[*Q, *B, S]`` for the actions of ``policy``."""


def _pinned_table(value: float, pin: float, num_states: int, num_actions: int, terminal_states, device) -> Tensor:
    table = torch.full((num_states, num_actions), value, dtype=torch.float64, device=device)
    table[list(terminal_states)] = pin
    return table


def _standard_normal(like: Tensor, sample_shape: tuple[int, ...], generator) -> Tensor:
    return torch.randn((*sample_shape, *like.shape), generator=generator, dtype=like.dtype, device=like.device)


@dataclass(frozen=True, eq=False)
class NormalPosterior(RewardPosterior):
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
        >>> posterior = prior.update(TransitionStatistics(one, 2 * one[0], 4 * one[0]))  # one reward of 2
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
        table = (num_states, num_actions, terminal_states, device)
        return cls(_pinned_table(mean, 0.0, *table), _pinned_table(precision, torch.inf, *table), observation_precision)

    def update(self, statistics: TransitionStatistics) -> NormalPosterior:
        """The posterior after ``statistics``."""
        precision = self.precision + self.observation_precision * statistics.visits.to(self.mean)
        prior_weight = torch.where(self.precision.isinf(), 1.0, self.precision / precision)
        mean = prior_weight * self.mean + self.observation_precision * statistics.reward_sums.to(self.mean) / precision
        return replace(self, mean=mean, precision=precision.expand_as(mean))

    def mean_reward(self) -> Tensor:
        """Expected mean rewards, in units of reward, shape ``[*B, S, A]``."""
        return self.mean

    def sample(self, sample_shape: tuple[int, ...] = (), *, policy: Tensor | None = None, generator=None) -> Tensor:
        """Draws of mean rewards, shape ``[*Q, *B, S, A]``, or ``[*Q, *B, S]`` for the actions of ``policy``."""
        mean, precision = self.mean, self.precision
        if policy is not None:
            mean, precision = select_actions(mean, policy, 0), select_actions(precision, policy, 0)
        return mean + precision.rsqrt() * _standard_normal(mean, sample_shape, generator)


@dataclass(frozen=True, eq=False)
class NormalGammaPosterior(RewardPosterior):
    r"""Normal-Gamma posterior over mean rewards whose observation noise is unknown.

    The precision of a reward is :math:`\lambda \sim \text{Gamma}(\alpha, \beta)` and its mean
    :math:`\mathcal N(\mu, 1 / (\kappa \lambda))`. After ``n`` rewards of mean :math:`\bar r`,

    .. math:: \kappa' = \kappa + n, \quad \mu' = \frac{\kappa \mu + n \bar r}{\kappa'}, \quad
              \alpha' = \alpha + \tfrac n2, \quad
              \beta' = \beta + \tfrac12 \sum (r - \bar r)^2 + \frac{\kappa n (\bar r - \mu)^2}{2 \kappa'}

    Args:
        mean: :math:`\mu`, in units of reward, shape ``[*B, S, A]``.
        pseudo_count: :math:`\kappa`, how many observations the mean is worth; infinite pins it, shape ``[*B, S, A]``.
        shape: :math:`\alpha` of the precision, dimensionless, shape ``[*B, S, A]``.
        rate: :math:`\beta` of the precision, in squared units of reward, shape ``[*B, S, A]``.

    Raises:
        ValueError: if the shapes differ or a parameter is not positive.

    Examples:
        >>> prior = NormalGammaPosterior.prior(num_states=1, num_actions=1, mean=0.0)
        >>> two = torch.full((1, 1, 1), 2.0, dtype=torch.float64)  # rewards 1 and 3
        >>> posterior = prior.update(TransitionStatistics(two, 2 * two[0], 5 * two[0]))
        >>> [round(float(x), 3) for x in (posterior.mean, posterior.pseudo_count, posterior.shape, posterior.rate)]
        [1.333, 3.0, 11.0, 102.333]
    """

    mean: Tensor
    pseudo_count: Tensor
    shape: Tensor
    rate: Tensor

    def __post_init__(self) -> None:
        for name in ("pseudo_count", "shape", "rate"):
            table = getattr(self, name)
            if table.shape != self.mean.shape:
                raise ValueError(f"{name} must be of shape {tuple(self.mean.shape)}, got {tuple(table.shape)}.")
            if not bool((table > 0).all()):
                raise ValueError(f"{name} must be positive.")

    @classmethod
    def prior(
        cls,
        num_states: int,
        num_actions: int,
        *,
        mean: float = 2.0,
        pseudo_count: float = 1.0,
        shape: float = 10.0,
        rate: float = 100.0,
        terminal_states: tuple[int, ...] = (),
        device=None,
    ) -> NormalGammaPosterior:
        """The same prior everywhere, float64, except for terminal states, whose reward is known to be zero."""
        table = (num_states, num_actions, terminal_states, device)
        return cls(
            _pinned_table(mean, 0.0, *table),
            _pinned_table(pseudo_count, torch.inf, *table),
            _pinned_table(shape, shape, *table),
            _pinned_table(rate, rate, *table),
        )

    def update(self, statistics: TransitionStatistics) -> NormalGammaPosterior:
        """The posterior after ``statistics``."""
        visits = statistics.visits.to(self.mean)
        average = statistics.reward_sums.to(self.mean) / visits.clamp_min(1)
        scatter = (statistics.reward_squares.to(self.mean) - visits * average.square()).clamp_min(0)
        pseudo_count = self.pseudo_count + visits
        prior_weight = torch.where(self.pseudo_count.isinf(), 1.0, self.pseudo_count / pseudo_count)
        mean = prior_weight * self.mean + (1 - prior_weight) * average
        rate = self.rate + 0.5 * scatter + 0.5 * prior_weight * visits * (average - self.mean).square()
        return NormalGammaPosterior(mean, pseudo_count.expand_as(mean), self.shape + 0.5 * visits, rate)

    def mean_reward(self) -> Tensor:
        """Expected mean rewards, in units of reward, shape ``[*B, S, A]``."""
        return self.mean

    def sample(self, sample_shape: tuple[int, ...] = (), *, policy: Tensor | None = None, generator=None) -> Tensor:
        """Draws of mean rewards, shape ``[*Q, *B, S, A]``, or ``[*Q, *B, S]`` for the actions of ``policy``."""
        tables = (self.mean, self.pseudo_count, self.shape, self.rate)
        if policy is not None:
            tables = tuple(select_actions(table, policy, 0) for table in tables)
        mean, pseudo_count, shape, rate = tables
        shape = shape.expand(*sample_shape, *shape.shape).contiguous()
        precision = pseudo_count * torch._standard_gamma(shape, generator=generator) / rate
        return mean + precision.rsqrt() * _standard_normal(mean, sample_shape, generator)
