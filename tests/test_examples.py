"""The scripts as users start them: every algorithm runs, resumes to the letter, and tells mistakes in one line."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import typing
import warnings
from pathlib import Path

import gymnasium
import hydra
import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.envs.utils import ExplorationType, set_exploration_type

from eqr_torchrl.lab.runs import LoopSettings, load_agent, load_checkpoint, read_csv, read_status
from eqr_torchrl.lab.runs.cli import run_hydra
from eqr_torchrl.testing import ToyEnv
from eqr_torchrl.world_models import WorldModel

ROOT = Path(__file__).parent.parent
ALGORITHMS = sorted(path.stem for path in (ROOT / "configs" / "algorithm").glob("*.yaml"))
SCALAR = ("mbpo", "qu_sac")
# 6 steps of warm-up and episodes of 5 steps end after step 4: saved there, between two rows of metrics, and at the end
TINY = [
    "budget=smoke", "progress=false", "env_steps=6", "warmup_steps=6", "retrain_every=2", "eval_every=3",
    "log_every=3", "checkpoint_every=4", "keep_checkpoints=2", "batch_size=10", "env.max_episode_steps=5",
    "world_model.num_cells=[16]", "gamma=0.9",
]  # fmt: skip
MODEL_FREE = [word for word in TINY if not word.startswith(("world_model", "retrain"))]
OWN_ENV = [word for word in TINY if not word.startswith("env.")]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of TorchRL's collector, by TorchRL


@pytest.fixture(scope="module")
def scripts():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import eqr_sac
        import sac
    return {"eqr_sac": eqr_sac, "sac": sac}


def composed(script: str, words: list[str]):
    with hydra.initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        return hydra.compose(script, words)


class Trained(typing.NamedTuple):
    """What a tiny run of an algorithm left; tests do not change it."""

    folder: Path
    last_return: float
    printed: str
    parts: dict


@pytest.fixture(scope="module")
def trained(scripts, tmp_path_factory):
    """The tiny run of an algorithm, trained once for all tests."""

    @functools.cache
    def train(algorithm: str) -> Trained:
        folder, module, kept = tmp_path_factory.mktemp("trained") / algorithm, scripts["eqr_sac"], {}
        keep = module.Run.keep
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as printed:
            patch.setattr(module.Run, "keep", lambda self, **parts: (kept.update(parts), keep(self, **parts)))
            last_return = module.main(composed("eqr_sac", [*TINY, f"run_dir={folder}", f"algorithm={algorithm}"]))
        return Trained(folder, last_return, printed.getvalue(), kept)

    return train


@pytest.fixture
def start(scripts, tmp_path, monkeypatch):
    """Runs a script's ``main`` in a folder of a name: composed directly, which is quicker, or from a command line."""

    def run(run_dir: str | Path, *overrides: str, script: str = "eqr_sac", tiny=TINY, command=False):
        folder, main = tmp_path / run_dir, scripts[script].main
        for name in ("plot_learning_curve", "plot_start_values"):
            monkeypatch.setattr(scripts[script], name, lambda *args, **kwargs: None, raising=False)
        words = [*tiny, f"run_dir={folder}", *overrides]
        if command:
            return folder, run_hydra(main, ROOT / "configs", script, words, schema=LoopSettings.of)
        return folder, main(composed(script, words))

    return run


def rows(folder: Path, file: str = "metrics.csv") -> list[dict]:
    """Rows of a table without wall-clock times."""
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in read_csv(folder / file)]


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").glob("step_*"))


def tensors(folder: Path, part: str) -> list[torch.Tensor]:
    """Those of a part in the last checkpoint."""
    state = load_checkpoint(folder / "checkpoints" / checkpoints(folder)[-1])["parts"].get(part, {})
    return [value for value in state.values() if isinstance(value, torch.Tensor)]


