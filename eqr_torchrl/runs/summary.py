"""Prints what became of the runs of a sweep: ``python -m eqr_torchrl.runs.summary ROOT``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from eqr_torchrl.runs.sweeps import format_summary, summarise_sweep


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table for the folder that the command line names; the status is 1 if a run failed or was killed."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m eqr_torchrl.runs.summary ROOT", file=sys.stderr)
        return 2
    try:
        runs = summarise_sweep(arguments[0])
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(format_summary(runs))
    return int(any(run["state"] in ("failed", "killed") for run in runs))


if __name__ == "__main__":
    sys.exit(main())
