from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from eqr_torchrl.lab.runs import (
    RunStatus,
    checkpoint_path,
    read_status,
    rewind,
    save_checkpoint,
    summarise_sweep,
)
from eqr_torchrl.lab.runs.folder import plan_run, prepare_folder

HOLD = """
import sys, time
from eqr_torchrl.lab.runs.folder import RunStatus
with RunStatus(sys.argv[1]) as status:
    status.update(env_steps=7)
    print("started", flush=True)
    time.sleep(60)
"""


def make_run_folder(root, name, run_dir=None):
    return prepare_folder(plan_run(root, name, run_dir=run_dir))


def fail_in(folder, error, env_steps=0):
    """A run that ends with ``error``."""
    with contextlib.suppress(type(error)), RunStatus(folder) as status:
        assert read_status(folder)["state"] == "running"
        status.update(env_steps=env_steps)
        raise error


def test_a_thousand_runs_get_a_thousand_folders(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        folders = set(pool.map(lambda _: make_run_folder(tmp_path, "eqr_sac"), range(1000)))
    assert len(folders) == len(list(tmp_path.iterdir())) == 1000


def test_run_dir_is_used_as_it_is_unless_it_holds_a_run(tmp_path):
    run_dir = tmp_path / "a" / "b"
    assert make_run_folder(tmp_path, "x", run_dir) == run_dir
    (run_dir / "notes.txt").write_text("mine")
    assert make_run_folder(tmp_path, "x", run_dir) == run_dir  # not empty, but no run
    with RunStatus(run_dir):
        pass
    with pytest.raises(ValueError, match=r"already holds a run \(finished\); choose another folder, or .* resume=auto"):
        make_run_folder(tmp_path, "x", run_dir)
    with pytest.raises(OSError, match="notes.txt cannot be made: File exists"):
        make_run_folder(tmp_path, "x", run_dir / "notes.txt")


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(OSError, match=r"the folder .*run cannot be made: Not a directory\."),
        RunStatus(tmp_path / "file" / "run"),
    ):
        pass


def test_status_tells_how_a_run_ended(tmp_path):
    assert read_status(tmp_path) is None
    fail_in(tmp_path, KeyError("lost"), env_steps=5)
    found = read_status(tmp_path)
    assert (found["state"], found["env_steps"]) == ("failed", 5)
    assert found["reason"].startswith("KeyError")
    assert "Traceback" in found["traceback"]
    with RunStatus(tmp_path, env_steps=5):
        pass
    found = read_status(tmp_path)
    assert (found["state"], found["reason"]) == ("finished", None)


def test_ctrl_c_is_a_state_of_its_own(tmp_path):
    fail_in(tmp_path, KeyboardInterrupt("interrupted at env step 5"), env_steps=5)
    assert read_status(tmp_path)["state"] == "interrupted"


