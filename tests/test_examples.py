"""The scripts as users start them: every algorithm runs, resumes to the letter, and tells mistakes in one line."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import warnings
from pathlib import Path

import hydra
import pytest
import torch

from eqr_torchrl.runs import load_checkpoint, read_csv, run_hydra
from eqr_torchrl.testing import ToyEnv

ROOT = Path(__file__).parent.parent
ALGORITHMS = sorted(path.stem for path in (ROOT / "configs" / "algorithm").glob("*.yaml"))
TINY = [
    "budget=smoke",
    "progress=false",
    "env_steps=6",
    "warmup_steps=8",
    "retrain_every=3",
    "eval_every=3",
    "log_every=2",
    "checkpoint_every=4",
    "batch_size=10",
    "env.max_episode_steps=5",
    "world_model.num_cells=[16]",
]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of TorchRL's collector, by TorchRL


@pytest.fixture(scope="module")
def scripts():
    loaded = {}
    for name in ("eqr_sac", "sac"):
        spec = importlib.util.spec_from_file_location(f"example_{name}", ROOT / "examples" / f"{name}.py")
        loaded[name] = importlib.util.module_from_spec(spec)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            spec.loader.exec_module(loaded[name])
    return loaded


@pytest.fixture
def start(scripts, tmp_path, monkeypatch):
    """Runs a script's ``main`` in a folder of a name: composed directly, which is quicker, or from a command line."""

    def run(run_dir: str, *overrides: str, script: str = "eqr_sac", tiny=TINY, figures=False, command=False):
        folder, main = tmp_path / run_dir, scripts[script].main
        if not figures:
            monkeypatch.setattr(scripts[script], "draw", lambda *args: None, raising=False)
        words = [*tiny, f"run_dir={folder}", *overrides]
        if command:
            return folder, run_hydra(main, ROOT / "configs", script, words)
        with hydra.initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
            cfg = hydra.compose(script, words)
        return folder, main(cfg)

    return run


def rows(folder: Path, file: str) -> list[dict]:
    """Rows of a table without wall-clock times."""
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in read_csv(folder / file)]


def tensors(folder: Path, part: str) -> list[torch.Tensor]:
    [checkpoint] = (folder / "checkpoints").glob("*.pt")
    state = load_checkpoint(checkpoint)["parts"][part]
    return [value for value in state.values() if isinstance(value, torch.Tensor)]


def assert_same_run(one: Path, other: Path) -> None:
    for file in ("metrics.csv", "evaluations.csv"):
        assert rows(one, file) == rows(other, file)
    for part in ("loss", "world_model"):
        assert all(torch.equal(a, b) for a, b in zip(tensors(one, part), tensors(other, part), strict=True))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_runs_and_leaves_its_files(start, algorithm, capsys):
    folder, last_return = start("run", f"algorithm={algorithm}", figures=True)
    printed = capsys.readouterr().out
    assert "D_model (" in printed and "MiB" in printed
    evaluations = read_csv(folder / "evaluations.csv")
    assert [float(row["env_steps"]) for row in evaluations] == [3, 6]
    assert {row["algorithm"] for row in evaluations} == {algorithm}
    assert float(evaluations[-1]["episode_return"]) == pytest.approx(last_return)
    assert all(float(row["episode_length"]) == 5 and float(row["warmup_steps"]) == 8 for row in evaluations)
    metrics = read_csv(folder / "metrics.csv")
    assert [float(row["env_steps"]) for row in metrics] == [2, 4, 6]
    columns = {"train/loss_qvalue", "train/loss_actor", "train/alpha", "train/entropy", "model/validation_mse_0"}
    assert columns <= set(metrics[0])
    if algorithm not in ("mbpo", "qu_sac"):
        assert {"train/epistemic_std", "train/target_value"} <= set(metrics[0])
    assert json.loads((folder / "status.json").read_text())["state"] == "finished"
    assert (folder / "config.yaml").is_file() and (folder / "figures" / "learning_curve.png").is_file()
    drawn = (folder / "figures" / "value_distribution.png").is_file()
    assert drawn == (algorithm not in ("mbpo", "qu_sac"))
    assert [path.name for path in (folder / "checkpoints").glob("*")] == ["step_000000006.pt"]


