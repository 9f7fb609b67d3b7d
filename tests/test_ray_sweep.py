"""A sweep on a local Ray: one job is killed, and the same command, started again, does only what is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eqr_torchrl.lab.runs import read_csv, read_status, summarise_sweep

pytest.importorskip("hydra_plugins.hydra_ray_launcher")
ROOT = Path(__file__).parent.parent
STEPS = 400


def start_sweep(folder: Path) -> subprocess.Popen:
    command = [
        sys.executable,
        str(ROOT / "examples" / "eqr_sac.py"),
        "--multirun",
        "hydra/launcher=ray",
        "+hydra.launcher.ray.init.num_cpus=2",
        "budget=smoke",
        f"env_steps={STEPS}",
        "progress=false",
        "algorithm=eqr_sac,mbpo",
        "seed=0,1",
        "resume=auto",
        f"run_dir={folder}/${{labels.algorithm}}-${{seed}}",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
    return subprocess.Popen(
        command, env=environment, cwd=folder.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def process_of(run: Path) -> int | None:
    """The process that holds the lock of a run folder open."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if link.resolve() == (run / ".lock").resolve():
                return int(link.parts[2])
        except OSError:  # gone meanwhile
            continue
    return None


def env_steps_of(run: Path) -> list[int]:
    return [int(row["env_steps"]) for row in read_csv(run / "metrics.csv")]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the job to kill in /proc")
def test_a_killed_job_goes_on_and_finished_ones_are_left_alone(tmp_path):
    sweep = tmp_path / "sweep"
    sweep.mkdir()
    victim = sweep / "eqr_sac-0"
    first = start_sweep(sweep)
    deadline = time.monotonic() + 240
    while not list(victim.glob("checkpoints/step_*.pt")):  # it has something to go on from
        assert first.poll() is None, first.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    pid = process_of(victim)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    first.communicate(timeout=300)
    finished = [run["folder"] for run in summarise_sweep(sweep) if run["state"] == "finished"]
    before = {name: (sweep / name / "metrics.csv").stat().st_mtime_ns for name in finished}

    second = start_sweep(sweep)
    output, _ = second.communicate(timeout=300)
    assert second.returncode == 0, output
    runs = {run["folder"]: run for run in summarise_sweep(sweep)}
    assert sorted(runs) == ["eqr_sac-0", "eqr_sac-1", "mbpo-0", "mbpo-1"]
    assert all(run["state"] == "finished" and run["env_steps"] == STEPS for run in runs.values()), runs
    assert {name: (sweep / name / "metrics.csv").stat().st_mtime_ns for name in finished} == before
    for name in runs:
        assert env_steps_of(sweep / name) == list(range(20, STEPS + 1, 20))  # every row once
    assert read_status(victim)["state"] == "finished"  # pyright: ignore[reportOptionalSubscript]
