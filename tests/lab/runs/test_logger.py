from __future__ import annotations

import os
import signal
import subprocess
import sys
import types

import numpy as np
import pytest
import torch
from torchrl.record.loggers import Logger

from eqr_torchrl.lab.runs import RunLogger, read_csv, rewind
from eqr_torchrl.lab.runs.logger import _Table

LABELS = {"env": "Pendulum-v1", "algorithm": "eqr_sac", "utility": "mean", "seed": 0, "warmup_steps": 5000}
EPISODES = [
    {"episode": 0, "episode_return": -200.5, "episode_length": 200, "terminated": 0},
    {"episode": 1, "episode_return": -100.0, "episode_length": 100, "terminated": 1},
]


class BrokenLogger(Logger):
    """Counts its calls and fails at every one."""

    def __init__(self):
        self.calls = 0
        super().__init__("broken", "nowhere")

    def _create_experiment(self):
        return self

    def log_scalar(self, name, value, step=None):
        self.calls += 1
        raise ConnectionError("the network is gone\nmore lines")

    def log_video(self, *args, **kwargs): ...
    def log_hparams(self, *args, **kwargs): ...
    def log_histogram(self, *args, **kwargs): ...
    def __repr__(self):
        return "BrokenLogger()"


def test_every_call_is_one_row_and_columns_may_grow(tmp_path):
    logger = RunLogger(tmp_path)
    for step in range(1, 6):
        metrics = {"train/loss": torch.tensor(0.5 * step, requires_grad=True)}
        if step % 2 == 0:
            metrics["model/epochs"] = np.float32(-3.25)
        logger.log(metrics, env_steps=step)
        assert len(read_csv(tmp_path / "metrics.csv")) == step  # on the disk at once
    text = (tmp_path / "metrics.csv").read_text()
    assert text.splitlines()[:3] == ["env_steps,train/loss,model/epochs", "1,0.5,", "2,1.0,-3.25"]


def test_evaluations_have_the_columns_of_the_comparison(tmp_path):
    logger = RunLogger(tmp_path)
    logger.log_evaluation(EPISODES, 1000, **LABELS)
    assert (tmp_path / "evaluations.csv").read_text().splitlines() == [
        "env,algorithm,utility,seed,env_steps,warmup_steps,episode,episode_return,episode_length,terminated",
        "Pendulum-v1,eqr_sac,mean,0,1000,5000,0,-200.5,200,0",
        "Pendulum-v1,eqr_sac,mean,0,1000,5000,1,-100.0,100,1",
    ]
    with pytest.raises(ValueError, match=r"missing \['warmup_steps'\]"):
        logger.log_evaluation(EPISODES, 1000, **{k: v for k, v in LABELS.items() if k != "warmup_steps"})


def test_floats_come_back_exactly(tmp_path):
    values = [1 / 3, 1e-30, float("nan"), float("inf"), np.pi * 1e20]
    logger = RunLogger(tmp_path)
    for step, value in enumerate(values):
        logger.log({"x": value}, env_steps=step)
    read = [float(row["x"]) for row in read_csv(tmp_path / "metrics.csv")]
    np.testing.assert_array_equal(read, values)


@pytest.mark.parametrize("value", [torch.ones(2), "text", [1.0], None])
def test_a_value_must_be_one_number(tmp_path, value):
    with pytest.raises(ValueError, match=r"must be one number: got .* for 'x'"):
        RunLogger(tmp_path).log({"x": value}, env_steps=1)


def test_a_resumed_run_writes_the_rows_of_an_uninterrupted_one(tmp_path):
    def run(logger, steps):
        for step in steps:
            logger.log({"loss": step / 7} | ({"late": step} if step >= 4 else {}), env_steps=step)
            if step % 3 == 0:
                logger.log_evaluation(EPISODES, step, **LABELS)

    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run(RunLogger(whole), range(1, 10))
    run(RunLogger(cut), range(1, 8))  # the checkpoint is that of step 3; killed within a line
    with open(cut / "metrics.csv", "a") as file:
        file.write("8,0.3")
    rewind(cut, 3)
    run(RunLogger(cut, resume_at=3), range(4, 10))
    for name in ("metrics.csv", "evaluations.csv"):
        assert (cut / name).read_bytes() == (whole / name).read_bytes()


