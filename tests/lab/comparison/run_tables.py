"""Tables of evaluations written by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

COLUMNS = ["env", "algorithm", "utility", "seed", "env_steps", "episode_return"]


def evaluations(
    lines: Mapping[str, Mapping[int, float]], *, env: str = "reach", algorithm: str = "sac", utility: str = ""
) -> pd.DataFrame:
    """Seed to env steps to return."""
    rows = [(env, algorithm, utility, seed, t, float(r)) for seed, line in lines.items() for t, r in line.items()]
    return pd.DataFrame(rows, columns=pd.Index(COLUMNS))


def write_run(folder: Path, table: pd.DataFrame) -> Path:
    """A run folder as the training script writes it, with columns that the comparison does not read."""
    folder.mkdir(parents=True)
    table.assign(warmup_steps=1, episode=0).to_csv(folder / "evaluations.csv", index=False)
    return folder


def values(table: pd.DataFrame, columns: Sequence[str]) -> list[tuple]:
    return list(table[list(columns)].itertuples(index=False, name=None))
