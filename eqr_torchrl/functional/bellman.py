"""The value-distributional Bellman target of one transition."""

from __future__ import annotations

from torch import Tensor


def epistemic_quantile_target(
    reward: Tensor,
    terminated: Tensor,
    next_quantiles: Tensor,
    next_log_prob: Tensor,
    *,
    gamma: float | Tensor,
    alpha: float | Tensor,
) -> Tensor:
    r"""Target atoms ``[*B, M * N]`` whose spread is epistemic: noise is averaged inside a member, members are pooled.

    .. math:: y_{mn} = \tfrac1K \sum_k r_{mk}
              + \gamma \tfrac1L \sum_l (1 - d_{ml}) \big[q_n(s'_{ml}, a'_{ml}) - \alpha \log \pi(a'_{ml} | s'_{ml})\big]

    The critic target of Algorithm 2 of `Luis et al. (2024) <https://arxiv.org/abs/2308.06590>`_, with the entropy
    term of soft actor-critic. ``L`` counts pairs of next state and action: ``L = K`` with one action at each of ``K``
    next states, ``L = K Y`` with ``Y`` of them. M = K = L = 1 is the target of quantile-regression SAC. Atoms are
    member-major, in units of return.

    Args:
        reward: sampled rewards, shape ``[*B, M, K]``.
        terminated: whether the episode ends at the next state (time limits do not count), bool, shape ``[*B, M, L]``.
        next_quantiles: atoms of the target critic at the next pairs, in units of return, shape ``[*B, M, L, N]``; any
            value, even NaN, where the episode ended.
        next_log_prob: log-density of the next actions, in nats, shape ``[*B, M, L]``.
        gamma: discount in ``[0, 1]``: a number, or a tensor that broadcasts to ``[*B, M]``, such as ``gamma ** n`` for
            transitions over ``n`` steps.
        alpha: entropy temperature, in units of reward per nat.

    Examples:
        >>> r, d = torch.ones(1, 2, 1), torch.tensor([[[False], [True]]])  # two members, the second one ends
        >>> q, log_prob = torch.tensor([0.0, 10.0]).expand(1, 2, 1, 2), torch.zeros(1, 2, 1)
        >>> epistemic_quantile_target(r, d, q, log_prob, gamma=0.5, alpha=0.0)
        tensor([[1., 6., 1., 1.]])
    """
    size = next_log_prob.shape
    if not (next_quantiles.shape[:-1] == terminated.shape == size and reward.shape[:-1] == size[:-1]):
        found = ", ".join(str(tuple(value.shape)) for value in (reward, terminated, next_quantiles, next_log_prob))
        needed = "reward [*B, M, K], terminated [*B, M, L], next_quantiles [*B, M, L, N], next_log_prob [*B, M, L]"
        raise ValueError(f"the shapes of {needed} must agree: got {found}.")
    # aleatoric: mean over the draws of one member and quantile; epistemic: the members' atoms side by side
    value = next_quantiles.masked_fill(terminated.unsqueeze(-1), 0.0).mean(-2)  # [*B, M, N]
    entropy_bonus = -alpha * next_log_prob.masked_fill(terminated, 0.0).mean(-1)  # [*B, M]
    if isinstance(gamma, Tensor) and gamma.ndim:
        gamma = gamma.unsqueeze(-1)  # a number would lose its type as a tensor of one dimension
    return (reward.mean(-1, keepdim=True) + gamma * (value + entropy_bonus.unsqueeze(-1))).flatten(-2)
