from __future__ import annotations

import math

import pandas as pd
import pytest
from run_tables import evaluations, values

from eqr_torchrl.lab.comparison import learning_curves, mean_curves


def test_mean_and_standard_error_by_hand():
    # at step 10: runs 1, 2, 6; mean 3, variance (4 + 1 + 9) / 2 = 7, standard error sqrt(7 / 3)
    means = mean_curves(learning_curves(evaluations({"0": {10: 1}, "1": {10: 2}, "2": {10: 6}})))
    assert values(means, ["env", "algorithm", "utility", "env_steps", "num_seeds", "mean"]) == [
        ("reach", "sac", "", 10, 3, 3.0)
    ]
    assert means["sem"].tolist() == pytest.approx([math.sqrt(7 / 3)])


def test_episodes_of_one_evaluation_count_as_one():
    table = pd.concat([evaluations({"0": {5: 0}}), evaluations({"0": {5: 4}, "1": {5: 8}})])
    assert values(learning_curves(table), ["seed", "episode_return"]) == [("0", 2.0), ("1", 8.0)]


def test_smoothing_is_trailing_padded_with_the_first_value_and_stays_within_a_run():
    table = evaluations({"0": {0: 4, 1: 1, 2: 7, 3: 1}, "1": {0: 100}})
    # (4+4+4)/3, (4+4+1)/3, (4+1+7)/3, (1+7+1)/3
    smooth = learning_curves(table, smoothing=3)
    assert smooth["episode_return"].tolist() == pytest.approx([4.0, 3.0, 4.0, 3.0, 100.0])


def test_a_mean_ends_where_the_first_run_ends():
    curves = learning_curves(evaluations({"0": {1000: 1, 2000: 1}, "1": {1000: 9, 2000: 9, 3000: 9}}))
    assert values(mean_curves(curves), ["env_steps", "num_seeds", "mean"]) == [(1000, 2, 5.0), (2000, 2, 5.0)]


def test_a_mean_begins_where_the_last_run_begins_and_interpolates_between_evaluations():
    curves = learning_curves(evaluations({"0": {0: 0, 10: 10}, "1": {4: 100, 10: 100}}))
    # at 4: (4 + 100) / 2
    assert values(mean_curves(curves), ["env_steps", "mean"]) == [(4, 52.0), (10, 55.0)]


def test_runs_without_a_step_in_common_have_no_mean():
    curves = learning_curves(
        pd.concat([evaluations({"0": {1: 1}, "1": {5: 2}}), evaluations({"0": {1: 7}}, env="run")])
    )
    assert values(mean_curves(curves), ["env", "mean"]) == [("run", 7.0)]


def test_seeds_are_in_the_order_of_numbers():
    assert learning_curves(evaluations({s: {1: 0} for s in ("10", "2", "1")}))["seed"].tolist() == ["1", "2", "10"]


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        (evaluations({"0": {1: 1}}), {"smoothing": 0}, "smoothing must be a positive number of evaluations, got 0"),
        (evaluations({"0": {1: 1}}).drop(columns="seed"), {}, "evaluations must hold the columns .*, got no seed"),
        (evaluations({}), {}, "evaluations must hold .* at least one row, got no row"),
    ],
)
def test_bad_arguments_are_named(table, options, message):
    with pytest.raises(ValueError, match=message):
        learning_curves(table, **options)
