"""The paper's table of final scores, as data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd


def published_scores() -> pd.DataFrame:
    """Final scores of Luis et al. (2024), 16 DeepMind Control tasks, 7 pairs of algorithm and utility.

    Source: the appendix table "Scores in DMC benchmark after 250 episodes" of
    `arXiv:2308.06590 <https://arxiv.org/abs/2308.06590>`_. Each seed's score is the mean of its last ten evaluations.
    Three cells differ from print, because the printed ones disagree with the data that the authors released, which
    reproduce all the others: the two EQR-SAC columns of finger-spin are swapped in print, and the MBPO cell of
    reacher-easy repeats that of walker-run. Their ``note`` says so. Names are ours: ``optimistic`` is the paper's OFU,
    and the utility is empty for algorithms with scalar critics.

    Returns:
        One row for each of the 112 cells: ``env``, ``algorithm``, ``utility``, ``env_steps``, ``num_seeds``, ``mean``
        and ``sem`` over seeds in units of return (0 to 1000 on every task), and ``note``.

    Examples:
        >>> published_scores().query("env == 'dmc/cheetah-run' and algorithm == 'eqr_sac'")["mean"].tolist()
        [854.0, 820.0]
    """
    return pd.read_csv(Path(__file__).with_name("published_scores.csv"), comment="#", keep_default_na=False)


def find_published(env: str, algorithm: str, utility: str) -> Any:
    """The published score to compare a run with: a row of :func:`published_scores` as a named tuple, or ``None``.

    Args:
        env: task, such as ``dmc/cheetah-run``.
        algorithm: ``sac``, ``mbpo``, ``qr_mbpo``, ``qu_sac`` or ``eqr_sac``; the paper reports no other.
        utility: ``mean`` or ``optimistic``; ignored for algorithms with scalar critics, which have none.

    Examples:
        >>> find_published("dmc/reacher-easy", "mbpo", "").mean
        937.5
        >>> find_published("dmc/cheetah-run", "eqr_sac", "cvar") is None
        True
    """
    table = published_scores()
    mine = (table["env"] == env) & (table["algorithm"] == algorithm) & table["utility"].isin(["", utility])
    return next(table[mine].itertuples(index=False), None)
