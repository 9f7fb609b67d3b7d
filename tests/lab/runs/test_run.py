from __future__ import annotations

import contextlib
import random
import signal

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torchrl.objectives import SACLoss

from eqr_torchrl.lab.evaluation import seed_everything
from eqr_torchrl.lab.runs import Run, RunStatus, latest_checkpoint, load_checkpoint, read_csv, read_status
from eqr_torchrl.networks import make_actor, make_critic
from eqr_torchrl.testing import toy_actor, toy_env

SETTINGS = {
    "seed": 3,
    "env_steps": 6,
    "warmup_steps": 2,
    "eval_every": 3,
    "log_every": 2,
    "checkpoint_every": 0,
    "eval_episodes": 1,
    "final_episodes": 2,
    "progress": False,
    "labels": {"algorithm": "none", "utility": ""},
    "logger": {},
}


def new_run(**changes) -> Run:
    return Run.of(SETTINGS | changes)


def make_run(folder, evaluate=None, *, parts=None, **changes) -> Run:
    run = new_run(run_dir=str(folder), **changes)
    run.keep(env=toy_env(), policy=toy_actor(), **(parts or {}))
    run.evaluate_with(evaluate or (lambda num_episodes, seed: [episode(i) for i in range(num_episodes)]))
    return run


def episode(i: int) -> dict:
    return {"episode": i, "episode_return": -1.0 - i, "episode_length": 9}


def test_steps_count_from_the_end_of_the_warm_up_and_everything_lies_between_two_of_them(tmp_path):
    calls = []
    run = make_run(tmp_path, lambda num_episodes, seed: calls.append((num_episodes, seed)) or [episode(0)])
    with run:
        assert read_status(tmp_path)["state"] == "running"
        assert list(run.steps()) == [-1, 0, 1, 2, 3, 4, 5, 6]
    # at steps 3 and 6, with the episodes of the last one, and a seed for each
    assert calls == [(1, 3 + 1_000_003 * 4), (2, 3 + 1_000_003 * 7)]
    assert run.last_return == -1.0
    assert (read_status(tmp_path)["state"], read_status(tmp_path)["env_steps"]) == ("finished", 6)


def test_a_row_holds_means_since_the_last_row_and_nothing_twice(tmp_path):
    run = make_run(tmp_path)
    with run:
        for step in run.steps():
            if step == 1:
                run.log("model", {"validation_mse": [1.0, 2.0], "seconds": 5.0})
                run.log("rollout", {"fixed": {"rows": 7}})
            if step > 0:
                run.log("train", {"loss_qvalue": torch.tensor(float(step)), "alpha": 10.0})
    rows = read_csv(tmp_path / "metrics.csv")
    assert [row["train/loss_qvalue"] for row in rows] == ["1.5", "3.5", "5.5"]  # steps 1 and 2, 3 and 4, 5 and 6
    assert [row["model/validation_mse_1"] for row in rows] == ["2.0", "", ""]  # a fit is reported once
    times = [name for name in rows[0] if name.startswith("time/")]
    assert [name for name in rows[0] if name not in times] == [
        "env_steps", "model/validation_mse_0", "model/validation_mse_1", "rollout/fixed/rows", "train/loss_qvalue",
        "train/alpha",
    ]  # fmt: skip
    assert sorted(times) == ["time/cpu", "time/model", "time/rollout", "time/train"]


def test_cpu_seconds_of_all_rows_are_those_of_the_loop(tmp_path, monkeypatch):
    clock = iter([0.0, 100.0, 103.0, 110.0, 111.5, 112.0])  # the loop begins at 100; three rows, and a checkpoint
    monkeypatch.setattr("eqr_torchrl.lab.runs.run.time.process_time", lambda: next(clock))
    run = make_run(tmp_path)
    with run:
        list(run.steps())
    assert [row["time/cpu"] for row in read_csv(tmp_path / "metrics.csv")] == ["3.0", "7.0", "1.5"]


def test_freed_memory_is_returned_with_each_row(tmp_path, monkeypatch):
    run, seen = make_run(tmp_path), []
    monkeypatch.setattr("eqr_torchrl.lab.runs.run.release_memory", lambda: seen.append(run.step))
    with run:
        list(run.steps())
    assert seen == [int(row["env_steps"]) for row in read_csv(tmp_path / "metrics.csv")] == [2, 4, 6]


@pytest.mark.parametrize(("found", "shown"), [(-0.41234, "-0.412"), (361.94, "361.9"), (12345.6, "12345.6")])
def test_the_last_line_shows_a_return_of_any_size(tmp_path, capsys, found, shown):
    run = make_run(tmp_path, lambda num_episodes, seed: [episode(0) | {"episode_return": found}])
    with run:
        list(run.steps())
    assert f"{tmp_path}: return {shown} after 6 steps" in capsys.readouterr().out


