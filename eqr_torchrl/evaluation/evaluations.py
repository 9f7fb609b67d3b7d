"""Evaluation episodes of many runs, read from run folders or anybody's tidy CSV."""

from __future__ import annotations

import csv
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

FILE_NAME = "evaluations.csv"
COLUMNS = ("env", "algorithm", "utility", "seed", "env_steps", "episode_return")


class EvaluationRow(NamedTuple):
    """One evaluation episode of one run."""

    env: str
    algorithm: str
    utility: str
    seed: str
    env_steps: int
    episode_return: float


def read_evaluations(
    source: str | Path | Iterable[Mapping[str, object]], *, columns: Mapping[str, str] | None = None
) -> list[EvaluationRow]:
    """Reads evaluation episodes from a run folder, a CSV file, or rows already in memory.

    Args:
        source: a run folder (its ``evaluations.csv`` is read), a tidy CSV file with the columns env, algorithm,
            utility, seed, env_steps and episode_return, or an iterable of such rows. Other columns are ignored;
            ``utility`` may be missing. Lines that start with ``#`` are comments.
        columns: our name to the name in ``source``, for the columns that are called otherwise.

    Returns:
        One row per evaluation episode, in the order of ``source``.

    Raises:
        ValueError: if there is no such file, it has no rows, a column is missing, or a value is not a finite number.

    Examples:
        >>> rows = [{"task": "reach", "algorithm": "sac", "seed": 0, "step": 1000, "episode_return": 5}]
        >>> read_evaluations(rows, columns={"env": "task", "env_steps": "step"})[0].episode_return
        5.0
    """
    if isinstance(source, str | Path):
        name = str(Path(source) / FILE_NAME if Path(source).is_dir() else source)
        return _parse(_read_csv(Path(name)), name, columns)
    rows = [row._asdict() if isinstance(row, EvaluationRow) else row for row in source]
    return _parse(rows, "source", columns)


def read_runs(sources: Sequence[str | Path], *, columns: Mapping[str, str] | None = None) -> list[EvaluationRow]:
    r"""Reads all runs of several run folders, folders of run folders, and CSV files.

    Args:
        sources: paths. A folder stands for every ``evaluations.csv`` in it, however deep. ``NAME=PATH`` gives the runs
            under PATH the algorithm name NAME, to compare settings that the columns do not tell apart.
        columns: as in :func:`read_evaluations`.

    Returns:
        All rows. Runs that have not been evaluated yet are left out with a warning.

    Raises:
        ValueError: if nothing is found under a path, or two sources hold the same env, algorithm, utility and seed.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     text = "env,algorithm,seed,env_steps,episode_return\nreach,sac,0,1000,5.0\n"
        ...     _ = Path(folder, "evaluations.csv").write_text(text)
        ...     read_runs([f"mine={folder}"])[0].algorithm
        'mine'
    """
    return [row for rows in read_run_files(sources, columns=columns).values() for row in rows]


def read_run_files(
    sources: Sequence[str | Path], *, columns: Mapping[str, str] | None = None
) -> dict[tuple[str, Path], list[EvaluationRow]]:
    r"""What :func:`read_runs` reads, by where it was found.

    Args:
        sources: as in :func:`read_runs`.
        columns: as in :func:`read_evaluations`.

    Returns:
        The NAME of the source, empty without one, and the file, to its rows.

    Raises:
        ValueError: as :func:`read_runs`.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     text = "env,algorithm,seed,env_steps,episode_return\nreach,sac,0,1000,5.0\n"
        ...     _ = Path(folder, "evaluations.csv").write_text(text)
        ...     [(name, file.name, len(rows)) for (name, file), rows in read_run_files([folder]).items()]
        [('', 'evaluations.csv', 1)]
    """
    runs: dict[tuple[str, Path], list[EvaluationRow]] = {}
    origin: dict[tuple[str, str, str, str], Path] = {}
    seen: set[tuple[str, Path]] = set()
    for source in sources:
        label, path = _split_label(source)
        files = sorted(path.rglob(FILE_NAME)) if path.is_dir() else [path]
        if not files:
            raise ValueError(f"sources must hold {FILE_NAME}: found none under {path}.")
        for file in files:
            if (label, file.resolve()) in seen:  # reached through two of the sources
                continue
            seen.add((label, file.resolve()))
            table = _read_csv(file)
            if not table:
                warnings.warn(f"{file} holds no evaluation yet and is left out.", stacklevel=2)
                continue
            found = _parse(table, str(file), columns)
            found = [row._replace(algorithm=label) for row in found] if label else found
            for run in {row[:4] for row in found}:
                if run in origin:
                    name = "/".join(part for part in run[:3] if part)
                    raise ValueError(
                        f"sources must hold each run once: {name} with seed {run[3]} is in {origin[run]} and {file}; "
                        "tell them apart with NAME=PATH, or leave one out."
                    )
                origin[run] = file
            runs[label, file] = found
    if not runs:
        raise ValueError(f"sources must hold at least one evaluation: got none in {len(sources)} sources.")
    return runs


def _split_label(source: str | Path) -> tuple[str, Path]:
    if isinstance(source, str) and "=" in source and not Path(source).exists():
        label, _, path = source.partition("=")
        return label, Path(path)
    return "", Path(source)


def _read_csv(file: Path) -> list[Mapping[str, object]]:
    if not file.is_file():
        raise ValueError(f"source must be a run folder with {FILE_NAME} or a CSV file: found no {file}.")
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def _parse(rows: Sequence[Mapping[str, object]], name: str, columns: Mapping[str, str] | None) -> list[EvaluationRow]:
    if not rows:
        raise ValueError(f"{name} must hold at least one evaluation: got none.")

    theirs = {column: (columns or {}).get(column, column) for column in COLUMNS}
    missing = [theirs[c] for c in COLUMNS if c != "utility" and theirs[c] not in rows[0]]
    if missing:
        raise ValueError(f"{name} must have the columns {', '.join(theirs.values())}: {', '.join(missing)} not found.")
    result = []
    for number, row in enumerate(rows, start=1):
        text = {c: str(row.get(theirs[c]) if row.get(theirs[c]) is not None else "") for c in COLUMNS}
        try:
            env_steps, episode_return = int(float(text["env_steps"])), float(text["episode_return"])
            if not math.isfinite(episode_return):
                raise ValueError
        except (ValueError, OverflowError):
            got = f"{text['env_steps']!r} and {text['episode_return']!r}"
            message = f"{name}, row {number}: env_steps and episode_return must be finite numbers: got {got}."
            raise ValueError(message) from None
        identity = (text["env"], text["algorithm"], text["utility"], text["seed"])
        result.append(EvaluationRow(*identity, env_steps, episode_return))
    return result
