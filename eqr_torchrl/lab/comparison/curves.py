"""Learning curves: the returns of each run against environment steps, and their mean over seeds."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportReturnType=false
# The annotations of pandas are wider than what these calls take and return.

from __future__ import annotations

import numpy as np
import pandas as pd

from eqr_torchrl.lab.comparison.reading import GROUP, RUN

PAPER_SMOOTHING = 10
"""Evaluations in the trailing moving average of the paper's curves and scores."""


def learning_curves(evaluations: pd.DataFrame, *, smoothing: int = 1) -> pd.DataFrame:
    """Return of each run at each of its evaluations.

    Args:
        evaluations: from :func:`read_runs`. The episodes of one evaluation are averaged.
        smoothing: evaluations in the trailing moving average of each run; the front is padded with the first value. The
            paper uses 10 (``PAPER_SMOOTHING``).

    Returns:
        One row per evaluation, sorted: ``env``, ``algorithm``, ``utility``, ``seed``, ``env_steps``,
        ``episode_return``.

    Raises:
        ValueError: if ``smoothing`` is not positive, or ``evaluations`` lacks a column or has no row.

    Examples:
        >>> run = {"env": "reach", "algorithm": "sac", "utility": "", "seed": "0"}
        >>> evaluations = pd.DataFrame({**run, "env_steps": [1, 1, 2], "episode_return": [10.0, 10.0, 20.0]})
        >>> learning_curves(evaluations, smoothing=2)["episode_return"].tolist()
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
    """Mean and standard error over seeds of the curves of :func:`learning_curves`.

    A mean begins where the last run begins and ends where the first run ends, so the end of a run causes no jump in it.
    Between two evaluations a run is interpolated linearly.

    Returns:
        One row per step: ``env``, ``algorithm``, ``utility``, ``env_steps``, ``num_seeds``, ``mean``, ``sem`` (NaN for
        a single seed). A group whose runs have no step in common has no rows.

    Examples:
        >>> runs = {"env": "reach", "algorithm": "sac", "utility": "", "seed": ["0", "0", "1", "1"]}
        >>> curves = pd.DataFrame({**runs, "env_steps": [1, 2, 1, 3], "episode_return": [1.0, 1.0, 3.0, 5.0]})
        >>> mean_curves(curves)[["env_steps", "mean"]].values.tolist()  # seed 1 has 4 at step 2
        [[1.0, 2.0], [2.0, 2.5]]
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
