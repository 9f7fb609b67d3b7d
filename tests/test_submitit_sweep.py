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


@pytest.mark.slow
def test_a_failed_job_is_told_and_its_sibling_goes_on(tmp_path):
    command = [
        sys.executable, str(ROOT / "examples" / "sac.py"), "--multirun", "hydra/launcher=submitit_local",
        "hydra.launcher.timeout_min=10", "budget=smoke", "progress=false", "seed=0",
        "env.name=Pendulum-v1,NoSuchTask-v1", f"runs_root={tmp_path}/runs",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=500)
    assert done.returncode == 1
    assert "NoSuchTask-v1" in done.stderr
    [run] = summarise_sweep(tmp_path / "runs")
    assert run["state"] == "finished"
    assert read_csv(tmp_path / "runs" / run["folder"] / "evaluations.csv")[-1]["env_steps"] == "40"
    assert len(list(tmp_path.glob("slurm/*/.submitit/*/*_log.out"))) == 2  # kept, on a disk that all machines share
