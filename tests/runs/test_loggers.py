from __future__ import annotations

import sys
import types

import numpy as np
import pytest
import torch
from torchrl.record.loggers import Logger

from eqr_torchrl.runs import RunLogger, read_csv
from eqr_torchrl.runs.csv_table import CsvTable

EPISODE = {
    "env": "Pendulum-v1",
    "algorithm": "eqr_sac",
    "utility": "mean",
    "seed": 0,
    "warmup_steps": 5000,
    "episode": 0,
    "episode_return": torch.tensor([-200.5]),
    "episode_length": 200,
}


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
    with RunLogger(tmp_path) as logger:
        for step in range(1, 6):
            metrics = {"train/loss": torch.tensor(0.5 * step, requires_grad=True)}
            if step % 2 == 0:
                metrics["eval/return"] = np.float32(-3.25)
            logger.log(metrics, env_steps=step)
            assert len(read_csv(tmp_path / "metrics.csv")) == step  # on the disk at once
        assert logger.num_calls["metrics.csv"] == 5
    text = (tmp_path / "metrics.csv").read_text()
    assert text.splitlines()[:3] == ["env_steps,train/loss,eval/return", "1,0.5,", "2,1.0,-3.25"]


def test_evaluations_have_the_columns_of_the_comparison(tmp_path):
    with RunLogger(tmp_path) as logger:
        logger.log_evaluation(**EPISODE, env_steps=1000)
    assert (tmp_path / "evaluations.csv").read_text().splitlines() == [
        "env,algorithm,utility,seed,env_steps,warmup_steps,episode,episode_return,episode_length",
        "Pendulum-v1,eqr_sac,mean,0,1000,5000,0,-200.5,200",
    ]
    with pytest.raises(ValueError, match=r"missing \['env_steps'\]"):
        logger.log_evaluation(**EPISODE)


def test_floats_come_back_exactly(tmp_path):
    values = [1 / 3, 1e-30, float("nan"), float("inf"), np.pi * 1e20]
    with RunLogger(tmp_path) as logger:
        for step, value in enumerate(values):
            logger.log({"x": value}, env_steps=step)
    read = [float(row["x"]) for row in read_csv(tmp_path / "metrics.csv")]
    np.testing.assert_array_equal(read, values)


def test_time_columns_can_be_left_out(tmp_path):
    with RunLogger(tmp_path) as logger:
        logger.log({"time/update": 0.1, "loss": 1}, env_steps=1)
    assert read_csv(tmp_path / "metrics.csv", times=False) == [{"env_steps": "1", "loss": "1"}]


@pytest.mark.parametrize("value", [torch.ones(2), "text", [1.0], None])
def test_a_value_must_be_one_number(tmp_path, value):
    with pytest.raises(ValueError, match=r"must be one number: got .* for 'x'"):
        RunLogger(tmp_path).log({"x": value}, env_steps=1)


def test_a_resumed_run_writes_the_rows_of_an_uninterrupted_one(tmp_path):
    def run(logger, steps):
        for step in steps:
            metrics = {"loss": step / 7}
            if step >= 4:
                metrics["late"] = step
            logger.log(metrics, env_steps=step)
            if step % 3 == 0:
                logger.log_evaluation(**EPISODE, env_steps=step)

    whole = tmp_path / "whole"
    with RunLogger(whole) as logger:
        run(logger, range(1, 10))
    cut = tmp_path / "cut"
    first = RunLogger(cut)
    run(first, range(1, 4))
    saved = first.state_dict()
    run(first, range(4, 8))  # logged after the checkpoint, then killed within a line
    with open(cut / "metrics.csv", "a") as file:
        file.write("8,0.3")
    with RunLogger(cut) as second:
        second.load_state_dict(saved)
        run(second, range(4, 10))
    for name in ("metrics.csv", "evaluations.csv"):
        assert (cut / name).read_bytes() == (whole / name).read_bytes()


def test_truncate_after_drops_rows_beyond_the_checkpoint(tmp_path):
    with RunLogger(tmp_path) as logger:
        for step in (10, 20, 30):
            logger.log({"loss": step}, env_steps=step)
            logger.log_evaluation(**EPISODE, env_steps=step)
        logger.truncate_after(20)
        logger.log({"loss": 0}, env_steps=25)
    assert [row["env_steps"] for row in read_csv(tmp_path / "metrics.csv")] == ["10", "20", "25"]
    assert [row["env_steps"] for row in read_csv(tmp_path / "evaluations.csv")] == ["10", "20"]


def test_missing_rows_are_noticed_when_a_run_is_resumed_and_when_it_ends(tmp_path):
    logger = RunLogger(tmp_path)
    logger.log({"loss": 1}, env_steps=1)
    saved = logger.state_dict()
    (tmp_path / "metrics.csv").unlink()
    with pytest.raises(RuntimeError, match="must hold 1 rows, one for each call: it holds 0"):
        logger.close()
    with pytest.warns(UserWarning, match="holds 0 rows, the checkpoint 1"):
        RunLogger(tmp_path).load_state_dict(saved)


