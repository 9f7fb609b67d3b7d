"""Collects the evaluations of the search for one setting from run folders into one table.

python benchmarks/one_setting_ablation.py /work/runs ideas.csv   # ideas.csv: run, idea
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

COLUMNS = ["idea", "settings", "env", "seed", "env_steps", "episode_return", "cpu_seconds", "commit"]
TABLE = Path(__file__).parent / "results" / "one_setting_ablation.csv"


def rows_of(root: Path, run: str, idea: str) -> list[dict[str, str]]:
    """One row for each evaluation of a run: the mean return of its episodes."""
    folder = root / run
    if not (folder / "evaluations.csv").is_file():
        return []
    settings, commit = ((root / f"{run}.{kind}").read_text().strip() for kind in ("args", "commit"))
    seconds = {}
    if (folder / "cpu.csv").is_file():
        seconds = dict(line.split(",") for line in (folder / "cpu.csv").read_text().split())
    returns: dict[str, list[float]] = {}
    with open(folder / "evaluations.csv", newline="") as file:
        for row in csv.DictReader(file):
            returns.setdefault(row["env_steps"], []).append(float(row["episode_return"]))
            env, seed = row["env"], row["seed"]
    average: dict[str, list[float]] = {}
    if (folder / "variants.csv").is_file():
        for line in (folder / "variants.csv").read_text().split():
            step, name, value = line.split(",")
            if name == "average":
                average.setdefault(step, []).append(float(value))
    rows = []
    for step, all_ in returns.items():
        common = {"settings": settings, "env": env, "seed": seed, "env_steps": step, "commit": commit}
        common["cpu_seconds"] = seconds.get(step, "")
        rows.append({"idea": idea, "episode_return": f"{sum(all_) / len(all_):.1f}", **common})
        if step in average:
            mean = sum(average[step]) / len(average[step])
            rows.append({"idea": f"{idea}; averaged weights", "episode_return": f"{mean:.1f}", **common})
    return rows


if __name__ == "__main__":
    root = Path(sys.argv[1])
    with open(sys.argv[2], newline="") as file:
        runs = [(row["run"], row["idea"]) for row in csv.DictReader(file)]
    with open(TABLE, "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for run, idea in runs:
            writer.writerows(rows_of(root, run, idea))
