"""One tidy table of all long runs, and what they were run with.

    python benchmarks/collect_runs.py runs/a runs/b --commit 78220b8 --hardware "one core of ..." \\
        --settings "one setting" --command "python examples/eqr_sac.py ... seed=SEED"

Writes the evaluations of each run folder into benchmarks/results/runs.csv (mean return of each evaluation) and a row
into benchmarks/results/runs_info.csv. A run that is there already is replaced. CPU seconds are those from the start of
the loop to each evaluation, from the column time/cpu of the run's metrics.csv.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from pathlib import Path
from statistics import mean

from eqr_torchrl.lab.runs import read_csv
from eqr_torchrl.lab.runs.folder import write_csv

RESULTS = Path(__file__).parent / "results"
RUN: tuple[str, ...] = ("env", "algorithm", "utility", "settings", "seed", "run")
CURVES: tuple[str, ...] = (*RUN, "env_steps", "episode_return", "cpu_seconds", "commit")
INFO: tuple[str, ...] = (*RUN, "env_steps", "commit", "command", "hardware", "seconds", "note")


def evaluations(folder: Path, commit: str, settings: str) -> list[dict[str, str]]:
    """Mean return of each evaluation of one run."""
    returns: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for row in read_csv(folder / "evaluations.csv"):
        key = tuple(row[name] for name in ("env", "algorithm", "utility", "seed", "env_steps"))
        returns[key].append(float(row["episode_return"]))
    cpu = [(int(row["env_steps"]), float(row["time/cpu"])) for row in read_csv(folder / "metrics.csv")]
    rows = []
    for key, values in returns.items():
        spent = sum(seconds for step, seconds in cpu if step <= int(key[4]))
        cells = (*key[:3], settings, key[3], folder.name, key[4], f"{mean(values):.3f}", f"{spent:.0f}", commit)
        rows.append(dict(zip(CURVES, cells, strict=True)))
    return rows


def update(path: Path, columns: tuple[str, ...], rows: list[dict[str, str]]) -> None:
    """Writes ``rows`` in place of those of the same runs, behind all others."""
    new = {tuple(row[name] for name in RUN) for row in rows}
    old: list[dict[str, str]] = []
    if path.exists():
        old = [row for row in read_csv(path) if tuple(row[name] for name in RUN) not in new]
    write_csv(path, columns, old + rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--hardware", required=True)
    parser.add_argument("--command", required=True, help="the command, with SEED in place of the seed")
    parser.add_argument(
        "--settings", required=True, help="'one setting', a budget or an experiment: what the figures compare"
    )
    parser.add_argument("--note", default="")
    args = parser.parse_args()
    curves, info = [], []
    for folder in args.folders:
        rows = evaluations(folder, args.commit, args.settings)
        curves += rows
        log = folder.with_name(folder.name + ".log")
        seconds = re.search(r", (\d+) s$", log.read_text(encoding="utf-8").strip()) if log.exists() else None
        last = rows[-1]
        info.append(
            {name: last[name] for name in (*RUN, "env_steps", "commit")}
            | {"command": args.command.replace("SEED", last["seed"]), "hardware": args.hardware, "note": args.note}
            | {"seconds": seconds.group(1) if seconds else ""}
        )
    update(RESULTS / "runs.csv", CURVES, curves)
    update(RESULTS / "runs_info.csv", INFO, info)


if __name__ == "__main__":
    main()
