"""Tables of scores: of each run at the step where runs can be compared, of each task, and over tasks."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportReturnType=false
# The annotations of pandas are wider than what these calls take and return.

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from eqr_torchrl.lab.comparison.curves import label
from eqr_torchrl.lab.comparison.metrics import (
    Scores,
    interquartile_mean,
    mean_score,
    median_score,
    optimality_gap,
    probability_of_improvement,
    stratified_bootstrap,
)
from eqr_torchrl.lab.comparison.reading import GROUP, RUN

DMC_RETURNS = (0.0, 1000.0)
"""Lowest and highest return of every DeepMind Control task: 1,000 steps of rewards in [0, 1]."""

METRICS = {
    "interquartile mean": interquartile_mean,
    "mean": mean_score,
    "median over tasks": median_score,
    "optimality gap": optimality_gap,
}


def run_scores(curves: pd.DataFrame, *, env_steps: int | None = None) -> pd.DataFrame:
    """Return of each run at the last step that all runs of its task have reached, or at a given step.

    Runs without an evaluation on both sides of that step are left out with a warning that names them.

    Args:
        curves: from :func:`learning_curves`; smoothed by 10 evaluations they give the paper's kind of score.
        env_steps: where to read the curves, by linear interpolation. Defaults to the last step that all runs of a task
            have reached, except those that end before others begin.

    Returns:
        One row per run: ``env``, ``algorithm``, ``utility``, ``seed``, ``env_steps``, ``score`` (in units of reward).

    Raises:
        ValueError: if no run reaches ``env_steps``.

    Examples:
        >>> runs = {"env": "reach", "algorithm": ["sac", "sac", "mbpo"], "utility": "", "seed": "0"}
        >>> curves = pd.DataFrame({**runs, "env_steps": [1, 3, 2], "episode_return": [10.0, 30.0, 5.0]})
        >>> run_scores(curves)[["algorithm", "env_steps", "score"]].values.tolist()
        [['mbpo', 2, 5.0], ['sac', 2, 20.0]]
    """
    spans = curves.groupby(RUN, sort=False)["env_steps"].agg(["min", "max"])
    if env_steps is not None and not ((spans["min"] <= env_steps) & (env_steps <= spans["max"])).any():
        first, last = spans["min"].min(), spans["max"].max()
        raise ValueError(f"env_steps must be a step of a run's evaluations, {first} to {last}, got {env_steps}.")
    rows, lines = [], dict(iter(curves.groupby(RUN)))
    for env, runs in spans.groupby("env"):
        by_end = runs.sort_values("max")
        last_start = by_end["min"][::-1].cummax()[::-1]  # of the runs that end no earlier
        step = int(by_end["max"][last_start <= by_end["max"]].iloc[0]) if env_steps is None else env_steps
        for run, (start, end) in zip(runs.index, runs.itertuples(index=False), strict=True):
            if start <= step <= end:
                score = np.interp(step, lines[run]["env_steps"], lines[run]["episode_return"])
                rows.append((*run, step, float(score)))
                continue
            _, algorithm, utility, seed = run
            warnings.warn(
                f"{label(algorithm, utility)}, seed {seed}, on {env} is left out: its evaluations, from step "
                f"{start:,} to {end:,}, do not include step {step:,}.",
                stacklevel=2,
            )
    scores = pd.DataFrame(rows, columns=[*RUN, "env_steps", "score"])
    return scores.sort_values(GROUP, kind="stable", ignore_index=True)


def score_table(scores: pd.DataFrame) -> pd.DataFrame:
    """Mean and standard error over seeds of the scores of :func:`run_scores`.

    Returns:
        One row per group: ``env``, ``algorithm``, ``utility``, ``env_steps``, ``num_seeds``, ``mean``, ``sem`` (NaN for
        a single seed).

    Examples:
        >>> runs = {"env": "reach", "algorithm": "sac", "utility": "", "seed": ["0", "1"], "env_steps": 1}
        >>> score_table(pd.DataFrame({**runs, "score": [1.0, 3.0]}))[["num_seeds", "mean", "sem"]].values.tolist()
        [[2.0, 2.0, 1.0]]
    """
    return scores.groupby([*GROUP, "env_steps"], as_index=False).agg(
        num_seeds=("score", "size"), mean=("score", "mean"), sem=("score", "sem")
    )


def normalised_scores(
    scores: pd.DataFrame, *, score_ranges: Mapping[str, tuple[float, float]] | None = None
) -> dict[str, dict[str, NDArray[np.float64]]]:
    """Scores of the tasks that every algorithm has a score on, on a common scale.

    Args:
        scores: from :func:`run_scores`.
        score_ranges: task to the returns that count as 0 and as 1. Tasks whose name starts with ``dmc/`` default to
            (0, 1000), as in the paper; other tasks without a range are left out.

    Returns:
        Algorithm and utility (:func:`label`) to task to scores of its runs, shape ``[R]``. Empty if no task is left.

    Raises:
        ValueError: if a range is empty.

    Examples:
        >>> runs = {"env": "dmc/reacher-easy", "algorithm": "sac", "utility": "", "seed": ["0", "1"], "env_steps": 1}
        >>> normalised_scores(pd.DataFrame({**runs, "score": [500.0, 750.0]}))["sac"]["dmc/reacher-easy"].tolist()
        [0.5, 0.75]
    """
    ranges = {env: DMC_RETURNS for env in scores["env"].unique() if env.startswith("dmc/")} | dict(score_ranges or {})
    for env, (low, high) in ranges.items():
        if not low < high:
            raise ValueError(f"score_ranges[{env!r}] must be increasing, got {low} to {high}.")
    labels = pd.Series(map(label, scores["algorithm"], scores["utility"]), index=scores.index)
    shared = scores[scores["env"].isin(list(ranges))].groupby("env").filter(
        lambda task: set(labels[task.index]) == set(labels)
    )  # fmt: skip
    normalised: dict[str, dict[str, NDArray[np.float64]]] = {}
    for (name, env), runs in shared.groupby([labels[shared.index], "env"])["score"]:
        low, high = ranges[env]
        normalised.setdefault(name, {})[env] = (runs.to_numpy(float) - low) / (high - low)
    return normalised


def aggregate_table(scores: Mapping[str, Scores]) -> pd.DataFrame:
    """Interquartile mean, mean, median over tasks, and optimality gap of each algorithm.

    Args:
        scores: from :func:`normalised_scores`.

    Returns:
        Four rows for each algorithm: ``algorithm``, ``metric``, ``num_tasks``, ``num_runs``, ``estimate``, and the ends
        ``low`` and ``high`` of its 95 % interval (:func:`stratified_bootstrap`).

    Examples:
        >>> table = aggregate_table({"sac": {"reach": [0.25, 0.25]}})
        >>> table[["metric", "estimate"]].values.tolist()[0]
        ['interquartile mean', 0.25]
    """
    rows = []
    for (name, tasks), (metric, function) in itertools.product(scores.items(), METRICS.items()):
        num_runs = sum(np.size(runs) for runs in tasks.values())
        interval = stratified_bootstrap(function, tasks)
        rows.append((name, metric, len(tasks), num_runs, *map(float, interval)))
    columns = ["algorithm", "metric", "num_tasks", "num_runs", "estimate", "low", "high"]
    return pd.DataFrame(rows, columns=columns)


def improvement_table(scores: Mapping[str, Scores]) -> pd.DataFrame:
    """Probability that a run of an algorithm beats one of another on a random task, for every ordered pair.

    Args:
        scores: from :func:`normalised_scores`; the scale does not matter here.

    Returns:
        One row for each pair: ``algorithm``, ``baseline``, ``probability``, ``low``, ``high``.

    Examples:
        >>> improvement_table({"a": {"reach": [2.0, 3.0]}, "b": {"reach": [0.0, 1.0]}}).values.tolist()[0][:3]
        ['a', 'b', 1.0]
    """
    rows = []
    for name, other in itertools.permutations(scores, 2):
        interval = stratified_bootstrap(probability_of_improvement, scores[name], scores[other])
        rows.append((name, other, *map(float, interval)))
    columns = ["algorithm", "baseline", "probability", "low", "high"]
    return pd.DataFrame(rows, columns=columns)
