"""The progress bar of a run."""

from __future__ import annotations

import sys

from tqdm import tqdm

_SECONDS_BETWEEN_LINES = 60  # where the bar cannot be redrawn in place


def progress_bar(total: int, *, initial: int = 0, disable: bool = False) -> tqdm:
    """Bar of env steps with their rate and the time left; in a log file one line a minute.

    Args:
        total: env steps of the run.
        initial: env steps taken already.
        disable: whether nothing is shown.

    Returns:
        A tqdm bar, which is also a context manager.

    Examples:
        >>> with progress_bar(100, disable=True) as bar:
        ...     _ = bar.update()
    """
    seconds = 0.1 if sys.stderr.isatty() else _SECONDS_BETWEEN_LINES
    return tqdm(
        total=total, initial=initial, disable=disable, unit="step", dynamic_ncols=True, mininterval=seconds, miniters=1
    )