def assert_same_run(one: Path, other: Path) -> None:
    for file in ("metrics.csv", "evaluations.csv"):
        assert rows(one, file) == rows(other, file)
    for part in ("loss", "world_model"):
        assert all(torch.equal(a, b) for a, b in zip(tensors(one, part), tensors(other, part), strict=True))


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_runs_and_leaves_its_files(trained, algorithm):
    folder, last_return, printed, _ = trained(algorithm)
    assert "D (100,000 transitions) will use up to" in printed and "D_model (" in printed
    evaluations = read_csv(folder / "evaluations.csv")
    assert [float(row["env_steps"]) for row in evaluations] == [3, 6]
    assert {row["algorithm"] for row in evaluations} == {algorithm}
    assert float(evaluations[-1]["episode_return"]) == pytest.approx(last_return)
    assert all(float(row["episode_length"]) == 5 and float(row["warmup_steps"]) == 6 for row in evaluations)
    metrics = read_csv(folder / "metrics.csv")
    assert [float(row["env_steps"]) for row in metrics] == [3, 6]
    columns = {"train/loss_qvalue", "train/loss_actor", "train/alpha", "train/entropy", "time/collect"}
    assert columns <= set(metrics[0]) and {"time/model", "time/rollout", "time/train"} <= set(metrics[0])
    assert any(name.startswith("model/") for name in metrics[0])
    if algorithm not in (*SCALAR, "member_values"):
        assert {"train/epistemic_std", "train/target_value"} <= set(metrics[0])
    assert json.loads((folder / "status.json").read_text())["state"] == "finished"
    assert (folder / "config.yaml").is_file() and (folder / "figures" / "learning_curve.png").is_file()
    assert (folder / "figures" / "value_distribution.png").is_file() == (algorithm not in SCALAR)
    files = sorted(path.name for path in (folder / "checkpoints").glob("*"))
    assert files == ["policy.pt", "policy_best.pt", "step_000000004.pt", "step_000000006.pt"]
    assert (folder / "checkpoints" / "policy.pt").stat().st_size < 100_000


def test_choices_that_users_are_told_of_are_what_the_loss_has(start):
    folder, _ = start("run", "utility=cvar", "successors=paper", "env_steps=2", "log_every=1", command=True)
    loss = load_agent(folder).loss
    assert type(loss.utility).__name__ == "CVaRUtility" and loss.utility.tail_mass == 0.25
    assert (loss.num_next_actions, loss.action_sampling) == (5, "iid")
    assert all(np.isfinite(float(row["train/loss_qvalue"])) for row in rows(folder))


@pytest.mark.parametrize("algorithm", ["eqr_sac", "mbpo", "qu_sac"])
def test_a_resumed_run_equals_the_one_that_was_never_stopped(start, trained, algorithm):
    whole = trained(algorithm)
    torch.manual_seed(99)  # whatever happened in between
    middle = whole.folder / "checkpoints" / "step_000000004.pt"
    folder, resumed_return = start("again", f"algorithm={algorithm}", f"resume={middle}")
    assert read_status(folder)["state"] == "finished" and resumed_return == whole.last_return
    assert_same_run(whole.folder, folder)
    _, nothing = start("again", f"algorithm={algorithm}", "resume=auto")  # a sweep that is started again
    assert nothing is None


def test_steps_of_several_environments_are_counted_one_by_one_and_make_their_updates(start, scripts, monkeypatch):
    # two environments step together; limits of 5 end both after 10 steps: the 2nd of training, and again the 12th
    two = ["env.num_envs=2", "+env.parallel=false", "warmup_steps=8", "env_steps=13", "log_every=1", "eval_every=13"]
    made, make, updates, make_update = [], scripts["eqr_sac"].make_replay_buffer, [], scripts["eqr_sac"].make_update

    def counting(*args, sample, **kwargs):
        def draw():
            batch = sample()
            updates.append(len(batch))
            return batch

        return make_update(*args, sample=draw, **kwargs)

    monkeypatch.setattr(scripts["eqr_sac"], "make_update", counting)
    monkeypatch.setattr(scripts["eqr_sac"], "make_replay_buffer", lambda *a, **k: made.append(make(*a, **k)) or made[0])
    folder, _ = start("two", *two, "checkpoint_every=0", "utd_ratio=3", "batch_size=7")
    assert len(made[0]) == 8 + 13  # warm-up and training
    assert updates == [7] * 3 * 13
    metrics = {int(float(row["env_steps"])): row for row in read_csv(folder / "metrics.csv")}
    assert sorted(metrics) == list(range(1, 14))
    ended = {step: row["collect/episode_length"] for step, row in metrics.items() if row["collect/episode_length"]}
    assert ended == {1: "5.0", 2: "5.0", 11: "5.0", 12: "5.0"}
    assert {row["episode_length"] for row in read_csv(folder / "evaluations.csv")} == {"5"}


