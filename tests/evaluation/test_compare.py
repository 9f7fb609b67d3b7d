from __future__ import annotations

import csv
import math

import numpy as np
import pytest

from eqr_torchrl.evaluation import (
    EvaluationRow,
    comparison_step,
    curve_rows,
    learning_curves,
    normalised_scores,
    published_scores,
    read_evaluations,
    read_runs,
    score_table,
    scores_at,
    write_csv,
)


def row(algorithm="sac", seed=0, env_steps=0, episode_return=0.0, env="reach", utility="") -> EvaluationRow:
    return EvaluationRow(env, algorithm, utility, str(seed), env_steps, episode_return)


def write_run(folder, rows) -> None:
    """A run folder as the training script writes it, other columns included."""
    folder.mkdir(parents=True)
    with (folder / "evaluations.csv").open("w", newline="") as file:
        columns = [
            "env",
            "algorithm",
            "utility",
            "seed",
            "env_steps",
            "warmup_steps",
            "episode",
            "episode_return",
            "episode_length",
        ]
        writer = csv.DictWriter(file, columns, restval=1)
        writer.writeheader()
        writer.writerows(r._asdict() for r in rows)


def test_mean_and_standard_error_by_hand():
    # at step 10: runs 1, 2, 6; mean 3, variance (4 + 1 + 9) / 2 = 7, standard error sqrt(7 / 3)
    curve = learning_curves([row(seed=s, env_steps=10, episode_return=r) for s, r in enumerate((1.0, 2.0, 6.0))])[0]
    assert curve.mean.tolist() == [3.0]
    assert curve.sem.tolist() == pytest.approx([math.sqrt(7 / 3)])


def test_episodes_of_one_evaluation_count_as_one():
    rows = [row(seed=0, episode_return=r) for r in (0.0, 4.0)] + [row(seed=1, episode_return=8.0)]
    assert learning_curves(rows)[0].returns.tolist() == [[2.0], [8.0]]


def test_smoothing_is_trailing_and_padded_with_the_first_value():
    rows = [row(env_steps=t, episode_return=r) for t, r in enumerate((4.0, 1.0, 7.0, 1.0))]
    # (4+4+4)/3, (4+4+1)/3, (4+1+7)/3, (1+7+1)/3
    assert learning_curves(rows, smoothing=3)[0].mean.tolist() == pytest.approx([4.0, 3.0, 4.0, 3.0])


def test_run_that_stops_early_leaves_the_rest_to_the_others():
    rows = [row(seed=0, env_steps=t, episode_return=1.0) for t in (1, 2)] + [
        row(seed=1, env_steps=1, episode_return=3.0)
    ]
    curve = learning_curves(rows)[0]
    assert curve.num_runs.tolist() == [2, 1]
    assert curve.mean.tolist() == [2.0, 1.0]
    assert math.isnan(curve.sem[1])


def test_runs_on_other_grids_are_interpolated_within_their_range():
    rows = [row(seed=0, env_steps=t, episode_return=float(t)) for t in (0, 10)]
    rows += [row(seed=1, env_steps=t, episode_return=100.0) for t in (5, 10)]
    np.testing.assert_equal(learning_curves(rows)[0].returns, [[0.0, 5.0, 10.0], [np.nan, 100.0, 100.0]])


def test_seeds_are_in_the_order_of_numbers():
    assert learning_curves([row(seed=s) for s in (10, 2, 1)])[0].seeds == ("1", "2", "10")


def test_scores_are_read_where_all_algorithms_can_be_compared():
    # sac reaches 30 with one run of two, mbpo 20: compared at 20
    rows = [row("sac", 0, t, float(t)) for t in (10, 20, 30)]
    rows += [row("sac", 1, t, 0.0) for t in (10,)]
    rows += [row("mbpo", 0, t, 5.0) for t in (10, 20)]
    curves = learning_curves(rows)
    assert comparison_step(curves, "reach") == 20
    mbpo, sac = score_table(curves)
    assert (mbpo.env_steps, mbpo.num_seeds, mbpo.mean) == (20, 1, 5.0)
    assert (sac.env_steps, sac.num_seeds, sac.mean) == (20, 1, 20.0)
    assert scores_at(curves[1], 20) == {"0": 20.0}
    with pytest.raises(ValueError, match=r"env must be one of \['reach'\]: got 'run'"):
        comparison_step(curves, "run")


def test_normalised_scores_keep_the_tasks_that_all_algorithms_share():
    rows = [row("a", env="dmc/walker-run", episode_return=250.0), row("b", env="dmc/walker-run", episode_return=500.0)]
    rows += [row("a", env="dmc/fish-swim", episode_return=1.0)]  # b is missing
    rows += [row(x, env="Pendulum-v1", episode_return=-750.0) for x in "ab"]
    curves = learning_curves(rows)
    assert normalised_scores(curves) == {"a": {"dmc/walker-run": [0.25]}, "b": {"dmc/walker-run": [0.5]}}
    both = normalised_scores(curves, score_ranges={"Pendulum-v1": (-1500.0, 0.0)})
    assert both["a"] == {"Pendulum-v1": [0.5], "dmc/walker-run": [0.25]}
    with pytest.raises(ValueError, match=r"score_ranges\['Pendulum-v1'\] must be increasing: got 0.0 to -1500.0"):
        normalised_scores(curves, score_ranges={"Pendulum-v1": (0.0, -1500.0)})


