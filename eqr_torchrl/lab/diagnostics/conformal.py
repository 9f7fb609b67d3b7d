"""Intervals of new episodes' returns around a critic's values: split conformal prediction."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray


class ConformalInterval(NamedTuple):
    """How far returns lie below and above values; see :func:`conformal_interval`."""

    below: float
    above: float

    def around(self, values: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lower and upper ends around ``values``, in units of return, each of the shape of ``values``."""
        centre = np.asarray(values, np.float64)
        return centre - self.below, centre + self.above

    def coverage(self, values: ArrayLike, returns: ArrayLike) -> float:
        """Share of other episodes whose return lies in its interval, in [0, 1]."""
        low, high = self.around(values)
        truth = np.asarray(returns, np.float64)
        return float(((low <= truth) & (truth <= high)).mean())


def conformal_interval(values: ArrayLike, returns: ArrayLike, *, probability: float = 0.9) -> ConformalInterval:
    r"""Calibrates a critic's values into intervals that hold the return of a new episode with a given probability.

    Split conformal prediction with separate tails, so that a biased critic gets an interval beside its values: for n
    episodes and a tail of a/2, where a = 1 - ``probability``, the ends are the residuals of rank

    .. math:: k = \lceil (n + 1)(1 - a / 2) \rceil

    from below and from above. Exchangeable episodes (the same policy, independent starts) are covered with at least
    that probability, whatever the critic is: Lei et al. (2018), `arXiv:1604.04173 <https://arxiv.org/abs/1604.04173>`_.
    That holds for new episodes on average, not at each start, and it says nothing about another policy.

    Args:
        values: critic's mean values at the starts of the episodes, in units of return, shape ``[n]``.
        returns: their returns, of the same kind (discounted, with entropy bonus), shape ``[n]``.
        probability: share of new episodes to cover, in (0, 1).

    Raises:
        ValueError: if the shapes differ, a number is not finite, or n episodes are too few: 19 at least for 0.9.

    Examples:
        >>> interval = conformal_interval([100.0] * 19, range(101, 120))  # k = 19: residuals from 1 to 19
        >>> [end.tolist() for end in interval.around([50.0, 60.0])]
        [[51.0, 61.0], [69.0, 79.0]]
    """
    v, g = np.asarray(values, np.float64), np.asarray(returns, np.float64)
    if v.ndim != 1 or v.shape != g.shape:
        raise ValueError(f"values and returns must have one shape [n], got {v.shape} and {g.shape}.")
    if not (np.isfinite(v).all() and np.isfinite(g).all()):
        raise ValueError("values and returns must be finite, got NaN or infinity.")
    if not 0.0 < probability < 1.0:
        raise ValueError(f"probability must lie in (0, 1), got {probability}.")
    tail = (1.0 - probability) / 2.0
    least = math.ceil((1.0 - tail) / tail - 1e-9)
    if v.size < least:
        raise ValueError(f"returns must hold at least {least} episodes for intervals of {probability:g}, got {v.size}.")
    rank = math.ceil((v.size + 1) * (1.0 - tail) - 1e-9)
    residuals = np.sort(g - v)
    return ConformalInterval(float(-residuals[-rank]), float(residuals[rank - 1]))
