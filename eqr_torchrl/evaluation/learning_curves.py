"""Learning curves: returns of all seeds on one grid of environment steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eqr_torchrl.evaluation.evaluations import EvaluationRow

FloatArray = NDArray[np.float64]

PAPER_SMOOTHING = 10


@dataclass(frozen=True, eq=False)
class LearningCurve:
    """Returns of all runs of one algorithm and utility on one task.

    ``env_steps`` has shape ``[P]``; ``returns`` has shape ``[R, P]``, one row per entry of ``seeds``, and is NaN at
    steps outside the run's own range of evaluations.
    """

    env: str
    algorithm: str
    utility: str
    seeds: tuple[str, ...]
    env_steps: NDArray[np.int64]
    returns: FloatArray

    @property
    def label(self) -> str:
        """Algorithm and utility in one word, such as ``eqr_sac (optimistic)``."""
        return f"{self.algorithm} ({self.utility})" if self.utility else self.algorithm

    @property
    def mean(self) -> FloatArray:
        """Mean over the runs that reach each step, shape ``[P]``."""
        return np.nansum(self.returns, axis=0) / self.num_runs

    @property
    def sem(self) -> FloatArray:
        """Standard error over the runs that reach each step, shape ``[P]``; NaN for fewer than two."""
        return np.array([standard_error(column[~np.isnan(column)]) for column in self.returns.T])

    @property
    def num_runs(self) -> NDArray[np.int64]:
        """Number of runs that reach each step, shape ``[P]``."""
        return (~np.isnan(self.returns)).sum(axis=0)


def learning_curves(rows: Sequence[EvaluationRow], *, smoothing: int = 1) -> list[LearningCurve]:
    """Groups evaluations into one curve per task, algorithm and utility, with one line per seed.

    Episodes of one evaluation (same run, same step) are averaged first. Each run is smoothed on its own grid; runs
    evaluated at other steps than the rest of their group are interpolated linearly within their own range.

    Args:
        rows: evaluation episodes of any number of runs, in any order.
        smoothing: evaluations in the trailing moving average; the front is padded with the first value. The paper uses
            10 (``PAPER_SMOOTHING``). Defaults to 1: none.

    Returns:
        Curves, sorted by task, algorithm and utility.

    Raises:
        ValueError: if ``smoothing`` is not positive.

    Examples:
        >>> from eqr_torchrl.evaluation import EvaluationRow
        >>> rows = [EvaluationRow("reach", "sac", "", str(s), t, 10.0 * s + t) for s in (0, 1) for t in (1, 2)]
        >>> learning_curves(rows)[0].mean.tolist()
        [6.0, 7.0]
    """
    if smoothing < 1:
        raise ValueError(f"smoothing must be a positive number of evaluations: got {smoothing}.")
    groups: dict[tuple[str, str, str], dict[str, dict[int, list[float]]]] = {}
    for row in rows:
        runs = groups.setdefault((row.env, row.algorithm, row.utility), {})
        runs.setdefault(row.seed, {}).setdefault(row.env_steps, []).append(row.episode_return)

    curves = []
    for (env, algorithm, utility), runs in sorted(groups.items()):
        seeds = tuple(sorted(runs, key=_natural))
        grid = np.array(sorted({step for run in runs.values() for step in run}), dtype=np.int64)
        returns = np.full((len(seeds), grid.size), np.nan)
        for line, seed in zip(returns, seeds, strict=True):
            steps = np.array(sorted(runs[seed]), dtype=np.int64)
            values = _trailing_mean(np.array([np.mean(runs[seed][step]) for step in steps]), smoothing)
            own_range = (grid >= steps[0]) & (grid <= steps[-1])
            line[own_range] = np.interp(grid[own_range], steps, values)
        curves.append(LearningCurve(env, algorithm, utility, seeds, grid, returns))
    return curves


class CurveRow(NamedTuple):
    """One point of a learning curve: mean and standard error over the ``num_seeds`` runs that reach ``env_steps``."""

    env: str
    algorithm: str
    utility: str
    env_steps: int
    num_seeds: int
    mean: float
    sem: float


def curve_rows(curves: Sequence[LearningCurve]) -> list[CurveRow]:
    """Learning curves as a tidy table.

    Args:
        curves: from :func:`learning_curves`.

    Returns:
        One row for each curve and step.

    Examples:
        >>> from eqr_torchrl.evaluation import EvaluationRow
        >>> rows = [EvaluationRow("reach", "sac", "", s, 1, r) for s, r in (("0", 1.0), ("1", 3.0))]
        >>> curve_rows(learning_curves(rows))[0][-3:]
        (2, 2.0, 1.0)
    """
    return [
        CurveRow(curve.env, curve.algorithm, curve.utility, int(step), int(n), float(mean), float(sem))
        for curve in curves
        for step, n, mean, sem in zip(curve.env_steps, curve.num_runs, curve.mean, curve.sem, strict=True)
    ]


def standard_error(values: FloatArray) -> float:
    """Standard error of the mean of ``values``, shape ``[R]``; NaN for fewer than two."""
    return float(values.std(ddof=1) / math.sqrt(values.size)) if values.size > 1 else math.nan


def _trailing_mean(values: FloatArray, width: int) -> FloatArray:
    padded = np.concatenate([np.full(width - 1, values[0]), values])
    return np.lib.stride_tricks.sliding_window_view(padded, width).mean(axis=-1)


def _natural(text: str) -> tuple[int, float, str]:
    try:
        return (0, float(text), text)  # seeds 2 and 10 in this order
    except ValueError:
        return (1, 0.0, text)
