"""The example script: what it prints, writes and refuses."""

from __future__ import annotations

import csv
import importlib
from pathlib import Path

import pytest

from eqr_torchrl.lab.runs import read_status
from eqr_torchrl.lab.runs.cli import run_hydra
from eqr_torchrl.tabular import nroom_mdp, nroom_prior, policy_iteration, sample_values

ROOT = Path(__file__).parents[2]
SMALL = {
    "toy": ["num_samples=60", "num_iterations=50", "num_betas=3", "num_runs=2", "num_limit_betas=2"],
    "qr_loss": ["num_samples=60", "num_grid=20"],
    "nroom": ["snapshots=[1,2]", "num_iterations=20", "num_quantiles=5", "num_truth=20", "num_reference=50"],
    "psrl": ["num_episodes=3", "horizon=4", "num_runs=2"],
    "unrolling": ["max_horizon=4", "num_samples=10", "num_episodes=2"],
}
FILES = {
    "toy": {"wasserstein.csv", "toy.png", "uncertain_transition.png"},
    "qr_loss": {"qr_loss.csv", "qr_loss.png"},
    "nroom": {"nroom.csv", "nroom.png"},
    "psrl": {"psrl.csv", "psrl.png"},
    "unrolling": {"unrolling.csv", "unrolling.png"},
}


@pytest.fixture(scope="module")
def script():
    return importlib.import_module("tabular_eqr")  # examples/ is on the path of the tests


def run(script, folder: Path, experiment: str, *overrides: str) -> None:
    settings = [f"experiment.{setting}" for setting in SMALL[experiment]]
    arguments = [f"experiment={experiment}", f"run_dir={folder}", "progress=false", *settings, *overrides]
    run_hydra(script.main, ROOT / "configs" / "tabular", "tabular_eqr", arguments)


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def runs(script, tmp_path_factory) -> Path:
    """One run of each study, all in one folder, which is also the working directory."""
    root = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        for experiment in SMALL:
            run(script, root / experiment, experiment)
    return root


def test_each_study_writes_its_run_folder_and_nothing_else(runs):
    assert {path.name for path in runs.iterdir()} == set(SMALL)  # nothing of Hydra's
    for experiment, files in FILES.items():
        folder = runs / experiment
        written = {path.name for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")}
        assert written == files | {"config.yaml", "status.json"}
        assert (read_status(folder) or {})["state"] == "finished"


def test_tables_have_the_documented_columns(runs):
    table = rows(runs / "toy" / "wasserstein.csv")
    assert list(table[0]) == ["posterior", "beta", "seed", "wasserstein_1"]
    assert len(table) == 3 * 3 * 2
    assert {row["beta"] for row in table} == {"0.0", "0.5", "1.0"}
    table = rows(runs / "nroom" / "nroom.csv")
    assert list(table[0]) == ["episode", "iteration", "wasserstein_1"]
    assert [row["episode"] + " " + row["iteration"] for row in table[18:22]] == ["1 19", "1 20", "2 1", "2 2"]


def test_same_seed_same_table(script, runs, tmp_path, capsys):
    for name, seed in (("again", 0), ("other", 1)):
        run(script, tmp_path / name, "psrl", f"seed={seed}")
    first, again, other = (
        (folder / "psrl.csv").read_bytes() for folder in (runs / "psrl", tmp_path / "again", tmp_path / "other")
    )
    assert first == again
    assert first != other
    assert capsys.readouterr().out.endswith(f"wrote {tmp_path / 'other'}\n")


@pytest.mark.parametrize(
    ("experiment", "override", "message"),
    [
        ("toy", "experiment=tyo", "experiment=tyo"),
        ("toy", "experiment.num_beta=3", "num_betas"),
        ("toy", "experiment.num_betas=0", "num_betas must be a positive integer, got 0"),
        ("toy", "experiment.truncation=cut", "truncation must be 'clipped' or 'truncated', got 'cut'"),
        ("qr_loss", "experiment.beta=2", "beta must lie in [0, 1]"),
        ("nroom", "experiment.snapshots=[1,0]", "snapshots[1] must be a positive integer, got 0"),
        ("qr_loss", "experiment.levels=[0.1,x]", "levels[1] must be a number, got 'x'"),
        ("nroom", "experiment.num_truth=51", "num_truth"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(script, experiment, override, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        run(script, tmp_path / "run", experiment, override)
    assert stopped.value.code in (1, 2)
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_a_run_is_refused(script, runs, capsys):
    with pytest.raises(SystemExit):
        run(script, runs / "psrl", "psrl")
    assert "already holds a run" in capsys.readouterr().err


def test_toy_study_reproduces_the_published_errors(script, tmp_path):
    """Without the cycle EQR finds the true quantiles; with it, its error is that of an independent computation."""
    published = {"gaussian": 0.146, "bimodal": 0.262, "heavy_tailed": 0.204}  # at beta = 1
    settings = ["num_samples=5000", "num_iterations=10000", "num_betas=2", "num_runs=2"]
    run(script, tmp_path / "run", "toy", *(f"experiment.{setting}" for setting in settings))
    distances: dict[tuple[str, str], list[float]] = {}
    for row in rows(tmp_path / "run" / "wasserstein.csv"):
        distances.setdefault((row["posterior"], row["beta"]), []).append(float(row["wasserstein_1"]))
    for name, value in published.items():
        assert sum(distances[name, "0.0"]) / 2 < 0.025
        assert sum(distances[name, "1.0"]) / 2 == pytest.approx(value, abs=0.02)


def test_values_of_the_grid_world_spread_as_published(script, generator):
    policy, _ = policy_iteration(nroom_mdp(left_prize_ends_episode=True))
    from tabular_studies.nroom import follow  # importable once the script is

    posterior = nroom_prior().update(follow(policy, [1, 10, 100], 20))
    values = sample_values(posterior, policy, 1000, generator=generator)[..., 38]
    for column, (mean, std) in enumerate([(0.62, 4.88), (0.72, 3.08), (0.92, 0.58)]):
        assert float(values[:, column].mean()) == pytest.approx(mean, abs=0.15 * std)
        assert float(values[:, column].std()) == pytest.approx(std, rel=0.1)
