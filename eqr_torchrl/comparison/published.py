"""The paper's table of final scores, as data."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple

import pandas as pd


class PublishedScore(NamedTuple):
    """One cell of the table: undiscounted return after ``env_steps`` steps, mean and standard error over seeds."""

    env: str
    algorithm: str
    utility: str
    env_steps: int
    num_seeds: int
    mean: float
    sem: float
    note: str


@lru_cache(maxsize=1)
def published_scores() -> tuple[PublishedScore, ...]:
    """Final scores of Luis et al. (2024), 16 DeepMind Control tasks, 7 pairs of algorithm and utility.

    Source: the appendix table "Scores in DMC benchmark after 250 episodes" of
    `arXiv:2308.06590 <https://arxiv.org/abs/2308.06590>`_. Each seed's score is the mean of its last ten evaluations.
    Three cells differ from print, because the printed ones disagree with the data that the authors released, which
    reproduce all the others: the two EQR-SAC columns of finger-spin are swapped in print, and the MBPO cell of
    reacher-easy repeats that of walker-run. Their ``note`` says so. Names are ours: ``optimistic`` is the paper's OFU,
    and the utility is empty for algorithms with scalar critics.

    Returns:
        The 112 cells, with ``mean`` and ``sem`` in units of return (0 to 1000 on every task).

    Examples:
        >>> [s.mean for s in published_scores() if s.env == "dmc/cheetah-run" and s.algorithm == "eqr_sac"]
        [854.0, 820.0]
    """
    with files("eqr_torchrl.comparison").joinpath("published_scores.csv").open(encoding="utf-8") as file:
        table = pd.read_csv(file, comment="#", keep_default_na=False)
    return tuple(PublishedScore(*row) for row in table[list(PublishedScore._fields)].itertuples(index=False))


def find_published(env: str, algorithm: str, utility: str) -> PublishedScore | None:
    """The published score to compare a run with, or ``None``.

    Args:
        env: task, such as ``dmc/cheetah-run``.
        algorithm: name as in the table: ``sac``, ``mbpo``, ``qr_mbpo``, ``qu_sac``, ``eqr_sac``.
        utility: ``mean`` or ``optimistic``; ignored for algorithms with scalar critics, which have none.

    Returns:
        The cell of the table; ``None`` if the paper does not report it.

    Examples:
        >>> find_published("dmc/reacher-easy", "mbpo", "").mean
        937.5
        >>> find_published("dmc/cheetah-run", "eqr_sac", "cvar") is None
        True
    """
    for score in published_scores():
        if (score.env, score.algorithm) == (env, algorithm) and score.utility in ("", utility):
            return score
    return None
