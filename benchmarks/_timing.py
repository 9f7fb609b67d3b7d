"""What every benchmark here shares: alternate timing of several candidates, one table, one line of JSON."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable

import torch


def parse_arguments(description: str) -> argparse.Namespace:
    """Options of every benchmark; none is needed."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print the figures as a last line of JSON")
    parser.add_argument("--rounds", type=int, default=15, help="how often each candidate is timed")
    parser.add_argument("--threads", type=int, default=None, help="threads of torch (default: torch's own)")
    arguments = parser.parse_args()
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    return arguments


def time_alternately(candidates: dict[str, Callable[[], object]], rounds: int, *, warmup: int = 3) -> dict[str, float]:
    """Median seconds of each candidate; they take turns, so that a busy moment of the machine meets all of them."""
    for run in candidates.values():
        for _ in range(warmup):
            run()
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, run in candidates.items():
            start = time.perf_counter()
            run()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def print_table(rows: list[tuple[str, ...]], header: tuple[str, ...]) -> None:
    """Columns as wide as their widest entry, numbers to the right."""
    rows = [header, *rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        print("  ".join(cells))
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{torch.get_num_threads()} CPU threads"
    print(f"medians; torch {torch.__version__}, {device}, Python {platform.python_version()}")


def print_json(figures: dict[str, float]) -> None:
    """The figures as one line."""
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))
