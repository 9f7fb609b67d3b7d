"""Append-only CSV tables of a run: every row is in the file as soon as it is logged."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from eqr_torchrl.runs.atomic import replace_file

METRICS_FILE = "metrics.csv"
EVALUATIONS_FILE = "evaluations.csv"
STEP = "env_steps"
TIME_PREFIX = "time/"


class Table:
    """A CSV file with one header line. An existing file is appended to; a new column rewrites it once.

    Args:
        path: the file; made with the first row.
        columns: columns that come first, in this order.

    Examples:
        >>> import tempfile
        >>> table = Table(Path(tempfile.mkdtemp()) / "metrics.csv", ["env_steps"])
        >>> table.append({"env_steps": 1, "loss": 0.5})
        >>> table.append({"env_steps": 2, "return": -3.0})
        >>> print(table.path.read_text())
        env_steps,loss,return
        1,0.5,
        2,,-3.0
    """

    def __init__(self, path: str | Path, columns: Sequence[str] = ()) -> None:
        self.path, self.columns = Path(path), list(columns)
        if self.path.exists():
            header, rows = _read(self.path)
            self.columns = header or self.columns
            self._rewrite(self.columns, [dict(zip(header, row, strict=True)) for row in rows])

    def append(self, row: Mapping[str, Any]) -> None:
        """Writes one row; columns it does not name stay empty."""
        new = [name for name in row if name not in self.columns]
        if new or not self.path.exists():
            self._rewrite([*self.columns, *new], read_csv(self.path) if self.path.exists() else [])
        with open(self.path, "a", encoding="utf-8", newline="") as file:
            file.write(_format([[row.get(name) for name in self.columns]]))

    def truncate_after(self, env_steps: int) -> None:
        """Drops the rows beyond ``env_steps``: what was logged after a checkpoint."""
        if self.path.exists():
            self._rewrite(self.columns, [row for row in read_csv(self.path) if float(row[STEP]) <= env_steps])

    def _rewrite(self, columns: list[str], rows: Iterable[Mapping[str, Any]]) -> None:
        text = _format([columns, *([row.get(name) for name in columns] for row in rows)])
        replace_file(self.path, lambda path: path.write_text(text, encoding="utf-8", newline=""))
        self.columns = columns


def read_csv(path: str | Path, *, times: bool = True) -> list[dict[str, str]]:
    """Reads a CSV file of a run.

    Args:
        path: ``metrics.csv`` or ``evaluations.csv``.
        times: ``False`` leaves out the columns of wall-clock times (``time/...``), the only ones that differ between
            two runs with the same seed on the same CPU.

    Returns:
        One dictionary per row, column to text; empty cells are ``""``. An unfinished last line, of a process that was
        killed or a disk that was full, is left out.
    """
    header, rows = _read(Path(path))
    keep = [i for i, name in enumerate(header) if times or not name.startswith(TIME_PREFIX)]
    return [{header[i]: row[i] for i in keep} for row in rows]


def _read(path: Path) -> tuple[list[str], list[list[str]]]:
    text = path.read_text(encoding="utf-8")
    lines = list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1])))
    return (lines[0], [line for line in lines[1:] if len(line) == len(lines[0])]) if lines else ([], [])


def _format(lines: Iterable[Iterable[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()