def test_a_failing_logger_warns_once_and_loses_no_csv_row(tmp_path):
    broken = BrokenLogger()
    logger = RunLogger(tmp_path, backends=[broken])
    with pytest.warns(UserWarning, match=r"logger BrokenLogger failed; .* ConnectionError: the network is gone$"):
        logger.log({"loss": 0}, env_steps=0)
    for step in range(1, 5):  # silent: warnings are errors here
        logger.log({"loss": step}, env_steps=step)
    logger.close()
    assert broken.calls == 5
    assert len(read_csv(tmp_path / "metrics.csv")) == 5


def test_a_part_of_a_line_that_a_full_disk_took_is_cut_off(tmp_path):
    resource = pytest.importorskip("resource")
    logger = RunLogger(tmp_path)
    logger.log({"train/loss": 0.5}, 250)
    path = tmp_path / "metrics.csv"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        three_more = path.stat().st_size + 3  # characters, of the next line
        resource.setrlimit(resource.RLIMIT_FSIZE, (three_more, limits[1]))
        with pytest.warns(UserWarning, match="training continues without it"):
            logger.log({"train/loss": 0.75}, 500)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    logger.log({"train/loss": 1.0}, 750)
    logger.close()
    assert [row["train/loss"] for row in read_csv(path)] == ["0.5", "1.0"]


def test_a_full_disk_warns_once_and_training_continues(tmp_path, monkeypatch):
    logger = RunLogger(tmp_path)
    logger.log({"loss": 1}, env_steps=1)
    with monkeypatch.context() as patch:
        patch.setattr(_Table, "append", lambda self, row: (_ for _ in ()).throw(OSError("no space left")))
        with pytest.warns(UserWarning, match=r"logger metrics.csv failed; training continues .* no space left"):
            logger.log({"loss": 2}, env_steps=2)
        logger.log({"loss": 3}, env_steps=3)
    logger.log({"loss": 4}, env_steps=4)
    logger.close()
    assert [row["loss"] for row in read_csv(tmp_path / "metrics.csv")] == ["1", "4"]


def test_unknown_backends_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="'tensorboard', 'wandb' or TorchRL loggers, got 'wandbb'"):
        RunLogger(tmp_path, backends=["wandbb"])
    assert not any(tmp_path.iterdir())


def scalars(folder, name):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [(scalar.step, scalar.value) for scalar in events.Scalars(name)]


def test_tensorboard_gets_metrics_and_returns_at_env_steps(tmp_path):
    logger = RunLogger(tmp_path, backends=["tensorboard"])
    logger.log({"train/loss": 0.5}, env_steps=250)
    logger.log_evaluation(EPISODES, 300, **LABELS)
    logger.close()
    assert scalars(tmp_path, "train/loss") == [(250, 0.5)]
    assert scalars(tmp_path, "evaluation/episode_return") == [(300, -150.25)]  # mean of -200.5 and -100
    assert scalars(tmp_path, "evaluation/episode_length") == [(300, 150.0)]
    assert scalars(tmp_path, "evaluation/terminated") == [(300, 0.5)]  # one of two


def test_tensorboard_forgets_what_a_resumed_run_logs_again(tmp_path):
    logger = RunLogger(tmp_path, backends=["tensorboard"])
    for step in (1, 2, 3):
        logger.log({"train/loss": 9.0}, env_steps=step)
    logger.close()  # here the process dies
    second = RunLogger(tmp_path, backends=["tensorboard"], resume_at=1)
    second.log({"train/loss": 2.0}, env_steps=2)
    second.close()
    assert scalars(tmp_path, "train/loss") == [(1, 9.0), (2, 2.0)]


class FakeRun:
    """A wandb run that refuses steps that go back, as wandb does."""

    def __init__(self, **arguments):
        self.arguments, self.rows, self.metrics, self.last, self.open = arguments, [], [], -1, True
        self.id = arguments["id"]

    def log(self, payload, step=None, **kwargs):
        if step is not None and step < self.last:
            raise ValueError("step must only increase")
        self.last = self.last if step is None else step
        self.rows.append(payload)

    def define_metric(self, *args, **kwargs):
        self.metrics.append((args, kwargs))

    def finish(self):
        self.open = False