@pytest.mark.parametrize(
    "choice", ["utility=optimistic", "utility=cvar", "successors=paper", "model_buffer.dtype=float16"]
)
def test_choices_that_users_are_told_of_run_from_the_command_line(start, choice):
    folder, last_return = start("run", choice, "env_steps=2", command=True)
    assert last_return < 0 and len(rows(folder, "metrics.csv")) == 1


@pytest.mark.parametrize("algorithm", ["eqr_sac", "mbpo", "qu_sac"])
def test_an_interrupted_run_goes_on_as_if_nothing_had_happened(start, scripts, monkeypatch, algorithm):
    # saved at step 4, in the middle of an episode of 5 steps (8 + 4 = 12); stopped at step 7 of 8, with rows of 5 and 6
    more = [f"algorithm={algorithm}", "env_steps=8", "retrain_every=2", "log_every=1", "eval_every=2"]
    whole, whole_return = start("whole", *more)

    script, calls = scripts["eqr_sac"], []
    fit = script.fit_world_model

    def power_cut(*args, **kwargs):
        calls.append(1)
        if len(calls) == 4:  # steps 1, 3, 5, 7
            raise KeyboardInterrupt
        return fit(*args, **kwargs)

    monkeypatch.setattr(script, "fit_world_model", power_cut)
    with pytest.raises(KeyboardInterrupt):
        start("cut", *more)
    monkeypatch.undo()
    torch.manual_seed(99)  # whatever happened in between
    folder, resumed_return = start("cut", *more, "resume=auto")
    assert json.loads((folder / "status.json").read_text())["state"] == "finished"
    assert resumed_return == whole_return
    assert_same_run(whole, folder)
    _, nothing = start("cut", *more, "resume=auto")  # a sweep that is started again
    assert nothing is None


def test_a_resume_that_is_refused_changes_nothing(start, capsys):
    folder, _ = start("run")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    capsys.readouterr()
    with pytest.raises(ValueError, match=r"it has seed=0 \(this run: 1\)"):
        start("run", "seed=1", f"resume={folder}")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert "goes on" not in capsys.readouterr().out


def test_the_same_seed_gives_the_same_run_whether_evaluated_or_not(start):
    often, _ = start("often", "eval_every=1")
    seldom, _ = start("seldom")
    other, _ = start("other", "seed=1")
    assert rows(often, "metrics.csv") == rows(seldom, "metrics.csv") != rows(other, "metrics.csv")
    for part in ("loss", "world_model"):
        assert all(torch.equal(a, b) for a, b in zip(tensors(often, part), tensors(seldom, part), strict=True))


def test_the_last_update_before_a_fit_uses_as_many_updates_as_configured(start, scripts, monkeypatch):
    # 6 steps with 3 updates each, none in the warm-up: also after a resume
    updates = []
    make = scripts["eqr_sac"].make_update

    def counting(*args, sample, **kwargs):
        def draw():
            batch = sample()
            updates.append(len(batch))
            return batch

        return make(*args, sample=draw, **kwargs)

    monkeypatch.setattr(scripts["eqr_sac"], "make_update", counting)
    start("run", "utd_ratio=3", "batch_size=7")
    assert updates == [7] * 18


class BreaksDown(ToyEnv):
    """A simulator that fails in its 12th step."""

    total = 0

    def _step(self, tensordict):
        self.total += 1
        if self.total == 12:
            raise ValueError("bad contact")
        return super()._step(tensordict)


def breaks_down(name, seed, **kwargs):
    env = BreaksDown(max_steps=50)
    env.env_name = name
    return env.append_transform(_nothing())


def _nothing():
    from torchrl.envs import InitTracker

    return InitTracker()


