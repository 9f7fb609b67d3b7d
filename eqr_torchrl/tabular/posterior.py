"""Posteriors over whole MDPs: what epistemic quantile regression and PSRL draw from."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eqr_torchrl.tabular.dirichlet import DirichletPosterior
from eqr_torchrl.tabular.mdp import MDP, MarkovRewardProcess, select_actions, validate_policy
from eqr_torchrl.tabular.rewards import RewardPosterior
from eqr_torchrl.tabular.statistics import TransitionStatistics


class MDPPosterior(ABC):
    r"""A distribution :math:`\Phi(P | D)` over MDPs, or a batch ``[*B]`` of such distributions.

    Another posterior implements these methods, and nothing else.
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
        """Independent MDPs under ``policy``, batch shape ``[*Q, *B]``; cheaper than drawing them whole."""

    @abstractmethod
    def mean(self) -> MDP:
        """The MDP of expected transition probabilities and rewards, batch shape ``[*B]``."""


@dataclass(frozen=True, eq=False)
class ConjugatePosterior(MDPPosterior):
    """Dirichlet transitions with Normal, Normal-Gamma or known rewards, independent of each other.

    Args:
        transitions: posterior over transition probabilities, tables ``[*B, S, A, S]``.
        rewards: posterior over mean rewards, or the known rewards themselves, tables ``[*B, S, A]`` or ``[S, A]``.
        gamma: discount in ``[0, 1)``.
        terminal_states: absorbing states without reward.
        initial_state: where episodes start.

    Raises:
        ValueError: if the tables do not fit together.

    Examples:
        >>> from eqr_torchrl.tabular import NormalPosterior
        >>> states, actions, end = 3, 2, (2,)
        >>> posterior = ConjugatePosterior(
        ...     DirichletPosterior.prior(states, actions, terminal_states=end),
        ...     NormalPosterior.prior(states, actions, terminal_states=end),
        ...     gamma=0.9,
        ...     terminal_states=end,
        ... )
        >>> posterior.sample((5,)).batch_shape
        torch.Size([5])
        >>> posterior.sample_process(torch.tensor([0, 1, 0]), (5,)).transitions.shape
        torch.Size([5, 3, 3])
    """

    transitions: DirichletPosterior
    rewards: RewardPosterior | Tensor
    gamma: float
    terminal_states: tuple[int, ...] = ()
    initial_state: int = 0

    def __post_init__(self) -> None:
        rewards = self.rewards if isinstance(self.rewards, Tensor) else self.rewards.mean_reward()
        expected = self.transitions.concentration.shape[:-1]
        if rewards.shape[-2:] != expected[-2:] or torch.broadcast_shapes(rewards.shape, expected) != expected:
            raise ValueError(f"rewards must be of shape {tuple(expected)}, got {tuple(rewards.shape)}.")
        self.mean()  # validates the rest

    @property
    def num_states(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Number of states ``S``."""
        return self.transitions.concentration.shape[-1]

    @property
    def num_actions(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Number of actions ``A``."""
        return self.transitions.concentration.shape[-2]

    @property
    def batch_shape(self) -> torch.Size:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Shape ``B`` of the batch of posteriors."""
        return self.transitions.concentration.shape[:-3]

    @property
    def device(self) -> torch.device:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Device of the tables."""
        return self.transitions.concentration.device

    def update(self, statistics: TransitionStatistics) -> ConjugatePosterior:
        """The posterior after ``statistics``, whose batch shape becomes that of the posterior by broadcasting."""
        rewards = self.rewards if isinstance(self.rewards, Tensor) else self.rewards.update(statistics)
        return replace(self, transitions=self.transitions.update(statistics), rewards=rewards)

    def mean(self) -> MDP:
        """The MDP of expected transition probabilities and rewards, batch shape ``[*B]``."""
        rewards = self.rewards if isinstance(self.rewards, Tensor) else self.rewards.mean_reward()
        return self._mdp(self.transitions.mean(), rewards)

    def sample(self, sample_shape: tuple[int, ...] = (), *, generator: torch.Generator | None = None) -> MDP:
        """Independent MDPs of batch shape ``[*Q, *B]``, where ``Q`` is ``sample_shape``."""
        return self._mdp(
            self.transitions.sample(sample_shape, generator=generator), self._rewards(sample_shape, None, generator)
        )

    def sample_process(
        self, policy: Tensor, sample_shape: tuple[int, ...] = (), *, generator: torch.Generator | None = None
    ) -> MarkovRewardProcess:
        """Independent MDPs under ``policy``; of a deterministic one, only the rows of its actions are drawn."""
        if policy.is_floating_point():
            return self.sample(sample_shape, generator=generator).under(policy)
        validate_policy(policy, self.num_states, self.num_actions)
        transitions = self.transitions.sample(sample_shape, policy=policy, generator=generator)
        rewards = self._rewards(sample_shape, policy, generator).expand(transitions.shape[:-1])
        return MarkovRewardProcess(transitions, rewards, self.gamma, self.terminal_states)

    def _rewards(self, sample_shape: tuple[int, ...], policy: Tensor | None, generator) -> Tensor:
        if isinstance(self.rewards, Tensor):
            return self.rewards if policy is None else select_actions(self.rewards, policy, 0)
        return self.rewards.sample(sample_shape, policy=policy, generator=generator)

    def _mdp(self, transitions: Tensor, rewards: Tensor) -> MDP:
        rewards = rewards.to(transitions.dtype).expand(transitions.shape[:-1])
        return MDP(transitions, rewards, self.gamma, self.terminal_states, self.initial_state)


@dataclass(frozen=True, eq=False)
class EmpiricalPosterior(MDPPosterior):
    """The uniform distribution over given MDPs, dependent rows and all.

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

    mdps: MDP

    def __post_init__(self) -> None:
        if not self.mdps.batch_shape:
            raise ValueError("mdps must be a batch: its last batch dimension lists the equally likely MDPs.")

    @property
    def num_states(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Number of states ``S``."""
        return self.mdps.num_states

    @property
    def num_actions(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Number of actions ``A``."""
        return self.mdps.num_actions

    @property
    def gamma(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Discount."""
        return self.mdps.gamma

    @property
    def terminal_states(self) -> tuple[int, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Absorbing states without reward."""
        return self.mdps.terminal_states

    @property
    def batch_shape(self) -> torch.Size:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Shape ``B`` of the batch of posteriors."""
        return self.mdps.batch_shape[:-1]

    @property
    def device(self) -> torch.device:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Device of the MDPs."""
        return self.mdps.rewards.device

    def mean(self) -> MDP:
        """The MDP of average transition probabilities and rewards, batch shape ``[*B]``."""
        mdps = self.mdps
        return replace(mdps, transitions=mdps.transitions.mean(-4), rewards=mdps.rewards.mean(-3))

    def sample(self, sample_shape: tuple[int, ...] = (), *, generator: torch.Generator | None = None) -> MDP:
        """MDPs drawn with replacement, batch shape ``[*Q, *B]``."""
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
        """MDPs drawn with replacement, under ``policy``."""
        return self.sample(sample_shape, generator=generator).under(policy)
