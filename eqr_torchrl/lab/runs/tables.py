"""Append-only CSV tables of a run: every row is in the file as soon as it is logged."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from eqr_torchrl.lab.runs.atomic import replace_file

METRICS_FILE = "metrics.csv"
EVALUATIONS_FILE = "evaluations.csv"
STEP = "env_steps"


class Table:
    """A CSV file with one header line. An existing file is appended to; a new column rewrites it once.

    Args:
        path: the file; made with the first row.
        columns: columns that come first, in this order.
        last: rows beyond this environment step are dropped: what was logged after a checkpoint.
    """

    def __init__(self, path: str | Path, columns: Sequence[str], last: float = math.inf) -> None:
        self.path, self.columns = Path(path), list(columns)
        if self.path.exists():
            rows = read_csv(self.path)
            self._rewrite(list(rows[0] if rows else columns), [row for row in rows if float(row[STEP]) <= last])

    def append(self, row: Mapping[str, Any]) -> None:
        """Writes one row; columns it does not name stay empty."""
        new = [name for name in row if name not in self.columns]
        if new or not self.path.exists():
            self._rewrite([*self.columns, *new], read_csv(self.path) if self.path.exists() else [])
        with open(self.path, "a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, self.columns, lineterminator="\n").writerow(row)

    def _rewrite(self, columns: list[str], rows: Iterable[Mapping[str, Any]]) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        replace_file(self.path, lambda path: path.write_text(text.getvalue(), encoding="utf-8", newline=""))
        self.columns = columns


def read_csv(path: str | Path) -> list[dict[str, str]]:
    """Reads a CSV file of a run.

    Args:
        path: ``metrics.csv`` or ``evaluations.csv``.

    Returns:
        One dictionary per row, column to text; empty cells are ``""``. An unfinished last line, of a process that was
        killed or a disk that was full, is left out.
    """
    text = Path(path).read_text(encoding="utf-8")
    rows = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1]))
    return [row for row in rows if None not in row and None not in row.values()]
