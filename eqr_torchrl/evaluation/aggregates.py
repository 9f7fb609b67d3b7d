"""Tables of aggregates over tasks, one row for each algorithm and metric."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from eqr_torchrl.evaluation.metrics import (
    Scores,
    interquartile_mean,
    mean_score,
    median_score,
    optimality_gap,
    probability_of_improvement,
    stratified_bootstrap,
)


class AggregateRow(NamedTuple):
    """An aggregate of one algorithm and utility over tasks, with its 95 % interval."""

    algorithm: str
    metric: str
    num_tasks: int
    num_runs: int
    estimate: float
    low: float
    high: float


METRICS = {
    "interquartile mean": interquartile_mean,
    "mean": mean_score,
    "median over tasks": median_score,
    "optimality gap": optimality_gap,
}


def aggregate_table(scores: Mapping[str, Scores], *, num_resamples: int = 2000) -> list[AggregateRow]:
    """Interquartile mean, mean, median over tasks, and optimality gap of each algorithm.

    Args:
        scores: from :func:`normalised_scores`.
        num_resamples: bootstrap samples of each 95 % interval, which resamples runs within tasks.

    Returns:
        Four rows for each algorithm.

    Examples:
        >>> rows = aggregate_table({"sac": {"reach": [0.2, 0.4], "run": [0.6, 0.8]}})
        >>> [(row.metric, round(row.estimate, 2)) for row in rows][:2]
        [('interquartile mean', 0.5), ('mean', 0.5)]
    """
    table = []
    for label, tasks in scores.items():
        num_runs = sum(np.size(runs) for runs in tasks.values())
        for name, metric in METRICS.items():
            interval = stratified_bootstrap(metric, tasks, num_resamples=num_resamples)
            table.append(AggregateRow(label, name, len(tasks), num_runs, *map(float, interval)))
    return table


class ImprovementRow(NamedTuple):
    """Probability that a run of ``algorithm`` beats one of ``baseline`` on a random task, with its 95 % interval."""

    algorithm: str
    baseline: str
    probability: float
    low: float
    high: float


def improvement_table(scores: Mapping[str, Scores], *, num_resamples: int = 2000) -> list[ImprovementRow]:
    """Probability of improvement of every algorithm over every other.

    Args:
        scores: from :func:`normalised_scores`; the scale does not matter here.
        num_resamples: bootstrap samples of each 95 % interval, which resamples runs within tasks.

    Returns:
        One row for each ordered pair; empty for fewer than two algorithms.

    Examples:
        >>> improvement_table({"a": {"reach": [2.0, 3.0]}, "b": {"reach": [0.0, 1.0]}})[0][:3]
        ('a', 'b', 1.0)
    """
    table = []
    for label, other in itertools.permutations(scores, 2):
        interval = stratified_bootstrap(
            probability_of_improvement, scores[label], scores[other], num_resamples=num_resamples
        )
        table.append(ImprovementRow(label, other, *map(float, interval)))
    return table
