"""Tables of named tuples, for files and for the terminal."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


def write_csv(rows: Sequence[NamedTuple], path: str | Path) -> Path:
    """Writes named tuples as CSV, fields as columns; a path that cannot be written leaves no file behind.

    Args:
        rows: at least one, all of one kind.
        path: file to write; its folder is made.

    Returns:
        The path.

    Raises:
        ValueError: if ``rows`` is empty.

    Examples:
        >>> import tempfile
        >>> from eqr_torchrl.evaluation import ScoreRow
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = write_csv([ScoreRow("reach", "sac", "", 1, 2, 2.0, 1.0)], folder + "/scores.csv")
        ...     print(file.read_text().splitlines()[1])
        reach,sac,,1,2,2.0,1.0
    """
    if not rows:
        raise ValueError(f"rows must hold at least one row for {path}: got none.")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(rows[0]._fields)
        writer.writerows(rows)
    return path


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligns text cells in columns for a terminal; the first column to the left, the others to the right.

    Args:
        header: column names.
        rows: cells, as many as there are columns.

    Returns:
        Lines joined by newlines, none at the end.

    Examples:
        >>> print(format_table(["task", "return"], [["reach", "5.0"], ["cheetah-run", "854.0"]]))
        task         return
        reach           5.0
        cheetah-run   854.0
    """
    table = [list(header), *[list(row) for row in rows]]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    lines = []
    for row in table:
        cells = [
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
