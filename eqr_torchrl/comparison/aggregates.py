"""Tables of aggregates over tasks, with their intervals."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportReturnType=false
# The annotations of pandas are wider than what these calls take and return.

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
import pandas as pd

from eqr_torchrl.comparison.metrics import (
    Scores,
    interquartile_mean,
    mean_score,
    median_score,
    optimality_gap,
    probability_of_improvement,
    stratified_bootstrap,
)

METRICS = {
    "interquartile mean": interquartile_mean,
    "mean": mean_score,
    "median over tasks": median_score,
    "optimality gap": optimality_gap,
}


def aggregate_table(scores: Mapping[str, Scores], *, num_resamples: int = 2000) -> pd.DataFrame:
    """Interquartile mean, mean, median over tasks, and optimality gap of each algorithm.

    Args:
        scores: from :func:`normalised_scores`.
        num_resamples: of each 95 % interval (:func:`stratified_bootstrap`).

    Returns:
        Four rows for each algorithm: ``algorithm``, ``metric``, ``num_tasks``, ``num_runs``, ``estimate``, ``low``,
        ``high``.

    Examples:
        >>> table = aggregate_table({"sac": {"reach": [0.25, 0.25]}})
        >>> table[["metric", "estimate"]].values.tolist()[0]
        ['interquartile mean', 0.25]
    """
    rows = []
    for (name, tasks), (metric, function) in itertools.product(scores.items(), METRICS.items()):
        num_runs = sum(np.size(runs) for runs in tasks.values())
        interval = stratified_bootstrap(function, tasks, num_resamples=num_resamples)
        rows.append((name, metric, len(tasks), num_runs, *map(float, interval)))
    columns = ["algorithm", "metric", "num_tasks", "num_runs", "estimate", "low", "high"]
    return pd.DataFrame(rows, columns=columns)


def improvement_table(scores: Mapping[str, Scores], *, num_resamples: int = 2000) -> pd.DataFrame:
    """Probability that a run of an algorithm beats one of another on a random task, for every ordered pair.

    Args:
        scores: from :func:`normalised_scores`; the scale does not matter here.
        num_resamples: as for :func:`aggregate_table`.

    Returns:
        One row for each pair: ``algorithm``, ``baseline``, ``probability``, ``low``, ``high``.

    Examples:
        >>> improvement_table({"a": {"reach": [2.0, 3.0]}, "b": {"reach": [0.0, 1.0]}}).values.tolist()[0][:3]
        ['a', 'b', 1.0]
    """
    rows = []
    for name, other in itertools.permutations(scores, 2):
        interval = stratified_bootstrap(
            probability_of_improvement, scores[name], scores[other], num_resamples=num_resamples
        )
        rows.append((name, other, *map(float, interval)))
    columns = ["algorithm", "baseline", "probability", "low", "high"]
    return pd.DataFrame(rows, columns=columns)
