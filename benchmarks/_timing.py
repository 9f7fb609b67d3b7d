"""What every benchmark here shares: alternate timing of several candidates, one table, one line of JSON."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping

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


def sample_alternately(
    candidates: dict[str, Callable[[], object]], rounds: int, *, warmup: int = 3
) -> dict[str, list[float]]:
    """Seconds of each call; candidates take turns, so that a busy moment of the machine meets all of them.

    With one thread they are seconds of CPU time, which other processes lengthen less than those of the clock.
    """
    clock = time.perf_counter if torch.cuda.is_available() or torch.get_num_threads() > 1 else time.process_time
    for run in candidates.values():
        for _ in range(warmup):
            run()
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, run in candidates.items():
            start = clock()
            run()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            seconds[name].append(clock() - start)
    return seconds


def time_alternately(candidates: dict[str, Callable[[], object]], rounds: int, *, warmup: int = 3) -> dict[str, float]:
    """Median seconds of each candidate, of :func:`sample_alternately`."""
    seconds = sample_alternately(candidates, rounds, warmup=warmup)
    return {name: statistics.median(values) for name, values in seconds.items()}


def instruction_set() -> str:
    """What products of matrices can use on this CPU."""
    capabilities = torch.cpu.get_capabilities()
    has_bf16 = capabilities.get("avx512_bf16") or capabilities.get("amx_bf16")
    return torch.backends.cpu.get_cpu_capability() + (" and bf16" if has_bf16 else "")


def print_table(rows: list[tuple[str, ...]], header: tuple[str, ...]) -> None:
    """Columns as wide as their widest entry, numbers to the right."""
    rows = [header, *rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        print("  ".join(cells))
    if torch.cuda.is_available():
        device = torch.cuda.get_device_name()
    else:
        device = f"{torch.get_num_threads()} CPU thread(s) with {instruction_set()}"
    print(f"medians; torch {torch.__version__}, {device}, Python {platform.python_version()}")


def print_json(figures: Mapping[str, float | str]) -> None:
    """The figures as one line."""
    print(json.dumps({n: value if isinstance(value, str) else round(value, 4) for n, value in figures.items()}))
