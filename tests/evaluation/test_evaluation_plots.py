from __future__ import annotations

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from eqr_torchrl import evaluation as ev

ROOT = Path(__file__).parents[2]
TASKS = ("dmc/cheetah-run", "dmc/walker-run")


def rows(seeds=(0, 1, 2), algorithms=("eqr_sac", "mbpo")) -> list[ev.EvaluationRow]:
    return [
        ev.EvaluationRow(env, algorithm, "mean" if algorithm == "eqr_sac" else "", str(seed), step, step / 30.0 + seed)
        for env in TASKS
        for algorithm in algorithms
        for seed in seeds
        for step in (1000, 2000, 15_000)
    ]


def is_image(path: Path) -> bool:
    return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 2000


def test_learning_curves_of_one_run_and_of_many(tmp_path):
    single = [r for r in rows((0,), ("mbpo",)) if r.env == TASKS[0]]
    assert is_image(ev.plot_learning_curve((r._asdict() for r in single), tmp_path / "single.png"))
    assert is_image(ev.plot_learning_curve([single[0]._asdict()], tmp_path / "one_point.png"))
    assert is_image(ev.plot_learning_curves(ev.learning_curves(rows()), tmp_path / "deep" / "many.png"))
    with pytest.raises(ValueError, match="at least one curve"):
        ev.plot_learning_curves([], tmp_path / "none.png")


def test_value_distribution_takes_tensors_and_degenerate_posteriors(tmp_path):
    quantiles = torch.stack([torch.linspace(-1, 1, 51), torch.full((51,), 3.0)]).requires_grad_()
    returns = [torch.tensor([0.1, 0.2]), [3.0]]
    path = ev.plot_value_distribution(
        quantiles, ["start", "goal"], tmp_path / "value.png", returns=returns, member_values=torch.zeros(2, 5)
    )
    assert is_image(path)
    with pytest.raises(ValueError, match=r"one label each: got shape \(2, 51\) and 1 labels"):
        ev.plot_value_distribution(quantiles, ["start"], tmp_path / "bad.png")
    with pytest.raises(ValueError, match="returns must hold one entry per state: got 1 for 2"):
        ev.plot_value_distribution(quantiles, ["a", "b"], tmp_path / "bad.png", returns=[[1.0]])
    assert not (tmp_path / "bad.png").exists()


def test_diagnostic_figures(tmp_path):
    grid = np.arange(6.0).reshape(2, 3)
    assert is_image(ev.plot_value_maps([0, 1, 2], [0, 1], {"mean": grid, "std": grid}, tmp_path / "map.png"))
    assert is_image(ev.plot_calibration([0.5, 0.9], [0.5, 0.9], np.linspace(0, 1, 20), tmp_path / "calibration.png"))
    lines = {"error": np.ones((4, 5)), "spread": [1.0, 2.0, 3.0, 4.0], "zero": np.zeros(4)}
    assert is_image(ev.plot_steps(lines, tmp_path / "steps.png", ylabel="m"))
    with pytest.raises(ValueError, match=r"maps\['mean'\] must have shape \(3, 2\): got \(2, 3\)"):
        ev.plot_value_maps([0, 1], [0, 1, 2], {"mean": grid}, tmp_path / "bad.png")


def test_drawing_leaves_matplotlib_settings_alone(tmp_path):
    import matplotlib

    before = dict(matplotlib.rcParams)
    ev.plot_learning_curves(ev.learning_curves(rows()), tmp_path / "curves.png")
    assert dict(matplotlib.rcParams) == before


def test_colours_are_told_apart_when_green_is_not_seen():
    # Deuteranopia, Vienot et al. (1999): in linear RGB, red and green collapse onto 0.29275 R + 0.70725 G
    from eqr_torchrl.evaluation.plotting import COLOURS

    rgb = np.array([[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in COLOURS]) ** 2.2
    seen = np.stack([rgb @ [0.29275, 0.70725, 0.0], rgb @ [-0.02234, 0.02234, 1.0]], axis=1)
    gaps = np.abs(seen[:, None] - seen[None]).max(axis=-1) + 10 * np.eye(len(COLOURS))
    assert gaps.min() > 0.04


def run_compare(monkeypatch, tmp_path, *arguments: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["compare.py", *arguments])
    runpy.run_path(str(ROOT / "examples" / "compare.py"), run_name="__main__")


def test_compare_script_gives_table_files_and_figures(tmp_path, monkeypatch, capsys):
    for seed in (0, 1):
        ev.write_csv(rows((seed,)), tmp_path / "runs" / str(seed) / "evaluations.csv")
    run_compare(monkeypatch, tmp_path, "runs", "--out", "result", "--smooth", "2")
    output = capsys.readouterr().out
    # smoothed over two evaluations: mean of 2000 / 30 and 15000 / 30, plus the mean seed 1/2
    assert "283.8 ± 0.5" in output
    assert "854.0 ± 11.7" in output  # published cheetah-run, EQR-SAC mean
    assert "differ in more than the seed" not in output
    assert {f.name for f in (tmp_path / "result").iterdir()} == {
        *("scores.csv", "curves.csv", "aggregates.csv", "improvement.csv"),
        *("learning_curves.png", "performance_profiles.png", "aggregates.png"),
    }


def test_compare_script_says_which_settings_differ_between_seeds(tmp_path, monkeypatch, capsys):
    for seed in (0, 1):
        folder = tmp_path / "runs" / str(seed)
        ev.write_csv(rows((seed,)), folder / "evaluations.csv")
        (folder / "config.yaml").write_text(f"seed: {seed}\ntau: {0.1 * (seed + 1)}\n")
    (tmp_path / "runs" / "2").mkdir()
    header = (tmp_path / "runs" / "0" / "evaluations.csv").read_text().splitlines()[0]
    (tmp_path / "runs" / "2" / "evaluations.csv").write_text(header + "\n")  # has only begun
    with pytest.warns(UserWarning, match="holds no evaluation yet"):
        run_compare(monkeypatch, tmp_path, "runs", "--no-figures")
    assert "differ in more than the seed, tell them apart with NAME=PATH: tau (0.1, 0.2).\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.csv"], "found no nowhere.csv"),
        (["runs", "--range", "Pendulum-v1=0"], "--range must be ENV=LOW,HIGH: got Pendulum-v1=0"),
        (["runs", "--rename", "task"], "--rename must be NAME=VALUE: got 'task'"),
        (["runs", "--smooth", "0"], "smoothing must be a positive number of evaluations: got 0"),
    ],
)
def test_compare_script_ends_in_one_line_on_bad_input(tmp_path, monkeypatch, arguments, message):
    ev.write_csv(rows((0,)), tmp_path / "runs" / "evaluations.csv")
    with pytest.raises(SystemExit, match=message) as failure:
        run_compare(monkeypatch, tmp_path, *arguments, "--out", "result")
    assert "\n" not in str(failure.value)
    assert not (tmp_path / "result").exists()
