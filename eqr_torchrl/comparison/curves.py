"""Learning curves: the returns of each run against environment steps, and their mean over seeds."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportReturnType=false
# The annotations of pandas are wider than what these calls take and return.

from __future__ import annotations

import numpy as np
import pandas as pd

from eqr_torchrl.comparison.reading import GROUP, RUN

PAPER_SMOOTHING = 10
"""Evaluations in the trailing moving average of the paper's curves and scores."""


def learning_curves(evaluations: pd.DataFrame, *, smoothing: int = 1) -> pd.DataFrame:
    """Return of each run at each of its evaluations.

    Args:
        evaluations: from :func:`read_runs`: evaluation episodes with the columns env, algorithm, utility, seed,
            env_steps and episode_return, in any order. The episodes of one evaluation are averaged.
        smoothing: evaluations in the trailing moving average of each run; the front is padded with the first value. The
            paper uses 10 (``PAPER_SMOOTHING``). Defaults to 1: none.

    Returns:
        One row per evaluation, sorted: ``env``, ``algorithm``, ``utility``, ``seed``, ``env_steps``,
        ``episode_return``.

    Raises:
        ValueError: if ``smoothing`` is not positive, or ``evaluations`` lacks a column or has no row.

    Examples:
        >>> import pandas as pd
        >>> rows = [("reach", "sac", "", "0", step, 10.0 * step) for step in (1, 1, 2)]
        >>> columns = ["env", "algorithm", "utility", "seed", "env_steps", "episode_return"]
        >>> learning_curves(pd.DataFrame(rows, columns=columns), smoothing=2)["episode_return"].tolist()
        [10.0, 15.0]
    """
    if smoothing < 1:
        raise ValueError(f"smoothing must be a positive number of evaluations, got {smoothing}.")
    missing = [column for column in (*RUN, "env_steps", "episode_return") if column not in evaluations]
    if missing or evaluations.empty:
        got = f"no {', '.join(missing)}" if missing else "no row"
        raise ValueError(f"evaluations must hold the columns of read_runs and at least one row, got {got}.")
    curves = evaluations.groupby([*RUN, "env_steps"], as_index=False)["episode_return"].mean()
    curves = curves.sort_values([*RUN, "env_steps"], key=_seeds_as_numbers, ignore_index=True)
    curves["episode_return"] = curves.groupby(RUN)["episode_return"].transform(_trailing_mean, width=smoothing)
    return curves


def mean_curves(curves: pd.DataFrame) -> pd.DataFrame:
    """Mean and standard error over the seeds of each task, algorithm and utility.

    A mean is taken only where every run has a value: it begins where the last run begins and ends where the first one
    ends, so that no step of it is caused by a run that drops out. Between two evaluations a run is interpolated
    linearly.

    Args:
        curves: from :func:`learning_curves`.

    Returns:
        One row per step: ``env``, ``algorithm``, ``utility``, ``env_steps``, ``num_seeds``, ``mean``, ``sem`` (NaN for
        a single seed). A group whose runs have no step in common has no rows.

    Examples:
        >>> import pandas as pd
        >>> rows = [("reach", "sac", "", seed, step, 1.0) for seed in "01" for step in (1, 2 + int(seed))]
        >>> columns = ["env", "algorithm", "utility", "seed", "env_steps", "episode_return"]
        >>> mean_curves(pd.DataFrame(rows, columns=columns))["env_steps"].tolist()  # seed 1 is at 3 already
        [1, 2]
    """
    tables = []
    for group, runs in curves.groupby(GROUP):
        grid = runs.pivot(index="env_steps", columns="seed", values="episode_return")  # [steps, seeds]
        grid = grid.interpolate(method="index", limit_area="inside").dropna()
        table = pd.DataFrame({"num_seeds": grid.shape[1], "mean": grid.mean(axis=1), "sem": grid.sem(axis=1)})
        tables.append(table.reset_index().assign(**dict(zip(GROUP, group, strict=True))))
    return pd.concat(tables, ignore_index=True)[[*GROUP, "env_steps", "num_seeds", "mean", "sem"]]


def label(algorithm: str, utility: str) -> str:
    """Algorithm and utility in one word, such as ``eqr_sac (optimistic)``.

    Examples:
        >>> label("eqr_sac", "optimistic"), label("sac", "")
        ('eqr_sac (optimistic)', 'sac')
    """
    return f"{algorithm} ({utility})" if utility else algorithm


def _trailing_mean(values: pd.Series, width: int) -> np.ndarray:
    padded = np.concatenate([np.full(width - 1, values.iloc[0]), values])
    return np.lib.stride_tricks.sliding_window_view(padded, width).mean(axis=-1)


def _seeds_as_numbers(column: pd.Series) -> pd.Series:
    return pd.to_numeric(column, errors="coerce") if column.name == "seed" else column  # 2 before 10