@pytest.fixture
def runs(monkeypatch):
    started, failed = [], set()

    def init(**arguments):
        if arguments["mode"] == "online":
            failed.add(arguments["id"])
            raise ConnectionError("no network")
        if arguments["id"] in failed:
            raise ValueError("run ID is in use")
        assert all(not run.open for run in started), "two runs open at once share their steps"
        started.append(FakeRun(**arguments))
        return started[-1]

    fake = types.ModuleType("wandb")
    fake.init = init
    fake.login = lambda prompt, verify: "WANDB_API_KEY" in os.environ
    fake.teardown = lambda: None
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.setattr("torchrl.record.loggers.wandb._has_wandb", True)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", "/no/such/file")
    return started


def test_wandb_loses_no_row_when_steps_go_back(tmp_path, runs):
    for trial in ("a", "b"):  # two trials in one process, the first resumed from an older checkpoint
        for start in (100, 50) if trial == "a" else (1,):
            logger = RunLogger(tmp_path / trial, backends=["wandb"], config={"gamma": 0.99})
            logger.log({"train/loss": 0.1}, env_steps=start)
            logger.log_evaluation(EPISODES, start, **LABELS)
            logger.log({"train/loss": 0.2}, env_steps=start - 1)
            logger.close()
    assert [[row["env_steps"] for row in run.rows] for run in runs] == [[100, 100, 99], [50, 50, 49], [1, 1, 0]]
    assert runs[0].rows[1] == {
        "env_steps": 100, "evaluation/episode_return": -150.25, "evaluation/episode_length": 150.0,
        "evaluation/terminated": 0.5,
    }  # fmt: skip
    assert runs[0].id == runs[1].id != runs[2].id  # a resumed run is the same run, another trial is not
    assert (("*",), {"step_metric": "env_steps"}) in runs[0].metrics
    assert runs[0].arguments["config"] == {"gamma": 0.99}


def test_wandb_works_offline_without_a_key_and_without_a_network(tmp_path, runs, monkeypatch):
    RunLogger(tmp_path / "no_key", backends=["wandb"]).close()
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    RunLogger(tmp_path / "no_network", backends=["wandb"], wandb={"project": "eqr"}).close()
    assert [run.arguments["mode"] for run in runs] == ["offline", "offline"]
    assert runs[1].arguments["project"] == "eqr"


@pytest.mark.slow
def test_real_wandb_with_a_key_but_no_network_holds_metrics_and_returns(tmp_path):
    pytest.importorskip("wandb")
    script = """
import sys, warnings
warnings.simplefilter("ignore")
from eqr_torchrl.lab.runs import RunLogger
logger = RunLogger(sys.argv[1], backends=["wandb"], wandb={"settings": {"init_timeout": 5}})
logger.log({"train/loss": 0.5}, env_steps=2)
labels = {"env": "p", "algorithm": "a", "utility": "", "seed": 0, "warmup_steps": 1}
logger.log_evaluation([{"episode": 0, "episode_return": -7.25, "episode_length": 3}], 2, **labels)
logger.close()
"""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("WANDB")} | {"NETRC": "/no/such/file"}
    environment |= {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_SILENT": "true", "WANDB_API_KEY": "0" * 40}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], env=environment, cwd=tmp_path, capture_output=True, text=True,
        timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [file] = tmp_path.rglob("offline-run-*/*.wandb")
    content = file.read_bytes()
    assert b"evaluation/episode_return" in content and b"-7.25" in content and b"train/loss" in content
    assert len(read_csv(tmp_path / "metrics.csv")) == len(read_csv(tmp_path / "evaluations.csv")) == 1


def test_a_table_is_continued_after_a_line_that_was_cut_off(tmp_path):
    (tmp_path / "metrics.csv").write_text("env_steps,loss\n1,0.5\n2,0.2")  # killed within 0.25
    RunLogger(tmp_path).log({"loss": 0.75}, 3)
    assert [(row["env_steps"], row["loss"]) for row in read_csv(tmp_path / "metrics.csv")] == [
        ("1", "0.5"),
        ("3", "0.75"),
    ]