def test_a_policy_alone_may_be_normalised(start):
    folder, _ = start("policy", "actor.normalize=true", "critic.normalize=false")
    normalizer = load_agent(folder).actor[0].module.network[0]
    assert normalizer.mean.abs().min() > 0 and (normalizer.std != 1).all()  # 0 and 1 before the first fit


def test_networks_of_a_model_free_run_may_be_normalised(start):
    quantiles = ["loss=epistemic_quantile", "critic=quantile", "critic.num_quantiles=3"]
    folder, _ = start(
        "free", *quantiles, "actor.normalize=true", "critic.normalize=true", script="sac", tiny=MODEL_FREE
    )
    agent = load_agent(folder)
    for normalizer in (agent.actor[0].module.network[0], agent.critics[0].module.normalizer):
        assert normalizer.mean.abs().min() > 0 and (normalizer.std != 1).all()  # 0 and 1 if nothing sets them
    assert agent.loss.value_unit > 1  # rewards of the pendulum down to -16


def test_a_run_in_two_environments_resumes_to_the_letter(start):
    # after 8 steps of warm-up and episodes of 5, the first environment ends with step 1, whose other half is dropped
    two = ["env.num_envs=2", "+env.parallel=false", "warmup_steps=8", "checkpoint_every=1", "keep_checkpoints=9"]
    whole, whole_return = start("whole", *two, script="sac", tiny=MODEL_FREE, command=True)
    assert checkpoints(whole) == [f"step_{step:09d}.pt" for step in (1, 3, 5, 6)]
    middle = whole / "checkpoints" / "step_000000001.pt"
    folder, resumed_return = start("again", f"resume={middle}", script="sac", tiny=[], command=True)
    assert resumed_return == whole_return
    assert_same_run(whole, folder)


def test_a_resume_that_is_refused_changes_nothing(start, trained, capsys):
    folder = trained("eqr_sac").folder
    before = contents(folder)
    with pytest.raises(ValueError, match="saved with seed=0, this run has seed=1"):
        start(folder, "seed=1", f"resume={folder}")
    with pytest.raises(ValueError, match="already holds a run"):
        start(folder)
    assert contents(folder) == before and "resuming" not in capsys.readouterr().out


def test_the_same_seed_gives_the_same_run_whether_evaluated_or_not(start, trained):
    often, _ = start("often", "eval_every=1")
    seldom = trained("eqr_sac").folder
    other, _ = start("other", "seed=1", "env_steps=3")
    assert rows(often) == rows(seldom) and rows(other)[0] != rows(seldom)[0]
    for part in ("loss", "world_model"):
        assert all(torch.equal(a, b) for a, b in zip(tensors(often, part), tensors(seldom, part), strict=True))


class BreaksDown(ToyEnv):
    """A simulator that fails in its 12th step."""

    total = 0
    closed: typing.ClassVar = []

    def close(self, **kwargs):
        self.closed.append(self)
        super().close(**kwargs)

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


def test_a_simulator_that_fails_leaves_a_message_and_the_last_good_checkpoint(start, tmp_path, capsys):
    broken = ["env._target_=test_examples.breaks_down", "env.name=fragile", "checkpoint_every=1"]
    broken += ["termination_fn=eqr_torchrl.imagination.never_terminates", "eval_every=100"]
    with pytest.raises(SystemExit) as stopped:
        start("run", *broken, "warmup_steps=8", tiny=OWN_ENV, command=True)
    assert stopped.value.code == 1
    message = capsys.readouterr().err.strip()
    assert message.startswith("error: fragile failed at env step 4: ValueError: bad contact") and "\n" not in message
    assert read_status(tmp_path / "run")["state"] == "failed"
    import test_examples  # as the configuration imports it

    assert len({id(env) for env in test_examples.BreaksDown.closed}) == 2  # those of training and of evaluation
    # the episode does not end: cut after twice checkpoint_every, so at step 2
    assert checkpoints(tmp_path / "run") == ["step_000000002.pt"]


