from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import sys
from pathlib import Path

import hydra
import pytest
import torch
from omegaconf import OmegaConf

from eqr_torchrl.lab.runs import save_checkpoint
from eqr_torchrl.lab.runs.cli import run_hydra
from eqr_torchrl.lab.runs.folder import check_types

CONFIGS = {
    "script.yaml": """
defaults:
  - _self_
  - env: pendulum
  - algorithm: eqr_sac
  - utility@loss.utility: mean
  - attitude: null
  - experiment: null
gamma: 0.99
cuda_graph: false
steps: 10
share: 0.5
rounds: 3
quiet: false
name: ${env.name}-${hydra:runtime.choices.algorithm}
out: null
resume: null
half: ${steps}
loss: {tau: 0.1}
part: {_target_: eqr_torchrl.imagination.EnsembleSuccessors, num_next_states: 1, sampling: iid}
stop: {_target_: eqr_torchrl.world_models.EarlyStoppingFit, max_epochs: null}
net: {_target_: eqr_torchrl.networks.make_critic, num_cells: [8], num_quantiles: 1}
optim: {lr: 0.001, weight_decay: 0.0, rate_actor: 1.0, rate_critic: 1.0}
""",
    "env/pendulum.yaml": "{name: Pendulum-v1, limit: 200}",
    "env/dmc/cheetah-run.yaml": "{name: dmc/cheetah-run, limit: 1000}",
    "env/dmc/walker-run.yaml": "{name: dmc/walker-run, limit: 1000}",
    "algorithm/eqr_sac.yaml": "# @package _global_\nsuccessors: {num_next_states: 4}",
    "algorithm/mbpo.yaml": "# @package _global_\nsuccessors: null",
    "algorithm/incomplete.yaml": "# @package _global_\nsuccessors: ???",
    "utility/mean.yaml": "kind: mean",
    "utility/optimistic.yaml": "{kind: optimistic, scale: 1.0}",
    "attitude/bold.yaml": "# @package _global_\nwish: {_target_: fractions.Fraction, numerator: 1}",
    "attitude/shy.yaml": "# @package _global_\nwish: {_target_: decimal.Decimal, value: '2'}",
    "experiment/seeds.yaml": "# @package _global_\nhydra: {sweeper: {params: {steps: '1,2'}}}",
}


@pytest.fixture
def configs(tmp_path, monkeypatch):
    folder = tmp_path / "configs"
    for name, text in CONFIGS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    yield folder
    assert not any(work.iterdir()), "neither Hydra nor a mistake may leave files behind"


@dataclasses.dataclass
class Settings:
    gamma: float = 0.99
    cuda_graph: bool = False
    steps: int = 10
    out: str | None = None

    def __post_init__(self):
        check_types(self.__annotations__, vars(self))
        if self.gamma > 1:
            raise ValueError(f"gamma must be at most 1, got {self.gamma}.")


def schema(settings):
    return Settings(**{f.name: settings[f.name] for f in dataclasses.fields(Settings) if f.name in settings})


run_hydra = functools.partial(run_hydra, schema=schema)


def never(cfg):
    raise AssertionError("a wrong command line must not start the script")


def test_the_script_gets_the_composed_configuration_and_returns(configs):
    args = [
        "env=dmc/cheetah-run",
        "optim.lr=1e-4",
        "+extra=1",
        "++steps=3",
        "~optim.weight_decay",
        "loss.utility.kind=median",
    ]
    cfg = run_hydra(lambda cfg: cfg, configs, "script", args)
    assert (cfg.env.limit, cfg.optim.lr, cfg.extra, cfg.steps) == (1000, 1e-4, 1, 3)
    assert "weight_decay" not in cfg.optim
    assert "hydra" not in cfg
    assert cfg.loss.utility.kind == "median"


def test_interpolations_of_hydra_work_in_the_script(configs):
    assert run_hydra(lambda cfg: cfg.name, configs, "script", ["algorithm=mbpo"]) == "Pendulum-v1-mbpo"


def test_the_command_line_of_the_process_is_the_default(configs, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["script.py", "steps=4"])
    assert run_hydra(lambda cfg: cfg.steps, configs, "script") == 4
    assert sys.argv == ["script.py", "steps=4"]


