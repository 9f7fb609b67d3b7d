"""Algorithms side by side: scores at the step where they can be compared, raw and on a common scale."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from eqr_torchrl.evaluation.learning_curves import FloatArray, LearningCurve, standard_error

DMC_RETURNS = (0.0, 1000.0)
"""Lowest and highest return of every DeepMind Control task: 1,000 steps of rewards in [0, 1]."""


class ScoreRow(NamedTuple):
    """Score of one algorithm and utility on one task at ``env_steps``: mean and standard error over ``num_seeds``."""

    env: str
    algorithm: str
    utility: str
    env_steps: int
    num_seeds: int
    mean: float
    sem: float


def comparison_step(curves: Sequence[LearningCurve], env: str) -> int:
    """Last step that at least one run of every algorithm reaches on a task: where they can be compared fairly.

    Args:
        curves: curves of all algorithms.
        env: the task.

    Returns:
        The step. Runs that stop before it have no score there (:func:`scores_at` leaves them out).

    Raises:
        ValueError: if there is no curve for ``env``.

    Examples:
        >>> from eqr_torchrl.evaluation import EvaluationRow, learning_curves
        >>> rows = [EvaluationRow("reach", a, "", "0", t, 1.0) for a, t in (("sac", 1), ("sac", 2), ("mbpo", 1))]
        >>> comparison_step(learning_curves(rows), "reach")
        1
    """
    ends = [int(curve.env_steps[-1]) for curve in curves if curve.env == env]
    if not ends:
        raise ValueError(f"env must be one of {sorted({c.env for c in curves})}: got {env!r}.")
    return min(ends)


def scores_at(curve: LearningCurve, env_steps: int) -> dict[str, float]:
    """Return of each run at a step, seed to return; runs that do not reach it are left out.

    Args:
        curve: a learning curve, smoothed or not.
        env_steps: where to read it; between two evaluations by linear interpolation.

    Returns:
        Returns, in units of reward.

    Examples:
        >>> from eqr_torchrl.evaluation import EvaluationRow, learning_curves
        >>> rows = [EvaluationRow("reach", "sac", "", s, t, 1.0 * t) for s, t in (("0", 1), ("0", 3), ("1", 1))]
        >>> scores_at(learning_curves(rows)[0], 2)
        {'0': 2.0}
    """
    scores = {}
    for seed, line in zip(curve.seeds, curve.returns, strict=True):
        own = ~np.isnan(line)
        steps = curve.env_steps[own]
        if steps[0] <= env_steps <= steps[-1]:
            scores[seed] = float(np.interp(env_steps, steps, line[own]))
    return scores


def score_table(curves: Sequence[LearningCurve]) -> list[ScoreRow]:
    """Mean and standard error over seeds of each curve, at the step where its task can be compared.

    Args:
        curves: from :func:`learning_curves`; smoothed by 10 evaluations they give the paper's kind of score.

    Returns:
        One row per curve, in the same order.

    Examples:
        >>> from eqr_torchrl.evaluation import EvaluationRow, learning_curves
        >>> rows = [EvaluationRow("reach", "sac", "", s, 1, r) for s, r in (("0", 1.0), ("1", 3.0))]
        >>> score_table(learning_curves(rows))[0][-3:]
        (2, 2.0, 1.0)
    """
    table = []
    for curve in curves:
        step = comparison_step(curves, curve.env)
        scores = np.array(list(scores_at(curve, step).values()))
        mean = float(scores.mean()) if scores.size else math.nan
        identity = (curve.env, curve.algorithm, curve.utility)
        table.append(ScoreRow(*identity, step, scores.size, mean, standard_error(scores)))
    return table


def normalised_scores(
    curves: Sequence[LearningCurve], *, score_ranges: Mapping[str, tuple[float, float]] | None = None
) -> dict[str, dict[str, FloatArray]]:
    """Scores of the tasks that every algorithm has been run on, on a common scale.

    Args:
        curves: from :func:`learning_curves`.
        score_ranges: task to the returns that count as 0 and as 1. Tasks whose name starts with ``dmc/`` default to
            (0, 1000), as in the paper; other tasks without a range are left out.

    Returns:
        Label of the curve to task to scores of its runs, shape ``[R]``: what the functions of
        ``eqr_torchrl.evaluation.metrics`` take. Empty if no task is left.

    Raises:
        ValueError: if a range is empty.

    Examples:
        >>> from eqr_torchrl.evaluation import EvaluationRow, learning_curves
        >>> rows = [EvaluationRow("dmc/reacher-easy", "sac", "", s, 1, r) for s, r in (("0", 500.0), ("1", 750.0))]
        >>> normalised_scores(learning_curves(rows))["sac"]["dmc/reacher-easy"].tolist()
        [0.5, 0.75]
    """
    ranges = {c.env: DMC_RETURNS for c in curves if c.env.startswith("dmc/")} | dict(score_ranges or {})
    for env, (low, high) in ranges.items():
        if not low < high:
            raise ValueError(f"score_ranges[{env!r}] must be increasing: got {low} to {high}.")
    labels = list(dict.fromkeys(curve.label for curve in curves))
    shared = {env for env in ranges if {c.label for c in curves if c.env == env} == set(labels)}
    scores: dict[str, dict[str, FloatArray]] = {label: {} for label in labels}
    for curve in curves:
        if curve.env in shared:
            low, high = ranges[curve.env]
            returns = np.array(list(scores_at(curve, comparison_step(curves, curve.env)).values()))
            scores[curve.label][curve.env] = (returns - low) / (high - low)
    return scores if shared else {}