@pytest.mark.parametrize("algorithm", ["eqr_sac", "sac"])
def test_a_diverged_run_stops_at_that_update_and_keeps_its_checkpoint(
    start, scripts, tmp_path, monkeypatch, capsys, algorithm
):
    # one weight of a critic is NaN before the third update of step 5; checkpoints end episodes: step 2
    script = scripts[algorithm]
    make, updates, steps = script.make_update, [], []

    def poisoned(losses_of, optimizer, *args, **kwargs):
        update = make(losses_of, optimizer, *args, **kwargs)

        def one():
            updates.append(1)
            if len(updates) == 23:
                optimizer.param_groups[1]["params"][0].data.view(-1)[0] = float("nan")
            return update()

        return one

    step = ToyEnv._step
    monkeypatch.setattr(script, "make_update", poisoned)
    monkeypatch.setattr(ToyEnv, "_step", lambda self, td: (steps.append(1), step(self, td))[1])
    toy = ["env._target_=test_examples.toy", "env.name=toy", "eval_every=100", "checkpoint_every=2", "utd_ratio=5"]
    toy += ["warmup_steps=8", "keep_checkpoints=1"]
    if algorithm == "eqr_sac":
        toy += ["termination_fn=eqr_torchrl.imagination.never_terminates"]
    tiny = [word for word in OWN_ENV if algorithm == "eqr_sac" or word in MODEL_FREE]
    with pytest.raises(SystemExit) as stopped:
        start("run", *toy, script=algorithm, tiny=tiny, command=True)
    assert stopped.value.code == 1
    message = capsys.readouterr().err
    assert re.search(r"train/.*loss_qvalue.* not finite at env step 5: .* checkpoint: .*step_000000002.pt", message)
    assert len(updates) == 23 and len(steps) == 8 + 5  # neither a further update nor a further step
    folder = tmp_path / "run"
    assert checkpoints(folder) == ["step_000000002.pt"]
    assert all(tensor.isfinite().all() for tensor in tensors(folder, "loss"))


def toy(name, seed, **kwargs):
    env = ToyEnv(max_steps=5)
    env.env_name = name
    return env.append_transform(_nothing())


class NeedsFile(gymnasium.Env):
    """A simulator whose constructor has an argument of its own."""

    def __init__(self, file, render_mode=None):
        self.file = file


# --- mistakes


