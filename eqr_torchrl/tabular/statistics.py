"""Counts and reward sums of trajectories: all that a conjugate posterior needs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tensordict import TensorDictBase
from torch import Tensor


@dataclass(frozen=True, eq=False)
class TransitionStatistics:
    """Sufficient statistics of observed transitions.

    Args:
        counts: how often ``(s, a)`` was followed by ``s'``, float64, shape ``[*B, S, A, S]``.
        reward_sums: sum of the rewards seen at ``(s, a)``, in units of reward, float64, shape ``[*B, S, A]``.

    Raises:
        ValueError: if the shapes do not fit together or a count is negative.

    Examples:
        >>> one = torch.ones(1, 1, 1, dtype=torch.float64)
        >>> TransitionStatistics(one, 2 * one[0]).visits
        tensor([[1.]], dtype=torch.float64)
    """

    counts: Tensor
    reward_sums: Tensor

    def __post_init__(self) -> None:
        shape = self.counts.shape
        if len(shape) < 3 or shape[-1] != shape[-3]:
            raise ValueError(f"counts must be of shape [*B, S, A, S], got {tuple(shape)}.")
        if self.reward_sums.shape != shape[:-1]:
            raise ValueError(f"reward_sums must be of shape {tuple(shape[:-1])}, got {tuple(self.reward_sums.shape)}.")
        if bool((self.counts < 0).any()):
            raise ValueError(f"counts must not be negative: the smallest one is {float(self.counts.min())}.")

    @property
    def visits(self) -> Tensor:
        """How often each action was taken in each state, shape ``[*B, S, A]``."""
        return self.counts.sum(-1)


def count_transitions(trajectories: TensorDictBase, num_states: int, num_actions: int) -> TransitionStatistics:
    """Statistics, batch shape ``[*B]``, of trajectories from ``env.rollout``, each until its first ``done``.

    Args:
        trajectories: batch size ``[*B, T]`` with integer ``observation``, ``action`` and ``("next", "observation")``
            of shape ``[*B, T]``, ``("next", "reward")`` and ``("next", "done")`` of shape ``[*B, T, 1]``.
        num_states: number of states ``S``.
        num_actions: number of actions ``A``.

    Raises:
        ValueError: if a state or action is out of range or not an integer, or there is no time dimension.

    Examples:
        >>> from eqr_torchrl.tabular import MDPEnv, toy_mdp
        >>> rollout = MDPEnv(toy_mdp(beta=0.0, x=1.0)).rollout(10)  # s0 -> s2 -> s3
        >>> count_transitions(rollout, num_states=4, num_actions=1).counts[:, 0].nonzero().tolist()
        [[0, 2], [2, 3]]
    """
    if not trajectories.batch_size:
        raise ValueError("trajectories must have a time dimension: got an empty batch size.")
    batch = trajectories.batch_size[:-1]
    state, action, next_state = (trajectories[key] for key in ("observation", "action", ("next", "observation")))
    reward, done = trajectories["next", "reward"].squeeze(-1).double(), trajectories["next", "done"].squeeze(-1)
    parts = [("observation", state, num_states), ("action", action, num_actions)]
    for name, index, size in [*parts, ("next observation", next_state, num_states)]:
        if index.is_floating_point() or index.shape != trajectories.batch_size:
            raise ValueError(
                f"{name} must hold one integer per step, shape {tuple(trajectories.batch_size)}: "
                f"got {index.dtype} of shape {tuple(index.shape)}."
            )
        if index.numel() and not (int(index.min()) >= 0 and int(index.max()) < size):
            raise ValueError(f"{name} must lie in 0..{size - 1}: got {int(index.min())}..{int(index.max())}.")
    weight = (done.cumsum(-1) - done.long() == 0).double()  # no end before this step
    pair = state * num_actions + action

    def total(index: Tensor, weights: Tensor, size: int) -> Tensor:
        zeros = torch.zeros(*batch, size, dtype=torch.float64, device=weights.device)
        return zeros.scatter_add(-1, index, weights)

    table = (num_states, num_actions)
    counts = total(pair * num_states + next_state, weight, num_states * num_actions * num_states)
    return TransitionStatistics(
        counts.unflatten(-1, (*table, num_states)),
        total(pair, weight * reward, num_states * num_actions).unflatten(-1, table),
    )
