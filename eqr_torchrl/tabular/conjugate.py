"""Conjugate posteriors over transition probabilities and over mean rewards."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eqr_torchrl.tabular.mdp import select_actions
from eqr_torchrl.tabular.statistics import TransitionStatistics


@dataclass(frozen=True, eq=False)
class DirichletPosterior:
    r"""Independent Dirichlet distributions over :math:`p(\cdot|s,a)`, one for each state and action (Assumption 1).

    A zero concentration makes a successor impossible, which is how a known part of the dynamics, a terminal state or an
    acyclic structure is stated.

    Args:
        concentration: non-negative, dimensionless, shape ``[*B, S, A, S]``; each row has a positive entry.

    Raises:
        ValueError: if a concentration is negative or not finite, or a row is zero.

    Examples:
        >>> posterior = DirichletPosterior.prior(num_states=3, num_actions=2, concentration=0.5, terminal_states=(2,))
        >>> posterior.sample((1000,)).shape
        torch.Size([1000, 3, 2, 3])
        >>> posterior.mean()[1:, 0]
        tensor([[0.3333, 0.3333, 0.3333],
                [0.0000, 0.0000, 1.0000]], dtype=torch.float64)
    """

    concentration: Tensor

    def __post_init__(self) -> None:
        shape = self.concentration.shape
        if len(shape) < 3 or shape[-1] != shape[-3]:
            raise ValueError(f"concentration must be of shape [*B, S, A, S], got {tuple(shape)}.")
        if not bool((self.concentration >= 0).all()) or not bool(self.concentration.isfinite().all()):
            raise ValueError("concentration must be finite and not negative.")
        if not bool((self.concentration.amax(-1) > 0).all()):
            raise ValueError("concentration must have a positive entry in every row.")

    @classmethod
    def prior(
        cls,
        num_states: int,
        num_actions: int,
        *,
        concentration: float = 1.0,
        terminal_states: tuple[int, ...] = (),
        device=None,
    ) -> DirichletPosterior:
        """A symmetric prior, float64: ``concentration`` for every successor, and absorbing terminal states."""
        table = torch.full((num_states, num_actions, num_states), concentration, dtype=torch.float64, device=device)
        for state in terminal_states:
            table[state] = 0.0
            table[state, :, state] = 1.0
        return cls(table)

    def update(self, statistics: TransitionStatistics) -> DirichletPosterior:
        """The posterior after ``statistics``: counts add to the concentrations of successors that are possible."""
        counts = statistics.counts.to(self.concentration)
        if bool((counts.masked_fill(self.concentration > 0, 0) > 0).any()):
            raise ValueError("statistics hold a transition whose concentration is zero, that is, an impossible one.")
        return replace(self, concentration=self.concentration + counts)

    def mean(self) -> Tensor:
        """Expected transition probabilities, shape ``[*B, S, A, S]``."""
        return self.concentration / self.concentration.sum(-1, keepdim=True)

    def sample(self, sample_shape: tuple[int, ...] = (), *, policy: Tensor | None = None, generator=None) -> Tensor:
        """Samples of transition probabilities, ``[*Q, *B, S, A, S]`` for ``sample_shape`` ``Q``.

        With deterministic actions ``policy``, ``[S]`` or ``[*B, S]``, only their rows are sampled: ``[*Q, *B, S, S]``.
        """
        table = self.concentration if policy is None else select_actions(self.concentration, policy, 1)
        return _log_gamma_draws(table.expand(*sample_shape, *table.shape), generator).softmax(-1)


def _log_gamma_draws(shape_parameter: Tensor, generator) -> Tensor:
    """Logarithms of Gamma(a, 1) samples, minus infinity where a = 0; exact however small ``a`` is."""
    # Gamma(a) = Gamma(a + 1) U^(1/a), which would underflow for small a if it were not kept as a logarithm
    shape_parameter = shape_parameter.contiguous()
    draws = torch._standard_gamma(shape_parameter + 1, generator=generator).log_()
    uniform = torch.rand(draws.shape, generator=generator, dtype=draws.dtype, device=draws.device)
    return draws.add_(uniform.neg_().add_(1).log_().div_(shape_parameter)).masked_fill_(
        shape_parameter == 0, -torch.inf
    )


@dataclass(frozen=True, eq=False)
class NormalPosterior:
    r"""Normal posterior over mean rewards whose observation noise is known.

    .. math:: \tau' = \tau + n \tau_x, \qquad \mu' = \frac{\tau \mu + \tau_x \sum r}{\tau'}

    Args:
        mean: in units of reward, shape ``[*B, S, A]``.
        precision: inverse variance of the mean reward, shape ``[*B, S, A]``; infinite for a known reward.
        observation_precision: inverse variance of one observed reward.

    Raises:
        ValueError: if the shapes differ, a precision is not positive, or that of an observation is infinite.

    Examples:
        >>> prior = NormalPosterior.prior(num_states=1, num_actions=1, observation_precision=3.0)
        >>> one = torch.ones(1, 1, 1, dtype=torch.float64)
        >>> prior.update(TransitionStatistics(one, 2 * one[0])).mean  # after one reward of 2
        tensor([[1.5000]], dtype=torch.float64)
    """

    mean: Tensor
    precision: Tensor
    observation_precision: float = 1e6

    def __post_init__(self) -> None:
        if self.mean.shape != self.precision.shape:
            raise ValueError(f"precision must be of shape {tuple(self.mean.shape)}, got {tuple(self.precision.shape)}.")
        if not bool((self.precision > 0).all()):
            raise ValueError(f"precision must be positive, got {float(self.precision.min())}.")
        if not 0 < self.observation_precision < torch.inf:
            raise ValueError(f"observation_precision must be positive and finite, got {self.observation_precision}.")

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
        """Samples of mean rewards, shape ``[*Q, *B, S, A]``, or ``[*Q, *B, S]`` for the actions of ``policy``."""
        mean, precision = self.mean, self.precision
        if policy is not None:
            mean, precision = select_actions(mean, policy, 0), select_actions(precision, policy, 0)
        noise = torch.randn((*sample_shape, *mean.shape), generator=generator, dtype=mean.dtype, device=mean.device)
        return mean + precision.rsqrt() * noise