@pytest.mark.parametrize(
    ("overrides", "status", "words"),
    [
        (["algorithm=eqrsac"], 2, "unknown algorithm=eqrsac; did you mean algorithm=eqr_sac? Choices: eqr_sac, mbpo"),
        (["batch_size=1.5"], 2, "batch_size must be an integer, got 1.5"),
        (["tau=2"], 2, "tau must be in (0, 1], got 2"),
        (["critic.num_cells=64"], 2, "critic.num_cells must be a list such as [64,64], got 64"),
        (["env.name=test_examples:NeedsFile"], 1, "NeedsFile: missing a required argument: 'file'"),
        (["keep_checkpoints=0"], 2, "keep_checkpoints must be at least 1, got 0"),
        (["checkpoint_every=-3"], 2, "checkpoint_every must be at least 0, got -3"),
        (["logger.backends=[wandbb]"], 1, "got 'wandbb'"),
        (["optim.lr_actor=nan"], 1, "lr_actor must be a finite number above 0, got nan"),
        (["rollout.horizon=2.5"], 2, "rollout.horizon must be an integer, got 2.5"),
        (["rollout.horizon=0"], 1, "horizon must be a positive integer, got 0"),
        (["replay_capacity=1000000000000"], 1, "D and D_model must fit into"),
        (["cuda_graph=true"], 2, "cuda_graph=true needs device=cuda"),
        (["precision=fp16"], 2, 'precision must be "auto", "fp32" or "bf16", got \'fp16\''),
        (
            ["env.target=20"],
            2,
            "unknown key env.target. Keys of env: action_cost, max_episode_steps, name, num_envs, reward_scale",
        ),
        (["env.name=Pendulum-v9"], 1, "Pendulum-v9"),
        (["env.name=CartPole-v1"], 1, "CartPole-v1"),
        (["env.name=dmc/cheetah-rum"], 1, "dmc/cheetah-run"),
        (["utility=quantile", "loss.utility.level=50"], 1, "level must be a probability in (0, 1), got 50"),
        (["loss.kappa=-1"], 1, "kappa must be finite and not negative, got -1"),
        (["gamma=1.5"], 2, "gamma must be in [0, 1], got 1.5"),
        (
            ["algorithm=mbpo", "utility=optimistic"],
            2,
            "SACLoss takes no utility; to remove, add ~loss.utility",
        ),
        (["rollout.starts_per_step=1000000000000"], 1, "D_model must fit into"),
        (["resume=nowhere.pt"], 1, "resume must be auto, a checkpoint, or a run folder that holds one"),
        (["device=cuda:99"], 2, "needs that CUDA device"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_no_folder(start, tmp_path, capsys, overrides, status, words):
    with pytest.raises(SystemExit) as stopped:
        start("run", *overrides, command=True)
    assert stopped.value.code == status
    message = capsys.readouterr().err.strip()
    assert message.startswith("error: ") and words in message and "\n" not in message
    assert not (tmp_path / "run").exists()


# --- the model-free script


def test_the_model_free_script_learns_distributions_of_returns(start):
    choice = ["critic=quantile", "loss=epistemic_quantile", "labels.algorithm=qr_sac"]
    folder, last_return = start("run", *choice, script="sac", tiny=MODEL_FREE)
    evaluations = read_csv(folder / "evaluations.csv")
    assert float(evaluations[-1]["episode_return"]) == pytest.approx(last_return)
    assert {row["algorithm"] for row in evaluations} == {"qr_sac"}


# --- Ctrl-C, devices, own parts, use


PRESS_CTRL_C = """
import signal, sys
import eqr_sac

make, updates = eqr_sac.make_update, []

def interrupted(losses_of, *args, **kwargs):
    def press(batch):
        updates.append(1)
        if len(updates) == 5:
            signal.raise_signal(signal.SIGINT)
        print("update", len(updates))
        return losses_of(batch)
    return make(press, *args, **kwargs)

words, sys.argv = sys.argv, [sys.argv[0], "budget=smok"]
try:
    eqr_sac.cli()
except SystemExit as stopped:
    print("status", stopped.code)
sys.argv, eqr_sac.make_update = words, interrupted
eqr_sac.cli()
"""


def test_the_command_ends_with_a_status_and_one_line_and_ctrl_c_in_an_update_starts_no_further_job(tmp_path):
    # in a process of its own: a launcher of Hydra that is installed may take over the standard streams
    words = [*TINY, f"run_dir={tmp_path}/${{seed}}", "--multirun", "seed=0,1"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "examples")])}
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a test in the background ignores it
    try:
        done = subprocess.run(
            [sys.executable, "-c", PRESS_CTRL_C, *words],
            env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
    finally:
        signal.signal(signal.SIGINT, handler)
    printed, told = done.stdout.splitlines(), done.stderr.strip().splitlines()
    assert printed[0] == "status 2" and told[0].startswith("error: unknown budget=smok; did you mean budget=smoke?")
    assert done.returncode == 130, done.stderr
    assert [line for line in printed if line.startswith("update")][-1] == "update 5"
    assert told[-1].startswith("interrupted at env step 5; resume with resume=")
    assert read_status(tmp_path / "0")["state"] == "interrupted" and not (tmp_path / "1").exists()


@pytest.mark.parametrize("script", ["eqr_sac", "sac"])
def test_a_policy_on_another_device_gets_its_observations_there(scripts, monkeypatch, script):
    # the device `meta` stands in for a GPU: a CPU tensor in layers on it is an error, as on CUDA
    caught, devices, collector = {}, [], scripts[script].Collector

    def catch(env, policy, **kwargs):
        caught.update(env=env, policy=policy, kwargs=kwargs)
        raise StopIteration

    monkeypatch.setattr(scripts[script], "Collector", catch)
    cfg = composed(script, ["budget=smoke", "run_dir=unused"])
    with pytest.raises(StopIteration):
        scripts[script].main(cfg)
    assert caught["kwargs"]["policy_device"] == cfg.device

    def look(module, arguments):
        devices.append(arguments[0]["observation"].device.type)
        raise StopIteration

    policy = caught["policy"].to("meta")
    policy.register_forward_pre_hook(look)
    monkeypatch.setattr(collector, "_get_sync_fn", lambda self, device: lambda: None)  # TorchRL's knows CUDA and CPU
    transitions = collector(caught["env"], policy, **(caught["kwargs"] | {"policy_device": "meta"}))
    with pytest.raises((StopIteration, RuntimeError)):
        next(iter(transitions))
    assert devices == ["meta"]
    assert str(transitions.env_device) == str(transitions.storing_device) == "cpu"


class OwnModel(WorldModel):
    """A user's world model: two members, which agree that nothing moves but not about rewards."""

    def __init__(self, env, shift: float = 1.0) -> None:
        super().__init__(env.observation_spec["observation"].shape[-1], num_members=2, predicts_reward=True)
        self.rewards = torch.nn.Parameter(torch.tensor([0.0, shift]).view(2, 1, 1))

    def forward(self, observation, action):
        loc = torch.cat([observation, self.rewards.expand(*observation.shape[:2], 1)], -1)
        return loc, torch.full_like(loc, 0.1)


class OwnFit:
    """A user's fit: any object that is called with the transitions."""

    def __init__(self, world_model, strength: float = 1.0) -> None:
        self.world_model, self.calls = world_model, 0

    def __call__(self, data):
        self.calls += 1
        return {"mean_reward": data["next", "reward"].mean().item()}

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state):
        self.calls = state["calls"]


