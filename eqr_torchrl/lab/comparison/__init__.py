"""Comparison of runs over seeds, tasks and algorithms: learning curves, scores, aggregates with intervals, figures.

Built on pandas (extra ``compare``). Aggregates and their intervals follow Agarwal et al. (2021),
`arXiv:2108.13264 <https://arxiv.org/abs/2108.13264>`_.
"""

from __future__ import annotations

try:
    import pandas as _pandas  # noqa: F401
except ImportError as error:
    raise ImportError("eqr_torchrl.lab.comparison needs pandas: pip install 'eqr_torchrl[compare]'.") from error

from eqr_torchrl.lab.comparison.curves import PAPER_SMOOTHING, label, learning_curves, mean_curves
from eqr_torchrl.lab.comparison.metrics import (
    Interval,
    interquartile_mean,
    mean_score,
    median_score,
    optimality_gap,
    performance_profile,
    probability_of_improvement,
    stratified_bootstrap,
)
from eqr_torchrl.lab.comparison.plots import (
    plot_aggregates,
    plot_learning_curve,
    plot_learning_curves,
    plot_performance_profiles,
)
from eqr_torchrl.lab.comparison.published import find_published, published_scores
from eqr_torchrl.lab.comparison.reading import read_runs
from eqr_torchrl.lab.comparison.scores import (
    aggregate_table,
    improvement_table,
    normalised_scores,
    run_scores,
    score_table,
)

__all__ = [
    "PAPER_SMOOTHING",
    "Interval",
    "aggregate_table",
    "find_published",
    "improvement_table",
    "interquartile_mean",
    "label",
    "learning_curves",
    "mean_curves",
    "mean_score",
    "median_score",
    "normalised_scores",
    "optimality_gap",
    "performance_profile",
    "plot_aggregates",
    "plot_learning_curve",
    "plot_learning_curves",
    "plot_performance_profiles",
    "probability_of_improvement",
    "published_scores",
    "read_runs",
    "run_scores",
    "score_table",
    "stratified_bootstrap",
]
