from __future__ import annotations

import pandas as pd
import pytest
from run_tables import evaluations, values

from eqr_torchrl.lab.comparison import normalised_scores, run_scores, score_table

SCORE = ["algorithm", "seed", "env_steps", "score"]


def test_scores_are_read_at_the_last_step_that_every_run_has_reached():
    # sac: 30 and 20, mbpo: 24, between two evaluations of sac
    curves = pd.concat(
        [
            evaluations({"0": {10: 10, 20: 20, 30: 30}, "1": {10: 0, 20: 0}}, algorithm="sac"),
            evaluations({"0": {10: 5, 24: 5}}, algorithm="mbpo"),
        ]
    )
    assert values(run_scores(curves), SCORE) == [("mbpo", "0", 20, 5.0), ("sac", "0", 20, 20.0), ("sac", "1", 20, 0.0)]


def test_scores_between_two_evaluations_are_interpolated():
    curves = evaluations({"0": {10: 0, 30: 40}, "1": {10: 1, 15: 1}})
    assert values(run_scores(curves), SCORE) == [("sac", "0", 15, 10.0), ("sac", "1", 15, 1.0)]


def test_a_run_that_ends_before_others_begin_is_left_out_and_named():
    curves = pd.concat([evaluations({"0": {5000: 1}, "1": {5000: 3}}), evaluations({"0": {1000: 2}}, algorithm="mbpo")])
    with pytest.warns(
        UserWarning, match="mbpo, seed 0, on reach is left out: its evaluations, from step 1,000 to 1,000"
    ):
        scores = run_scores(curves)
    assert values(scores, SCORE) == [("sac", "0", 5000, 1.0), ("sac", "1", 5000, 3.0)]


def test_a_given_step_leaves_out_the_runs_that_do_not_reach_it():
    curves = evaluations({"0": {1000: 1, 2000: 1}, "1": {1000: 9, 3000: 9}})
    with pytest.warns(UserWarning, match="sac, seed 0, on reach is left out"):
        assert values(run_scores(curves, env_steps=3000), SCORE) == [("sac", "1", 3000, 9.0)]
    with pytest.raises(ValueError, match="a step of a run's evaluations, 1000 to 3000, got 4000"):
        run_scores(curves, env_steps=4000)


def test_score_table_by_hand():
    scores = run_scores(evaluations({"0": {7: 1}, "1": {7: 2}, "2": {7: 6}}))
    assert score_table(scores).to_dict("records") == [
        {
            "env": "reach", "algorithm": "sac", "utility": "", "env_steps": 7, "num_seeds": 3, "mean": 3.0,
            "sem": pytest.approx((7 / 3) ** 0.5),
        }
    ]  # fmt: skip


def test_normalised_scores_keep_the_tasks_that_all_algorithms_share():
    tables = [evaluations({"0": {1: r}}, env="dmc/walker-run", algorithm=a) for a, r in (("a", 250), ("b", 500))]
    tables += [evaluations({"0": {1: 1}}, env="dmc/fish-swim", algorithm="a")]  # b is missing
    tables += [evaluations({"0": {1: -750}}, env="Pendulum-v1", algorithm=a) for a in "ab"]
    scores = run_scores(pd.concat(tables))
    assert normalised_scores(scores) == {"a": {"dmc/walker-run": [0.25]}, "b": {"dmc/walker-run": [0.5]}}
    both = normalised_scores(scores, score_ranges={"Pendulum-v1": (-1500.0, 0.0)})
    assert both["a"] == {"Pendulum-v1": [0.5], "dmc/walker-run": [0.25]}
    assert normalised_scores(scores[scores["env"] == "Pendulum-v1"]) == {}
    with pytest.raises(ValueError, match=r"score_ranges\['Pendulum-v1'\] must be increasing, got 0.0 to -1500.0"):
        normalised_scores(scores, score_ranges={"Pendulum-v1": (0.0, -1500.0)})


def test_utilities_of_one_algorithm_are_compared_as_two():
    tables = [
        evaluations({"0": {1: 500}}, env="dmc/walker-run", algorithm="eqr_sac", utility=u) for u in ("mean", "cvar")
    ]
    assert set(normalised_scores(run_scores(pd.concat(tables)))) == {"eqr_sac (mean)", "eqr_sac (cvar)"}
