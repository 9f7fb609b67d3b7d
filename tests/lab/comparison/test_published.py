from __future__ import annotations

import pytest

from eqr_torchrl.lab.comparison import published_scores


def test_published_table_is_complete_and_corrected():
    scores = published_scores()
    assert len(scores.drop_duplicates(["env", "algorithm", "utility"])) == len(scores) == 16 * 7
    assert ((scores["env_steps"] == 250_000) & (scores["num_seeds"] == 10) & (scores["sem"] >= 0)).all()
    corrected = scores.loc[scores["note"] != "", ["env", "algorithm", "utility", "mean", "sem"]]
    assert corrected.values.tolist() == [
        ["dmc/finger-spin", "eqr_sac", "mean", 461.9, 154.1],
        ["dmc/finger-spin", "eqr_sac", "optimistic", 567.1, 146.7],
        ["dmc/reacher-easy", "mbpo", "", 937.5, 16.7],
    ]


def test_published_table_gives_the_published_means_over_tasks():
    # appendix of the paper's data: mean over tasks at 250,000 steps, normalised by 1000
    expected = {"eqr_sac mean": 0.64, "eqr_sac optimistic": 0.66, "qr_mbpo mean": 0.58, "qr_mbpo optimistic": 0.58}
    expected |= {"qu_sac ": 0.50, "mbpo ": 0.40}
    scores = published_scores()
    means = scores["mean"].groupby(scores["algorithm"] + " " + scores["utility"]).mean() / 1000
    assert means[list(expected)].to_dict() == pytest.approx(expected, abs=0.0051)
