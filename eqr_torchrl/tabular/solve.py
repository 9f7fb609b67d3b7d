"""Exact values and optimal policies by batched linear solves."""

from __future__ import annotations

import torch
from torch import Tensor

from eqr_torchrl.tabular.mdp import MDP, MarkovRewardProcess
from eqr_torchrl.tabular.posterior import MDPPosterior

_SAMPLE_BYTES = 8e6  # transition matrices solved in one go
_TIE_TOLERANCE = 1e-10  # action values closer than this, relative to the largest one, count as equal


def process_values(process: MarkovRewardProcess) -> Tensor:
    r"""Values of reward processes ``[*B]``: the solution of :math:`v = r^\pi + \gamma p^\pi v`, shape ``[*B, S]``.

    Examples:
        >>> chain = MarkovRewardProcess(torch.tensor([[0.0, 1.0], [0.0, 1.0]]), torch.tensor([3.0, 1.0]), gamma=0.5)
        >>> process_values(chain)  # 3 + 0.5 * 2,  1 / (1 - 0.5)
        tensor([4., 2.])
    """
    transitions = process.transitions
    identity = torch.eye(process.num_states, dtype=transitions.dtype, device=transitions.device)
    return torch.linalg.solve(identity - process.gamma * transitions, process.rewards)


def sample_values(
    posterior: MDPPosterior, policy: Tensor, num_samples: int, *, generator: torch.Generator | None = None
) -> Tensor:
    r"""Exact samples of the posterior over values of ``policy``, the pushforward :math:`v^\pi_\# \Phi` (Definition 3).

    Args:
        posterior: posteriors over MDPs of batch shape ``[*B]``.
        policy: as for :meth:`MDP.under`.
        num_samples: number of samples, ``Q``. The result is in units of return, shape ``[Q, *B, S]``.
        generator: random generator on the device of the posterior.

    Raises:
        ValueError: if ``num_samples`` is not positive or ``policy`` does not fit.

    Examples:
        >>> from eqr_torchrl.tabular import nroom_prior
        >>> sample_values(nroom_prior(), torch.zeros(78, dtype=torch.long), 20).shape
        torch.Size([20, 78])
    """
    if num_samples < 1:
        raise ValueError(f"num_samples must be positive, got {num_samples}.")
    size = 8 * posterior.batch_shape.numel() * posterior.num_states**2
    chunk = max(1, int(_SAMPLE_BYTES / size))
    counts = [min(chunk, num_samples - start) for start in range(0, num_samples, chunk)]
    return torch.cat([process_values(posterior.sample_process(policy, (n,), generator=generator)) for n in counts])


def policy_values(mdp: MDP, policy: Tensor) -> Tensor:
    r"""Exact values :math:`v^{\pi,p}(s)` of ``policy`` (Eq. 1), as :func:`process_values` of :meth:`MDP.under`.

    Examples:
        >>> p = torch.tensor([[[0.0, 1.0], [0.5, 0.5]], [[0.0, 1.0], [0.0, 1.0]]])
        >>> mdp = MDP(p, torch.tensor([[1.0, 2.0], [0.0, 0.0]]), gamma=0.8, terminal_states=(1,))
        >>> policy_values(mdp, torch.tensor([1, 0]))  # 2 / (1 - 0.8 * 0.5)
        tensor([3.3333, 0.0000])
    """
    return process_values(mdp.under(policy))


def policy_iteration(mdp: MDP, *, max_iterations: int = 100) -> tuple[Tensor, Tensor]:
    """Optimal deterministic policies of a batch of MDPs by Howard's policy iteration.

    Among equally good actions the one of the lowest index is taken, so that the result is reproducible.

    Args:
        mdp: MDPs of batch shape ``[*B]``.
        max_iterations: bound on the improvement steps; usually fewer than ten are needed.

    Returns:
        Actions, int64, shape ``[*B, S]``, and their values, in units of return, shape ``[*B, S]``.

    Raises:
        ValueError: if ``max_iterations`` is not positive.
        RuntimeError: if the policy still improves after ``max_iterations``.

    Examples:
        >>> p = torch.tensor([[[0.0, 1.0], [0.5, 0.5]], [[0.0, 1.0], [0.0, 1.0]]])
        >>> mdp = MDP(p, torch.tensor([[3.0, 2.0], [0.0, 0.0]]), gamma=0.8, terminal_states=(1,))
        >>> policy_iteration(mdp)
        (tensor([1, 0]), tensor([3.3333, 0.0000]))
    """
    if max_iterations < 1:
        raise ValueError(f"max_iterations must be positive, got {max_iterations}.")
    actions = torch.arange(mdp.num_actions, device=mdp.rewards.device)
    policy = torch.zeros(mdp.rewards.shape[:-1], dtype=torch.long, device=mdp.rewards.device)
    values = policy_values(mdp, policy)
    for _ in range(max_iterations):
        q = mdp.rewards + mdp.gamma * torch.einsum("...iaj,...j->...ia", mdp.transitions, values)
        best = q.amax(-1, keepdim=True)
        tolerance = _TIE_TOLERANCE * (1 + best.abs().amax(-2, keepdim=True))
        policy = torch.where(q >= best - tolerance, actions, mdp.num_actions).amin(-1)
        improved = policy_values(mdp, policy)
        # all actions of `policy` are greedy, hence it is optimal as soon as one more step gains nothing
        if not bool((improved - values > tolerance.squeeze(-1)).any()):
            return policy, improved
        values = improved
    raise RuntimeError(f"policy iteration still improves after max_iterations={max_iterations} steps.")
