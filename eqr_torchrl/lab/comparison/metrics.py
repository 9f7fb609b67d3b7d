"""Scores over many runs: aggregates that few runs support, with intervals that resample the runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Scores = Mapping[str, ArrayLike]
"""Task name to the normalised scores of its runs, shape ``[..., R]``; tasks may have different numbers of runs."""

FloatArray = NDArray[np.float64]


class Interval(NamedTuple):
    """A point estimate with its confidence interval; each entry has the shape of the estimate."""

    estimate: FloatArray
    low: FloatArray
    high: FloatArray


def interquartile_mean(scores: Scores) -> FloatArray:
    """Mean of the middle half of all runs of all tasks, shape ``[...]``: as robust as a median, far less noisy.

    Sec. 4.3 of Agarwal et al. (2021): a quarter of the pooled runs, rounded down, is dropped at each end.

    Args:
        scores: task to the normalised scores of its runs, ``[..., R]``; tasks may have different numbers of runs.

    Raises:
        ValueError: if there are no tasks, a task has no runs, or a score is not finite, as in all functions here.

    Examples:
        >>> float(interquartile_mean({"reach": [0.0, 0.4], "run": [0.6, 9.0]}))
        0.5
    """
    pooled = np.sort(_pooled(scores), axis=-1)
    trimmed = pooled.shape[-1] // 4
    return pooled[..., trimmed : pooled.shape[-1] - trimmed].mean(axis=-1)


def mean_score(scores: Scores) -> FloatArray:
    """Mean over tasks of the mean over runs; arguments as for :func:`interquartile_mean`.

    Examples:
        >>> float(mean_score({"reach": [0.0, 0.5], "run": [0.75]}))
        0.5
    """
    return _task_means(scores).mean(axis=-1)


def median_score(scores: Scores) -> FloatArray:
    """Median over *tasks* of the mean over runs; arguments as for :func:`interquartile_mean`.

    The paper's medians, over seeds of the mean over tasks, are not comparable (0.65 against 0.75 for EQR-SAC).

    Examples:
        >>> float(median_score({"reach": [0.0, 0.5], "run": [0.75], "swim": [0.9]}))
        0.75
    """
    return np.median(_task_means(scores), axis=-1)


def optimality_gap(scores: Scores) -> FloatArray:
    """How far runs are below 1 on average; otherwise as :func:`interquartile_mean`. Lower is better.

    Examples:
        >>> float(optimality_gap({"reach": [0.5, 1.0], "run": [3.0, 0.5]}))
        0.25
    """
    return np.maximum(1.0 - _pooled(scores), 0.0).mean(axis=-1)


def performance_profile(scores: Scores, thresholds: ArrayLike) -> FloatArray:
    """Share of the runs of all tasks that score above each threshold (Sec. 4.2 of Agarwal et al. (2021)).

    Args:
        scores: as for :func:`interquartile_mean`.
        thresholds: scores, shape ``[P]``; the result is ``[..., P]``.

    Examples:
        >>> performance_profile({"reach": [0.2, 0.4], "run": [0.4, 0.9]}, [0.0, 0.4, 1.0]).tolist()
        [1.0, 0.25, 0.0]
    """
    pooled = _pooled(scores)
    return np.stack([(pooled > threshold).mean(axis=-1) for threshold in np.asarray(thresholds, float)], axis=-1)


def probability_of_improvement(scores: Scores, baseline: Scores) -> FloatArray:
    """Probability that a run of one algorithm beats a run of the other on a random task; ties count half.

    The Mann-Whitney statistic of each task, averaged over tasks (Sec. 4.3 of Agarwal et al. (2021)), shape ``[...]``.

    Args:
        scores: task to ``[..., R]``.
        baseline: the same tasks to ``[..., R']``.

    Raises:
        ValueError: if the two do not hold the same tasks.

    Examples:
        >>> float(probability_of_improvement({"reach": [1.0, 2.0]}, {"reach": [1.0, 0.0]}))
        0.875
    """
    x, y = _validated(scores), _validated(baseline)
    if x.keys() != y.keys():
        raise ValueError(f"scores and baseline must hold the same tasks, got {sorted(x)} and {sorted(y)}.")
    pairs = [(x[task][..., :, None], y[task][..., None, :]) for task in x]  # [..., R, R']
    return np.mean([((a > b) + 0.5 * (a == b)).mean(axis=(-2, -1)) for a, b in pairs], axis=0)


def stratified_bootstrap(
    metric: Callable[..., FloatArray],
    *scores: Scores,
    num_resamples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Percentile interval of a metric, resampling the *runs* within each task; tasks are fixed by the benchmark.

    Sec. 4.1 of Agarwal et al. (2021). The paper's intervals are wider, because its code resampled tasks. A task with
    one run adds no width: its variance is unknown.

    Args:
        metric: such as :func:`interquartile_mean`: maps scores of shape ``[..., R]`` to ``[...]``.
        *scores: its arguments, task to ``[R]``.
        num_resamples: bootstrap samples.
        confidence: share of bootstrap samples inside the interval, in (0, 1).
        seed: of the resampling.

    Examples:
        >>> interval = stratified_bootstrap(interquartile_mean, {"reach": [0.3, 0.5, 0.4], "run": [0.7, 0.9, 0.6]})
        >>> bool(interval.low <= interval.estimate <= interval.high)
        True
    """
    if num_resamples < 1:
        raise ValueError(f"num_resamples must be positive, got {num_resamples}.")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must lie in (0, 1), got {confidence}.")
    generator = np.random.default_rng(seed)
    resampled = []
    for argument in scores:
        runs = _validated(argument)
        resampled.append({t: r[generator.integers(r.size, size=(num_resamples, r.size))] for t, r in runs.items()})
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(metric(*resampled), [tail, 1.0 - tail], axis=0)
    return Interval(np.asarray(metric(*scores)), low, high)


def _validated(scores: Scores) -> dict[str, FloatArray]:
    arrays = {task: np.asarray(runs, dtype=np.float64) for task, runs in scores.items()}
    if not arrays:
        raise ValueError("scores must hold at least one task, got none.")
    for task, runs in arrays.items():
        if runs.ndim == 0 or runs.shape[-1] == 0:
            raise ValueError(f"scores[{task!r}] must hold one score per run, got shape {runs.shape}.")
        if not np.isfinite(runs).all():
            raise ValueError(f"scores[{task!r}] must be finite, got {int((~np.isfinite(runs)).sum())} that are not.")
    return arrays


def _pooled(scores: Scores) -> FloatArray:
    return np.concatenate(list(_validated(scores).values()), axis=-1)  # [..., sum of R]


def _task_means(scores: Scores) -> FloatArray:
    return np.stack([runs.mean(axis=-1) for runs in _validated(scores).values()], axis=-1)  # [..., tasks]
