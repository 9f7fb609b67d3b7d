"""Each guide says at its head what it takes, and its commands run, on a toy size, in the order of the page."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("hydra")

from eqr_torchrl.lab.runs import load_agent
from eqr_torchrl.lab.runs.agent import describe_actor, policy_content, save_policy, space_of
from eqr_torchrl.lab.runs.cli import run_hydra
from eqr_torchrl.networks import make_actor
from eqr_torchrl.testing import toy_env

ROOT = Path(__file__).parent.parent
GUIDES = sorted(path for path in (ROOT / "docs" / "how_to").glob("*.md") if path.stem != "index")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of TorchRL's collector, by TorchRL

# steps come from the count of commands: one that resumes needs more than the one before
TOY = {
    **{"progress": "false", "retrain_every": "2", "eval_every": "2", "log_every": "2"},
    **{"checkpoint_every": "2", "batch_size": "8", "world_model.num_cells": "[8]", "critic.num_cells": "[8]"},
    **{"actor.num_cells": "[8]", "rollout.starts_per_step": "2", "gamma": "0.5"},
}
ONLINE = TOY | {"warmup_steps": "6", "env.max_episode_steps": "5", "fit_steps": "2", "utd_ratio": "1"}
ONLINE |= {"final_episodes": "1"}
OFFLINE = TOY | {"fit.num_steps": "2", "clone_steps": "2"}
FEW = {
    "diagnose.py": ["--states", "1", "--episodes", "1", "--visited", "2", "--rollouts", "2", "--calibrate", "0"],
    "enjoy.py": ["--episodes", "1"],
    "compare.py": ["--no-figures"],
    "check.py": ["--num-steps", "20"],
}
# what has a test of its own (launchers, searches, wandb, videos, parts of one's own) or no toy size
ELSEWHERE = ("hydra/", "logger=wandb", "--video", "crane:Crane", "my_plant", "world_model=own", "budget=paper")


def commands(page: Path) -> list[list[str]]:
    """Words of each command of a page that runs a script or the check, without the interpreter."""
    found = []
    for block in re.findall(r"```bash\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if match := re.search(r"python3?\S* (?:examples/|-m eqr_torchrl\.lab\.envs\.)(\w+(?:\.py)?.*)", line):
                words = shlex.split(match[1], comments=True)
                found.append([words[0].removesuffix(".py") + ".py", *words[1:]])
    return [words for words in found if not any(word in " ".join(words) for word in ELSEWHERE)]


def toy_words(words: list[str], settings: dict[str, str]) -> list[str]:
    """A command line with toy settings in place of its own, the first value of each sweep, and a task that is cheap."""
    keep, options = [], []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or word.startswith("--"):
            options.append(word)
        elif key not in settings and key != "budget" and not word.startswith("env=dmc"):
            keep.append(f"{key}={value.split(',')[0]}" if "--multirun" in words and value[0] != "[" else word)
    return [*keep, *(f"{key}={value}" for key, value in settings.items()), *options]


def run(words: list[str], number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    script, *arguments = words
    if script in ("eqr_sac.py", "offline.py", "sac.py"):
        settings = (OFFLINE if script == "offline.py" else ONLINE) | {"env_steps": str(2 * number + 2)}
        name = script.removesuffix(".py")
        main = __import__(name).main
        for figure in ("plot_learning_curve", "plot_start_values"):
            monkeypatch.setattr(sys.modules[name], figure, lambda *args, **kwargs: None, raising=False)
        run_hydra(main, ROOT / "configs", name, toy_words(arguments, settings))
        return
    path = ROOT / ("eqr_torchrl/lab/envs" if script == "check.py" else "examples") / script
    monkeypatch.setattr(sys, "argv", [script, *arguments, *FEW[script]])
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise


def numpy_policy(folder: Path, monkeypatch: pytest.MonkeyPatch, **network: bool) -> dict[str, Any]:
    """The names that the code of *With NumPy alone* defines, run for an actor of this kind."""
    env = toy_env()
    actor = make_actor(env, num_cells=[8, 5], **network)
    if network.get("normalize"):
        actor[0].module.network[0].update(torch.randn(9, 3) * 7 + 2)
    space = space_of(env)
    save_policy(folder / "policy.pt", policy_content(actor, describe_actor(actor, space), space, {}, 0))
    monkeypatch.chdir(folder)
    page = (ROOT / "docs" / "how_to" / "deploy.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {"agent": load_agent("policy.pt")}
    for block in re.findall(r"```python\n(.*?)```", page.split("## With NumPy alone")[1], flags=re.DOTALL):
        exec(block, names)
    return names


@pytest.mark.parametrize("normalize", [False, True])
def test_the_policy_in_numpy_acts_as_the_agent(tmp_path, monkeypatch, normalize):
    names = numpy_policy(tmp_path, monkeypatch, normalize=normalize)
    for observation in torch.randn(20, 3) * torch.logspace(-1, 3, 20).unsqueeze(-1):  # also beyond the clipping
        expected = names["agent"].act(observation).numpy()
        with np.errstate(invalid="ignore"):  # products with AVX-512 may set the flag by lanes that they do not use
            action = names["act"](observation)
        np.testing.assert_allclose(action, expected, rtol=0, atol=1e-5)  # also refuses what is not a number


def test_the_policy_in_numpy_notices_a_network_of_another_kind(tmp_path, monkeypatch):
    with pytest.raises((AssertionError, ValueError)):
        numpy_policy(tmp_path, monkeypatch, layer_norm=True)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the pages presuppose it: a trained run, a log, and the module of the page on environments."""
    folder = tmp_path_factory.mktemp("workplace")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        patch.chdir(folder)
        run(["eqr_sac.py", "run_dir=runs/MY_RUN"], 1, patch)
    rng = np.random.default_rng(0)
    ends = np.arange(40) % 10 == 9
    arrays = {"observations": rng.normal(size=(40, 3)), "actions": rng.uniform(-1, 1, (40, 1)), "timeouts": ends}
    np.savez(folder / "log.npz", **arrays, rewards=-rng.uniform(size=40), next_observations=rng.normal(size=(40, 3)))
    page = (ROOT / "docs" / "how_to" / "use_your_env.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```\{testcode\}\n(.*?)```", page, flags=re.DOTALL)
    definitions = [block.split("\nfindings")[0] for block in blocks if re.search(r"^(class|def) ", block, flags=re.M)]
    (folder / "my_package").mkdir()
    (folder / "my_package" / "my_module.py").write_text("import torch\n" + "\n".join(definitions[:3]), encoding="utf-8")
    (folder / "docs").symlink_to(ROOT / "docs")
    return folder


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_the_head_of_a_guide_says_what_it_takes_and_what_comes_out(page):
    head = page.read_text(encoding="utf-8").split("\n")[2]
    assert re.match(r"\*\d+ minutes.*; .*(line|code|setting|command|rule|file|class).*\. You get: .+\.\*$", head)


@pytest.mark.parametrize("page", [page for page in GUIDES if commands(page)], ids=lambda page: page.stem)
def test_the_commands_of_a_guide_run_in_its_order(page, workplace, monkeypatch, capsys):
    own = workplace / page.stem  # runs of one guide are none of another's
    shutil.copytree(workplace / "runs", own / "runs")
    for name in ("docs", "log.npz"):
        (own / name).symlink_to(workplace / name)
    monkeypatch.chdir(own)
    monkeypatch.syspath_prepend(str(workplace))
    for number, words in enumerate(commands(page), start=1):
        try:
            run(words, number, monkeypatch)
        except SystemExit as end:  # with the line that a user would read
            pytest.fail(f"{' '.join(words)}: {end} {capsys.readouterr().err}")
