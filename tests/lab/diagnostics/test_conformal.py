from __future__ import annotations

import numpy as np
import pytest

from eqr_torchrl.lab.diagnostics import conformal_interval


@pytest.mark.parametrize(("n", "rank"), [(19, 19), (25, 25), (39, 38), (100, 96)])
def test_new_episodes_are_covered_as_often_as_their_rank_says(n, rank):
    # ceil(0.95 (n + 1)) is `rank`. The residual of a new episode is equally likely to fall into each of the n + 1 gaps
    # between n exchangeable ones, of which 2 rank - n - 1 lie between the ends: 90 % or a little more
    expected = (2 * rank - n - 1) / (n + 1)
    assert 0.9 <= expected + 1e-12 < 0.93
    generator = np.random.default_rng(0)
    hits, repeats = [], 4000
    for _ in range(repeats):  # skewed returns, and a critic that is 50 too high and ten times too confident
        values = generator.normal(0, 10, n + 1)
        returns = values - 50 + generator.exponential(30, n + 1)
        hits.append(conformal_interval(values[:n], returns[:n]).coverage(values[n:], returns[n:]))
    assert np.mean(hits) == pytest.approx(expected, abs=3 * (0.9 * 0.1 / repeats) ** 0.5)


def test_ends_are_residuals_by_hand():
    # residuals -3, ..., 36 of 40 episodes; rank ceil(41 * 0.95) = 39: second smallest -2, second largest 35
    returns = np.random.default_rng(0).permutation(np.arange(40.0))
    interval = conformal_interval(np.full(40, 3.0), returns)
    assert (interval.below, interval.above) == (2.0, 35.0)
    assert [end.tolist() for end in interval.around([0.0, 10.0])] == [[-2.0, 8.0], [35.0, 45.0]]
    assert interval.coverage([0.0, 0.0], [35.0, 35.5]) == 0.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"returns": np.zeros(18)}, "at least 19 episodes for intervals of 0.9, got 18"),
        ({"returns": np.zeros(38), "probability": 0.95}, "at least 39 episodes for intervals of 0.95, got 38"),
        ({"returns": np.zeros(38), "probability": 90}, r"probability must lie in \(0, 1\), got 90"),
        ({"returns": np.full(40, np.nan)}, "values and returns must be finite"),
        ({"returns": np.zeros(18), "values": np.zeros(17)}, r"one shape \[n\], got \(17,\) and \(18,\)"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        conformal_interval(**{"values": np.zeros_like(arguments["returns"]), **arguments})
