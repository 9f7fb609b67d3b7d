"""Evaluation episodes of many runs, read from run folders and tidy CSV files into one table."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportReturnType=false
# The annotations of pandas are wider than what these calls take and return.

from __future__ import annotations

import csv
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from eqr_torchrl.lab.runs.folder import EVALUATIONS_FILE

GROUP = ["env", "algorithm", "utility"]
RUN = [*GROUP, "seed"]
COLUMNS = (*RUN, "env_steps", "episode_return")


def read_runs(sources: str | Path | Sequence[str | Path], *, columns: Mapping[str, str] | None = None) -> pd.DataFrame:
    r"""Reads all evaluation episodes of run folders, folders of run folders, and CSV files.

    A CSV file has the columns env, algorithm, utility, seed, env_steps and episode_return; other columns are ignored,
    ``utility`` may be missing, and lines that start with ``#`` are comments. A last row without a line break, which may
    be truncated inside a number, is left out with a warning, and so is a file without evaluations.

    Args:
        sources: one path or several. A folder stands for every ``evaluations.csv`` in it, however deep. ``NAME=PATH``
            gives the runs under PATH the algorithm name NAME, to compare settings that the columns do not show.
        columns: our name to the name in the files, for columns with other names.

    Returns:
        One row per episode: ``env``, ``algorithm``, ``utility``, ``seed`` (text), ``env_steps`` (int),
        ``episode_return`` (in units of reward) and ``file``.

    Raises:
        ValueError: if a path holds no evaluations, a file is not UTF-8 text, a column is missing, a row has another
            number of cells than the header, a number is not finite, or two files hold the same run.

    Examples:
        >>> text = "env,algorithm,seed,env_steps,episode_return\nreach,sac,0,1000,5.0\n"
        >>> size = Path(folder, "results.csv").write_text(text)
        >>> read_runs(f"mine={folder}/results.csv")[["algorithm", "episode_return"]].values.tolist()
        [['mine', 5.0]]
    """
    tables, seen = [], set()
    for source in [sources] if isinstance(sources, str | Path) else sources:
        name, separator, path = str(source).partition("=")
        name, path = (name, Path(path)) if separator and not Path(source).exists() else ("", Path(source))
        files = sorted(path.rglob(EVALUATIONS_FILE)) if path.is_dir() else [path]
        if not files:
            raise ValueError(f"sources must hold {EVALUATIONS_FILE}: found none under {path}.")
        for file in files:
            if (name, file.resolve()) in seen:  # reached through two of the sources
                continue
            seen.add((name, file.resolve()))
            table = _read_file(file, columns or {})
            if table.empty:
                warnings.warn(f"{file} holds no evaluation yet and is left out.", stacklevel=2)
                continue
            tables.append(table.assign(file=str(file), **({"algorithm": name} if name else {})))
    if not tables:
        raise ValueError(f"sources must hold at least one evaluation, got none in {len(seen)} files.")
    runs = pd.concat(tables, ignore_index=True)
    for (*group, seed), files in runs.groupby(RUN)["file"].unique().items():
        if len(files) > 1:
            raise ValueError(
                f"sources must hold each run once: {'/'.join(filter(None, group))} with seed {seed} is in {files[0]} "
                f"and {files[1]}; label one with NAME=PATH, or leave it out."
            )
    return runs


def _read_file(file: Path, columns: Mapping[str, str]) -> pd.DataFrame:
    if not file.is_file():
        raise ValueError(f"source must be a run folder with {EVALUATIONS_FILE} or a CSV file: found no {file}.")
    try:
        text = file.read_text(encoding="utf-8-sig")  # with or without the byte order mark of Excel
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} must be UTF-8 text, got byte {error.object[error.start]:#04x}.") from None
    lines = [line for line in text.splitlines(keepends=True) if line.strip() and not line.startswith("#")]
    if len(lines) > 1 and not lines[-1].endswith(("\n", "\r")):
        warnings.warn(
            f"{file}: no line break follows the last row, which may be truncated and is left out.", stacklevel=3
        )
        lines.pop()
    if not lines:
        raise ValueError(f"{file} must start with a line of column names: it is empty.")
    header, *rows = csv.reader(lines)  # pandas would fill up rows that are too short, and shift those too long
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            raise ValueError(f"{file}, row {number}: must have {len(header)} cells like the header, got {len(row)}.")

    theirs = {columns.get(column, column): column for column in COLUMNS}
    missing = [name for name, column in theirs.items() if name not in header and column != "utility"]
    if missing:
        raise ValueError(f"{file} must have the columns {', '.join(theirs)}: {', '.join(missing)} not found.")
    present = [name for name in theirs if name in header]
    table = pd.DataFrame(rows, columns=header, dtype=object)[present].rename(columns=theirs)
    table = table.reindex(columns=COLUMNS, fill_value="")
    numbers = table[["env_steps", "episode_return"]].apply(pd.to_numeric, errors="coerce").astype(float)
    bad = ~(np.isfinite(numbers).all(axis=1) & (numbers["env_steps"] % 1 == 0)).to_numpy()
    if bad.any():
        at = int(bad.argmax())
        got = " and ".join(repr(cell) for cell in table.loc[at, ["env_steps", "episode_return"]])
        raise ValueError(
            f"{file}, row {at + 1}: env_steps must be a whole number and episode_return finite, got {got}."
        )
    table["env_steps"], table["episode_return"] = numbers["env_steps"].astype(int), numbers["episode_return"]
    return table
