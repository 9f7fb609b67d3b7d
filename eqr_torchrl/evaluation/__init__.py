"""What a run was worth: returns, their comparison over seeds, and diagnostics of the model and the value posterior."""

from __future__ import annotations

from eqr_torchrl.evaluation.aggregates import AggregateRow, ImprovementRow, aggregate_table, improvement_table
from eqr_torchrl.evaluation.calibration import (
    calibration_error,
    central_interval_coverage,
    probability_integral_transform,
)
from eqr_torchrl.evaluation.compare import ScoreRow, comparison_step, normalised_scores, score_table, scores_at
from eqr_torchrl.evaluation.comparison_plots import plot_aggregates, plot_performance_profiles
from eqr_torchrl.evaluation.diagnostic_plots import plot_calibration, plot_steps, plot_value_maps
from eqr_torchrl.evaluation.diagnostics import (
    ModelErrors,
    RolloutDrift,
    VarianceParts,
    held_out_errors,
    member_predictions,
    rollout_drift,
    trajectory_windows,
    variance_parts,
)
from eqr_torchrl.evaluation.evaluate import EpisodeRow, evaluate
from eqr_torchrl.evaluation.evaluations import EvaluationRow, read_evaluations, read_run_files, read_runs
from eqr_torchrl.evaluation.learning_curves import PAPER_SMOOTHING, CurveRow, LearningCurve, curve_rows, learning_curves
from eqr_torchrl.evaluation.metrics import (
    Interval,
    interquartile_mean,
    mean_score,
    median_score,
    optimality_gap,
    performance_profile,
    probability_of_improvement,
    stratified_bootstrap,
)
from eqr_torchrl.evaluation.plotting import plot_learning_curve, plot_learning_curves, plot_value_distribution
from eqr_torchrl.evaluation.published import PublishedScore, find_published, published_scores
from eqr_torchrl.evaluation.tables import format_table, write_csv
from eqr_torchrl.evaluation.value_diagnostics import (
    Episodes,
    member_values,
    sample_episodes,
    value_map,
    value_quantiles,
)

__all__ = [
    "PAPER_SMOOTHING",
    "AggregateRow",
    "CurveRow",
    "EpisodeRow",
    "Episodes",
    "EvaluationRow",
    "ImprovementRow",
    "Interval",
    "LearningCurve",
    "ModelErrors",
    "PublishedScore",
    "RolloutDrift",
    "ScoreRow",
    "VarianceParts",
    "aggregate_table",
    "calibration_error",
    "central_interval_coverage",
    "comparison_step",
    "curve_rows",
    "evaluate",
    "find_published",
    "format_table",
    "held_out_errors",
    "improvement_table",
    "interquartile_mean",
    "learning_curves",
    "mean_score",
    "median_score",
    "member_predictions",
    "member_values",
    "normalised_scores",
    "optimality_gap",
    "performance_profile",
    "plot_aggregates",
    "plot_calibration",
    "plot_learning_curve",
    "plot_learning_curves",
    "plot_performance_profiles",
    "plot_steps",
    "plot_value_distribution",
    "plot_value_maps",
    "probability_integral_transform",
    "probability_of_improvement",
    "published_scores",
    "read_evaluations",
    "read_run_files",
    "read_runs",
    "rollout_drift",
    "sample_episodes",
    "score_table",
    "scores_at",
    "stratified_bootstrap",
    "trajectory_windows",
    "value_map",
    "value_quantiles",
    "variance_parts",
    "write_csv",
]
