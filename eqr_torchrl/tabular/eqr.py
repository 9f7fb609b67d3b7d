"""Epistemic quantile regression: the posterior of values, learned from one sampled MDP at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from eqr_torchrl.functional import quantile_midpoints
from eqr_torchrl.tabular.bellman import bellman_targets
from eqr_torchrl.tabular.mdp import MarkovRewardProcess
from eqr_torchrl.tabular.posterior import MDPPosterior

# Counting targets below a quantile: all pairs up to this many targets, by sorting beyond. On one core, pairs take half
# the time of sorting at 10 targets, the same at 32 and four times as long at 100 (benchmarks/tabular.py).
_MAX_PAIRWISE_TARGETS = 32
_SAMPLE_BYTES = 8e6  # posterior samples drawn at once: large enough to hide overheads, small enough for the cache


class QuantileEstimate(NamedTuple):
    """What :func:`epistemic_quantile_regression` returns."""

    quantiles: Tensor
    levels: Tensor
    history: Tensor
    history_iterations: Tensor


def epistemic_quantile_regression(
    posterior: MDPPosterior,
    policy: Tensor,
    *,
    num_quantiles: int,
    num_iterations: int,
    step_size: float,
    final_step_size: float | None = None,
    run_shape: tuple[int, ...] = (),
    initial_quantiles: Tensor | None = None,
    record_states: Sequence[int] = (),
    record_every: int = 1,
    progress: Callable[[int], object] | None = None,
    generator: torch.Generator | None = None,
) -> QuantileEstimate:
    r"""Learns quantiles of the posterior of values of ``policy``, for all states at once.

    In each iteration, an MDP is drawn from the posterior and every quantile moves by

    .. math:: q_i(s) \leftarrow q_i(s) + \alpha \Big(\hat\tau_i
              - \tfrac1N \sum_j 1\big\{r^\pi(s) + \gamma \sum_{s'} p^\pi(s'|s)\, q_j(s') < q_i(s)\big\}\Big).

    Algorithm 1 and Eq. 16, where the factor 1/N is meant for the sum alone and the levels are midpoints. Quantiles of
    terminal states are zero. With a constant step they keep moving around the fixed point
    (:func:`value_distribution_iteration`); a decaying step removes that noise, but not the bias.

    Args:
        posterior: posteriors over MDPs of batch shape ``[*B]``.
        policy: as for :meth:`MDP.under`.
        num_quantiles: number of quantiles, ``N``.
        num_iterations: number of updates.
        step_size: :math:`\alpha`, in units of return.
        final_step_size: step of the last iteration, reached geometrically. Defaults to ``step_size``.
        run_shape: shape ``R`` of independent runs, each with its own start and its own samples.
        initial_quantiles: start, broadcastable to ``[*R, *B, S, N]``. Defaults to sorted samples of U(0, 1).
        record_states: states whose quantiles are kept in the history.
        record_every: iterations between two entries of the history.
        progress: called regularly with the number of iterations since its last call, as ``tqdm.update``.
        generator: random generator on the device of the posterior.

    Returns:
        ``quantiles``, as stored, not sorted, in units of return, shape ``[*R, *B, S, N]``; ``levels``, shape ``[N]``;
        ``history``, quantiles of the recorded states, shape ``[I, *R, *B, states, N]``; ``history_iterations``, the
        number of updates before each entry of it, int64, shape ``[I]``.

    Raises:
        ValueError: if a count or step is out of range, or ``policy`` or ``initial_quantiles`` do not fit.

    Examples:
        >>> from eqr_torchrl.tabular import EmpiricalPosterior, toy_mdp
        >>> posterior = EmpiricalPosterior(toy_mdp(beta=0.0, x=torch.linspace(0.2, 0.4, 101)))
        >>> options = {"num_quantiles": 2, "num_iterations": 4000, "step_size": 0.02, "final_step_size": 0.001}
        >>> estimate = epistemic_quantile_regression(posterior, torch.zeros(4, dtype=torch.long), **options)
        >>> estimate.quantiles[0].sub(torch.tensor([0.297, 0.495])).abs().max() < 0.02
        tensor(True)
    """
    final_step_size = step_size if final_step_size is None else final_step_size
    counts = {"num_quantiles": num_quantiles, "num_iterations": num_iterations, "record_every": record_every}
    for name, value in counts.items():
        if value < 1:
            raise ValueError(f"{name} must be positive, got {value}.")
    if not (step_size > 0 and final_step_size > 0):
        raise ValueError(f"step_size and final_step_size must be positive, got {step_size} and {final_step_size}.")
    num_states = posterior.num_states
    for state in record_states:
        if not 0 <= state < num_states:
            raise ValueError(f"record_states must lie in 0..{num_states - 1}, got {state}.")

    shape = (*run_shape, *posterior.batch_shape, num_states, num_quantiles)
    terminal, recorded = list(posterior.terminal_states), list(record_states)
    options = {"dtype": torch.float64, "device": posterior.device}
    levels = quantile_midpoints(num_quantiles, **options)
    if initial_quantiles is None:
        quantiles = torch.rand(shape, generator=generator, **options).sort(-1).values
    else:
        try:
            quantiles = initial_quantiles.to(**options).expand(shape).clone()
        except RuntimeError as error:
            got = tuple(initial_quantiles.shape)
            raise ValueError(f"initial_quantiles must broadcast to shape {shape}, got {got}.") from error
    quantiles[..., terminal, :] = 0.0
    decay = (final_step_size / step_size) ** (1 / max(num_iterations - 1, 1))
    iterations = record_every * torch.arange(1, num_iterations // record_every + 1)
    history = quantiles.new_empty(len(iterations), *shape[:-2], len(recorded), num_quantiles)
    chunk = max(1, int(_SAMPLE_BYTES / (8 * quantiles[..., 0].numel() * num_states)))

    for start in range(0, num_iterations, chunk):
        size = min(chunk, num_iterations - start)
        processes = posterior.sample_process(policy, (size, *run_shape), generator=generator)
        tables = {name: getattr(processes, name).double() for name in ("transitions", "rewards")}
        processes = replace(processes, **tables)
        for offset in range(size):
            iteration = start + offset
            share = _share_below(quantiles, processes[offset])
            quantiles.add_(levels - share, alpha=step_size * decay**iteration)
            quantiles[..., terminal, :] = 0.0
            if (iteration + 1) % record_every == 0:
                history[iteration // record_every] = quantiles[..., recorded, :]
        if progress is not None:
            progress(size)

    return QuantileEstimate(quantiles, levels, history, iterations)


def _share_below(quantiles: Tensor, process: MarkovRewardProcess) -> Tensor:
    """Share of the targets that lie strictly below each quantile."""
    targets = bellman_targets(quantiles, process)  # [*B, S, N]
    num_targets = targets.shape[-1]
    if num_targets <= _MAX_PAIRWISE_TARGETS:
        below = (targets.unsqueeze(-2) < quantiles.unsqueeze(-1)).sum(-1)
    else:
        below = torch.searchsorted(targets.sort(-1).values, quantiles)
    return below / num_targets
