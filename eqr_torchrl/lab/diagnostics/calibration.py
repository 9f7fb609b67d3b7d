"""Calibration of a value posterior: coverage of its intervals, and ranks of the truth in it."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]


def probability_integral_transform(quantiles: ArrayLike, truth: ArrayLike) -> FloatArray:
    """Where the truth falls in a predicted distribution: uniform on [0, 1] if the predictions are calibrated.

    The distribution function of N equal-weight atoms at the truth; atoms equal to the truth count half. A histogram
    with a peak in the middle means too wide posteriors, one with peaks at 0 and 1 too narrow ones.

    Args:
        quantiles: predicted quantiles in any order, shape ``[..., N]``.
        truth: observed values, in the same units, shape ``[...]``.

    Returns:
        Values in [0, 1], shape ``[...]``.

    Raises:
        ValueError: if the shapes do not fit.

    Examples:
        >>> probability_integral_transform([[0.0, 1.0, 2.0, 3.0]] * 3, [-1.0, 1.0, 2.5]).tolist()
        [0.0, 0.375, 0.75]
    """
    q, y = _checked(quantiles, truth)
    return ((q < y[..., None]) + 0.5 * (q == y[..., None])).mean(axis=-1)


def central_interval_coverage(quantiles: ArrayLike, truth: ArrayLike, probabilities: ArrayLike) -> FloatArray:
    """Share of truths inside central intervals, shape ``[P]``: equal to the nominal probabilities if calibrated.

    The interval of probability p lies between levels (1-p)/2 and (1+p)/2 of the quantile function, which is linear
    between the midpoint levels (2i-1)/2N and flat beyond the outermost: intervals wider than p = 1 - 1/N are not
    resolved by N quantiles and come out too narrow.

    Args:
        quantiles: as for :func:`probability_integral_transform`.
        truth: as for :func:`probability_integral_transform`.
        probabilities: nominal probabilities in [0, 1], shape ``[P]``.

    Raises:
        ValueError: if the shapes do not fit or a probability is outside [0, 1].

    Examples:
        >>> central_interval_coverage([[0.0, 1.0, 2.0, 3.0]] * 4, [0.2, 1.2, 1.6, 9.0], [0.25, 0.75]).tolist()
        [0.5, 0.75]
    """
    q, y = _checked(quantiles, truth)
    p = np.asarray(probabilities, np.float64)
    if ((p < 0) | (p > 1)).any():
        raise ValueError(f"probabilities must lie in [0, 1], got {p.min()} to {p.max()}.")
    # "hazen" has levels (2i-1)/2N; [2, P, ...] -> [2, ..., P]
    low, high = np.moveaxis(np.quantile(q, [(1 - p) / 2, (1 + p) / 2], axis=-1, method="hazen"), 1, -1)
    inside = (low <= y[..., None]) & (y[..., None] <= high)  # [..., P]
    return inside.reshape(-1, p.size).mean(axis=0)


def calibration_error(quantiles: ArrayLike, truth: ArrayLike) -> float:
    """Kolmogorov-Smirnov distance of :func:`probability_integral_transform`, whose arguments these are, from uniform.

    Returns:
        Distance in [0, 1]: 0 for a calibrated posterior, up to the resolution 1/N and the noise of finite data.

    Examples:
        >>> calibration_error([[0.0, 1.0, 2.0, 3.0]] * 2, [9.0, 9.0])
        1.0
    """
    ranks = np.sort(probability_integral_transform(quantiles, truth).ravel())
    steps = np.arange(ranks.size + 1) / ranks.size
    return float(max((steps[1:] - ranks).max(), (ranks - steps[:-1]).max()))


def _checked(quantiles: ArrayLike, truth: ArrayLike) -> tuple[FloatArray, FloatArray]:
    q, y = np.asarray(quantiles, np.float64), np.asarray(truth, np.float64)
    if q.ndim == 0 or q.shape[:-1] != y.shape or q.size == 0:
        raise ValueError(f"quantiles must be truth's shape and one more dimension, got {q.shape} for {y.shape}.")
    if not (np.isfinite(q).all() and np.isfinite(y).all()):
        raise ValueError("quantiles and truth must be finite, got NaN or infinity.")
    return np.sort(q, axis=-1), y