def test_one_run_has_one_writer_and_a_killed_writer_is_seen(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    assert read_status(tmp_path)["state"] == "running"
    with pytest.raises(RuntimeError, match="being written by another process"), RunStatus(tmp_path):
        pass
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    for _ in range(100):
        if read_status(tmp_path)["state"] != "running":
            break
        time.sleep(0.02)
    found = read_status(tmp_path)
    assert (found["state"], found["env_steps"]) == ("killed", 7)


def test_a_sweep_that_is_started_again_does_what_is_left(tmp_path):
    run_dir = tmp_path / "seed=0"
    plan = plan_run(tmp_path, "x", run_dir=run_dir, resume="auto")
    assert not run_dir.exists()  # a plan writes nothing
    prepare_folder(plan)
    assert plan == (run_dir, None, False, None)
    fail_in(run_dir, ValueError("early"))  # before its first checkpoint: started over
    (run_dir / "metrics.csv").write_text("env_steps\n1\n")
    assert plan_run(tmp_path, "x", run_dir=run_dir, resume="auto") == (run_dir, None, False, None)
    prepare_folder(plan_run(tmp_path, "x", run_dir=run_dir, resume="auto"))
    assert not (run_dir / "metrics.csv").exists()
    fail_in(run_dir, ValueError("late"))  # after a checkpoint: goes on
    save_checkpoint(checkpoint_path(run_dir, 10), {})
    assert plan_run(tmp_path, "x", run_dir=run_dir, resume="auto") == (
        run_dir,
        checkpoint_path(run_dir, 10),
        False,
        None,
    )
    with RunStatus(run_dir):  # finished: skipped
        pass
    assert plan_run(tmp_path, "x", run_dir=run_dir, resume="auto") == (run_dir, None, True, None)


def test_resume_from_a_path(tmp_path):
    old = tmp_path / "old"
    checkpoint = save_checkpoint(checkpoint_path(old, 10), {})
    (old / "metrics.csv").write_text("env_steps\n1\n")
    assert plan_run(tmp_path, "x", resume=old) == (old, checkpoint, False, None)
    assert plan_run(tmp_path, "x", resume=checkpoint) == (old, checkpoint, False, None)
    elsewhere = plan_run(tmp_path, "x", resume=checkpoint, run_dir=tmp_path / "new")
    assert elsewhere == (tmp_path / "new", checkpoint, False, old)
    prepare_folder(elsewhere, 10)
    assert (tmp_path / "new" / "metrics.csv").read_text() == "env_steps\n1\n"


def test_resume_without_anything_to_resume_is_one_line(tmp_path):
    with pytest.raises(ValueError, match="needs run_dir"):
        plan_run(tmp_path, "x", resume="auto")
    with pytest.raises(ValueError, match="resume must be auto, a checkpoint, or a run folder that holds one"):
        plan_run(tmp_path, "x", resume=tmp_path / "nowhere")


# --- all runs under a folder


@pytest.fixture
def runs(tmp_path):
    """Two finished runs, one that failed, one that was killed, and a folder without a run."""
    for name in ("a/seed=0", "b/seed=0"):
        with RunStatus(tmp_path / name, env_steps=10):
            pass
    fail_in(tmp_path / "a/seed=1", ValueError("not\nfinite"), env_steps=10)
    killed = RunStatus(tmp_path / "b/seed=1").__enter__()
    killed._lock.close()  # what the system does when it kills the process
    (tmp_path / "notes").mkdir()
    return tmp_path


def test_the_state_of_every_run_under_a_folder(runs):
    found = {run["folder"]: (run["state"], run["env_steps"], run["reason"]) for run in summarise_sweep(runs)}
    assert found == {
        "a/seed=0": ("finished", 10, None),
        "a/seed=1": ("failed", 10, "ValueError: not finite"),
        "b/seed=0": ("finished", 10, None),
        "b/seed=1": ("killed", 0, "the process died without reporting"),
    }


def test_a_wrong_folder_is_one_line(tmp_path):
    with pytest.raises(ValueError, match="root must be a folder with runs in it"):
        summarise_sweep(tmp_path / "nowhere")


def test_evaluations_of_somebody_else_are_kept(tmp_path):
    (tmp_path / "evaluations.csv").write_text("mine\n")
    with pytest.raises(ValueError, match="already holds a run"):
        plan_run("runs", "x", run_dir=tmp_path)


def test_a_run_that_is_continued_elsewhere_takes_its_tables_and_settings_along(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    checkpoint = save_checkpoint(checkpoint_path(old, 10), {})
    tables = {"metrics.csv": "env_steps\n1\n", "evaluations.csv": "env_steps\n5\n", "config.yaml": "seed: 3\n"}
    for name, text in tables.items():
        (old / name).write_text(text)
    prepare_folder(plan_run(tmp_path, "x", resume=checkpoint, run_dir=new), 10)
    assert {name: (new / name).read_text() for name in tables} == tables
    assert {name: (old / name).read_text() for name in tables} == tables


def test_policies_of_an_abandoned_branch_are_removed(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    for name in ("policy.pt", "policy_best.pt"):
        (tmp_path / "checkpoints" / name).touch()
    rewind(tmp_path, 10)
    assert not any((tmp_path / "checkpoints").iterdir())
