"""Pendulum-v1 in other units of actions, rewards and observations: does algorithm=member_values learn it as it is?

    python benchmarks/units.py --seeds 0 1

Each run is a command of examples/eqr_sac.py, which knows nothing of the units but the bounds of the action. Returns go
to benchmarks/results/units.csv in the unit of Pendulum-v1; a run that is there already is skipped. About three minutes
of one core a run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

import gymnasium
import numpy as np

from eqr_torchrl.lab.runs import read_csv
from eqr_torchrl.lab.runs.folder import write_csv

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "units.csv"
COLUMNS: tuple[str, ...] = ("action", "reward", "observation", "seed", "env_steps", "episode_return", "episodes")
UNITS = [(1.0, 1.0, 1.0), (0.01, 1.0, 1.0), (1000.0, 1.0, 1.0), (1.0, 0.01, 1.0), (1.0, 100.0, 1.0), (1.0, 1.0, 100.0)]
SETTINGS = ["algorithm=member_values", "budget=quick", "reward_bounds=null", "progress=false"]


class PendulumIn(gymnasium.Wrapper):
    """Pendulum-v1 whose actions, rewards and observations are multiplied."""

    def __init__(self, action: float = 1.0, reward: float = 1.0, observation: float = 1.0) -> None:
        super().__init__(gymnasium.make("Pendulum-v1"))
        self.units = action, reward, observation
        spaces: Any = self.env.action_space, self.env.observation_space
        self.action_space, self.observation_space = (
            gymnasium.spaces.Box(unit * space.low, unit * space.high, dtype=np.float32)
            for space, unit in zip(spaces, (action, observation), strict=True)
        )

    def reset(self, **options: Any) -> tuple[np.ndarray, dict]:
        observation, info = self.env.reset(**options)
        return self.units[2] * observation, info

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        observation, reward, terminated, truncated, info = self.env.step(action / self.units[0])
        return self.units[2] * observation, self.units[1] * float(reward), terminated, truncated, info


def train(units: tuple[float, float, float], seed: int) -> list[dict[str, Any]]:
    """Evaluations of one run."""
    named = dict(zip(("action", "reward", "observation"), units, strict=True))
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "examples" / "eqr_sac.py"), *SETTINGS, "env.name=units:PendulumIn"]
        command += [f"+env.{name}={unit}" for name, unit in named.items()]
        command += ["termination_fn=eqr_torchrl.imagination:never_terminates", f"seed={seed}", f"run_dir={folder}/run"]
        paths = os.pathsep.join((str(ROOT), str(ROOT / "benchmarks")))
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"})
        rows = read_csv(Path(folder, "run", "evaluations.csv"))
    steps = sorted({int(row["env_steps"]) for row in rows})
    found = {step: [float(row["episode_return"]) for row in rows if int(row["env_steps"]) == step] for step in steps}
    return [
        named | {"seed": seed, "env_steps": step, "episode_return": f"{mean(returns) / units[1]:.1f}",
                 "episodes": len(returns)}
        for step, returns in found.items()
    ]  # fmt: skip


def read_rows() -> list[dict[str, Any]]:
    return read_csv(RESULTS) if RESULTS.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    args = parser.parse_args()
    for seed in args.seeds:
        for units in UNITS:
            key = [*map(str, units), str(seed)]
            if any([row[name] for name in COLUMNS[:4]] == key for row in read_rows()):
                continue
            new = [{name: str(value) for name, value in row.items()} for row in train(units, seed)]
            print(*key, *(f"{row['env_steps']}: {row['episode_return']}" for row in new), flush=True)
            rows = read_rows() + new  # another process may have written some
            write_csv(RESULTS, COLUMNS, rows)


if __name__ == "__main__":
    main()