MISTAKES = {
    "stepz=3": r"unknown key stepz; did you mean steps\? Keys: algorithm, attitude, cuda_graph, env, .*utility",
    "lr=1": r"unknown key lr; did you mean optim.lr\? Keys: ",
    "experiment.steps=1": r"unknown key experiment\.steps; did you mean steps\? Keys: ",
    "algoritm=mbpo": r"unknown key algoritm; did you mean algorithm\?",
    "optim.lrr=1": r"unknown key optim.lrr; did you mean optim.lr\? Keys of optim: lr, rate_actor, .* \(\+optim.lrr=",
    "optim.rate=1": r"unknown key optim.rate; did you mean optim.rate_actor or optim.rate_critic\?",
    "optim.kind=1": r"unknown key optim.kind; did you mean loss.utility.kind\?",
    "algorithm=mbop": r"unknown algorithm=mbop; did you mean algorithm=mbpo\? Choices: eqr_sac, incomplete, mbpo\.",
    "env=my_module:Env": r"unknown env=my_module:Env. Choices: .* own: env=pendulum env.name=my_module:Env\.",
    "env=dmc/cheetah": r"unknown env=dmc/cheetah; did you mean env=dmc/cheetah-run\? Choices: pendulum, dmc/cheetah",
    "gamma=high": r"gamma must be a number, got 'high'\.",
    "cuda_graph=maybe": r"cuda_graph must be true or false, got 'maybe'\.",
    "cuda_graph=null": r"cuda_graph must be true or false, got None\.",
    "steps=2.5": r"steps must be an integer, got 2\.5\.",
    "steps=true": r"steps must be an integer, got True\.",
    "gamma=1.5": r"gamma must be at most 1, got 1\.5\.",
    "share=two": r"share must be a number, got 'two'\.",
    "share=null": r"share must be a number, got None\.",
    "rounds=soon": r"rounds must be an integer, got 'soon'\.",
    "rounds=2.5": r"rounds must be an integer, got 2\.5\.",
    "quiet=1": r"quiet must be true or false, got 1\.",
    "part.num_next_states=2.5": r"part.num_next_states must be an integer, got 2\.5\.",
    "stop.max_epochs=all": r"stop.max_epochs must be an integer or null, got 'all'\.",
    "part._target_=no.where": r"part\._target_=no\.where cannot be imported: ",
    "utility=null": r"utility must be a choice, got null; ~utility removes it\. Choices: mean, optimistic\.",
    "out=ünï cödé": r"cannot read 'out=ünï cödé': quote the value: 'out=\"ünï cödé\"'",
    "out=a(b)": r"quote the value: 'out=\"a\(b\)\"'",
    "out=[a, b": r"a list is written \[1,2\]",
    "net.num_cells=64": r"net\.num_cells must be a list such as \[64,64\], got 64\.",
    "+part.number=2": r"part: EnsembleSuccessors takes no number; to remove, add ~part\.number",
    "utility.scale=2": r"unknown key utility\.scale\. Keys of loss\.utility: kind \(\+loss\.utility\.scale=",
    "utility.kin=2": r"unknown key utility\.kin; did you mean loss\.utility\.kind\?",
    "steps": r"cannot read 'steps': settings are written key=value\.",
    "steps=[1": r"cannot read 'steps=\[1': a list is written \[1,2\]",
    "steps=1,2": r"steps=1,2: several values need --multirun",
    "algorithm=incomplete": r"a value is needed for successors: add successors=\.\.\.",
    "name=${nowhere}": r"Interpolation key 'nowhere' not found",
    "+steps=3": r"\+steps adds a key, and it is there: write steps=\.\.\. to set it",
    "~nothing": r"unknown key nothing\. Keys: ",
    "hydra/launcher=rey": r"unknown hydra/launcher=rey.* Choices: basic",
    "--multirunn": r"unknown option --multirunn; settings are written key=value",
    "--config-dir": r"argument --config-dir/-cd: expected one argument",
    "out={a": r"a mapping \{a:1\}",
    "~part.nothing": r"unknown key part\.nothing",
    "out=a=b": r"cannot read 'out=a=b': quote the value: 'out=\"a=b\"'",
}


