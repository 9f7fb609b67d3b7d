from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from eqr_torchrl.lab.comparison import (
    aggregate_table,
    improvement_table,
    interquartile_mean,
    mean_score,
    median_score,
    optimality_gap,
    performance_profile,
    probability_of_improvement,
    stratified_bootstrap,
)


@pytest.fixture
def scores() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {f"task{k}": generator.gamma(2.0, 0.1 * (k + 1), size=7) for k in range(5)}


def as_matrix(scores) -> np.ndarray:
    return np.stack(list(scores.values()), axis=1)  # runs x tasks, the published library's orientation


def test_interquartile_mean_by_hand():
    # pooled and sorted: 0 1 2 3 4 5 6 100, a quarter of 8 is 2 from each end, (2 + 3 + 4 + 5) / 4
    assert interquartile_mean({"a": [100, 0, 1, 6], "b": [5, 4, 3, 2]}) == 3.5


# The published definitions, on a [runs, tasks] matrix: Agarwal et al. (2021) and their library's documentation.
ORACLES = [
    (interquartile_mean, lambda x: stats.trim_mean(x, proportiontocut=0.25, axis=None)),
    (mean_score, lambda x: np.mean(np.mean(x, axis=0))),
    (median_score, lambda x: np.median(np.mean(x, axis=0))),
    (optimality_gap, lambda x: 1.0 - np.mean(np.minimum(x, 1.0))),
]


@pytest.mark.parametrize(("metric", "oracle"), ORACLES)
def test_metrics_match_the_published_definitions(metric, oracle, scores):
    assert metric(scores) == pytest.approx(oracle(as_matrix(scores)), rel=1e-12)


def test_performance_profile_matches_counting(scores):
    thresholds = [0.0, 0.2, 0.5, 1.0]
    flat = as_matrix(scores).ravel().tolist()
    expected = [sum(value > threshold for value in flat) / len(flat) for threshold in thresholds]
    assert performance_profile(scores, thresholds).tolist() == pytest.approx(expected)


def test_probability_of_improvement_matches_mann_whitney(scores):
    other = {task: np.append(runs * 1.1, runs[0]) for task, runs in scores.items()}  # with ties, and another count
    expected = [stats.mannwhitneyu(scores[t], other[t]).statistic / (7 * 8) for t in scores]
    assert probability_of_improvement(scores, other) == pytest.approx(np.mean(expected))
    assert probability_of_improvement(scores, other) + probability_of_improvement(other, scores) == pytest.approx(1.0)
    assert probability_of_improvement(scores, scores) == pytest.approx(0.5)


def test_probability_of_improvement_needs_the_same_tasks():
    with pytest.raises(ValueError, match=r"must hold the same tasks, got \['a'\] and \['b'\]"):
        probability_of_improvement({"a": [1.0]}, {"b": [1.0]})


def test_bootstrap_resamples_runs_and_never_tasks():
    # Runs agree within each task, the tasks are far apart: resampling runs gives width 0, resampling tasks would not.
    interval = stratified_bootstrap(interquartile_mean, {"a": [0.0] * 5, "b": [0.5] * 5, "c": [1.0] * 5})
    assert interval.low == interval.estimate == interval.high == 0.5


def test_bootstrap_matches_enumeration_of_all_resamples():
    scores = {"a": [0.0, 1.0, 2.0], "b": [5.0, 7.0]}
    # 3^3 * 2^2 = 108 equally likely resamples
    every = sorted(
        (np.mean(a) + np.mean(b)) / 2
        for a in itertools.product(scores["a"], repeat=3)
        for b in itertools.product(scores["b"], repeat=2)
    )
    interval = stratified_bootstrap(mean_score, scores, num_resamples=40_000, confidence=0.8)
    assert interval.estimate == pytest.approx(3.5)
    assert interval.low == pytest.approx(np.quantile(every, 0.1, method="inverted_cdf"), abs=0.17)  # one step of 1/6
    assert interval.high == pytest.approx(np.quantile(every, 0.9, method="inverted_cdf"), abs=0.17)


def test_bootstrap_interval_covers_the_truth_as_often_as_it_says():
    # 300 studies of 4 tasks x 20 normal runs: a 90 % interval of the mean must hold the truth 0 in about 90 % of them
    generator = np.random.default_rng(1)
    hits = 0
    for study in range(300):
        scores = {f"t{k}": generator.normal(size=20) for k in range(4)}
        interval = stratified_bootstrap(mean_score, scores, num_resamples=300, confidence=0.9, seed=study)
        hits += bool(interval.low <= 0.0 <= interval.high)
    assert 0.83 <= hits / 300 <= 0.95


def test_bootstrap_of_two_algorithms_and_of_curves(scores):
    better = {task: runs + 10.0 for task, runs in scores.items()}
    assert stratified_bootstrap(probability_of_improvement, better, scores).low == 1.0
    thresholds = np.linspace(0, 1, 11)
    profile = stratified_bootstrap(lambda s: performance_profile(s, thresholds), scores, num_resamples=50)
    assert profile.low.shape == profile.estimate.shape == (11,)
    assert (profile.low <= profile.high).all()


def test_bootstrap_depends_on_its_seed_alone(scores):
    first = stratified_bootstrap(interquartile_mean, scores, seed=3)
    np.random.default_rng().normal()
    assert stratified_bootstrap(interquartile_mean, scores, seed=3) == first
    assert stratified_bootstrap(interquartile_mean, scores, seed=4) != first


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ({}, "at least one task"),
        ({"a": []}, r"scores\['a'\] must hold one score per run, got shape \(0,\)"),
        ({"a": [1.0, np.nan]}, r"scores\['a'\] must be finite, got 1 that are not"),
    ],
)
def test_bad_scores_are_named(scores, message):
    with pytest.raises(ValueError, match=message):
        interquartile_mean(scores)


def test_tables_hold_each_algorithm_and_each_pair(scores):
    better = {task: runs + 10.0 for task, runs in scores.items()}
    table = aggregate_table({"new": better, "old": scores})
    counts = table[["algorithm", "num_tasks", "num_runs"]].drop_duplicates().values.tolist()
    assert counts == [["new", 5, 35], ["old", 5, 35]]
    gap = table.set_index(["algorithm", "metric"])["estimate"]["old", "optimality gap"]
    assert gap == pytest.approx(optimality_gap(scores))
    pairs = improvement_table({"new": better, "old": scores})
    assert pairs[["algorithm", "baseline", "probability"]].values.tolist() == [["new", "old", 1.0], ["old", "new", 0.0]]


@pytest.mark.parametrize("kwargs", [{"confidence": 1.0}, {"num_resamples": 0}])
def test_bad_bootstrap_arguments_are_named(kwargs):
    with pytest.raises(ValueError, match=next(iter(kwargs))):
        stratified_bootstrap(mean_score, {"a": [1.0]}, **kwargs)


def test_two_algorithms_are_resampled_independently():
    # of two runs, 0 and 1, a resample holds twice the better one in 1 of 4 cases, and independently of it the baseline
    # twice the worse one: 1 of 16 is more than the tail of 2.5 %, at both ends
    runs = {"reach": [0.0, 1.0]}
    interval = stratified_bootstrap(probability_of_improvement, runs, runs)
    assert (interval.low, interval.estimate, interval.high) == (0.0, 0.5, 1.0)
