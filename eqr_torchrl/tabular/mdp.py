"""Finite Markov decision processes, and the reward processes that policies induce."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_ROW_SUM_TOLERANCE = 1e-6


def select_actions(table: Tensor, policy: Tensor, event_dims: int) -> Tensor:
    """Entries of ``table`` ``[*B, S, A, *event]`` at the actions of a deterministic ``policy``: ``[*B, S, *event]``."""
    action_dim = -event_dims - 1
    shape = torch.broadcast_shapes(table.shape[:action_dim], policy.shape)
    index = policy.long().expand(shape).reshape(*shape, *(1,) * (event_dims + 1))
    return table.expand(*shape, *table.shape[action_dim:]).take_along_dim(index, action_dim).squeeze(action_dim)


def validate_policy(policy: Tensor, num_states: int, num_actions: int) -> None:
    """Raises a ValueError unless ``policy`` holds an action, or a distribution over actions, for each state."""
    stochastic = policy.is_floating_point()
    expected = (num_states, num_actions) if stochastic else (num_states,)
    if policy.shape[-len(expected) :] != expected:
        raise ValueError(
            f"policy must hold one action per state, {num_states}, or probabilities of shape [..., {num_states}, "
            f"{num_actions}]: got {policy.dtype} of shape {tuple(policy.shape)}."
        )
    low, high = float(policy.min()), float(policy.max())
    if not stochastic and (low < 0 or high >= num_actions):
        raise ValueError(f"policy must hold actions in 0..{num_actions - 1}: got {low:g}..{high:g}.")
    if stochastic and (low < 0 or not torch.allclose(policy.sum(-1), torch.ones_like(policy[..., 0]), atol=1e-6)):
        raise ValueError("policy must hold non-negative probabilities that sum to one over the actions.")


def _validate_gamma(gamma: float) -> None:
    if not 0.0 <= gamma < 1.0:
        raise ValueError(f"gamma must lie in [0, 1), got {gamma}.")


@dataclass(frozen=True, eq=False)
class MarkovRewardProcess:
    r"""MDPs under a fixed policy: :math:`p^\pi(s'|s)` and :math:`r^\pi(s)`, what Eq. 7 of the paper works on.

    Only shapes and ``gamma`` are checked, since thousands of these are sampled; :class:`MDP` checks the rest.

    Args:
        transitions: probabilities of the next state, shape ``[*B, S, S]``.
        rewards: mean rewards of the state being left, in units of reward, shape ``[*B, S]``.
        gamma: discount in ``[0, 1)``.
        terminal_states: absorbing states without reward, whose value is zero.

    Raises:
        ValueError: if the shapes do not fit together or ``gamma`` is not in ``[0, 1)``.

    Examples:
        >>> MarkovRewardProcess(torch.tensor([[0.0, 1.0], [0.0, 1.0]]), torch.tensor([1.0, 0.0]), 0.9, (1,)).num_states
        2
    """

    transitions: Tensor
    rewards: Tensor
    gamma: float
    terminal_states: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _validate_gamma(self.gamma)
        shape = tuple(self.transitions.shape)
        if len(shape) < 2 or shape[-1] != shape[-2] or tuple(self.rewards.shape) != shape[:-1]:
            rewards = tuple(self.rewards.shape)
            raise ValueError(f"transitions must be [*B, S, S] and rewards [*B, S], got shapes {shape} and {rewards}.")

    @property
    def num_states(self) -> int:
        """Number of states ``S``."""
        return self.rewards.shape[-1]

    @property
    def batch_shape(self) -> torch.Size:
        """Shape ``B`` of the batch of processes."""
        return self.rewards.shape[:-1]

    def __getitem__(self, index) -> MarkovRewardProcess:
        """The processes at ``index`` of the batch."""
        return MarkovRewardProcess(self.transitions[index], self.rewards[index], self.gamma, self.terminal_states)


@dataclass(frozen=True, eq=False)
class MDP:
    r"""A finite Markov decision process, or a batch of them that share states, actions, discount and end.

    Floating types are kept as given; float64 is what the exact solvers are meant for.

    Args:
        transitions: :math:`p(s'|s,a)`, shape ``[*B, S, A, S]``; each row sums to one.
        rewards: mean rewards :math:`r(s,a)`, in units of reward, shape ``[*B, S, A]``.
        gamma: discount in ``[0, 1)``.
        terminal_states: absorbing states without reward.
        initial_state: where episodes start.

    Raises:
        ValueError: if shapes disagree, a row is no distribution, a number is not finite, ``gamma`` is not in
            ``[0, 1)``, a state does not exist, or a terminal state is left or rewarded.

    Examples:
        >>> p = torch.tensor([[[0.0, 1.0], [0.5, 0.5]], [[0.0, 1.0], [0.0, 1.0]]])
        >>> mdp = MDP(p, torch.tensor([[1.0, 2.0], [0.0, 0.0]]), gamma=0.9, terminal_states=(1,))
        >>> mdp.under(torch.tensor([1, 0])).rewards
        tensor([2., 0.])
    """

    transitions: Tensor
    rewards: Tensor
    gamma: float
    terminal_states: tuple[int, ...] = ()
    initial_state: int = 0

    def __post_init__(self) -> None:
        _validate_gamma(self.gamma)
        shape = tuple(self.transitions.shape)
        if len(shape) < 3 or shape[-1] != shape[-3]:
            raise ValueError(f"transitions must be of shape [*B, S, A, S], got {shape}.")
        if tuple(self.rewards.shape) != shape[:-1]:
            raise ValueError(f"rewards must be of shape [*B, S, A], {shape[:-1]}: got {tuple(self.rewards.shape)}.")
        if not bool(self.rewards.isfinite().all()):
            raise ValueError("rewards must be finite.")
        smallest = float(self.transitions.min())
        if not smallest >= 0:  # also catches nan
            raise ValueError(f"transitions must not be negative or nan: the smallest entry is {smallest}.")
        error = float((self.transitions.sum(-1) - 1).abs().max())
        if not error <= _ROW_SUM_TOLERANCE:
            raise ValueError(f"transitions must sum to one over next states: the largest error is {error:.3g}.")
        for state in (*self.terminal_states, self.initial_state):
            if not 0 <= state < shape[-1]:
                raise ValueError(f"terminal_states and initial_state must lie in 0..{shape[-1] - 1}: got {state}.")
        ends = list(self.terminal_states)
        stay = self.transitions.diagonal(dim1=-3, dim2=-1)[..., ends]  # [*B, A, ends]: probability of staying
        if ends and (float(stay.min()) < 1 - _ROW_SUM_TOLERANCE or bool(self.rewards[..., ends, :].any())):
            raise ValueError(f"terminal_states must be absorbing and without reward: {self.terminal_states} are not.")

    @property
    def num_states(self) -> int:
        """Number of states ``S``."""
        return self.rewards.shape[-2]

    @property
    def num_actions(self) -> int:
        """Number of actions ``A``."""
        return self.rewards.shape[-1]

    @property
    def batch_shape(self) -> torch.Size:
        """Shape ``B`` of the batch of MDPs."""
        return self.rewards.shape[:-2]

    def under(self, policy: Tensor) -> MarkovRewardProcess:
        r"""The reward process of ``policy``: :math:`p^\pi(s'|s) = \sum_a \pi(a|s) p(s'|s,a)`, likewise the reward.

        Args:
            policy: integer actions ``[S]`` or ``[*B, S]``, or probabilities ``[S, A]`` or ``[*B, S, A]``.

        Raises:
            ValueError: if ``policy`` is of neither form.
        """
        validate_policy(policy, self.num_states, self.num_actions)
        if policy.is_floating_point():
            policy = policy.to(self.rewards.dtype)
            transitions = (policy.unsqueeze(-1) * self.transitions).sum(-2)
            rewards = (policy * self.rewards).sum(-1)
        else:
            transitions = select_actions(self.transitions, policy, 1)
            rewards = select_actions(self.rewards, policy, 0)
        return MarkovRewardProcess(transitions, rewards, self.gamma, self.terminal_states)
