"""Figures of many runs over many tasks: performance profiles and aggregates with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from eqr_torchrl.evaluation.aggregates import AggregateRow
from eqr_torchrl.evaluation.metrics import Scores, performance_profile, stratified_bootstrap
from eqr_torchrl.evaluation.plotting import COLOURS, COLUMN_WIDTH, LINES, STYLE, saved_figure, to_array


def plot_performance_profiles(
    scores: Mapping[str, Scores], path: str | Path, *, xlabel: str = "normalised score", num_resamples: int = 500
) -> Path:
    """Draws the share of runs above each score, with a band of 95 % from resampling runs within tasks.

    Args:
        scores: algorithm to task to scores of its runs, from :func:`~eqr_torchrl.evaluation.normalised_scores`.
        path: file to write.
        xlabel: name and unit of the score.
        num_resamples: bootstrap samples.

    Returns:
        The path.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     plot_performance_profiles({"sac": {"reach": [0.1, 0.5]}}, folder + "/profile.png").name
        'profile.png'
    """
    everything = np.concatenate([to_array(runs) for tasks in scores.values() for runs in tasks.values()])
    thresholds = np.linspace(min(0.0, everything.min()), everything.max(), 101)
    with saved_figure(path, COLUMN_WIDTH, 2.4) as figure:
        axes = figure.subplots()
        for i, (label, tasks) in enumerate(scores.items()):
            profile = stratified_bootstrap(
                lambda resampled: performance_profile(resampled, thresholds), tasks, num_resamples=num_resamples
            )
            colour, line = COLOURS[i % len(COLOURS)], LINES[i // len(COLOURS) % len(LINES)]
            axes.plot(thresholds, profile.estimate, line, color=colour, label=label)
            axes.fill_between(thresholds, profile.low, profile.high, color=colour, alpha=0.2, linewidth=0)
        axes.set(xlabel=f"{xlabel} $\\tau$", ylabel=r"share of runs with score > $\tau$", ylim=(0, 1.02))
        axes.legend()
    return Path(path)


def plot_aggregates(table: Sequence[AggregateRow], path: str | Path, *, xlabel: str = "normalised score") -> Path:
    """Draws aggregates over tasks with their 95 % intervals, one panel for each metric.

    Args:
        table: from :func:`~eqr_torchrl.evaluation.aggregate_table`.
        path: file to write.
        xlabel: name and unit of the score.

    Returns:
        The path.

    Raises:
        ValueError: if ``table`` is empty.

    Examples:
        >>> import tempfile
        >>> from eqr_torchrl.evaluation import aggregate_table
        >>> table = aggregate_table({"sac": {"reach": [0.2, 0.4]}})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     plot_aggregates(table, folder + "/aggregates.png").name
        'aggregates.png'
    """
    if not table:
        raise ValueError("table must hold at least one row: got none.")
    metrics = list(dict.fromkeys(row.metric for row in table))
    labels = list(dict.fromkeys(row.algorithm for row in table))
    with saved_figure(path, 2 * COLUMN_WIDTH, 0.8 + 0.22 * len(labels)) as figure:
        axes = figure.subplots(1, len(metrics), sharey=True, squeeze=False)[0]
        for panel, metric in zip(axes, metrics, strict=True):
            for row in (row for row in table if row.metric == metric):
                height = labels.index(row.algorithm)
                colour = COLOURS[height % len(COLOURS)]
                panel.plot([row.low, row.high], [height, height], color=colour, linewidth=5, alpha=0.35)
                panel.plot(row.estimate, height, "|", color=colour, markersize=9, markeredgewidth=2)
            panel.set(title=metric, yticks=range(len(labels)), yticklabels=labels, ylim=(len(labels) - 0.5, -0.5))
        figure.supxlabel(xlabel, fontsize=STYLE["font.size"])
    return Path(path)
