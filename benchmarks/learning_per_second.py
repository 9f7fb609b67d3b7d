"""What a second of computing teaches: runs of equal CPU time, each with one setting changed.

python benchmarks/learning_per_second.py --out sweep    # 32 runs of 2 to 5 minutes a seed; again to continue
python benchmarks/learning_per_second.py --out sweep --seeds 101 102 --only "pendulum-swingup/member_values/*"
python benchmarks/learning_per_second.py --out sweep --cpu-seconds 400 --only "cheetah-run/*/K_1*"
python benchmarks/learning_per_second.py --out sweep --plot-only

A run is stopped by the operating system when its CPU time is spent.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd

mpl.use("Agg")
import matplotlib.pyplot as plt

ROOT, RESULTS = Path(__file__).parents[1], Path(__file__).parent / "results"
CPU_SECONDS = {"dmc/cheetah-run": 120, "dmc/pendulum-swingup": 300}
#: What the settings are changed from; `budget=laptop` has since taken over what won.
BASE = ["budget=laptop", "utd_ratio=2", "tau=0.02", "successors.num_next_states=2", "batch_size=128"]
SETTINGS = {
    "base": [],
    "K = 1": ["successors.num_next_states=1"],
    "K = 4": ["successors.num_next_states=4"],
    "5 updates a step": ["utd_ratio=5"],
    "10 updates a step": ["utd_ratio=10"],
    "batch of 256": ["batch_size=256"],
    "K = 1, batch of 256": ["successors.num_next_states=1", "batch_size=256"],
    "25 steps of rollout": ["rollout.horizon=25", "rollout.starts_per_step=5"],
}
#: Both algorithms learn from the same model and, on pendulum-swingup, both are optimistic.
COMMON = {
    "dmc/cheetah-run": ["env=dmc/cheetah-run"],
    "dmc/pendulum-swingup": ["experiment=exploration/pendulum_swingup", "reward_bounds=auto"],
}


def jobs(only: list[str]) -> dict[str, tuple[str, str, str]]:
    """Environment, algorithm and setting of every run, by name, whose name matches one of the patterns."""
    found = {
        "/".join([env.removeprefix("dmc/"), algorithm, re.sub(r"\W+", "_", setting)]): (env, algorithm, setting)
        for env in COMMON
        for algorithm in ("member_values", "eqr_sac")
        for setting in SETTINGS
    }
    return {name: job for name, job in found.items() if any(fnmatch(name, pattern) for pattern in only)}


def train(folder: Path, seconds: int, seed: int, env: str, algorithm: str, setting: str) -> None:
    """One run, until its CPU time is spent."""
    arguments = [*COMMON[env], *BASE, f"algorithm={algorithm}", *SETTINGS[setting], f"seed={seed}", f"run_dir={folder}"]
    arguments += ["env_steps=100_000", "eval_every=500", "checkpoint_every=0", "progress=false", "resume=null"]
    shutil.rmtree(folder, ignore_errors=True)  # of a sweep that was interrupted
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".log").open("w") as log:
        ended = subprocess.run(
            [sys.executable, "examples/eqr_sac.py", *arguments],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=log,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds)),
        )
    if ended.returncode >= 0:  # not by a signal
        raise RuntimeError(f"{folder} ended with status {ended.returncode} before its time, see {folder}.log")


def curve(folder: Path, seconds: int) -> pd.DataFrame:
    """Evaluations over CPU seconds, which are spread evenly over the steps."""
    last = pd.read_csv(folder / "metrics.csv")["env_steps"].iloc[-1]
    table = pd.read_csv(folder / "evaluations.csv")[["env_steps", "episode_return"]]
    return table.assign(cpu_seconds=(table["env_steps"] * seconds / last).round(1))


def plot(table: pd.DataFrame, path: Path) -> None:
    """A panel for each environment, algorithm and limit; the line of a setting is the mean of its seeds."""
    groups = table.groupby(["env", "algorithm", "limit"], sort=False)
    figure, axes = plt.subplots(2, (len(groups) + 1) // 2, figsize=(15, 8), squeeze=False, layout="constrained")
    for axis, (_, rows) in zip(axes.flat, groups, strict=False):
        env, algorithm, limit = rows[["env", "algorithm", "limit"]].iloc[0]
        seconds = np.linspace(0, limit, 50)
        for place, setting in enumerate(SETTINGS):
            lines = []
            for _, run in rows[rows["setting"] == setting].groupby("seed"):
                smooth = run["episode_return"].rolling(3, min_periods=1).mean()
                lines.append(np.interp(seconds, run["cpu_seconds"], smooth, left=np.nan))
            if lines:
                label, width = f"{setting} ({len(lines)})", 2.5 if setting in ("base", "K = 1, batch of 256") else 1.2
                axis.plot(seconds, np.mean(lines, 0), f"C{place}", label=label, lw=width)
        axis.set(title=f"{env}, {algorithm}", xlabel="CPU seconds, one thread", ylabel="mean of three evaluations")
        axis.legend(fontsize=7, title="setting (seeds)", title_fontsize=7)
    for axis in axes.flat[len(groups) :]:
        axis.remove()
    figure.savefig(path, dpi=110)


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Mean of the last three evaluations for each seed and over the seeds, best evaluation, and most steps."""
    run = ["env", "algorithm", "limit", "setting", "seed"]
    last = table.groupby(run, sort=False)["episode_return"].agg(lambda values: values.tail(3).mean()).unstack("seed")
    groups = table.groupby(run[:-1], sort=False)
    return last.assign(mean=last.mean(axis=1), best=groups["episode_return"].max(), steps=groups["env_steps"].max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=["*"], help="patterns of names, such as cheetah-run/eqr_sac/*")
    parser.add_argument("--seeds", type=int, nargs="+", default=[100, 101, 102])
    parser.add_argument("--cpu-seconds", type=int, help="of a run; 120 on cheetah-run and 300 on pendulum-swingup")
    parser.add_argument("--plot-only", action="store_true")
    options = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    out = options.out.resolve()
    for seed in options.seeds:
        for name, (env, algorithm, setting) in jobs(options.only).items():
            seconds = options.cpu_seconds or CPU_SECONDS[env]
            folder = out / f"{seconds}_s" / f"seed_{seed}" / name
            done = folder / "curve.csv"
            if options.plot_only or done.exists():
                continue
            train(folder, seconds, seed, env, algorithm, setting)
            labels = {"env": env, "algorithm": algorithm, "limit": seconds, "setting": setting, "seed": seed}
            curve(folder, seconds).assign(**labels, commit=commit).to_csv(done, index=False)
    table = pd.concat([pd.read_csv(path) for path in out.glob("*_s/seed_*/*/*/*/curve.csv")])
    order = {setting: place for place, setting in enumerate(SETTINGS)}
    table = table.assign(order=table["setting"].map(order))
    table = table.sort_values(["env", "algorithm", "limit", "order", "seed", "env_steps"])
    columns = ["env", "algorithm", "limit", "setting", "seed", "env_steps", "cpu_seconds", "episode_return", "commit"]
    table[columns].to_csv(RESULTS / "learning_per_second.csv", index=False)
    plot(table, RESULTS / "learning_per_second.png")
    print(summary(table).round(0).to_string())


if __name__ == "__main__":
    main()
