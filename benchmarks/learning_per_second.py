"""What a second of computing teaches: short runs of equal CPU time, one setting of ``budget=laptop`` changed in each.

python benchmarks/learning_per_second.py --out sweep    # 32 runs of 2 to 5 minutes a seed; again to continue
python benchmarks/learning_per_second.py --out sweep --seeds 101 102 --only pendulum-swingup/member_values
python benchmarks/learning_per_second.py --out sweep --plot-only

A run is stopped by the operating system when its CPU time is spent. Members per row do not apply to member values:
each value needs its own member.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd

mpl.use("Agg")
import matplotlib.pyplot as plt

ROOT, RESULTS = Path(__file__).parents[1], Path(__file__).parent / "results"
CPU_SECONDS = {"dmc/cheetah-run": 120, "dmc/pendulum-swingup": 300}
SETTINGS = {
    "laptop": [],
    "2 members a row": ["successors.num_members=2"],
    "3 members a row": ["successors.num_members=3"],
    "K = 1": ["successors.num_next_states=1"],
    "K = 4": ["successors.num_next_states=4"],
    "5 updates a step": ["utd_ratio=5"],
    "10 updates a step": ["utd_ratio=10"],
    "batch of 256": ["batch_size=256"],
    "25 steps of rollout": ["rollout.horizon=25", "rollout.starts_per_step=5"],
}
#: Both algorithms learn from the same model and, on pendulum-swingup, both are optimistic.
COMMON = {
    "dmc/cheetah-run": ["env=dmc/cheetah-run", "budget=laptop"],
    "dmc/pendulum-swingup": ["experiment=exploration/pendulum_swingup", "reward_bounds=auto"],
}


def jobs(seeds: list[int], only: str) -> dict[Path, tuple[int, str, str, str]]:
    """Seed, environment, algorithm and setting of every run whose folder's name contains `only`."""
    return {
        folder: (seed, env, algorithm, setting)
        for seed in seeds
        for env in COMMON
        for algorithm in ("member_values", "eqr_sac")
        for setting in SETTINGS
        if not (algorithm == "member_values" and "members" in setting)
        and only in (folder := folder_of(seed, env, algorithm, setting)).as_posix()
    }


def folder_of(seed: int, env: str, algorithm: str, setting: str) -> Path:
    name = setting.replace(" = ", "").replace(" ", "_")
    return Path(f"seed_{seed}", env.removeprefix("dmc/"), algorithm, name)


def train(folder: Path, seed: int, env: str, algorithm: str, setting: str) -> None:
    """One run, until its CPU time is spent."""
    seconds = CPU_SECONDS[env]
    arguments = [*COMMON[env], f"algorithm={algorithm}", *SETTINGS[setting], f"seed={seed}", f"run_dir={folder}"]
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


def curve(folder: Path, env: str) -> pd.DataFrame:
    """Evaluations over CPU seconds, which are spread evenly over the steps."""
    last = pd.read_csv(folder / "metrics.csv")["env_steps"].iloc[-1]
    table = pd.read_csv(folder / "evaluations.csv")[["env_steps", "episode_return"]]
    return table.assign(cpu_seconds=(table["env_steps"] * CPU_SECONDS[env] / last).round(1))


def plot(table: pd.DataFrame, path: Path) -> None:
    """A panel for each environment and algorithm; the line of a setting is the mean of its seeds."""
    groups = table.groupby(["env", "algorithm"], sort=False)
    figure, axes = plt.subplots(2, (len(groups) + 1) // 2, figsize=(11, 7), squeeze=False, layout="constrained")
    for axis, (_, rows) in zip(axes.flat, groups, strict=False):
        env, algorithm = rows[["env", "algorithm"]].iloc[0]
        for place, setting in enumerate(SETTINGS):
            seeds = [line for _, line in rows[rows["setting"] == setting].groupby("seed")]
            if not seeds:
                continue
            seconds = np.linspace(0, CPU_SECONDS[env], 50)
            lines = [
                np.interp(seconds, one["cpu_seconds"], one["episode_return"].rolling(3, min_periods=1).mean())
                for one in seeds
            ]
            label = f"{setting} ({len(seeds)})"
            axis.plot(seconds, np.mean(lines, 0), f"C{place}", label=label, lw=2.5 if setting == "laptop" else 1.2)
        axis.set(title=f"{env}, {algorithm}", xlabel="CPU seconds, one thread", ylabel="mean of three evaluations")
        axis.legend(fontsize=7, title="setting (seeds)", title_fontsize=7)
    for axis in axes.flat[len(groups) :]:
        axis.remove()
    figure.savefig(path, dpi=110)


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Mean of the last three evaluations for each seed and over the seeds, best evaluation, and most steps."""
    setting, run = ["env", "algorithm", "setting"], ["env", "algorithm", "setting", "seed"]
    last = table.groupby(run, sort=False)["episode_return"].agg(lambda values: values.tail(3).mean()).unstack("seed")
    groups = table.groupby(setting, sort=False)
    return last.assign(mean=last.mean(axis=1), best=groups["episode_return"].max(), steps=groups["env_steps"].max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="part of a run's folder, such as cheetah-run/eqr_sac")
    parser.add_argument("--seeds", type=int, nargs="+", default=[100, 101, 102])
    parser.add_argument("--plot-only", action="store_true")
    options = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    out = options.out.resolve()
    for name, (seed, env, algorithm, setting) in jobs(options.seeds, options.only).items():
        folder = out / name
        done = folder / "curve.csv"
        if options.plot_only or done.exists():
            continue
        train(folder, seed, env, algorithm, setting)
        labels = {"env": env, "algorithm": algorithm, "setting": setting, "seed": seed}
        curve(folder, env).assign(**labels, commit=commit).to_csv(done, index=False)
    seeds = sorted(int(path.name.removeprefix("seed_")) for path in out.glob("seed_*"))
    found = [out / name / "curve.csv" for name in jobs(seeds, "")]
    table = pd.concat([pd.read_csv(path) for path in found if path.exists()])
    columns = ["env", "algorithm", "setting", "seed", "env_steps", "cpu_seconds", "episode_return", "commit"]
    table[columns].to_csv(RESULTS / "learning_per_second.csv", index=False)
    plot(table, RESULTS / "learning_per_second.png")
    print(summary(table).round(0).to_string())


if __name__ == "__main__":
    main()
