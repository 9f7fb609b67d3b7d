"""Dirichlet posterior over transition probabilities."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eqr_torchrl.tabular.mdp import select_actions
from eqr_torchrl.tabular.statistics import TransitionStatistics


@dataclass(frozen=True, eq=False)
class DirichletPosterior:
    r"""Independent Dirichlet distributions over :math:`p(\cdot|s,a)`, one for each state and action.

    Independence between rows is Assumption 1 of `Luis et al. (2024) <https://arxiv.org/abs/2308.06590>`_. A zero
    concentration makes a successor impossible, which is how a known part of the dynamics, a terminal state or an
    acyclic structure is stated.

    Args:
        concentration: non-negative, dimensionless, shape ``[*B, S, A, S]``; each row has a positive entry.
        shared_noise: draw the elements of the batch with common random numbers. Each keeps its own distribution;
            they vary together, and posteriors that share a prior cost hardly more than one of them.

    Raises:
        ValueError: if a concentration is negative or not finite, or a row is zero.

    Examples:
        >>> posterior = DirichletPosterior.prior(num_states=3, num_actions=2, concentration=0.5, terminal_states=(2,))
        >>> posterior.sample((1000,)).shape
        torch.Size([1000, 3, 2, 3])
        >>> posterior.mean()[:, 0]
        tensor([[0.3333, 0.3333, 0.3333],
                [0.3333, 0.3333, 0.3333],
                [0.0000, 0.0000, 1.0000]], dtype=torch.float64)
    """

    concentration: Tensor
    shared_noise: bool = False

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
        shared_noise: bool = False,
        device=None,
    ) -> DirichletPosterior:
        """A symmetric prior, float64: ``concentration`` for every successor, and terminal states that stay put."""
        table = torch.full((num_states, num_actions, num_states), concentration, dtype=torch.float64, device=device)
        for state in terminal_states:
            table[state] = 0.0
            table[state, :, state] = 1.0
        return cls(table, shared_noise)

    def update(self, statistics: TransitionStatistics) -> DirichletPosterior:
        """The posterior after ``statistics``: counts add to the concentrations of successors that are possible."""
        counts = statistics.counts.to(self.concentration)
        possible = self.concentration > 0
        if bool((counts.masked_fill(possible, 0) > 0).any()):
            raise ValueError("statistics hold a transition whose concentration is zero, that is, an impossible one.")
        return replace(self, concentration=self.concentration + counts)

    def mean(self) -> Tensor:
        """Expected transition probabilities, shape ``[*B, S, A, S]``."""
        return self.concentration / self.concentration.sum(-1, keepdim=True)

    def sample(self, sample_shape: tuple[int, ...] = (), *, policy: Tensor | None = None, generator=None) -> Tensor:
        """Draws of transition probabilities.

        Args:
            sample_shape: shape ``Q`` of independent draws.
            policy: deterministic actions ``[S]`` or ``[*B, S]``: only their rows are drawn.
            generator: random generator on the device of the concentrations.

        Returns:
            Probabilities, shape ``[*Q, *B, S, A, S]``, or ``[*Q, *B, S, S]`` with ``policy``.
        """
        table = self.concentration if policy is None else select_actions(self.concentration, policy, 1)
        batch_dims = self.concentration.dim() - 3
        if not self.shared_noise or batch_dims == 0:
            return _log_gamma_draws(table.expand(*sample_shape, *table.shape), generator).softmax(-1)
        # Gamma(a + b) = Gamma(a) + Gamma(b): the part all elements have in common is drawn once, the rest is sparse
        common = table.flatten(0, batch_dims - 1).amin(0)
        extra = table - common
        where = extra.nonzero(as_tuple=True)
        log_draws = _log_gamma_draws(common.expand(*sample_shape, *common.shape), generator)
        log_draws = log_draws.reshape(*sample_shape, *(1,) * batch_dims, *common.shape)
        log_draws = log_draws.repeat(*(1,) * len(sample_shape), *table.shape[:batch_dims], *(1,) * common.dim())
        log_extra = _log_gamma_draws(extra[where].expand(*sample_shape, -1), generator)
        index = (..., *where)
        log_draws[index] = torch.logaddexp(log_draws[index], log_extra)
        return log_draws.softmax(-1)


def _log_gamma_draws(shape_parameter: Tensor, generator) -> Tensor:
    """Logarithms of Gamma(a, 1) draws, minus infinity where a = 0; exact however small ``a`` is."""
    # Gamma(a) = Gamma(a + 1) U^(1/a), which would underflow for small a if it were not kept as a logarithm
    shape_parameter = shape_parameter.contiguous()
    draws = torch._standard_gamma(shape_parameter + 1, generator=generator).log_()
    uniform = torch.rand(draws.shape, generator=generator, dtype=draws.dtype, device=draws.device)
    return draws.add_(uniform.log_().div_(shape_parameter)).masked_fill_(shape_parameter == 0, -torch.inf)