def test_own_parts_from_a_folder_of_choices_train_through_the_same_script(start, tmp_path):
    for group, text in {
        "world_model": "_target_: test_examples.OwnModel\nshift: -1.0",
        "fit": "_target_: test_examples.OwnFit\nstrength: 2.0",
        "utility": "# @package loss.utility\n_target_: eqr_torchrl.utility.QuantileUtility\nlevel: 0.3",
    }.items():
        (tmp_path / "mine" / group).mkdir(parents=True)
        (tmp_path / "mine" / group / "own.yaml").write_text(text)
    tiny = [text for text in TINY if not text.startswith("world_model.")]
    words = [f"--config-dir={tmp_path / 'mine'}", "world_model=own", "fit=own", "utility=own"]
    folder, _ = start("run", *words, tiny=tiny, command=True)
    assert "model/mean_reward" in rows(folder, "metrics.csv")[0]
    checkpoint = folder / "checkpoints" / "step_000000006.pt"
    assert load_checkpoint(checkpoint)["parts"]["fit"] == {"calls": 3}  # steps 1, 3 and 5
    agent = load_agent(folder)
    assert agent.loss.utility.level == 0.3 and agent.world_model.num_members == 2


@pytest.mark.parametrize("algorithm", ["eqr_sac", "qu_sac", "mbpo"])
def test_a_trained_agent_is_loaded_in_one_call(trained, algorithm):
    folder, _, _, kept = trained(algorithm)
    state = torch.randn(4, 3)
    mode = ExplorationType.DETERMINISTIC
    for source in (folder, folder / "checkpoints" / "step_000000006.pt", folder / "checkpoints" / "policy.pt"):
        agent = load_agent(source)
        with set_exploration_type(mode), torch.no_grad():
            found = agent.actor(TensorDict({"observation": state}, [4]))["action"]
            expected = kept["policy"](TensorDict({"observation": state}, [4]))["action"]
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        assert agent.env_steps == 6 and agent.make_env(seed=0).env_name == "Pendulum-v1"
    with pytest.raises(ValueError, match="holds a policy alone"):
        _ = agent.critic
    agent = load_agent(folder)
    for name, part in (("loss", agent.loss), ("world_model", agent.world_model)):
        expected = kept[name].state_dict()
        assert all(torch.equal(value, expected[key]) for key, value in part.state_dict().items())
    values = agent.critic(TensorDict({"observation": state, "action": torch.zeros(4, 1)}, [4]))["state_action_value"]
    assert values.shape == (4, {"eqr_sac": 51, "qu_sac": 5, "mbpo": 2}[algorithm])
    assert agent.make_model_env(agent.make_env()).batch_size[0] == 5


