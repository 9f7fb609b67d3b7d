"""The script: what it prints, writes and refuses."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pandas as pd
import pytest
from run_tables import evaluations, write_run

ROOT = Path(__file__).parents[3]


def run_compare(monkeypatch, tmp_path, *arguments: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["compare.py", *arguments])
    runpy.run_path(str(ROOT / "examples" / "compare.py"), run_name="__main__")


def write_runs(root: Path, seeds: int, *, end: int = 15_000) -> None:
    """Two algorithms on two tasks; the return is steps / 30 + seed."""
    for env in ("dmc/cheetah-run", "dmc/walker-run"):
        for algorithm, utility in (("eqr_sac", "mean"), ("mbpo", "")):
            for seed in map(str, range(seeds)):
                line = {step: step / 30 + int(seed) for step in (1000, 2000, end)}
                table = evaluations({seed: line}, env=env, algorithm=algorithm, utility=utility)
                write_run(root / env / algorithm / seed, table)


def test_gives_table_files_and_figures(tmp_path, monkeypatch, capsys):
    write_runs(tmp_path / "runs", seeds=2)
    run_compare(monkeypatch, tmp_path, "runs", "--out", "result", "--smooth", "2")
    output = capsys.readouterr().out
    # smoothed over two evaluations: mean of 2000 / 30 and 15000 / 30, plus the mean seed 1/2
    assert "283.8 ± 0.5" in output
    assert "differ in other settings" not in output
    assert {f.name for f in (tmp_path / "result").iterdir()} == {
        *("scores.csv", "curves.csv", "aggregates.csv", "improvement.csv"),
        *("learning_curves.png", "performance_profiles.png", "aggregates.png"),
    }
    scores = pd.read_csv(tmp_path / "result" / "scores.csv", keep_default_na=False)
    assert list(scores) == ["env", "algorithm", "utility", "env_steps", "num_seeds", "mean", "sem"]
    assert scores["mean"].tolist() == pytest.approx([17_000 / 60 + 0.5] * 4)


@pytest.mark.parametrize(
    ("end", "smooth", "shown"), [(250_000, "10", True), (250_000, "1", False), (15_000, "10", False)]
)
def test_published_scores_stand_beside_scores_of_their_kind_only(tmp_path, monkeypatch, capsys, end, smooth, shown):
    write_runs(tmp_path / "runs", seeds=1, end=end)
    run_compare(monkeypatch, tmp_path, "runs", "--smooth", smooth, "--no-figures")
    output = capsys.readouterr().out
    assert ("854.0 ± 11.7" in output) == shown  # cheetah-run, EQR-SAC, mean
    assert ("Published scores, at 250,000 steps with --smooth 10, are shown beside such scores only" in output) != shown


def test_two_seeds_never_look_certain(tmp_path, monkeypatch, capsys):
    for algorithm, level in (("eqr_sac", 5), ("mbpo", 1)):
        for seed in "01":
            write_run(tmp_path / "runs" / algorithm / seed, evaluations({seed: {1: level}}, algorithm=algorithm))
    run_compare(monkeypatch, tmp_path, "runs", "--no-figures")
    output = capsys.readouterr().out
    assert "eqr_sac > mbpo: 1.00 (1.00, 1.00)" in output
    assert "Warning: with 2 run(s) of a task these intervals are too narrow" in output


@pytest.mark.parametrize(("seeds", "warned"), [(4, True), (5, False)])
def test_intervals_of_enough_seeds_carry_no_warning(tmp_path, monkeypatch, capsys, seeds, warned):
    for algorithm in ("eqr_sac", "mbpo"):
        for seed in map(str, range(seeds)):
            write_run(tmp_path / "runs" / algorithm / seed, evaluations({seed: {1: int(seed)}}, algorithm=algorithm))
    run_compare(monkeypatch, tmp_path, "runs", "--no-figures")
    assert ("Warning: " in capsys.readouterr().out) == warned


def test_an_interval_of_zero_width_carries_a_warning_at_any_number_of_seeds(tmp_path, monkeypatch, capsys):
    for algorithm, level in (("eqr_sac", 50), ("mbpo", 1)):
        for seed in map(str, range(6)):
            line = {1: level + int(seed)}
            write_run(tmp_path / "runs" / algorithm / seed, evaluations({seed: line}, algorithm=algorithm))
    run_compare(monkeypatch, tmp_path, "runs", "--no-figures")
    assert "Warning: an interval of zero width" in capsys.readouterr().out


def test_a_run_that_has_only_begun_is_named_and_the_rest_is_compared(tmp_path, monkeypatch, capsys):
    for seed in "01":
        write_run(tmp_path / "runs" / f"sac{seed}", evaluations({seed: {5000: 10 + int(seed)}}))
    write_run(tmp_path / "runs" / "mbpo", evaluations({"0": {1000: 2}}, algorithm="mbpo"))
    write_run(tmp_path / "runs" / "qu_sac", evaluations({}, algorithm="qu_sac"))
    run_compare(monkeypatch, tmp_path, "runs", "--out", "result")
    output = capsys.readouterr().out
    assert "mbpo, seed 0, on reach is left out" in output
    assert "qu_sac/evaluations.csv holds no evaluation yet" in output
    assert "2 of 2 10.5 ± 0.5" in output
    assert "nan" not in output
    assert (tmp_path / "result" / "learning_curves.png").is_file()


def test_says_which_run_decides_the_step(tmp_path, monkeypatch, capsys):
    write_run(tmp_path / "runs" / "0", evaluations({"0": {1000: 1, 2000: 1}}))
    write_run(tmp_path / "runs" / "1", evaluations({"1": {1000: 9, 2000: 9, 3000: 9}}))
    run_compare(monkeypatch, tmp_path, "runs", "--no-figures")
    output = capsys.readouterr().out
    assert "reach: compared at step 2,000 of 3,000, the end of sac, seed 0; --steps N" in output
    assert "5 ± 4" in output
    run_compare(monkeypatch, tmp_path, "runs", "--no-figures", "--steps", "3000")
    output = capsys.readouterr().out
    assert "sac, seed 0, on reach is left out" in output
    assert "1 of 2      9" in output


def test_says_which_settings_differ_between_seeds(tmp_path, monkeypatch, capsys):
    for seed in "01":
        folder = write_run(tmp_path / "runs" / seed, evaluations({seed: {1: 1}}))
        (folder / "config.yaml").write_text(f"seed: {seed}\ntau: {0.1 * (int(seed) + 1)}\n")
    run_compare(monkeypatch, tmp_path, "runs", "--no-figures")
    expected = (
        "Runs of sac on reach differ in other settings than the seed; label them with NAME=PATH: tau (0.1, 0.2).\n"
    )
    assert expected in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.csv"], "found no nowhere.csv"),
        (["runs", "--range", "Pendulum-v1=0"], "--range must be ENV=LOW,HIGH, got Pendulum-v1=0"),
        (["runs", "--rename", "task"], "--rename must be NAME=VALUE, got 'task'"),
        (["runs", "--smooth", "0"], "smoothing must be a positive number of evaluations, got 0"),
        (["runs", "--steps", "9"], "env_steps must be a step of a run's evaluations, 1 to 1, got 9"),
    ],
)
def test_bad_input_ends_in_one_line(tmp_path, monkeypatch, arguments, message):
    write_run(tmp_path / "runs", evaluations({"0": {1: 1}}))
    with pytest.raises(SystemExit, match=message) as failure:
        run_compare(monkeypatch, tmp_path, *arguments, "--out", "result")
    assert "\n" not in str(failure.value)
    assert not (tmp_path / "result").exists()
