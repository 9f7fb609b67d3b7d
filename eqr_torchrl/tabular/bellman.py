"""The value-distributional Bellman operator on sample sets, and its fixed point."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from eqr_torchrl.functional import quantile_projection
from eqr_torchrl.tabular.mdp import MarkovRewardProcess


def bellman_targets(atoms: Tensor, process: MarkovRewardProcess) -> Tensor:
    r"""Targets :math:`r^\pi(s) + \gamma \sum_{s'} p^\pi(s'|s)\, q_j(s')`, atom by atom; zero in terminal states.

    The bootstrap of Eq. 7: noise of the dynamics is averaged out; the index ``j`` says which values of different states
    belong together.

    Args:
        atoms: values, in units of return, shape ``[*B, S, N]``, which is that of the targets, too.
        process: reward processes whose batch shape broadcasts with ``[*B]``.

    Examples:
        >>> chain = MarkovRewardProcess(torch.tensor([[0.0, 1.0], [0.0, 1.0]]), torch.tensor([1.0, 0.0]), 0.5, (1,))
        >>> bellman_targets(torch.tensor([[0.0, 0.0], [2.0, 4.0]]), chain)
        tensor([[2., 3.],
                [0., 0.]])
    """
    targets = process.rewards.unsqueeze(-1) + process.gamma * (process.transitions @ atoms)
    if process.terminal_states:
        targets[..., list(process.terminal_states), :] = 0.0
    return targets


def value_distribution_backup(atoms: Tensor, processes: MarkovRewardProcess) -> Tensor:
    r"""The operator :math:`T^\pi \mu = E_P[(b_{r,P,\gamma})_\# \mu]`, applied to a sample set.

    Every process is combined with every joint sample of the values: exact when the posterior is uniform over the given
    processes. On atoms sorted in each state it is a :math:`\gamma`-contraction in the supremum p-Wasserstein distance
    (Theorem 6).

    Args:
        atoms: ``J`` joint samples of the values of all states, in units of return, shape ``[*B, S, J]``. Sorted in
            each state they describe values that rise and fall together, as epistemic quantile regression assumes.
        processes: ``Q`` equally likely reward processes, batch shape ``[Q, *B]``. The result is ``[*B, S, Q * J]``.

    Raises:
        ValueError: if ``processes`` is not a batch.

    Examples:
        >>> p, r = torch.tensor([[0.0, 1.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [2.0, 0.0]])
        >>> two_rewards = MarkovRewardProcess(p.expand(2, 2, 2), r, gamma=0.5, terminal_states=(1,))
        >>> value_distribution_backup(torch.zeros(2, 1), two_rewards)
        tensor([[1., 2.],
                [0., 0.]])
    """
    _check_batch(processes)
    return bellman_targets(atoms, processes).movedim(0, -2).flatten(-2)


def value_distribution_iteration(
    processes: MarkovRewardProcess, *, num_quantiles: int, tolerance: float = 1e-6, max_iterations: int = 10_000
) -> Tensor:
    r"""Fixed point of the projected operator :math:`\Pi T^\pi`: the limit of epistemic quantile regression.

    The updates of :func:`epistemic_quantile_regression` vanish on average exactly here. The difference between its
    result and this one is noise; the difference between this one and the true posterior of values is bias. More
    quantiles do not remove the part of the bias that comes from cycles.

    Args:
        processes: ``Q`` equally likely reward processes, batch shape ``[Q, *B]``.
        num_quantiles: number of quantiles, ``N``.
        tolerance: stop when no quantile moves further than this, in units of return.
        max_iterations: bound on the number of iterations.

    Returns:
        Sorted quantiles, in units of return, shape ``[*B, S, N]``.

    Raises:
        ValueError: if ``tolerance`` is not positive or ``processes`` is not a batch.
        RuntimeError: if ``max_iterations`` do not suffice.

    Examples:
        >>> from eqr_torchrl.tabular import toy_mdp
        >>> processes = toy_mdp(beta=0.0, x=torch.linspace(0.2, 0.4, 101)).under(torch.zeros(4, dtype=torch.long))
        >>> value_distribution_iteration(processes, num_quantiles=2)[0]  # 0.99 * (1 - 2 x) at x = 0.35 and 0.25
        tensor([0.2970, 0.4950], dtype=torch.float64)
    """
    if not tolerance > 0:
        raise ValueError(f"tolerance must be positive, got {tolerance}.")
    if max_iterations < 1:
        raise ValueError(f"max_iterations must be positive, got {max_iterations}.")
    quantiles = processes.rewards.new_zeros((*processes.batch_shape[1:], processes.num_states, num_quantiles))
    for _ in range(max_iterations):
        updated = quantile_projection(value_distribution_backup(quantiles, processes), num_quantiles)
        change = float((updated - quantiles).abs().max())
        quantiles = updated
        if change <= tolerance:
            return quantiles
    raise RuntimeError(f"quantiles still moved by {change:.3g} after max_iterations={max_iterations}.")


def value_distribution_samples(
    processes: MarkovRewardProcess,
    *,
    num_iterations: int,
    coupling: Literal["joint", "comonotone"] = "joint",
    initial_values: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Samples of :math:`(T^\pi)^H \delta_0`: the operator applied ``H`` times, without any projection.

    Each sample keeps its process and bootstraps from another sample, drawn again in each iteration: the dynamics and
    the value of the next state are independent. This is also true in the MDP unrolled for ``H`` steps with separate
    dynamics at each step (Appendix A). In an acyclic MDP with independent rows whose states form layers, this is the
    true posterior of values once ``H`` reaches the number of layers.

    Args:
        processes: ``Q`` samples of the posterior, batch shape ``[Q, *B]``.
        num_iterations: ``H``, how often the operator is applied.
        coupling: which values of two next states belong together: those computed together (``"joint"``), or those of
            equal rank (``"comonotone"``), as epistemic quantile regression assumes.
        initial_values: samples to start from, in units of return, shape ``[Q, *B, S]``. Defaults to zero.
        generator: random generator for the pairing.

    Returns:
        One value per process and state, in units of return, shape ``[Q, *B, S]``.

    Raises:
        ValueError: if ``coupling`` is neither, ``num_iterations`` is negative, or ``processes`` is not a batch.

    Examples:
        >>> from eqr_torchrl.tabular import toy_mdp
        >>> processes = toy_mdp(beta=0.0, x=torch.tensor([0.2, 0.4])).under(torch.zeros(4, dtype=torch.long))
        >>> value_distribution_samples(processes, num_iterations=2)[:, 0]  # exact: the toy has two layers
        tensor([0.5940, 0.1980], dtype=torch.float64)
    """
    if coupling not in ("joint", "comonotone"):
        raise ValueError(f"coupling must be 'joint' or 'comonotone', got {coupling!r}.")
    if num_iterations < 0:
        raise ValueError(f"num_iterations must not be negative, got {num_iterations}.")
    _check_batch(processes)
    values = torch.zeros_like(processes.rewards) if initial_values is None else initial_values
    for _ in range(num_iterations):
        pairing = torch.randperm(len(values), generator=generator, device=values.device)
        bootstrap = values.sort(dim=0).values[pairing] if coupling == "comonotone" else values[pairing]
        values = bellman_targets(bootstrap.unsqueeze(-1), processes).squeeze(-1)
    return values


def unrolled_values(process: MarkovRewardProcess, horizon: int) -> Tensor:
    """Values of each state with ``k`` steps left, for k = 0 to ``horizon``, by backward recursion (Appendix A).

    Args:
        process: reward processes of batch shape ``[*B]``; the same dynamics hold at all steps.
        horizon: number of steps ``H``.

    Returns:
        Values, in units of return, shape ``[H + 1, *B, S]``; the entry at ``k`` holds those of the MDP unrolled for
        ``k`` steps, in which no state is visited twice, as the theory assumes.

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


def _check_batch(processes: MarkovRewardProcess) -> None:
    if not processes.batch_shape:
        raise ValueError("processes must be a batch of shape [Q, *B]: got a single process.")
