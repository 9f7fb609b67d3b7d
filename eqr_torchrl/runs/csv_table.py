"""An append-only CSV file whose columns may grow: every row is on the disk as soon as it is logged."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from eqr_torchrl.runs.atomic import replace_file

METRICS_FILE = "metrics.csv"
EVALUATIONS_FILE = "evaluations.csv"
TIME_PREFIX = "time/"


class CsvTable:
    """A CSV file with one header line. New columns rewrite it by way of a temporary file; rows are only ever appended.

    An existing file is gone on with; a last line that a killed process left unfinished is dropped.

    Args:
        path: the file; made with the first row.
        columns: columns that come first, in this order.

    Examples:
        >>> import tempfile
        >>> table = CsvTable(Path(tempfile.mkdtemp()) / "metrics.csv", ["env_steps"])
        >>> table.append({"env_steps": 1, "loss": 0.5})
        >>> table.append({"env_steps": 2, "return": -3.0})
        >>> print(table.path.read_text())
        env_steps,loss,return
        1,0.5,
        2,,-3.0
    """

    def __init__(self, path: str | Path, columns: Sequence[str] = ()) -> None:
        self.path = Path(path)
        self.columns = list(columns)
        self.num_rows = 0
        if self.path.exists():
            self._drop_unfinished_line()
            header, rows = _read(self.path)
            self.columns = header or self.columns
            self.num_rows = len(rows)

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one row; columns it does not name stay empty."""
        new = [name for name in row if name not in self.columns]
        if new or not self.path.exists():
            self._rewrite([*self.columns, *new], self.rows())
        line = _format([[_as_text(row.get(name)) for name in self.columns]])
        size = self.path.stat().st_size
        try:
            with open(self.path, "a", encoding="utf-8", newline="") as file:
                file.write(line)
        except OSError:  # a full disk takes half a line
            os.truncate(self.path, size)
            raise
        self.num_rows += 1

    def rows(self) -> list[dict[str, str]]:
        """All rows, each cell as the text in the file."""
        return read_csv(self.path) if self.path.exists() else []

    def keep(self, rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> None:
        """Replace the content by ``rows``, with ``columns`` if they are given."""
        self._rewrite(list(columns if columns is not None else self.columns), rows)
        self.num_rows = len(rows)

    def sync(self) -> None:
        """Block until all rows are on the disk."""
        if self.path.exists():
            with open(self.path, "rb+") as file:
                os.fsync(file.fileno())

    def _rewrite(self, columns: list[str], rows: Iterable[Mapping[str, Any]]) -> None:
        lines = [columns, *([_as_text(row.get(name)) for name in columns] for row in rows)]
        replace_file(self.path, lambda path: path.write_text(_format(lines), encoding="utf-8", newline=""))
        self.columns = columns

    def _drop_unfinished_line(self) -> None:
        content = self.path.read_bytes()
        end = content.rfind(b"\n") + 1
        if end != len(content):
            os.truncate(self.path, end)


def read_csv(path: str | Path, *, times: bool = True) -> list[dict[str, str]]:
    """Read a CSV file of a run.

    Args:
        path: ``metrics.csv`` or ``evaluations.csv``.
        times: ``False`` leaves out the columns of wall-clock times (``time/...``), the only ones that differ between
            two runs with the same seed on the same CPU.

    Returns:
        One dictionary per row, column to text; empty cells are ``""``.
    """
    header, rows = _read(Path(path))
    keep = [i for i, name in enumerate(header) if times or not name.startswith(TIME_PREFIX)]
    return [{header[i]: row[i] for i in keep} for row in rows]


def _read(path: Path) -> tuple[list[str], list[list[str]]]:
    with open(path, encoding="utf-8", newline="") as file:
        lines = list(csv.reader(file))
    return (lines[0], lines[1:]) if lines else ([], [])


def _format(lines: Iterable[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def _as_text(value: Any) -> str:
    return "" if value is None else str(value)
