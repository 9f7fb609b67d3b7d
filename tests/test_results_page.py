"""The results page shows every run of the CSV files, with arithmetic that can be checked by hand."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEADER = "env,algorithm,utility,settings,seed,run,env_steps,episode_return,cpu_seconds,commit"
INFO = "env,algorithm,utility,settings,seed,run,env_steps,commit,command,hardware,seconds,note"
SUITE = {"dmc/cheetah-run": 400.0, "dmc/walker-run": 200.0}
LONGER = "one setting, 100,000 steps"


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> tuple[str, str]:
    """Page and appendix: a task with returns 1 to 10, zeros, and earlier runs; two tasks of the suite with one run."""
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("results")
    rows = [f"reach,sac,,quick,0,a,{step},{step}.0,,abcdef123" for step in range(1, 11)]
    rows += [f"reach,sac,,quick,1,b,{step},0.0,,abcdef123" for step in range(1, 11)]
    rows += ["reach,old,,quick,0,c,1,-0.01,,abcdef123", "reach,sac,,quick,0,d,1,7.0,,fedcba987"]
    rows += [
        f"{env},sac,,one setting,0,e,{step},{value},{100 * step},abcdef123"
        for env, value in SUITE.items()
        for step in (5, 10)
    ]
    rows.append("dmc/walker-run,sac,,laptop,0,f,10,900.0,,abcdef123")
    later = [(20_000 * i, 100 * i) for i in range(1, 6)]
    rows += [f'{env},sac,,"{LONGER}",0,g,{step},{value},,abcdef123' for env in SUITE for step, value in later]
    (folder / "runs.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    runs = ["reach,sac,,quick,0,d,1,fedcba987,python examples/sac.py tau=1 seed=0,a laptop,60,"]
    runs += [
        f"reach,sac,,quick,{seed},{run},10,abcdef123,python examples/sac.py seed={seed},a laptop,120,{note}"
        for seed, run, note in ((0, "a", ""), (1, "b", "stopped early"))
    ]
    runs.append('reach,old,,quick,0,c,1,abcdef123,"as sac, with an earlier fit, seed=0",a laptop,,')
    runs += [f"{env},sac,,one setting,0,e,10,abcdef123,python,a laptop,," for env in SUITE]
    runs.append("dmc/walker-run,sac,,laptop,0,f,10,abcdef123,python,a laptop,,")
    runs += [f'{env},sac,,"{LONGER}",0,g,100000,abcdef123,python,a laptop,,' for env in SUITE]
    (folder / "runs_info.csv").write_text("\n".join([INFO, *runs]) + "\n")
    peers = [f"dmc/cheetah-run,tqc,0,{1000 * i},{100 * i},{i}.0,2.0" for i in range(1, 8)]
    (folder / "peers.csv").write_text(
        "\n".join(["env,agent,seed,env_steps,cpu_seconds,episode_return,version", *peers]) + "\n"
    )
    offline = [f"walk-medium,posterior,{seed},10,{value},40,{low},50,60,{held}" for seed, value, low, held in
               ((0, 50.0, 45, 1), (1, 44.0, 45, 0))]  # fmt: skip
    offline += ["walk-medium,none,0,10,99.0,40,,,,", "walk-medium,none,1,10,-3.0,40,,,,"]
    offline += ["walk-random,posterior,0,10,-1.0,-5,-2,-1,0,1", "walk-random,cql,0,7000,-0.97,-5,,,,"]
    offline += ["walk-medium,cql,0,7000,40.0,40,,,,", "walk-random,none,0,10,-9.0,-5,,,,"]
    offline += ["half-mixed,posterior,0,10,1.0,2.0,0,1,2,1", "half-mixed,cql,0,7000,0.0,2.0,,,,"]
    (folder / "offline.csv").write_text(
        "\n".join(["data,algorithm,seed,updates,return,logged,low,value,high,held", *offline]) + "\n"
    )
    for name in ("cheetah_run.csv", "mountain_car.csv"):
        (folder / name).write_text(
            f"env,algorithm,utility,seed,env_steps,episode_return\n{Path(name).stem},eqr_sac,mean,0,1000,5.0\n"
        )
    script = ROOT / "benchmarks" / "results_page.py"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(script.parent)
        patch.setattr(sys, "argv", [script.name, "--results", str(folder), "--out", str(folder)])
        runpy.run_path(str(script), run_name="__main__")
    for name in ("results_reach", "suite", "suite_tasks", "longer", "peers"):
        assert (folder / "figures" / f"{name}.png").stat().st_size > 0
    return (folder / "results.md").read_text(), (folder / "results_appendix.md").read_text()


def test_the_page_shows_the_newest_whole_run_of_each_seed(pages):
    # seed 1 was stopped, and the run of one step with a return of 7 is an earlier one: (6 + 7 + 8 + 9 + 10) / 5 = 8
    assert "| `sac` | quick | 1 | 10 | 8.0 | 8.0 |" in pages[0]
    assert "abcdef" not in pages[0]


def test_the_one_setting_is_aggregated_over_its_tasks_and_shown_alone(pages):
    # (400 + 200) / 2,000 = 0.3; published there at 25,000 steps 345 and 197, at 100,000 steps 643 and 613
    assert "2 runs of 2 of the 16 tasks, each with the same setting, after 10 steps: mean of" in pages[0]
    assert "return / 1,000 0.300, interquartile mean 0.300. EQR-SAC, published, has on these tasks 0.271 at" in pages[0]
    assert "25,000 steps and 0.628 at 100,000" in pages[0]  # (345 + 197) / 2,000 and (643 + 613) / 2,000
    assert "| dmc/cheetah-run | 1 | 400 | 1.00 | 345 | 643 |" in pages[0]
    assert "| dmc/walker-run | 1 | 200 | 1.00 | 197 | 613 |" in pages[0]
    assert "laptop |" not in pages[0]
    assert "| `sac` | laptop | 0 | 10 | 900.0 |" in pages[1]


def test_longer_runs_stand_beside_what_others_had_at_the_same_steps(pages):
    # the mean of 100 to 500 is 300; EQR-SAC 643 and 613, SimbaV2 602 and 693, BRO 531 and 672, TD-MPC2 519 and 723
    assert "| task | ours | kept | BRO | EQR-SAC | SimbaV2 | TD-MPC2 |" in pages[0]
    assert "| dmc/cheetah-run | 300 | 1.00 | 531 | 643 | 602 | 519 |" in pages[0]
    assert "| mean | 300 | | 602 | 628 | 648 | 621 |" in pages[0]


def test_returns_after_the_same_cpu_time_with_the_steps_in_it(pages):
    # ours: the evaluation at 500 s, after 5 steps and the warm-up of 1,000; the other: (2 + 3 + 4 + 5 + 6) / 5 = 4
    assert "| dmc/cheetah-run | 400.0 (1,005) |  | 4.0 (6,000) |" in pages[0]
    assert "| dmc/walker-run | 200.0 (1,005)" not in pages[0]  # no other was run there


def test_logs_are_compared_with_arithmetic_that_holds_for_negative_returns(pages):
    assert "| walk-medium | 40.0 | 50.0, 44.0 | 99.0, -3.0 | 40.0 |" in pages[0]
    assert "| walk-random | -5.0 | -1.0 | -9.0 | -1.0 |" in pages[0]
    assert "| half-mixed | 2.0 | 1.0 |  | 0.0 |" in pages[0]
    # means: 47 against 48, and 47 >= 48 - 0.05 x 48; -1 against -0.97, and -1 >= -0.97 - 0.0485
    assert "Updates on the same log: ours 10, mean, no pessimism 10, CQL 7,000. " in pages[0]
    assert "Not all runs are made yet: 10 of 168." in pages[0]  # 12 logs, 7 algorithms, 2 seeds
    assert "- the best mean return, or within 5 % of it, of the logs with all algorithms: 2 of 2 logs" in pages[0]
    assert "- medium and mixed logs: a mean return of at least that of the log: 1 of 2 logs" in pages[0]
    assert "- a worst seed above that of the mean without pessimism: 2 of 2 logs" in pages[0]  # 44, -3; -1, -9
    assert "holds the real return in 3 of 4 runs" in pages[0]


def test_what_a_run_kept_is_its_last_mean_over_its_best_one(monkeypatch):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    kept_shares = runpy.run_path(str(ROOT / "benchmarks" / "suite.py"))["kept_shares"]
    means = [9.0, 9.0, 9.0, 9.0, 4.0, 8.0, 6.0]  # the first four are of fewer than five evaluations
    rows = {"env": "walk", "seed": 0, "env_steps": range(7), "episode_return": means}
    never = {"env": "walk", "seed": 1, "env_steps": range(7), "episode_return": 0.0}
    found = kept_shares(pandas.concat([pandas.DataFrame(rows), pandas.DataFrame(never)]))
    assert found == {"walk": [6.0 / 8.0, 1.0]}


def test_the_appendix_has_every_run_with_its_commit_note_and_command(pages):
    page = pages[1]
    assert "| `sac` | quick | 0 | 10 | 8.0 | 8.0 | `abcdef1` | 2 |" in page
    assert "| `sac` | quick | 0 | 1 | 7.0 | 7.0 | `fedcba9` | 1 |" in page
    assert "| `sac` | quick | 1 | 10 | 0.0 | 0.0 | `abcdef1` | 2 |" in page
    assert "- Seed 1 of `sac`, quick, at `abcdef1`: stopped early." in page
    assert "| `old` | quick | 0 | 1 | 0.0 | 0.0 |" in page  # a return that rounds to zero has no sign
    assert "\n# as sac, with an earlier fit, seed=SEED\n" in page  # what is no command is a comment
    assert page.count("python examples/sac.py seed=SEED") == 1  # seeds share one
    assert "Hardware: a laptop." in page


def test_runs_of_single_studies_refer_to_their_notes(pages):
    assert pages[1].count("| `eqr_sac`, mean | published fit | 0 | 1,000 | 5.0 | 5.0 | see below |") == 2
    assert "{doc}`mountain_car`" in pages[1]
