"""Figures of runs: learning curves, performance profiles, and aggregates with their intervals."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportReturnType=false
# The annotations of pandas are wider than what these calls take and return.

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from eqr_torchrl.lab.comparison.curves import label, learning_curves, mean_curves
from eqr_torchrl.lab.comparison.metrics import Scores, performance_profile, stratified_bootstrap
from eqr_torchrl.lab.comparison.published import find_published
from eqr_torchrl.lab.comparison.reading import GROUP, read_runs
from eqr_torchrl.lab.figures import COLOURS, COLUMN_WIDTH, LINES, legend_key, saved_figure, to_array

_LINES = tuple(line for line in LINES if line != "--")  # which is a published score


def plot_learning_curve(
    source: str | Path | pd.DataFrame, path: str | Path | None = None, *, ylabel: str = "return (undiscounted)"
) -> Path:
    """Draws the returns of one run, or of a few, against environment steps.

    Every evaluation episode is a dot, the mean of each evaluation a line; the rest is as in
    :func:`plot_learning_curves`.

    Args:
        source: a run folder, a CSV file, or the table of :func:`read_runs`.
        path: file to write; its suffix (``.png``, ``.pdf``, ``.svg``) chooses the format. Defaults to
            ``figures/learning_curve.png`` in the run folder.
        ylabel: name and unit of what an evaluation returned.

    Raises:
        ValueError: as :func:`read_runs`.
        ImportError: if matplotlib is not installed, as in all functions here.

    Examples:
        >>> run = {"env": "reach", "algorithm": "sac", "utility": "", "seed": "0"}
        >>> evaluations = pd.DataFrame({**run, "env_steps": [1, 2], "episode_return": [1.0, 2.0]})
        >>> plot_learning_curve(evaluations, folder / "curve.png").name
        'curve.png'
    """
    episodes = source if isinstance(source, pd.DataFrame) else read_runs(source)
    if path is None and (isinstance(source, pd.DataFrame) or not Path(source).is_dir()):
        raise ValueError("path must be given unless source is a run folder, got None.")
    path = Path(str(source), "figures", "learning_curve.png") if path is None else path
    return plot_learning_curves(learning_curves(episodes), path, published=False, episodes=episodes, ylabel=ylabel)


def plot_learning_curves(
    curves: pd.DataFrame,
    path: str | Path,
    *,
    show_seeds: bool = True,
    published: bool = True,
    episodes: pd.DataFrame | None = None,
    ylabel: str = "return (undiscounted)",
) -> Path:
    """Draws one panel for each task: mean over seeds, a band of one standard error, and the seeds themselves.

    Args:
        curves: from :func:`learning_curves`.
        path: as for :func:`plot_learning_curve`.
        show_seeds: also draw each seed as a thin line.
        published: draw the paper's final score of the same task, algorithm and utility, where there is one, as a
            dashed line of the same colour.
        episodes: from :func:`read_runs`; also draw each evaluation episode as a dot.
        ylabel: as for :func:`plot_learning_curve`.

    Examples:
        >>> runs = {"env": "reach", "algorithm": "sac", "utility": "", "seed": ["0", "1"]}
        >>> plot_learning_curves(pd.DataFrame({**runs, "env_steps": 1, "episode_return": 5.0}), folder / "all.pdf").name
        'all.pdf'
    """
    if curves.empty:
        raise ValueError("curves must hold at least one row, got none.")
    means = dict(iter(mean_curves(curves).groupby(GROUP)))
    tasks = list(curves["env"].unique())
    labels = dict.fromkeys(map(label, curves["algorithm"], curves["utility"]))
    styles = dict(zip(labels, itertools.cycle(itertools.product(_LINES, COLOURS)), strict=False))
    columns = min(len(tasks), 4)
    rows = -(-len(tasks) // columns)
    width = COLUMN_WIDTH if columns == 1 else 2 * COLUMN_WIDTH
    height = 2.3 if columns == 1 else 0.5 + rows * width / columns * 0.85
    unit = 1000 if curves["env_steps"].max() >= 10_000 else 1
    prefix = tasks[0].split("/")[0] + "/"
    prefix = prefix if len(tasks) > 1 and all(task.startswith(prefix) for task in tasks) else ""
    reference_steps: set[int] = set()
    with saved_figure(path, width, height) as figure:
        panels = figure.subplots(rows, columns, squeeze=False).ravel()
        for panel in panels[len(tasks) :]:
            panel.remove()
        for task, panel in zip(tasks, panels, strict=False):
            panel.set_title(task.removeprefix(prefix), fontsize=7 if columns == 4 else 8)
        for (env, algorithm, utility), runs in curves.groupby(GROUP):
            panel, (line, colour) = panels[tasks.index(env)], styles[label(algorithm, utility)]
            if episodes is not None:
                mine = episodes[(episodes[GROUP] == [env, algorithm, utility]).all(axis=1)]
                panel.plot(mine["env_steps"] / unit, mine["episode_return"], "o", color=colour,
                           markersize=2.5, alpha=0.4, markeredgewidth=0)  # fmt: skip
            if show_seeds and runs["seed"].nunique() > 1:
                for _, run in runs.groupby("seed"):
                    panel.plot(
                        run["env_steps"] / unit, run["episode_return"], line, color=colour, linewidth=0.4, alpha=0.4
                    )
            if (env, algorithm, utility) in means:
                mean = means[env, algorithm, utility]
                steps, low, high = mean["env_steps"] / unit, mean["mean"] - mean["sem"], mean["mean"] + mean["sem"]
                panel.plot(steps, mean["mean"], line, marker="o" if len(steps) == 1 else "", markersize=3, color=colour)
                panel.fill_between(steps, low, high, color=colour, alpha=0.25, linewidth=0)
            score = find_published(env, algorithm, utility) if published else None
            if score is not None:
                panel.axhline(score.mean, color=colour, linestyle="--", linewidth=0.8)
                reference_steps.add(score.env_steps)
        xlabel = "environment steps" + (" (thousands)" if unit == 1000 else "")
        if len(tasks) == 1:
            panels[0].set(xlabel=xlabel, ylabel=ylabel)
        else:
            figure.supxlabel(xlabel, fontsize=8)
            figure.supylabel(ylabel, fontsize=8)
        handles = [legend_key(line, name, colour) for name, (line, colour) in styles.items()]
        handles += [legend_key("--", f"published, {n // 1000}K steps", "0.4") for n in sorted(reference_steps)]
        figure.legend(handles=handles, loc="outside upper center", ncols=2 if columns == 1 else 4)
    return Path(path)


def plot_performance_profiles(
    scores: Mapping[str, Scores], path: str | Path, *, xlabel: str = "normalised score"
) -> Path:
    """Draws the share of runs above each score, with a band of 95 % from resampling runs within tasks.

    Args:
        scores: from :func:`normalised_scores`.
        path: as for :func:`plot_learning_curve`.
        xlabel: name and unit of the score.

    Examples:
        >>> plot_performance_profiles({"sac": {"reach": [0.1, 0.5]}}, folder / "profile.png").name
        'profile.png'
    """
    everything = np.concatenate([to_array(runs) for tasks in scores.values() for runs in tasks.values()])
    thresholds = np.linspace(min(0.0, everything.min()), everything.max(), 101)
    with saved_figure(path, COLUMN_WIDTH, 2.4) as figure:
        axes = figure.subplots()
        for i, (name, tasks) in enumerate(scores.items()):
            profile = stratified_bootstrap(
                lambda resampled: performance_profile(resampled, thresholds), tasks, num_resamples=500
            )
            colour, line = COLOURS[i % len(COLOURS)], LINES[i // len(COLOURS) % len(LINES)]
            axes.plot(thresholds, profile.estimate, line, color=colour, label=name)
            axes.fill_between(thresholds, profile.low, profile.high, color=colour, alpha=0.2, linewidth=0)
        axes.set(xlabel=f"{xlabel} $z$", ylabel="share of runs with score > $z$", ylim=(0, 1.02))
        axes.legend()
    return Path(path)


def plot_aggregates(table: pd.DataFrame, path: str | Path, *, xlabel: str = "normalised score") -> Path:
    """Draws aggregates over tasks with their 95 % intervals, one panel for each metric.

    Args:
        table: from :func:`aggregate_table`.
        path: as for :func:`plot_learning_curve`.
        xlabel: name and unit of the score.

    Examples:
        >>> from eqr_torchrl.lab.comparison import aggregate_table
        >>> plot_aggregates(aggregate_table({"sac": {"reach": [0.2, 0.4]}}), folder / "aggregates.png").name
        'aggregates.png'
    """
    if table.empty:
        raise ValueError("table must hold at least one row, got none.")
    labels = list(table["algorithm"].unique())
    metrics = table.groupby("metric", sort=False)
    with saved_figure(path, 2 * COLUMN_WIDTH, 0.8 + 0.22 * len(labels)) as figure:
        axes = figure.subplots(1, len(metrics), sharey=True, squeeze=False)[0]
        for panel, (metric, rows) in zip(axes, metrics, strict=True):
            for row in rows.itertuples():
                height = labels.index(row.algorithm)
                colour = COLOURS[height % len(COLOURS)]
                panel.plot([row.low, row.high], [height, height], color=colour, linewidth=5, alpha=0.35)
                panel.plot(row.estimate, height, "|", color=colour, markersize=9, markeredgewidth=2)
            panel.set(title=metric, yticks=range(len(labels)), yticklabels=labels, ylim=(len(labels) - 0.5, -0.5))
        figure.supxlabel(xlabel, fontsize=8)
    return Path(path)
