"""What a user would pick instead: SAC and TQC of stable-baselines3 at their defaults, by steps and by CPU time.

    pip install -e '.[peers,examples]'
    python benchmarks/peers.py --agents sac tqc --seeds 0 1

One thread each. Every evaluation adds a row to benchmarks/results/peers.csv; a run that is finished there is skipped,
an unfinished one starts again. benchmarks/results_page.py draws them beside our runs with the one setting. CPU seconds
are user and system time of the process from the start of the loop, without evaluations for the peers, with them for
ours.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from eqr_torchrl.lab.runs import read_csv

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "peers.csv"
COLUMNS: tuple[str, ...] = ("env", "agent", "seed", "env_steps", "cpu_seconds", "episode_return", "version")
TASKS: tuple[str, ...] = ("dmc/cheetah-run", "dmc/pendulum-swingup", "MountainCarContinuous-v0")
AGENTS: tuple[str, ...] = ("sac", "tqc")


class Suite(gymnasium.Env):
    """A DeepMind Control task as Gymnasium has it: observations joined, the time limit truncates."""

    def __init__(self, task: str, seed: int) -> None:
        from dm_control import suite

        self._env = suite.load(*task.split("-", 1), task_kwargs={"random": seed})
        action, size = self._env.action_spec(), self._vector(self._env.reset().observation).size
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        self.action_space = gymnasium.spaces.Box(
            action.minimum.astype(np.float32), action.maximum.astype(np.float32), dtype=np.float32
        )

    @staticmethod
    def _vector(observation: Any) -> np.ndarray:
        return np.concatenate([np.ravel(part) for part in observation.values()]).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return self._vector(self._env.reset().observation), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        step = self._env.step(action)
        terminated = step.last() and step.discount == 0
        return self._vector(step.observation), float(step.reward), terminated, step.last() and not terminated, {}


def make_gym(task: str, seed: int) -> gymnasium.Env:
    """The task for the peers."""
    if task.startswith("dmc/"):
        return Suite(task.removeprefix("dmc/"), seed)
    env = gymnasium.make(task)
    env.reset(seed=seed)
    return env


def run_peer(agent: str, task: str, seed: int, args: argparse.Namespace, write: Any) -> None:
    """Trains SAC or TQC at their defaults."""
    import sb3_contrib
    import stable_baselines3
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor

    torch.set_num_threads(1)
    eval_env = Monitor(make_gym(task, seed + 1000))

    class Evaluate(BaseCallback):
        begin, paused = time.process_time(), 0.0

        def _on_step(self) -> bool:
            spent = time.process_time() - self.begin - self.paused
            if self.num_timesteps % args.every == 0:
                returns, _ = evaluate_policy(self.model, eval_env, n_eval_episodes=1, deterministic=True)
                self.paused = time.process_time() - self.begin - spent
                write(self.num_timesteps, spent, returns, f"stable-baselines3 {stable_baselines3.__version__}")
            return spent < args.cpu_seconds

    kind = stable_baselines3.SAC if agent == "sac" else sb3_contrib.TQC
    model = kind("MlpPolicy", make_gym(task, seed), seed=seed, device="cpu")
    model.learn(args.steps, callback=Evaluate())


def train(agent: str, task: str, seed: int, args: argparse.Namespace) -> None:
    """One run, unless the table has all of it."""
    mine = {"env": task, "agent": agent, "seed": str(seed)}
    rows = read_csv(args.results) if args.results.exists() else []
    old = [row for row in rows if all(row[key] == value for key, value in mine.items())]
    if old and (float(old[-1]["cpu_seconds"]) + float(old[-1]["cpu_seconds"]) / len(old) > args.cpu_seconds
                or int(old[-1]["env_steps"]) + args.every > args.steps):  # fmt: skip
        print(f"{agent} on {task} with seed {seed} is finished")
        return
    append_rows(args.results, [row for row in rows if row not in old], anew=True)

    def write(steps: int, cpu: float, episode_return: float, version: str) -> None:
        row = mine | {"env_steps": steps, "cpu_seconds": f"{cpu:.1f}", "episode_return": f"{episode_return:.3f}"}
        append_rows(args.results, [row | {"version": version}])
        print(f"{agent} on {task}, seed {seed}: {episode_return:.1f} after {steps} steps and {cpu:.0f} s", flush=True)

    run_peer(agent, task, seed, args, write)


def append_rows(path: Path, rows: list[dict[str, Any]], *, anew: bool = False) -> None:
    """Adds rows at once, so that another process may do the same; or writes the table ``anew`` with them alone."""
    with path.open("w" if anew else "a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if anew:
            writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    """Trains what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", nargs="+", choices=AGENTS, default=list(AGENTS))
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--steps", type=int, default=100_000, help="most environment steps of a run (%(default)s)")
    parser.add_argument("--cpu-seconds", type=float, default=600, help="most CPU seconds of a run (%(default)s)")
    parser.add_argument("--every", type=int, default=1000, help="steps between evaluations (%(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="table (%(default)s)")
    args = parser.parse_args()
    for seed in args.seeds:
        for task in args.tasks:
            for agent in args.agents:
                train(agent, task, seed, args)


if __name__ == "__main__":
    main()
