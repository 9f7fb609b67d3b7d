"""A sweep on a local Ray: one job dies, and the same settings, started again, do only what is left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from eqr_torchrl.lab.runs import LoopSettings, read_csv, read_status, summarise_sweep
from eqr_torchrl.lab.runs.cli import run_hydra

pytest.importorskip("hydra_plugins.hydra_ray_launcher")
ROOT = Path(__file__).parent.parent
# one process takes the jobs in this order; that of seed 0 dies in step 25, five steps after its checkpoint
RAY = ["hydra/launcher=ray", "+hydra.launcher.ray.init.num_cpus=1", "+hydra.launcher.ray.remote.max_retries=0"]
WORDS = [
    *("--multirun", "seed=1,0", "resume=auto", "budget=smoke", "progress=false"),
    *("env.name=toy_env:MortalEnv", "env.max_episode_steps=10", "checkpoint_every=20", "log_every=10"),
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of TorchRL's collector, by TorchRL
def test_a_killed_job_goes_on_and_finished_ones_are_left_alone(tmp_path):
    import sac

    words = [*WORDS, f"run_dir={tmp_path}/${{seed}}"]
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    environment = {**os.environ, "PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, str(ROOT / "examples" / "sac.py"), *RAY, *words]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=500)
    assert done.returncode != 0 and "worker died unexpectedly" in done.stdout + done.stderr, done.stderr
    assert {run["folder"]: run["state"] for run in summarise_sweep(tmp_path)}["1"] == "finished"
    assert list((tmp_path / "0" / "checkpoints").glob("step_*20.pt"))
    before = (tmp_path / "1" / "metrics.csv").stat().st_mtime_ns

    run_hydra(sac.main, ROOT / "configs", "sac", words, schema=LoopSettings.of)
    assert (tmp_path / "1" / "metrics.csv").stat().st_mtime_ns == before
    for name in ("0", "1"):
        status = read_status(tmp_path / name)
        assert status is not None and status["state"] == "finished"
        rows = read_csv(tmp_path / name / "metrics.csv")
        assert [int(row["env_steps"]) for row in rows] == [10, 20, 30, 40]  # every row once
