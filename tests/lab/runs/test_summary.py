from __future__ import annotations

import contextlib

from eqr_torchrl.lab.runs import RunStatus, summarise_sweep
from eqr_torchrl.lab.runs.folder import main


def make_runs(root):
    for name, error in (("a/seed=0", None), ("a/seed=1", ValueError("not\nfinite")), ("b/seed=0", None)):
        (root / name).mkdir(parents=True)
        with contextlib.suppress(ValueError), RunStatus(root / name, env_steps=10):
            if error is not None:
                raise error
    (root / "b" / "seed=1").mkdir()
    status = RunStatus(root / "b" / "seed=1")
    status.__enter__()
    status._lock.close()  # what the system does when it kills the process
    (root / "notes").mkdir()


def test_every_run_and_its_fate(tmp_path):
    make_runs(tmp_path)
    found = {run["folder"]: (run["state"], run["env_steps"], run["reason"]) for run in summarise_sweep(tmp_path)}
    assert found == {
        "a/seed=0": ("finished", 10, None),
        "a/seed=1": ("failed", 10, "ValueError: not finite"),
        "b/seed=0": ("finished", 10, None),
        "b/seed=1": ("killed", 0, "the process died without reporting"),
    }


def test_the_command_prints_a_table(tmp_path, capsys):
    make_runs(tmp_path)
    assert main([str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "4 runs: 1 failed, 2 finished, 1 killed"
    assert lines[1] == "failed            10  a/seed=1  ValueError: not finite"
    assert len(lines) == 5


def test_a_wrong_folder_is_one_line(tmp_path, capsys):
    assert main([str(tmp_path / "nowhere")]) == 2
    assert capsys.readouterr().err.startswith("error: root must be a folder with runs in it")
    assert main([]) == 2
