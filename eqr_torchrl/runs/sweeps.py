"""What became of the runs of a sweep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eqr_torchrl.runs.status import STATUS_FILE, read_status


def summarise_sweep(root: str | Path) -> list[dict[str, Any]]:
    """Collect the status of all runs under a folder.

    Args:
        root: a folder that holds run folders, at any depth.

    Returns:
        One dictionary per run, sorted by folder: ``folder`` (relative to ``root``), ``state`` (``finished``,
        ``running``, ``failed``, ``killed``), ``env_steps``, ``reason``, ``updated`` (seconds since 1970). Runs that are
        not finished or running are what a second start of the same sweep, with ``resume=auto``, does.

    Raises:
        ValueError: if ``root`` is no folder.

    Examples:
        >>> import tempfile
        >>> from eqr_torchrl.runs import RunStatus, make_run_folder
        >>> root = tempfile.mkdtemp()
        >>> with RunStatus(make_run_folder(root, "", Path(root) / "seed=0"), env_steps=500):
        ...     pass
        >>> [(run["folder"], run["state"], run["env_steps"]) for run in summarise_sweep(root)]
        [('seed=0', 'finished', 500)]
    """
    root = Path(root)
    if not root.is_dir():
        raise ValueError(f"root must be a folder with runs in it: got {root}.")
    runs = []
    for file in sorted(root.rglob(STATUS_FILE)):
        status = read_status(file.parent) or {}
        fields = {name: status.get(name) for name in ("state", "env_steps", "reason", "updated")}
        runs.append({"folder": file.parent.relative_to(root).as_posix(), **fields})
    return runs


def format_summary(runs: Sequence[dict[str, Any]]) -> str:
    """A table of :func:`summarise_sweep`'s result: how many runs are in which state, then one line a run.

    Examples:
        >>> runs = [{"folder": "seed=0", "state": "failed", "env_steps": 500, "reason": "ValueError: no"}]
        >>> print(format_summary(runs))
        1 run: 1 failed
        failed        500  seed=0  ValueError: no
    """
    counts = Counter(run["state"] for run in runs)
    total = ", ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "none"
    width = max((len(run["folder"]) for run in runs), default=0)
    lines = [
        f"{run['state']:<8} {run['env_steps']:>8}  {run['folder']:<{width}}  {run['reason'] or ''}".rstrip()
        for run in sorted(runs, key=lambda run: (run["state"], run["folder"]))
    ]
    return "\n".join([f"{len(runs)} run{'' if len(runs) == 1 else 's'}: {total}", *lines])
