"""Algorithms side by side: scores at the step where they can be compared, raw and on a common scale."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportReturnType=false
# The annotations of pandas are wider than what these calls take and return.

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from eqr_torchrl.comparison.curves import label
from eqr_torchrl.comparison.reading import GROUP, RUN

DMC_RETURNS = (0.0, 1000.0)
"""Lowest and highest return of every DeepMind Control task: 1,000 steps of rewards in [0, 1]."""


def run_scores(curves: pd.DataFrame, *, env_steps: int | None = None) -> pd.DataFrame:
    """Return of each run at the last step that all runs of its task have reached, or at a given step.

    Runs that cannot be compared at that step are left out with a warning that names them: those that end before others
    have begun, and, for a given step, those that do not reach it.

    Args:
        curves: from :func:`learning_curves`; smoothed by 10 evaluations they give the paper's kind of score.
        env_steps: where to read the curves, by linear interpolation. Defaults to ``None``: for each task the last step
            that all of its runs have reached.

    Returns:
        One row per run: ``env``, ``algorithm``, ``utility``, ``seed``, ``env_steps``, ``score`` (in units of reward).

    Raises:
        ValueError: if no run reaches ``env_steps``.

    Examples:
        >>> import pandas as pd
        >>> rows = [("reach", a, "", "0", step, 1.0 * step) for a, step in (("sac", 1), ("sac", 3), ("mbpo", 2))]
        >>> columns = ["env", "algorithm", "utility", "seed", "env_steps", "episode_return"]
        >>> run_scores(pd.DataFrame(rows, columns=columns))[["algorithm", "env_steps", "score"]].values.tolist()
        [['mbpo', 2, 2.0], ['sac', 2, 2.0]]
    """
    spans = curves.groupby(RUN, sort=False)["env_steps"].agg(["min", "max"])
    if env_steps is not None and not ((spans["min"] <= env_steps) & (env_steps <= spans["max"])).any():
        first, last = spans["min"].min(), spans["max"].max()
        raise ValueError(f"env_steps must be a step of a run's evaluations, {first} to {last}, got {env_steps}.")
    tables = []
    for env, runs in spans.groupby("env"):
        step = env_steps
        if step is None:
            kept = runs.sort_values("max")
            while kept["min"].max() > kept["max"].min():  # no step in common: leave out the run that ends first
                kept = kept.iloc[1:]
            step = int(kept["max"].min())
        else:
            kept = runs[(runs["min"] <= step) & (step <= runs["max"])]
        for run, span in runs.drop(kept.index).iterrows():
            _, algorithm, utility, seed = run
            warnings.warn(
                f"{label(algorithm, utility)}, seed {seed}, on {env} is left out: its evaluations, from step "
                f"{span['min']:,} to {span['max']:,}, do not include step {step:,}.",
                stacklevel=2,
            )
        tables.append(runs[runs.index.isin(kept.index)].assign(env_steps=step).reset_index()[[*RUN, "env_steps"]])
    scores = pd.concat(tables, ignore_index=True)
    lines = dict(iter(curves.groupby(RUN)))
    scores["score"] = [
        float(np.interp(step, lines[tuple(run)]["env_steps"], lines[tuple(run)]["episode_return"]))
        for *run, step in scores.itertuples(index=False)
    ]
    return scores.sort_values(GROUP, kind="stable", ignore_index=True)


def score_table(scores: pd.DataFrame) -> pd.DataFrame:
    """Mean and standard error over seeds of each task, algorithm and utility.

    Args:
        scores: from :func:`run_scores`.

    Returns:
        One row per group: ``env``, ``algorithm``, ``utility``, ``env_steps``, ``num_seeds``, ``mean``, ``sem`` (NaN for
        a single seed).

    Examples:
        >>> import pandas as pd
        >>> rows = [("reach", "sac", "", seed, 1, score) for seed, score in (("0", 1.0), ("1", 3.0))]
        >>> scores = pd.DataFrame(rows, columns=["env", "algorithm", "utility", "seed", "env_steps", "score"])
        >>> score_table(scores)[["num_seeds", "mean", "sem"]].values.tolist()
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
        Algorithm and utility (:func:`label`) to task to scores of its runs, shape ``[R]``, which the functions of
        ``eqr_torchrl.comparison.metrics`` take. Empty if no task is left.

    Raises:
        ValueError: if a range is empty.

    Examples:
        >>> import pandas as pd
        >>> rows = [("dmc/reacher-easy", "sac", "", seed, 1, score) for seed, score in (("0", 500.0), ("1", 750.0))]
        >>> scores = pd.DataFrame(rows, columns=["env", "algorithm", "utility", "seed", "env_steps", "score"])
        >>> normalised_scores(scores)["sac"]["dmc/reacher-easy"].tolist()
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