class Drawn(gymnasium.Env):
    """A point that an image can be made of."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))
    metadata: typing.ClassVar = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.full(2, 0.1, np.float32), 2.0, False, self.steps == 4, {}

    def render(self):
        return np.full((16, 16, 3), 60 * self.steps, np.uint8)


class Undrawn(Drawn):
    """A point without pictures."""

    def __init__(self):
        super().__init__()


class Scattered(Drawn):
    """Pays where it started, in its first step; each step draws noise."""

    def reset(self, *, seed=None, options=None):
        start = super().reset(seed=seed)
        self.start = 1000 * self.np_random.random()
        return start

    def step(self, action):
        reward = self.start if self.steps == 0 else 0.0
        self.np_random.random()
        observation, _, *ends = super().step(action)
        return observation, reward, *ends


def enjoy(monkeypatch, *words: str | Path) -> None:
    monkeypatch.setattr(sys, "argv", ["enjoy.py", *map(str, words)])
    runpy.run_path(str(ROOT / "examples" / "enjoy.py"), run_name="__main__")


def test_enjoy_evaluates_and_films_and_names_what_it_needs(start, tmp_path, monkeypatch, capsys):
    imageio = pytest.importorskip("imageio.v3")
    own = ["env.name=test_examples:Drawn", "env_steps=1", "termination_fn=eqr_torchrl.imagination.never_terminates"]
    folder, _ = start("run", *own, tiny=OWN_ENV, command=True)
    capsys.readouterr()
    video = tmp_path / "episode.gif"
    enjoy(monkeypatch, folder, "--episodes", "2", "--video", video)
    printed = capsys.readouterr().out
    assert "episode 2: return 8 in 4 steps" in printed and "mean return 8," in printed
    assert len(imageio.imread(video, index=None)) >= 3
    with pytest.raises(SystemExit, match="enjoy.py: --video needs an environment whose constructor takes render_mode"):
        enjoy(monkeypatch, folder, "--env", "test_examples:Undrawn", "--video", video)
    policy = shutil.copy(folder / "checkpoints" / "policy.pt", tmp_path)
    with pytest.raises(SystemExit, match="must not choose code"):
        enjoy(monkeypatch, policy, "--episodes", "1")
    enjoy(monkeypatch, policy, "--episodes", "1", "--env", "test_examples:Drawn")
    assert "episode 1: return 8 in 4 steps" in capsys.readouterr().out
    starts = []
    for steps in ("1", "4"):  # of a policy that ends early, and of one that does not
        enjoy(monkeypatch, policy, "--episodes", "3", "--env", "test_examples:Scattered", "--max-steps", steps)
        starts.append(re.findall(r"return (\S+) in", capsys.readouterr().out))
    assert starts[0] == starts[1] and len(set(starts[0])) == 3
    with pytest.raises(SystemExit, match="enjoy.py: source must be a run folder"):
        enjoy(monkeypatch, tmp_path / "nowhere")


@pytest.mark.skipif(os.environ.get("MUJOCO_GL") != "egl", reason="renders with MUJOCO_GL=egl")
def test_enjoy_films_deepmind_control(start, tmp_path, monkeypatch):
    imageio = pytest.importorskip("imageio.v3")
    folder, _ = start("run", "env=dmc/pendulum-swingup", "env_steps=1", command=True)
    video = tmp_path / "episode.gif"
    enjoy(monkeypatch, folder, "--episodes", "1", "--video", video)
    assert imageio.imread(video, index=0).shape[:2] == (240, 320)