def test_a_failing_logger_warns_once_and_loses_no_csv_row(tmp_path):
    broken = BrokenLogger()
    logger = RunLogger(tmp_path, backends=[broken])
    with pytest.warns(UserWarning, match=r"logger BrokenLogger failed .* ConnectionError: the network is gone$"):
        logger.log({"loss": 0}, env_steps=0)
    for step in range(1, 5):  # silent: warnings are errors here
        logger.log({"loss": step}, env_steps=step)
    logger.close()
    assert broken.calls == 5
    assert len(read_csv(tmp_path / "metrics.csv")) == 5


def test_a_full_disk_warns_and_the_file_stays_whole(tmp_path, monkeypatch):
    logger = RunLogger(tmp_path)
    logger.log({"loss": 1}, env_steps=1)
    append = CsvTable.append
    monkeypatch.setattr(CsvTable, "append", lambda self, row: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.warns(UserWarning, match="no space left"):
        logger.log({"loss": 2}, env_steps=2)
    monkeypatch.setattr(CsvTable, "append", append)
    logger.log({"loss": 3}, env_steps=3)
    with pytest.warns(UserWarning, match=r"1 rows of .*metrics.csv could not be written"):
        logger.close()
    assert [row["loss"] for row in read_csv(tmp_path / "metrics.csv")] == ["1", "3"]


def test_unknown_backends_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="'tensorboard', 'wandb' or TorchRL loggers: got 'wandbb'"):
        RunLogger(tmp_path, backends=["wandbb"])
    assert not any(tmp_path.iterdir())


def test_tensorboard_gets_the_scalars_at_env_steps(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with RunLogger(tmp_path, backends=["tensorboard"]) as logger:
        logger.log({"train/loss": 0.5}, env_steps=250)
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    (scalar,) = events.Scalars("train/loss")
    assert (scalar.step, scalar.value) == (250, 0.5)


def test_tensorboard_forgets_what_a_resumed_run_logs_again(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    logger = RunLogger(tmp_path, backends=["tensorboard"])
    logger.log({"train/loss": 1.0}, env_steps=1)
    saved = logger.state_dict()
    for step in (2, 3):
        logger.log({"train/loss": 9.0}, env_steps=step)
    logger.close()  # here the process dies
    with RunLogger(tmp_path, backends=["tensorboard"]) as second:
        second.load_state_dict(saved)
        second.log({"train/loss": 2.0}, env_steps=2)
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(scalar.step, scalar.value) for scalar in events.Scalars("train/loss")] == [(1, 1.0), (2, 2.0)]


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
    started = []

    def init(**arguments):
        if arguments["mode"] == "online":
            raise ConnectionError("no network")
        assert all(not run.open for run in started), "two runs open at once share their steps"
        started.append(FakeRun(**arguments))
        return started[-1]

    fake = types.ModuleType("wandb")
    fake.init = init
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.setattr("torchrl.record.loggers.wandb._has_wandb", True)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", "/no/such/file")
    return started


def test_wandb_loses_no_row_when_steps_go_back(tmp_path, runs):
    for trial in ("a", "b"):  # two trials in one process, the first resumed from an older checkpoint
        for start in (100, 50) if trial == "a" else (1,):
            with RunLogger(tmp_path / trial, backends=["wandb"], config={"gamma": 0.99}) as logger:
                logger.log({"train/loss": 0.1}, env_steps=start)
                logger.log({"eval/return": 1.0}, env_steps=start)
                logger.log({"train/loss": 0.2}, env_steps=start - 1)
    assert [[row["env_steps"] for row in run.rows] for run in runs] == [[100, 100, 99], [50, 50, 49], [1, 1, 0]]
    assert runs[0].id == runs[1].id != runs[2].id  # a resumed run is the same run, another trial is not
    assert (("*",), {"step_metric": "env_steps"}) in runs[0].metrics
    assert runs[0].arguments["config"] == {"gamma": 0.99}


def test_wandb_works_offline_without_a_key_and_without_a_network(tmp_path, runs, monkeypatch):
    RunLogger(tmp_path / "no_key", backends=["wandb"]).close()
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    RunLogger(tmp_path / "no_network", backends=["wandb"], wandb={"project": "eqr"}).close()
    assert [run.arguments["mode"] for run in runs] == ["offline", "offline"]
    assert runs[1].arguments["project"] == "eqr"


def test_real_wandb_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    with RunLogger(tmp_path, backends=["wandb"]) as logger:
        logger.log({"train/loss": 0.5}, env_steps=2)
        logger.log({"train/loss": 0.5}, env_steps=1)
