"""The acyclic approximation of an MDP with cycles: each step of the episode gets states of its own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eqr_torchrl.tabular.bellman import bellman_targets
from eqr_torchrl.tabular.mdp import MDP, MarkovRewardProcess


def unroll(mdp: MDP, horizon: int) -> UnrolledMDP:
    """Unrolls ``mdp``: state ``(s, k)`` is state ``s`` at step ``k``, and after ``horizon`` steps everything ends.

    Appendix A of `Luis et al. (2024) <https://arxiv.org/abs/2308.06590>`_. The result satisfies the assumptions that
    the theory needs (no state is visited twice); it approximates ``mdp`` the better, the longer the horizon. It stores
    nothing beyond ``mdp``; arguments and errors are those of :class:`UnrolledMDP`.

    Examples:
        >>> from eqr_torchrl.tabular import nroom_mdp
        >>> unrolled = unroll(nroom_mdp(), horizon=50)
        >>> unrolled.num_states  # 50 * 78 + 1
        3901
    """
    return UnrolledMDP(mdp, horizon)


def unrolled_values(process: MarkovRewardProcess, horizon: int) -> Tensor:
    """Values of each state with ``k`` steps left, for k = 0 to ``horizon``, by backward recursion.

    Args:
        process: reward processes of batch shape ``[*B]``; the same dynamics hold at all steps.
        horizon: number of steps ``H``.

    Returns:
        Values, in units of return, shape ``[H + 1, *B, S]``; the entry at ``k`` is the value of state ``(s, 0)`` of
        the MDP unrolled for ``k`` steps.

    Raises:
        ValueError: if ``horizon`` is negative.

    Examples:
        >>> loop = MarkovRewardProcess(torch.ones(1, 1), torch.ones(1), gamma=0.5)
        >>> unrolled_values(loop, horizon=3).flatten()
        tensor([0.0000, 1.0000, 1.5000, 1.7500])
    """
    if horizon < 0:
        raise ValueError(f"horizon must not be negative, got {horizon}.")
    values = [torch.zeros_like(process.rewards)]
    for _ in range(horizon):
        values.append(bellman_targets(values[-1].unsqueeze(-1), process).squeeze(-1))
    return torch.stack(values)


@dataclass(frozen=True, eq=False)
class UnrolledMDP:
    """What :func:`unroll` returns: state ``(s, k)`` has the index ``k * S + s``, the terminal state the last one.

    Args:
        mdp: the MDP with cycles, batch shape ``[*B]``.
        horizon: number of steps ``H``.

    Raises:
        ValueError: if ``horizon`` is not positive.

    Examples:
        >>> from eqr_torchrl.tabular import toy_mdp
        >>> unrolled = UnrolledMDP(toy_mdp(beta=0.5, x=0.5), horizon=3)
        >>> states, probabilities = unrolled.successors(unrolled.index(2, 1), action=0)  # s2 at step 1
        >>> [unrolled.state_and_step(int(s)) for s in states], probabilities.tolist()
        ([(0, 2), (3, 2)], [0.5, 0.5])
    """

    mdp: MDP
    horizon: int

    def __post_init__(self) -> None:
        if self.horizon < 1:
            raise ValueError(f"horizon must be positive, got {self.horizon}.")

    @property
    def num_states(self) -> int:
        """Number of states, ``H * S + 1``."""
        return self.horizon * self.mdp.num_states + 1

    @property
    def terminal_state(self) -> int:
        """Index of the terminal state."""
        return self.num_states - 1

    def index(self, state: int, step: int) -> int:
        """Index of ``state`` at ``step``; the terminal state once ``step`` reaches the horizon."""
        if not (0 <= state < self.mdp.num_states and 0 <= step <= self.horizon):
            raise ValueError(
                f"state must lie in 0..{self.mdp.num_states - 1} and step in 0..{self.horizon}: got {state} and {step}."
            )
        return min(step * self.mdp.num_states + state, self.terminal_state)

    def state_and_step(self, index: int) -> tuple[int, int]:
        """State and step of ``index``; the terminal state is ``(0, H)``."""
        if not 0 <= index < self.num_states:
            raise ValueError(f"index must lie in 0..{self.num_states - 1}, got {index}.")
        step, state = divmod(index, self.mdp.num_states)
        return state, step

    def successors(self, index: int, action: int) -> tuple[Tensor, Tensor]:
        """Indices of the possible next states and their probabilities ``[*B, successors]``."""
        state, step = self.state_and_step(index)
        probabilities = self.mdp.transitions[..., state, action, :]
        if step >= self.horizon - 1:
            end = torch.tensor([self.terminal_state], device=probabilities.device)
            return end, probabilities.new_ones((*self.mdp.batch_shape, 1))
        possible = (probabilities > 0).reshape(-1, self.mdp.num_states).any(0).nonzero().squeeze(-1)
        return possible + (step + 1) * self.mdp.num_states, probabilities[..., possible]

    def reward(self, index: int, action: int) -> Tensor:
        """Mean reward of ``action`` in the state of ``index``, in units of reward, shape ``[*B]``."""
        state, step = self.state_and_step(index)
        reward = self.mdp.rewards[..., state, action]
        return reward if step < self.horizon else torch.zeros_like(reward)

    def values(self, policy: Tensor) -> Tensor:
        """Exact values of all states under ``policy``, in units of return, shape ``[*B, H * S + 1]``."""
        steps_left = unrolled_values(self.mdp.under(policy), self.horizon)[1:].flip(0)  # step 0 has all steps left
        values = steps_left.movedim(0, -2).flatten(-2)
        return torch.cat([values, values.new_zeros((*self.mdp.batch_shape, 1))], -1)