def test_a_simulator_that_fails_leaves_a_message_and_a_checkpoint(start, capsys):
    tiny = [text for text in TINY if not text.startswith("env.")]
    broken = ["env._target_=test_examples.breaks_down", "env.name=fragile"]
    broken += ["termination_fn=eqr_torchrl.envs.never_terminates", "eval_every=100"]
    with pytest.raises(SystemExit) as stopped:
        start("run", *broken, tiny=tiny, command=True)
    assert stopped.value.code == 1
    message = capsys.readouterr().err.strip()
    assert message.startswith("error: fragile failed at env step 3: bad contact (saved ") and "\n" not in message
    path = Path(message.split("(saved ")[1].split(")")[0])
    assert load_checkpoint(path)["step"] == 3
    assert json.loads((path.parents[1] / "status.json").read_text())["state"] == "failed"


# --- mistakes


@pytest.mark.parametrize(
    ("overrides", "status", "words"),
    [
        (["gama=0.9"], 2, "unknown key gama; did you mean gamma?"),
        (["algorithm=eqrsac"], 2, "unknown algorithm=eqrsac; did you mean algorithm=eqr_sac? Choices: eqr_sac, mbpo"),
        (["env=dmc/cheetah-rum"], 2, "did you mean env=dmc/cheetah-run?"),
        (["utility=optimist"], 2, "Choices: cvar, entropic, mean, optimistic, quantile."),
        (["gamma=high"], 2, "gamma must be a number"),
        (["rollout.horizons=3"], 2, "unknown key rollout.horizons; did you mean rollout.horizon?"),
        (["env.name=Pendulum-v9"], 1, "Pendulum-v9"),
        (["env.name=CartPole-v1"], 1, "CartPole-v1"),
        (["env.name=dmc/cheetah-rum"], 1, "dmc/cheetah-run"),
        (["utility=quantile", "loss.utility.level=50"], 1, "level must be a probability in (0, 1), got 50"),
        (["loss.kappa=-1"], 1, "kappa must not be negative, got -1"),
        (["gamma=1.5"], 1, "gamma must be in [0, 1], got 1.5"),
        (["algorithm=mbpo", "utility=optimistic"], 1, "unexpected keyword argument 'utility'"),
        (["rollout.starts_per_step=1000000000000"], 1, "D_model"),
        (["resume=nowhere.pt"], 1, "resume must be auto, a checkpoint, or a run folder that holds one"),
        (["device=cuda:99"], 1, "CUDA"),
        (["+successors.number=2"], 1, "unexpected keyword argument 'number'"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_no_folder(start, tmp_path, capsys, overrides, status, words):
    with pytest.raises(SystemExit) as stopped:
        start("run", *overrides, command=True)
    assert stopped.value.code == status
    message = capsys.readouterr().err.strip()
    assert message.startswith("error: ") and words in message and "\n" not in message
    assert not (tmp_path / "run").exists()


def test_a_folder_that_holds_a_run_is_not_written_over(start):
    folder, _ = start("run", "env_steps=1")
    before = {path: path.read_bytes() for path in folder.glob("*.*")}
    with pytest.raises(ValueError, match="already holds a run"):
        start("run", "env_steps=1")
    assert before == {path: path.read_bytes() for path in folder.glob("*.*")}


def test_the_command_itself_ends_with_a_status_and_one_line(tmp_path):
    command = [sys.executable, str(ROOT / "examples" / "eqr_sac.py"), "budget=smok", f"run_dir={tmp_path / 'run'}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 2 and not list(tmp_path.iterdir())
    assert done.stderr.startswith("error: unknown budget=smok") and done.stderr.count("\n") == 1


# --- the model-free script


@pytest.mark.parametrize(
    "choice", [[], ["critic=quantile", "loss=epistemic_quantile", "labels.algorithm=qr_sac"]], ids=["sac", "qr_sac"]
)
def test_the_model_free_script_runs(start, choice):
    tiny = [text for text in TINY if not text.startswith(("world_model", "retrain"))]
    folder, last_return = start("run", *choice, script="sac", tiny=tiny)
    evaluations = read_csv(folder / "evaluations.csv")
    assert float(evaluations[-1]["episode_return"]) == pytest.approx(last_return)
    assert {row["algorithm"] for row in evaluations} == {"qr_sac" if choice else "sac"}
