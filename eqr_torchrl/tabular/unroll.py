"""The acyclic approximation of an MDP with cycles: each step of the episode gets states of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from eqr_torchrl.tabular.bellman import bellman_targets
from eqr_torchrl.tabular.mdp import MDP, MarkovRewardProcess


def unroll(mdp: MDP, horizon: int) -> MDP:
    """The MDP in which state ``k * S + s`` is state ``s`` of ``mdp`` at step ``k``, and the last state is the end.

    Appendix A of the paper: no state is visited twice, as the theory assumes, and the longer the horizon, the better
    the approximation. The result is dense, ``(H S)^2 A`` numbers; where only values are needed, use
    :func:`unrolled_values`.

    Args:
        mdp: MDPs with cycles, batch shape ``[*B]``.
        horizon: number of steps ``H``, after which every episode ends.

    Raises:
        ValueError: if ``horizon`` is not positive.

    Examples:
        >>> from eqr_torchrl.tabular import toy_mdp
        >>> unrolled = unroll(toy_mdp(beta=0.5, x=0.5), horizon=3)
        >>> unrolled.transitions[1 * 4 + 2, 0].nonzero().flatten()  # s2 at step 1 leads to s0 and s3 at step 2
        tensor([ 8, 11])
    """
    if horizon < 1:
        raise ValueError(f"horizon must be positive, got {horizon}.")
    states, end = mdp.num_states, horizon * mdp.num_states
    transitions = mdp.transitions.new_zeros(*mdp.batch_shape, end + 1, mdp.num_actions, end + 1)
    rewards = mdp.rewards.new_zeros(*mdp.batch_shape, end + 1, mdp.num_actions)
    for now in range(0, end, states):
        rewards[..., now : now + states, :] = mdp.rewards
        if now + states < end:
            transitions[..., now : now + states, :, now + states : now + 2 * states] = mdp.transitions
    transitions[..., end - states :, :, end] = 1.0
    return MDP(transitions, rewards, mdp.gamma, (end,), mdp.initial_state)


def unrolled_values(process: MarkovRewardProcess, horizon: int) -> Tensor:
    """Values of each state with ``k`` steps left, for k = 0 to ``horizon``, by backward recursion.

    Args:
        process: reward processes of batch shape ``[*B]``; the same dynamics hold at all steps.
        horizon: number of steps ``H``.

    Returns:
        Values, in units of return, shape ``[H + 1, *B, S]``; the entry at ``k`` is the value of the first ``S`` states
        of the MDP unrolled for ``k`` steps.

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