def test_all_global_generators_are_seeded_on_request_alone():
    def draws():
        return torch.rand(1).item(), np.random.uniform(), random.random()  # noqa: NPY002

    seed_everything(3)
    first, second = draws(), draws()
    seed_everything(3)
    new_run(seed=4)  # draws nothing and seeds nothing
    assert (draws(), draws()) == (first, second) and len({*first, *second}) == 6


def test_a_wrong_setting_is_named_before_a_folder_exists(tmp_path):
    folder = tmp_path / "run"
    for changes, message in [
        ({"env_steps": 0}, "env_steps must be at least 1, got 0"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"log_every": 2.5}, "log_every must be an integer, got 2.5"),
        ({"logger": {"backends": ["wandbb"]}}, "got 'wandbb'"),
        ({"logger": {"backends": "wandb"}}, r"logger.backends must be a list, such as \[tensorboard\], got 'wandb'"),
        ({"device": "gpu"}, "device must be one of torch, such as cpu or cuda, got gpu"),
        ({"reward_bounds": 3}, "reward_bounds must be two numbers, auto or null, got 3"),
        ({"reward_bounds": [0.0, "1"]}, r"reward_bounds must be two numbers, auto or null, got \[0.0, '1'\]"),
        ({"labels": None}, "labels must have text for algorithm, got None"),
        ({"labels": {"algorithm": "none", "utility": None}}, "labels must have text for utility, got "),
    ]:
        with pytest.raises(ValueError, match=message):
            make_run(folder, **changes)
    assert not folder.exists()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops_at_once_and_other_numbers_do_not(tmp_path, bad):
    run = make_run(tmp_path)
    with pytest.raises(RuntimeError, match="train/loss_alpha not finite at env step 2"), run:  # noqa: PT012
        for step in run.steps():
            run.log("train", {"entropy": bad, "loss_alpha": bad if step == 2 else 0.0})
    assert run.step == 2 and read_status(tmp_path)["state"] == "failed"


