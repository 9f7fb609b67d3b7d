from __future__ import annotations

import numpy as np
import pytest

from eqr_torchrl.comparison import published_scores


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
