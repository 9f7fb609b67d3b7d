"""The script that learns from a log, as a user starts it, on a log that takes seconds."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import shutil
import subprocess
import sys
from pathlib import Path

import hydra
import numpy as np
import pytest
import torch
from tensordict import TensorDict

from eqr_torchrl.imagination import never_terminates
from eqr_torchrl.lab.judging import Judge, Judgement, diagnose_offline, judged_loop
from eqr_torchrl.lab.runs import latest_checkpoint, load_agent, load_checkpoint, read_csv, save_checkpoint
from eqr_torchrl.testing import toy_env

ROOT = Path(__file__).parents[2]
TINY = [
    "bounds.action_low=-2",
    "bounds.action_high=2",
    "env_steps=6",
    "eval_every=3",
    "checkpoint_every=2",
    "keep_checkpoints=9",
    "log_every=1",
    "retrain_every=3",
    "batch_size=10",
    "clone_steps=3",
    "fit.num_steps=3",
    "world_model.num_cells=[16]",
    "rollout.starts_per_step=3",
    "progress=false",
]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of TorchRL


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A log of twelve episodes of ten steps."""
    data = toy_env(max_steps=10).rollout(120, break_when_any_done=False)
    arrays = {"observations": data["observation"], "actions": data["action"], "rewards": data["next", "reward"]}
    arrays |= {"next_observations": data["next", "observation"], "timeouts": data["next", "truncated"]}
    path = tmp_path_factory.mktemp("log") / "plant.npz"
    np.savez(path, **{name: value.numpy() for name, value in arrays.items()})
    return path