def test_reads_run_folders_and_files_alike(tmp_path):
    write_run(tmp_path / "sweep" / "0", [row(seed=0, env_steps=5, episode_return=1.5)])
    write_run(tmp_path / "sweep" / "1", [row(seed=1, env_steps=5, episode_return=2.5)])
    expected = [row(seed=0, env_steps=5, episode_return=1.5), row(seed=1, env_steps=5, episode_return=2.5)]
    assert read_runs([tmp_path / "sweep"]) == expected
    assert read_runs([str(tmp_path / "sweep" / s) for s in "01"]) == expected
    assert read_runs([tmp_path / "sweep", tmp_path / "sweep" / "1"]) == expected  # a run reached twice counts once
    assert read_evaluations(tmp_path / "sweep" / "1") == expected[1:]


def test_reads_anybodys_csv(tmp_path):
    file = tmp_path / "theirs.csv"
    file.write_text("# from elsewhere\ntask,algorithm,seed,step,score\nreach,td3,a,1e3,7\n")
    rows = read_runs([file], columns={"env": "task", "env_steps": "step", "episode_return": "score"})
    assert rows == [row("td3", "a", 1000, 7.0)]


def test_same_run_from_two_places_is_refused_unless_renamed(tmp_path):
    for name in ("first", "second"):
        write_run(tmp_path / name, [row("eqr_sac", 3, utility="mean")])
    with pytest.raises(ValueError, match="reach/eqr_sac/mean with seed 3 is in .*first.* and .*second.*NAME=PATH"):
        read_runs([tmp_path])
    rows = read_runs([tmp_path / "first", f"long={tmp_path / 'second'}"])
    assert [r.algorithm for r in rows] == ["eqr_sac", "long"]


def test_run_without_evaluations_yet_is_named(tmp_path):
    write_run(tmp_path / "new", [])
    write_run(tmp_path / "old", [row()])
    with pytest.warns(UserWarning, match="holds no evaluation yet"):
        assert read_runs([tmp_path]) == [row()]


HEADER = "env,algorithm,seed,env_steps,episode_return\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must hold at least one evaluation: got none"),
        ("env,algorithm,seed,env_steps\nreach,sac,0,1\n", "episode_return not found"),
        (
            "env,algorithm,seed,env_steps,episode_return\nreach,sac,0,1,nan\n",
            "row 1: .*finite numbers: got '1' and 'nan'",
        ),
        (HEADER + "reach,sac,0,1,2\nreach,sac,0,\n", "row 2: .*got '' and ''"),
    ],
)
def test_unreadable_files_are_named(tmp_path, text, message):
    file = tmp_path / "bad.csv"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_evaluations(file)


def test_missing_sources_are_named(tmp_path):
    with pytest.raises(ValueError, match="found no .*nowhere.csv"):
        read_evaluations(tmp_path / "nowhere.csv")
    with pytest.raises(ValueError, match="found none under"):
        read_runs([tmp_path])


def test_tables_survive_the_round_trip(tmp_path):
    curves = learning_curves([row(seed=s, env_steps=t, episode_return=s + t) for s in (0, 1) for t in (1, 2)])
    with write_csv(curve_rows(curves), tmp_path / "new" / "curves.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [float(line["mean"]) for line in table] == [1.5, 2.5]
    assert {line["num_seeds"] for line in table} == {"2"}


def test_published_table_is_complete_and_corrected():
    scores = published_scores()
    assert len(scores) == len({s[:3] for s in scores}) == 16 * 7
    assert all(s.env_steps == 250_000 and s.num_seeds == 10 and s.sem >= 0 for s in scores)
    corrected = {(s.env, s.algorithm, s.utility): (s.mean, s.sem) for s in scores if s.note}
    assert corrected == {
        ("dmc/finger-spin", "eqr_sac", "mean"): (461.9, 154.1),
        ("dmc/finger-spin", "eqr_sac", "optimistic"): (567.1, 146.7),
        ("dmc/reacher-easy", "mbpo", ""): (937.5, 16.7),
    }


def test_published_table_gives_the_published_means_over_tasks():
    # appendix of the paper's data: mean over tasks at 250,000 steps, normalised by 1000
    expected = {"eqr_sac mean": 0.64, "eqr_sac optimistic": 0.66, "qr_mbpo mean": 0.58, "qr_mbpo optimistic": 0.58}
    expected |= {"qu_sac": 0.50, "mbpo": 0.40}
    for name, value in expected.items():
        means = [s.mean / 1000 for s in published_scores() if f"{s.algorithm} {s.utility}".strip() == name]
        assert np.mean(means) == pytest.approx(value, abs=0.0051)
