"""The results page shows every run of the CSV files, with arithmetic that can be checked by hand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEADER = "env,algorithm,utility,seed,env_steps,episode_return"


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> str:
    """The page of one task: returns 1 to 10 with seed 0, zeros with seed 1, and a run that has no command."""
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("results")
    rows = [f"reach,sac,,0,{step},{step}.0,abcdef123" for step in range(1, 11)]
    rows += [f"reach,sac,,1,{step},0.0,abcdef123" for step in range(1, 11)]
    rows += ["reach,old,,0,1,-0.01,abcdef123", "reach,sac,,0,1,7.0,fedcba987"]
    (folder / "runs.csv").write_text("\n".join([f"{HEADER},commit", *rows]) + "\n")
    info = "env,algorithm,utility,seed,env_steps,commit,command,hardware,seconds,note"
    runs = ["reach,sac,,0,1,fedcba987,python examples/sac.py tau=1 seed=0,a laptop,60,"]
    runs += [
        f"reach,sac,,{seed},10,abcdef123,python examples/sac.py seed={seed},a laptop,120,{note}"
        for seed, note in ((0, ""), (1, "stopped early"))
    ]
    runs.append('reach,old,,0,1,abcdef123,"as sac, with an earlier fit, seed=0",a laptop,,')
    (folder / "runs_info.csv").write_text("\n".join([info, *runs]) + "\n")
    for name in ("cheetah_run.csv", "mountain_car.csv"):
        (folder / name).write_text(f"{HEADER}\n{Path(name).stem},eqr_sac,mean,0,1000,5.0\n")
    script = ROOT / "benchmarks" / "results_page.py"
    subprocess.run([sys.executable, script, "--results", folder, "--out", folder], check=True, capture_output=True)
    assert (folder / "figures" / "results_reach.png").stat().st_size > 0
    return (folder / "results.md").read_text()


def test_last_and_best_are_means_of_five_evaluations(page):
    # (6 + 7 + 8 + 9 + 10) / 5 = 8, the highest of all windows of 1 to 10
    assert "| `sac` | 0 | 10 | 8.0 | 8.0 | `abcdef1` | 2 |" in page


def test_a_setting_of_an_earlier_commit_is_named_after_it(page):
    assert "| `sac (fedcba9)` | 0 | 1 | 7.0 | 7.0 | `fedcba9` | 1 |" in page


def test_a_run_that_did_not_learn_is_shown_with_its_note(page):
    assert "| `sac` | 1 | 10 | 0.0 | 0.0 | `abcdef1` | 2 |" in page
    assert "- Seed 1 of `sac`: stopped early." in page


def test_a_return_that_rounds_to_zero_has_no_sign(page):
    assert "| `old` | 0 | 1 | 0.0 | 0.0 |" in page


def test_what_is_not_a_command_is_a_comment(page):
    assert "\n# as sac, with an earlier fit, seed=SEED\n" in page


def test_seeds_share_one_command(page):
    assert page.count("python examples/sac.py seed=SEED") == 1
    assert "Hardware: a laptop." in page


def test_runs_of_single_studies_are_labelled_and_refer_to_their_notes(page):
    assert page.count("| `eqr_sac (published fit)`, mean | 0 | 1,000 | 5.0 | 5.0 | see below |") == 2
    assert "{doc}`mountain_car`" in page
