"""One tidy table of all long runs, and what they were run with.

    python benchmarks/collect_runs.py runs/a runs/b --commit 78220b8 --hardware "one core of ..." --experiment NAME

Appends the evaluations of each run folder to benchmarks/results/runs.csv (mean return of each evaluation) and a row to
benchmarks/results/runs_info.csv. A run that is there already is replaced.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections import defaultdict
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
CURVES = ("env", "algorithm", "utility", "seed", "env_steps", "episode_return", "commit")
INFO = ("env", "algorithm", "utility", "seed", "env_steps", "commit", "command", "hardware", "seconds", "note")
RUN = ("env", "algorithm", "utility", "seed", "commit")


def evaluations(folder: Path, commit: str, algorithm: str | None) -> list[dict[str, str]]:
    """Mean return of each evaluation of one run, under another name of the algorithm if one is given."""
    returns: dict[tuple[str, ...], list[float]] = defaultdict(list)
    with (folder / "evaluations.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            row["algorithm"] = algorithm or row["algorithm"]
            key = tuple(row[name] for name in ("env", "algorithm", "utility", "seed", "env_steps"))
            returns[key].append(float(row["episode_return"]))
    return [
        dict(zip(CURVES, (*key, f"{sum(values) / len(values):.3f}", commit), strict=True))
        for key, values in returns.items()
    ]


def update(path: Path, columns: tuple[str, ...], rows: list[dict[str, str]]) -> None:
    """Writes ``rows`` in place of those of the same runs, behind all others."""
    new = {tuple(row[name] for name in RUN) for row in rows}
    old: list[dict[str, str]] = []
    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            old = [row for row in csv.DictReader(file) if tuple(row[name] for name in RUN) not in new]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(old + rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--hardware", required=True)
    parser.add_argument("--command", required=True, help="the command, with SEED in place of the seed")
    parser.add_argument("--algorithm", help="name in the tables, where settings differ from what the run is called")
    parser.add_argument("--note", default="")
    args = parser.parse_args()
    curves, info = [], []
    for folder in args.folders:
        rows = evaluations(folder, args.commit, args.algorithm)
        curves += rows
        log = folder.with_suffix(".log")
        seconds = re.search(r", (\d+) s$", log.read_text(encoding="utf-8").strip()) if log.exists() else None
        last = rows[-1]
        info.append(
            {name: last[name] for name in (*RUN, "env_steps")}
            | {"command": args.command.replace("SEED", last["seed"]), "hardware": args.hardware, "note": args.note}
            | {"seconds": seconds.group(1) if seconds else ""}
        )
    update(RESULTS / "runs.csv", CURVES, curves)
    update(RESULTS / "runs_info.csv", INFO, info)


if __name__ == "__main__":
    main()
