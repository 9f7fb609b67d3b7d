"""A sweep through submitit, which starts jobs for Slurm: here its local executor, the same command and job script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from eqr_torchrl.lab.runs import read_csv, summarise_sweep

pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
ROOT = Path(__file__).parent.parent


def sweep(folder: Path, *words: str) -> subprocess.CompletedProcess:
    command = [
        sys.executable, str(ROOT / "examples" / "sac.py"), "--multirun", "hydra/launcher=submitit_local",
        "hydra.launcher.timeout_min=10", "budget=smoke", "progress=false", "resume=auto",
        f"run_dir={folder}/runs/${{seed}}", *words,
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_jobs_run_and_a_second_start_does_what_is_missing(tmp_path):
    first = sweep(tmp_path, "seed=0")
    assert first.returncode == 0, first.stderr
    written = (tmp_path / "runs" / "0" / "metrics.csv").stat().st_mtime_ns
    second = sweep(tmp_path, "seed=0,1")
    assert second.returncode == 0, second.stderr
    states = {run["folder"]: run["state"] for run in summarise_sweep(tmp_path / "runs")}
    assert states == {"0": "finished", "1": "finished"}
    assert (tmp_path / "runs" / "0" / "metrics.csv").stat().st_mtime_ns == written
    assert read_csv(tmp_path / "runs" / "1" / "evaluations.csv")[-1]["env_steps"] == "40"
    logs = list(tmp_path.glob("slurm/*/.submitit/*/*_log.out"))  # kept, on a disk that all machines share
    assert len(logs) == 3


@pytest.mark.slow
def test_a_failed_job_is_told_and_its_sibling_goes_on(tmp_path):
    names = "env.name=Pendulum-v1,NoSuchTask-v1"
    done = sweep(tmp_path, "seed=0", names, "run_dir=null", "resume=null", f"runs_root={tmp_path}/runs")
    assert done.returncode == 1
    assert "NoSuchTask-v1" in done.stderr
    assert [run["state"] for run in summarise_sweep(tmp_path / "runs")] == ["finished"]