@pytest.mark.parametrize(("mistake", "message"), MISTAKES.items(), ids=list(MISTAKES))
def test_a_mistake_is_one_line_that_names_what_is_valid(configs, capsys, mistake, message):
    with pytest.raises(SystemExit) as stopped:
        run_hydra(never, configs, "script", [mistake])
    out, err = capsys.readouterr()
    assert stopped.value.code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("error: ")
    assert re.search(message, err), err
    # neither class paths nor the words of Hydra's parser
    assert not re.search(r"eqr_torchrl\.|omegaconf|Exception|token|grammar|Lexer|full_key", err), err


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        ("algorithm=eqr_sac,mbop", "unknown algorithm=mbop"),
        ("steps=1,two", "steps must be an integer, got 'two'"),
        ("stepz=1,2", "unknown key stepz"),
        ("algorithm=mbpo,eqr_sac successors.num_next_states=8", "unknown key successors.num_next_states"),
        ("algorithm=eqr_sac,incomplete", "a value is needed for successors"),
        ("steps=interval(2,2.5)", "steps must be an integer, got 2.5"),
        ("gamma=interval(0.5,0.9)", "gamma=interval(0.5,0.9): an interval is searched: add hydra/sweeper=optuna"),
    ],
)
def test_every_choice_of_a_sweep_is_checked_before_the_first_job(configs, capsys, sweep, message):
    with pytest.raises(SystemExit) as stopped:
        run_hydra(never, configs, "script", ["--multirun", *sweep.split()])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def seen_by(configs, *args):
    seen = []
    run_hydra(lambda cfg: seen.append((cfg.name, cfg.steps)), configs, "script", ["-m", *args])
    return seen


def test_multirun_runs_every_combination_leaves_no_folders_and_can_be_called_again(configs):
    assert seen_by(configs, "env=dmc/walker-run,pendulum", "steps=range(1,3)") == [
        ("dmc/walker-run-eqr_sac", 1),
        ("dmc/walker-run-eqr_sac", 2),
        ("Pendulum-v1-eqr_sac", 1),
        ("Pendulum-v1-eqr_sac", 2),
    ]
    with pytest.raises(SystemExit):
        run_hydra(never, configs, "script", ["stepz=2"])
    for _ in range(2):
        assert run_hydra(lambda cfg: cfg.steps, configs, "script", ["steps=3"]) == 3


def test_an_experiment_file_may_bring_its_own_sweep(configs):
    assert [steps for _, steps in seen_by(configs, "experiment=seeds")] == [1, 2]
    assert [steps for _, steps in seen_by(configs, "experiment=seeds", "steps=7")] == [7]


def test_hydra_settings_may_be_given(configs, tmp_path):
    sweep_dir = tmp_path / "kept"
    assert seen_by(configs, f"hydra.sweep.dir={sweep_dir}", "hydra/job_logging=none", "steps=1")
    assert (sweep_dir / "multirun.yaml").exists()


def test_a_failing_job_does_not_stop_the_others(configs, capsys):
    done = []

    def main(cfg):
        if cfg.steps == 2:
            raise ValueError("two is\nnot enough")
        done.append(cfg.steps)

    with pytest.raises(SystemExit) as stopped:
        run_hydra(main, configs, "script", ["-m", "steps=2,3"])
    err = capsys.readouterr().err
    assert stopped.value.code == 1
    assert done == [3]
    assert "error in job steps=2: two is not enough" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("kind", [ValueError, RuntimeError, ImportError, FileNotFoundError])
def test_an_error_of_the_script_is_one_line(configs, capsys, kind):
    def main(cfg):
        raise kind("num_members must be positive:\n  got 0")

    with pytest.raises(SystemExit) as stopped:
        run_hydra(main, configs, "script", [])
    assert stopped.value.code == 1
    assert capsys.readouterr().err == "error: num_members must be positive: got 0\n"


@pytest.mark.parametrize(
    ("words", "text", "told"),
    [
        ("out=/tmp gamma=0.5", "source must be a run folder: got /tmp.", "out=/tmp: source must be a run folder"),
        ("gamma=0.5 steps=3", "share must be below 1, got 0.5.", "gamma=0.5: share must be below 1"),
        ("out=here", "[Errno 2] No such file: 'here/x'", "out=here: [Errno 2]"),
        ("gamma=0.5 steps=3", "gamma must be below 0.1, got 0.5.", "gamma must be below"),  # it is named already
        ("steps=1", "share must be below 1, got 1.5.", "share must"),  # another number
        ("gamma=1 steps=1", "share must be below 1, got 1.", "share must"),  # one of the two
    ],
)
def test_an_error_names_the_setting_whose_value_it_quotes(configs, capsys, words, text, told):
    def main(cfg):
        raise ValueError(text)

    with pytest.raises(SystemExit):
        run_hydra(main, configs, "script", words.split())
    assert capsys.readouterr().err.startswith(f"error: {told}")