@pytest.fixture(scope="module")
def start(log):
    """Runs a script on the log, in a folder beside it."""

    def run(run_dir: str, *overrides: str, script: str = "offline", tiny=TINY):
        spec = importlib.util.spec_from_file_location(f"example_{script}", ROOT / "examples" / f"{script}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.plot_learning_curve = module.plot_start_values = lambda *args, **kwargs: None
        folder = log.parent / run_dir
        words = [*tiny, "data=npz", f"data.path={log}", f"run_dir={folder}", *overrides]
        with hydra.initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
            cfg = hydra.compose(script, words)
        return folder, module.main(cfg)

    return run


@pytest.fixture(scope="module")
def learned(start):
    """A finished run: its folder, its judged return, and what it printed."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        folder, value = start("run")
    return folder, value, printed.getvalue()


def test_a_log_becomes_a_policy_and_a_page_about_it(learned):
    folder, value, printed = learned
    assert "ok      order" in printed and "advice   " in printed
    judged = [row for row in read_csv(folder / "metrics.csv") if row["judged/low"]]
    assert float(judged[-1]["judged/low"]) <= float(judged[-1]["judged/value"]) <= float(judged[-1]["judged/high"])
    evaluations = read_csv(folder / "evaluations.csv")
    assert {row["env"] for row in evaluations} == {"plant"}
    values = [float(row["episode_return"]) for row in evaluations]
    assert values[-1] == pytest.approx(value, rel=1e-5)
    kept = [i for i, found in enumerate(values) if found > max([-float("inf"), *values[:i]])]
    lines = [line for line in printed.splitlines() if line.startswith("step ")]  # one for each judgement
    assert [line.split(":")[0] for line in lines] == ["step 3", "step 6"]
    assert [i for i, line in enumerate(lines) if line.endswith("), kept")] == kept
    best = load_agent(folder, which="best")  # the policy of the best judged return, without any simulator
    assert best.evaluation["mean_return"] == pytest.approx(max(values), rel=1e-5)
    agent = load_agent(folder)
    assert agent.world_model.num_members == 5
    assert agent.make_model_env(toy_env()).termination_fn is never_terminates  # nothing in the log terminated
    page = diagnose_offline(folder)  # of the policy that was kept, from the folder alone
    assert len(page) == 6 and printed.splitlines()[-6:] == page  # at the end of the run too
    assert page[4].startswith(f"this policy        (step {best.env_steps}, checkpoints/policy_best.pt) return ")
    with pytest.raises(ValueError, match="has no environment: name one"):
        best.make_env()
    assert load_agent(folder).make_env(name="Pendulum-v1").env_name == "Pendulum-v1"
    with pytest.raises(ValueError, match=r"a run folder of examples/offline.py"):
        diagnose_offline(folder.parent)


def test_a_run_that_would_never_judge_is_refused_before_it_fits():
    with pytest.raises(ValueError, match="eval_every must be at least 1, .* got null"):
        judged_loop({"eval_every": None})
    with pytest.raises(ValueError, match=r"stop_level must be in \[0, 1\], got 1.5"):
        judged_loop({"stop_level": 1.5})
    with pytest.raises(ValueError, match=r"penalty must be in \[0, inf\], got -1"):
        judged_loop({"penalty": -1})
    for limit in ("long", 0, 9.5):
        with pytest.raises(ValueError, match=f"max_episode_steps must be a positive integer, got '?{limit}"):
            judged_loop({"max_episode_steps": limit})
    with pytest.raises(ValueError, match=r"rollout.horizon_range must be null, .* got auto"):
        judged_loop({"rollout": {"horizon_range": "auto"}})
    with pytest.raises(ValueError, match=r"world_model.learn_termination must be false, .* got true"):
        judged_loop({"world_model": {"learn_termination": True}})


def test_a_run_that_learned_when_episodes_end_is_resumed_by_its_folder_alone(log, tmp_path):
    with np.load(log) as arrays:
        terminals = {**arrays, "terminals": arrays["timeouts"], "timeouts": np.zeros_like(arrays["timeouts"])}
    np.savez(tmp_path / "ends.npz", **terminals)
    script, folder = [sys.executable, ROOT / "examples" / "offline.py"], tmp_path / "run"
    first = [*TINY, "env_steps=3", "data=npz", f"data.path={tmp_path / 'ends.npz'}", f"run_dir={folder}"]
    for words in (first, [f"resume={folder}", "env_steps=4", "progress=false"]):
        done = subprocess.run([*script, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert load_agent(folder).settings["world_model"]["learn_termination"] and load_agent(folder).env_steps == 4


def test_a_mistake_about_the_task_is_named_before_the_fit(start):
    with pytest.raises(ValueError, match="max_episode_steps must be at least 10, .* got 9"):
        start("short", "max_episode_steps=9")
    with pytest.raises(ValueError, match="data must have the sizes of MountainCarContinuous-v0, observation 2: got 3"):
        start("wrong", "env=mountain_car")


def test_a_resumed_run_continues_to_the_letter(start, learned):
    whole = learned[0] / "checkpoints"
    assert [path.name for path in sorted(whole.glob("step_*"))] == [f"step_{step:09}.pt" for step in (2, 4, 6)]
    again, _ = start("again", f"resume={whole / 'step_000000004.pt'}")
    first, second = (load_checkpoint(path / "step_000000006.pt")["parts"] for path in (whole, again / "checkpoints"))
    for part in ("loss", "average"):  # the policy that is judged is the average
        assert all(torch.equal(value, second[part][name]) for name, value in first[part].items())


@pytest.mark.parametrize("pessimism", ["penalty", "none"])
def test_the_baselines_are_choices_of_the_same_parts(start, pessimism):
    folder, _ = start(pessimism, f"pessimism={pessimism}", "env_steps=3")
    assert read_csv(folder / "evaluations.csv")[0]["utility"] == "mean"


def test_online_learning_starts_with_the_log_and_with_an_offline_run(start, learned):
    module = "budget=smoke", "progress=false", "env_steps=4", "retrain_every=2", "eval_every=null", "batch_size=10"
    rest = "algorithm=member_values", "env.max_episode_steps=9", "world_model.num_cells=[16]"
    rest += ("actor.num_cells=[128,128]", f"start_from={learned[0]}", "world_model.prior_scale=0.1", "fit.num_steps=1")
    narrow, _ = start("narrow", "env_steps=3", "bounds.action_low=null", "bounds.action_high=null")
    with pytest.raises(ValueError, match="was trained with action_low=.*, and Pendulum-v1 has action_low"):
        start("other", *rest, "reward_bounds=null", f"start_from={narrow}", script="eqr_sac", tiny=module)
    with pytest.raises(
        ValueError, match=r"source must be a model-based run with 1 critic\(s\), got .*policy.pt with 0"
    ):
        load_agent(learned[0] / "checkpoints" / "policy.pt").copy_to(toy_env(), toy_env(), toy_env())
    folder, _ = start("online", *rest, "reward_bounds=null", script="eqr_sac", tiny=module)
    replay = load_checkpoint(folder / "checkpoints" / "step_000000004.pt")["parts"]["replay"]
    assert replay["num_rows"] == 120 + 1 + 4  # the log, one step in place of the warm-up, and four


@pytest.mark.parametrize("part", ["world_model", "judges"])
def test_a_checkpoint_from_before_an_entry_existed_is_one_line(learned, tmp_path, part):
    state = load_checkpoint(latest_checkpoint(learned[0]))
    del state["parts"][part]["terminal_reward"]
    shutil.copytree(learned[0], tmp_path, dirs_exist_ok=True)
    save_checkpoint(latest_checkpoint(tmp_path), state)
    words = (
        f"{part} does not fit the checkpoint: terminal_reward must be .*, saved is nothing: another version wrote it"
    )
    with pytest.raises(ValueError, match=words):
        load_agent(tmp_path) if part == "world_model" else diagnose_offline(tmp_path)


def test_the_page_at_the_end_is_about_the_policy_that_was_kept(start, monkeypatch):
    """The first of three judgements is the best one: the policy that is printed is that of step 2, not of step 6."""
    lows = iter([3.0, 1.0, 2.0])
    judge_of = Judge.__call__
    judged = []

    def judge(self, policy):
        judged.append(policy(TensorDict({"observation": torch.zeros(1, 3)}, [1]))["loc"].clone())
        low = next(lows, None)
        return judge_of(self, policy) if low is None else Judgement(low + 1, low, low + 2)

    monkeypatch.setattr(Judge, "__call__", judge)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        folder, low = start("best", "eval_every=2", "log_every=2", "values_first=0")
    assert low == 3.0 and load_agent(folder, which="best").env_steps == 2
    assert "this policy        (step 2, checkpoints/policy_best.pt) return " in printed.getvalue()
    assert "; the best of 3 judgements" in printed.getvalue()
    assert not torch.equal(judged[0], judged[2]) and torch.equal(judged[3], judged[0])  # the one of the page
