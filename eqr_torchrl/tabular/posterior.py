"""Posteriors over whole MDPs: what epistemic quantile regression and PSRL sample from."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import replace

import torch
from torch import Tensor

from eqr_torchrl.tabular.conjugate import DirichletPosterior, NormalPosterior
from eqr_torchrl.tabular.mdp import MDP, MarkovRewardProcess, validate_policy
from eqr_torchrl.tabular.statistics import TransitionStatistics


class MDPPosterior(ABC):
    r"""A distribution :math:`\Phi(P | D)` over MDPs, or a batch ``[*B]`` of such distributions.

    Another posterior implements these methods and sets these attributes, and nothing else: ``num_states``,
    ``num_actions``, ``gamma``, ``terminal_states``, ``batch_shape`` (``B``) and ``device``.
    """

    num_states: int
    num_actions: int
    gamma: float
    terminal_states: tuple[int, ...]
    batch_shape: torch.Size
    device: torch.device

    @abstractmethod
    def sample(self, sample_shape: tuple[int, ...] = (), *, generator: torch.Generator | None = None) -> MDP:
        """Independent MDPs of batch shape ``[*Q, *B]``, where ``Q`` is ``sample_shape``."""

    @abstractmethod
    def sample_process(
        self, policy: Tensor, sample_shape: tuple[int, ...] = (), *, generator: torch.Generator | None = None
    ) -> MarkovRewardProcess:
        """Independent MDPs under ``policy``, batch shape ``[*Q, *B]``; cheaper than drawing them whole.

        One policy for all, or one for each element of ``B``: its leading shape broadcasts to ``B``, else a ValueError.
        """

    @abstractmethod
    def mean(self) -> MDP:
        """The MDP of expected transition probabilities and rewards, batch shape ``[*B]``."""


class ConjugatePosterior(MDPPosterior):
    """Dirichlet transitions with Normal rewards, independent of each other.

    Args:
        transitions: posterior over transition probabilities, tables ``[*B, S, A, S]``.
        rewards: posterior over mean rewards, tables ``[*B, S, A]`` or ``[S, A]``.
        gamma: discount in ``[0, 1)``.
        terminal_states: absorbing states without reward.
        initial_state: where episodes start.

    Raises:
        ValueError: if the tables do not fit together.

    Examples:
        >>> posterior = ConjugatePosterior(DirichletPosterior.prior(3, 2), NormalPosterior.prior(3, 2), gamma=0.9)
        >>> posterior.sample((5,)).batch_shape
        torch.Size([5])
        >>> posterior.sample_process(torch.tensor([0, 1, 0]), (5,)).transitions.shape
        torch.Size([5, 3, 3])
    """

    def __init__(
        self,
        transitions: DirichletPosterior,
        rewards: NormalPosterior,
        gamma: float,
        terminal_states: tuple[int, ...] = (),
        initial_state: int = 0,
    ) -> None:
        self.transitions, self.gamma = transitions, gamma
        self.terminal_states, self.initial_state = terminal_states, initial_state
        table = transitions.concentration  # [*B, S, A, S]
        *batch_shape, self.num_states, self.num_actions, _ = table.shape
        self.batch_shape, self.device = torch.Size(batch_shape), table.device
        shape, expected = rewards.mean.shape, table.shape[:-1]
        if shape[-2:] != expected[-2:] or torch.broadcast_shapes(shape, expected) != expected:
            raise ValueError(f"rewards must be of shape {tuple(expected)}, got {tuple(shape)}.")
        mean, precision = (t.to(table).expand(expected) for t in (rewards.mean, rewards.precision))
        self.rewards = replace(rewards, mean=mean, precision=precision)
        if not precision[..., list(terminal_states), :].isinf().all():
            raise ValueError("rewards must be known, of infinite precision, in terminal_states.")
        self.mean()  # validates the rest

    def update(self, statistics: TransitionStatistics) -> ConjugatePosterior:
        """The posterior after ``statistics``, whose batch shape becomes that of the posterior by broadcasting."""
        transitions, rewards = self.transitions.update(statistics), self.rewards.update(statistics)
        return ConjugatePosterior(transitions, rewards, self.gamma, self.terminal_states, self.initial_state)

    def mean(self) -> MDP:
        return self._mdp(self.transitions.mean(), self.rewards.mean)

    def sample(self, sample_shape: tuple[int, ...] = (), *, generator: torch.Generator | None = None) -> MDP:
        parts = (self.transitions, self.rewards)
        return self._mdp(*(part.sample(sample_shape, generator=generator) for part in parts))

    def sample_process(
        self, policy: Tensor, sample_shape: tuple[int, ...] = (), *, generator: torch.Generator | None = None
    ) -> MarkovRewardProcess:
        """Independent MDPs under ``policy``; of a deterministic one, only the rows of its actions are sampled."""
        _check_batch(policy, self)
        if policy.is_floating_point():
            return self.sample(sample_shape, generator=generator).under(policy)
        validate_policy(policy, self.num_states, self.num_actions)
        transitions, rewards = (
            posterior.sample(sample_shape, policy=policy, generator=generator)
            for posterior in (self.transitions, self.rewards)
        )
        return MarkovRewardProcess(transitions, rewards, self.gamma, self.terminal_states)

    def _mdp(self, transitions: Tensor, rewards: Tensor) -> MDP:
        return MDP(transitions, rewards, self.gamma, self.terminal_states, self.initial_state)


class EmpiricalPosterior(MDPPosterior):
    """The uniform distribution over given MDPs, whose rows may depend on each other.

    Args:
        mdps: batch shape ``[*B, Q]``: ``Q`` equally likely MDPs for each element of the batch.

    Raises:
        ValueError: if ``mdps`` is a single MDP.

    Examples:
        >>> from eqr_torchrl.tabular import toy_mdp
        >>> posterior = EmpiricalPosterior(toy_mdp(beta=0.9, x=torch.tensor([0.2, 0.4])))
        >>> posterior.mean().transitions[0, 0]  # s0 -> s1 and s0 -> s2
        tensor([0.0000, 0.7000, 0.3000, 0.0000], dtype=torch.float64)
    """

    def __init__(self, mdps: MDP) -> None:
        if not mdps.batch_shape:
            raise ValueError("mdps must be a batch: its last batch dimension lists the equally likely MDPs.")
        self.mdps = mdps
        self.num_states, self.num_actions = mdps.num_states, mdps.num_actions
        self.gamma, self.terminal_states = mdps.gamma, mdps.terminal_states
        self.batch_shape, self.device = mdps.batch_shape[:-1], mdps.rewards.device

    def mean(self) -> MDP:
        mdps = self.mdps
        return replace(mdps, transitions=mdps.transitions.mean(-4), rewards=mdps.rewards.mean(-3))

    def sample(self, sample_shape: tuple[int, ...] = (), *, generator: torch.Generator | None = None) -> MDP:
        mdps, batch = self.mdps, self.batch_shape
        num_mdps = mdps.batch_shape[-1]
        index = torch.randint(num_mdps, (*sample_shape, *batch), generator=generator, device=self.device)
        index = index + num_mdps * torch.arange(math.prod(batch), device=self.device).reshape(batch)
        return replace(
            mdps, transitions=mdps.transitions.flatten(0, -4)[index], rewards=mdps.rewards.flatten(0, -3)[index]
        )

    def sample_process(
        self, policy: Tensor, sample_shape: tuple[int, ...] = (), *, generator: torch.Generator | None = None
    ) -> MarkovRewardProcess:
        _check_batch(policy, self)
        return self.sample(sample_shape, generator=generator).under(policy)


def _check_batch(policy: Tensor, posterior: MDPPosterior) -> None:
    event_dims = 2 if policy.is_floating_point() else 1
    try:
        policy.expand(*posterior.batch_shape, *policy.shape[-event_dims:])
    except RuntimeError as error:
        raise ValueError(
            f"policy must be one, or one for each of a batch {tuple(posterior.batch_shape)} of posteriors: got a batch "
            f"{tuple(policy.shape[:-event_dims])} of policies."
        ) from error