def test_a_signal_in_step_0_saves_what_it_did(tmp_path):
    """Of a run from a log, step 0 is the fit of all models."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    run, words = make_run(tmp_path), r"interrupted at env step 0; resume with .* \(continues from env step 0"
    with pytest.raises(KeyboardInterrupt, match=words), run:  # noqa: PT012
        for step in run.steps():
            if step == 0:
                signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, before)
    assert latest_checkpoint(tmp_path) is not None


def test_ctrl_c_stops_between_two_steps_and_says_how_to_resume(tmp_path):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    run, seen = make_run(tmp_path, checkpoint_every=1), []
    with pytest.raises(KeyboardInterrupt) as stopped, run:  # noqa: PT012
        for step in run.steps():
            seen.append(step)
            if step == 3:
                signal.raise_signal(signal.SIGINT)
                seen.append("whole step")  # not torn apart in the middle of an update
    assert seen[-2:] == [3, "whole step"]
    assert str(stopped.value) == f"interrupted at env step 3; resume with resume={tmp_path} (continues from env step 3)"
    assert read_status(tmp_path)["state"] == "interrupted"
    with pytest.raises(KeyboardInterrupt):  # the usual meaning is back
        signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, before)


def test_a_second_ctrl_c_stops_at_once_even_where_a_library_hides_it(tmp_path):
    run = make_run(tmp_path)
    with pytest.raises(KeyboardInterrupt, match="before the first checkpoint"), run:  # noqa: PT012
        for _ in run.steps():
            signal.raise_signal(signal.SIGINT)
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                raise RuntimeError("Converting a tensordict to boolean value is not permitted") from None
    assert read_status(tmp_path)["state"] == "interrupted"


def test_ctrl_c_while_the_run_closes_leaves_its_state_interrupted(tmp_path):
    run = make_run(tmp_path)
    with pytest.raises(KeyboardInterrupt, match="interrupted at env step -1; resume with"), run:  # noqa: PT012
        run._logger.close = lambda: signal.raise_signal(signal.SIGINT)
        for _ in run.steps():
            signal.raise_signal(signal.SIGINT)
    assert read_status(tmp_path)["state"] == "interrupted"


def test_a_part_that_no_checkpoint_can_hold_is_refused_before_the_run_starts(tmp_path):
    run = make_run(tmp_path / "run")
    with pytest.raises(ValueError, match=r"fit must have state_dict and load_state_dict \(.*\) .*, got object\."):
        run.keep(env=toy_env(), policy=toy_actor(), fit=object())
    assert not (tmp_path / "run").exists()


def test_numbers_of_an_unfinished_row_survive_a_checkpoint(tmp_path):
    def train(run, until):
        with run:
            for step in run.steps():
                run.log("train", {"x": float(step)})
                if step == until:
                    raise ValueError("power cut")

    with pytest.raises(ValueError, match="power cut"):
        train(make_run(tmp_path, log_every=4, checkpoint_every=1, warmup_steps=1), 3)
    train(make_run(tmp_path, log_every=4, checkpoint_every=1, warmup_steps=1, resume="auto"), None)
    rows = [row["train/x"] for row in read_csv(tmp_path / "metrics.csv")]  # the last step has one
    assert rows == [str((0 + 1 + 2 + 3 + 4) / 5), str((5 + 6) / 2)]
    assert load_checkpoint(tmp_path / "checkpoints" / "step_000000006.pt")["step"] == 6


def test_resolved_settings_are_recorded(tmp_path):
    class Loss:
        target_entropy = torch.tensor(-6.0)

        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

    with make_run(tmp_path, parts={"loss": Loss()}):
        pass
    record = OmegaConf.load(tmp_path / "config.yaml").record
    assert (record.target_entropy, record.device) == (-6.0, "cpu") and "torch" in record.versions


def test_a_run_that_another_process_writes_is_left_alone(tmp_path):
    with RunStatus(tmp_path):
        (tmp_path / "metrics.csv").write_text("env_steps\n1\n")
        with pytest.raises(RuntimeError, match="being written by another process"):
            make_run(tmp_path, resume="auto").__enter__()
        assert read_status(tmp_path)["state"] == "running"
    assert (tmp_path / "metrics.csv").read_text() == "env_steps\n1\n"


def test_a_run_needs_its_environment_and_its_policy(tmp_path):
    with pytest.raises(RuntimeError, match="needs keep"), new_run():
        pass


@pytest.mark.parametrize(
    ("actor", "critic", "problem"),
    [
        ({"normalize": True}, {}, "normalize must be False for networks of SACLoss, which sets no scales: got True"),
        ({}, {"normalize": True}, "normalize must be False for networks of SACLoss, which sets no scales: got True"),
        ({}, {"num_quantiles": 3}, "num_quantiles must be 1 for critics of SACLoss: got 3"),
        ({}, {}, None),
    ],
)
def test_what_sac_loss_cannot_learn_with_is_named_before_the_run(actor, critic, problem):
    critics = [make_critic(toy_env(), num_cells=(8,), **{"num_quantiles": 1, **critic}) for _ in range(2)]
    loss = SACLoss(make_actor(toy_env(), num_cells=(8,), **actor), critics, num_qvalue_nets=2)
    with pytest.raises(ValueError, match=problem) if problem else contextlib.nullcontext():
        new_run().keep(env=toy_env(), policy=loss.actor_network, loss=loss)


def test_cpu_seconds_of_an_unfinished_row_survive_a_checkpoint(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("eqr_torchrl.lab.runs.run.time.process_time", lambda: now[0])

    def train(until=None, **changes):
        now[0] = 0.0  # another process
        with make_run(tmp_path, log_every=4, checkpoint_every=1, warmup_steps=1, **changes) as run:
            for step in run.steps():
                now[0] += 1.0
                if step == until:
                    raise ValueError("power cut")

    with pytest.raises(ValueError, match="power cut"):
        train(until=3)  # the checkpoint at 2 has the seconds of steps 0, 1 and 2
    train(resume="auto")
    assert [row["time/cpu"] for row in read_csv(tmp_path / "metrics.csv")] == ["5.0", "2.0"]


def test_a_run_shorter_than_a_row_has_one(tmp_path):
    with make_run(tmp_path, log_every=100) as run:
        for step in run.steps():
            run.log("train", {"x": float(step)})
    assert [row["env_steps"] for row in read_csv(tmp_path / "metrics.csv")] == ["6"]


@pytest.mark.parametrize("setting", [{"held_out": 0.5}, {"data": {"path": "other.npz"}}])
def test_what_was_learned_from_cannot_change_on_resume(tmp_path, setting):
    config = {**SETTINGS, "run_dir": str(tmp_path), "held_out": 0.2, "data": {"path": "log.npz"}}
    for changes in ({}, {"resume": "auto", "env_steps": 9, **setting}):
        run = Run.of({**config, **changes})
        run.keep(env=toy_env(), policy=toy_actor())
        refused = (
            pytest.raises(ValueError, match="cannot take effect on resume") if changes else contextlib.nullcontext()
        )
        (tmp_path / "status.json").unlink(missing_ok=True)  # so that it is not finished
        with refused, run:
            list(run.steps())