def test_an_error_inside_instantiate_is_the_one_that_is_told(configs, capsys):
    def main(cfg):
        hydra.utils.instantiate({"_target_": "builtins.int", "_args_": ["five"]})

    with pytest.raises(SystemExit):
        run_hydra(main, configs, "script", [])
    assert capsys.readouterr().err.startswith("error: invalid literal for int() with base 10: 'five'")


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("argparse.Action", "part: Action needs option_strings and dest: add +part.option_strings=... +part.dest=..."),
        ("datetime.date", "part cannot be built: TypeError: function missing required argument 'year' (pos 1)"),
    ],
)
def test_a_part_that_lacks_an_argument_is_told_in_the_words_of_the_command_line(configs, capsys, part, message):
    def main(cfg):
        OmegaConf.set_struct(cfg, False)
        cfg.part = {"_target_": part}
        hydra.utils.instantiate(cfg.part)

    with pytest.raises(SystemExit) as stopped:
        run_hydra(main, configs, "script", [])
    assert stopped.value.code == 1
    assert capsys.readouterr().err == f"error: {message}\n"


def test_a_resumed_run_keeps_its_settings_but_for_those_that_are_typed(configs, tmp_path, capsys):
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    started = run_hydra(
        lambda cfg: cfg,
        configs,
        "script",
        ["algorithm=mbpo", "utility@loss.utility=optimistic", "steps=7", "gamma=0.5", "part=null"],
    )
    OmegaConf.save(started, run / "config.yaml", resolve=True)
    save_checkpoint(run / "checkpoints" / "step_000000007.pt", {})
    words = [f"resume={run}", "gamma=0.99"]  # that of the script, and typed: the run's was another
    cfg = run_hydra(lambda cfg: cfg, configs, "script", words)
    assert (cfg.steps, cfg.gamma, cfg.successors, cfg.loss.utility.kind) == (7, 0.99, None, "optimistic")
    assert (cfg.part, cfg.resume, cfg.name) == (None, str(run), "Pendulum-v1-mbpo")
    cfg = run_hydra(lambda cfg: cfg, configs, "script", [*words, "utility@loss.utility=mean", "env=dmc/cheetah-run"])
    assert (cfg.loss.utility.kind, cfg.env.limit, cfg.steps) == ("mean", 1000, 7)
    assert run_hydra(lambda cfg: cfg.half, configs, "script", [*words, "steps=5"]) == 5  # it follows from another
    with pytest.raises(SystemExit):
        run_hydra(never, configs, "script", [*words, "env=dmc/cheetah-run", "stepz=5"])
    assert capsys.readouterr().err.startswith("error: unknown key stepz; did you mean steps?")


def test_a_part_that_is_chosen_anew_on_resuming_has_no_arguments_of_the_one_before(configs, tmp_path):
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    OmegaConf.save(run_hydra(lambda cfg: cfg, configs, "script", ["attitude=bold"]), run / "config.yaml", resolve=True)
    save_checkpoint(run / "checkpoints" / "step_000000007.pt", {})
    wish = run_hydra(lambda cfg: cfg.wish, configs, "script", [f"resume={run}", "attitude=shy"])
    assert wish == {"_target_": "decimal.Decimal", "value": "2"}  # and no numerator


def test_a_run_of_an_older_version_is_refused_before_its_settings_are(configs, tmp_path, capsys):
    (tmp_path / "config.yaml").write_text("net: {_target_: eqr_torchrl.networks.make_critic, precision: auto}")
    torch.save({"format": 2, "state": {}}, tmp_path / "step_000000007.pt")
    with pytest.raises(SystemExit):
        run_hydra(never, configs, "script", [f"resume={tmp_path}"])
    assert "step_000000007.pt has format 2, of an older version of eqr_torchrl" in capsys.readouterr().err


def test_bugs_keep_their_traceback_and_so_does_everything_on_request(configs, monkeypatch):
    def main(cfg):
        raise KeyError("bug") if cfg.steps == 10 else ValueError("user")

    with pytest.raises(KeyError):
        run_hydra(main, configs, "script", [])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(ValueError, match="user"):
        run_hydra(main, configs, "script", ["steps=1"])
    with pytest.raises(ValueError, match="unknown key"):
        run_hydra(main, configs, "script", ["stepz=1"])


