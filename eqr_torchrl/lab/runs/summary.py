"""Prints the status of the runs of a sweep: ``python -m eqr_torchrl.lab.runs.summary ROOT``."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

from eqr_torchrl.lab.runs.status import summarise_sweep


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table for the folder that the command line names; the status is 1 if a run failed or was stopped."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m eqr_torchrl.lab.runs.summary ROOT", file=sys.stderr)
        return 2
    try:
        runs = summarise_sweep(arguments[0])
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    counts = Counter(run["state"] for run in runs)
    total = ", ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "none"
    print(f"{len(runs)} run{'' if len(runs) == 1 else 's'}: {total}")
    width = max((len(run["folder"]) for run in runs), default=0)
    for run in sorted(runs, key=lambda run: (run["state"], run["folder"])):
        print(f"{run['state']:<11} {run['env_steps']:>8}  {run['folder']:<{width}}  {run['reason'] or ''}".rstrip())
    return int(any(run["state"] in ("failed", "interrupted", "killed") for run in runs))


if __name__ == "__main__":
    sys.exit(main())
