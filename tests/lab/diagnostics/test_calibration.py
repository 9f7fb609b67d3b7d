from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from eqr_torchrl.lab.diagnostics import calibration_error, central_interval_coverage, probability_integral_transform

LEVELS = (np.arange(51) + 0.5) / 51
NOMINAL = np.array([0.1, 0.3, 0.5, 0.8, 0.95])


def posteriors(scale: float, size: int = 20_000):
    """Posteriors N(centre, scale) whose truths are drawn from N(centre, 1); quantiles in shuffled order."""
    generator = np.random.default_rng(0)
    centre = generator.normal(0, 10, size)
    quantiles = centre[:, None] + scale * stats.norm.ppf(LEVELS)
    return generator.permuted(quantiles, axis=1), generator.normal(centre, 1.0)


def test_calibrated_posterior_covers_as_often_as_it_says():
    quantiles, truth = posteriors(scale=1.0)
    # binomial standard error at 20,000: 0.0035
    np.testing.assert_allclose(central_interval_coverage(quantiles, truth, NOMINAL), NOMINAL, atol=0.012)
    assert calibration_error(quantiles, truth) < 1 / 51 + 0.01


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_miscalibrated_posterior_covers_what_the_normal_law_predicts(scale):
    quantiles, truth = posteriors(scale)
    expected = 2 * stats.norm.cdf(scale * stats.norm.ppf((1 + NOMINAL) / 2)) - 1
    np.testing.assert_allclose(central_interval_coverage(quantiles, truth, NOMINAL), expected, atol=0.015)
    # largest gap between the laws N(0, scale) and N(0, 1)
    grid = np.linspace(-4, 4, 2001)
    gap = np.abs(stats.norm.cdf(grid * scale) - stats.norm.cdf(grid)).max()
    assert calibration_error(quantiles, truth) == pytest.approx(gap, abs=0.025)


def test_transform_counts_ties_half():
    # below 2: two atoms; equal: one of four atoms counts half
    assert probability_integral_transform([0.0, 1.0, 2.0, 3.0], 2.0) == 0.625


def test_calibration_error_is_the_kolmogorov_smirnov_statistic():
    generator = np.random.default_rng(0)
    quantiles, truth = generator.normal(size=(50, 11)), generator.normal(size=50)
    ranks = probability_integral_transform(quantiles, truth)
    assert calibration_error(quantiles, truth) == pytest.approx(stats.kstest(ranks, "uniform").statistic)


def test_interval_ends_interpolate_between_midpoint_levels():
    # levels .125 .375 .625 .875 hold 0 1 2 3; p = 1/2 ends at levels .25 and .75, halfway: [0.5, 2.5]
    quantiles = np.tile([3.0, 1.0, 0.0, 2.0], (4, 1))
    assert central_interval_coverage(quantiles, [0.49, 0.51, 2.49, 2.51], [0.5]).tolist() == [0.5]


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match=r"truth's shape and one more dimension, got \(2, 3\) for \(3,\)"):
        probability_integral_transform(np.zeros((2, 3)), np.zeros(3))
    with pytest.raises(ValueError, match=r"probabilities must lie in \[0, 1\], got 50.0 to 50.0"):
        central_interval_coverage(np.zeros((2, 3)), np.zeros(2), [50])
    with pytest.raises(ValueError, match="quantiles and truth must be finite"):
        calibration_error([[0.0, 1.0]], [float("nan")])