@pytest.mark.parametrize("words", [["steps=1"], ["--multirun", "steps=1,2"]])
def test_ctrl_c_is_status_130_one_line_and_no_further_job(configs, capsys, words):
    started = []

    def main(cfg):
        started.append(cfg.steps)
        raise KeyboardInterrupt("interrupted at env step 7; resume with resume=here")

    with pytest.raises(SystemExit) as stopped:
        run_hydra(main, configs, "script", words)
    assert stopped.value.code == 130 and started == [1]
    assert capsys.readouterr().err == "interrupted at env step 7; resume with resume=here\n"


@pytest.mark.parametrize(("option", "shown"), [("--hydra-help", "Hydra"), ("--cfg=job", "gamma: 0.99")])
def test_what_only_shows_something_is_left_to_hydra(configs, capsys, option, shown):
    with contextlib.suppress(SystemExit):  # Hydra's help stops, its --cfg returns
        run_hydra(never, configs, "script", [option])
    assert shown in capsys.readouterr().out


def test_help_shows_what_is_still_missing(configs, capsys):
    run_hydra(never, configs, "script", ["algorithm=incomplete", "--help"])
    assert "successors: ???" in capsys.readouterr().out


def test_help_shows_the_groups_of_this_script_and_what_is_set(configs, capsys):
    for name in ("other.yaml", "experiment/other/theirs.yaml", "unused/part.yaml"):
        (configs / name).parent.mkdir(parents=True, exist_ok=True)
        (configs / name).write_text("# @package _global_\ndefaults: [_self_, experiment: null]\ngamma: 0.5")
    run_hydra(never, configs, "script", ["env=dmc/cheetah-run", "gamma=0.9", "--help"])
    shown = capsys.readouterr().out.splitlines()
    assert "env=dmc/cheetah-run  or pendulum, dmc/walker-run" in shown
    assert "experiment=null  or seeds" in shown  # other/theirs belongs to the script "other"
    assert "gamma: 0.9" in shown and not any("unused" in line for line in shown)
    run_hydra(never, configs, "other", ["--help"])
    assert "experiment=null  or other/theirs" in capsys.readouterr().out.splitlines()
    with pytest.raises(SystemExit):
        run_hydra(never, configs, "script", ["env=nowhere", "--help"])
    assert "unknown env=nowhere" in capsys.readouterr().err


def test_a_further_folder_of_configurations(configs, tmp_path, capsys):
    folder = tmp_path / "mine" / "env"
    folder.mkdir(parents=True)
    (folder / "own.yaml").write_text("{name: Own-v0, limit: 5}")
    args = [f"--config-dir={folder.parent}", "env=own"]
    assert run_hydra(lambda cfg: cfg.name, configs, "script", args) == "Own-v0-eqr_sac"
    run_hydra(never, configs, "script", [*args, "--help"])
    assert "env=own  or pendulum, dmc/cheetah-run, dmc/walker-run" in capsys.readouterr().out.splitlines()
    with pytest.raises(SystemExit):
        run_hydra(never, configs, "script", [args[0], "env=owm"])
    assert "did you mean env=own? Choices: own, pendulum" in capsys.readouterr().err
    second = tmp_path / "theirs" / "algorithm"
    second.mkdir(parents=True)
    (second / "new.yaml").write_text("{}")
    both = [*args, "--config-dir", str(second.parent), "algorithm=new"]
    assert run_hydra(lambda cfg: cfg.name, configs, "script", both) == "Own-v0-new"


@pytest.mark.parametrize("name", ["Dropbox (Me)", "a=b", "o'neil", "one, two", 'say "a"'])
def test_a_folder_may_have_any_name(configs, tmp_path, name):
    folder = tmp_path / name / "env"
    folder.mkdir(parents=True)
    (folder / "own.yaml").write_text("{name: Own-v0, limit: 5}")
    found = run_hydra(lambda cfg: cfg.name, configs, "script", ["--config-dir", str(folder.parent), "env=own"])
    assert found == "Own-v0-eqr_sac"


def test_relative_folders_are_understood(configs, monkeypatch):
    monkeypatch.chdir(configs.parent)
    assert run_hydra(lambda cfg: cfg.steps, Path("configs"), "script", []) == 10
    monkeypatch.chdir(configs.parent / "work")
