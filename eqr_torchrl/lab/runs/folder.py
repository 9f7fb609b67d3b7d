"""Where a run writes: a folder of its own, and what a second start of the same job finds there."""

from __future__ import annotations

import re
import shutil
import time
import uuid
from pathlib import Path
from typing import NamedTuple

from eqr_torchrl.lab.runs.checkpoint import CHECKPOINT_FOLDER, latest_checkpoint
from eqr_torchrl.lab.runs.settings import CONFIG_FILE
from eqr_torchrl.lab.runs.status import STATUS_FILE, read_status
from eqr_torchrl.lab.runs.tables import EVALUATIONS_FILE, METRICS_FILE


class RunPlan(NamedTuple):
    """Where a run writes, and what it resumes."""

    folder: Path
    checkpoint: Path | None = None
    finished: bool = False  # nothing is left to do
    copy_from: Path | None = None  # of the run that is continued elsewhere


def plan_run(
    root: str | Path, name: str, *, run_dir: str | Path | None = None, resume: str | Path | None = None
) -> RunPlan:
    """Decides where a run writes and what it resumes, so that a sweep can simply be started again. Writes nothing.

    A new folder's name is ``name``, the time, and eight random characters, so that runs started in the same second, on
    several machines, get a folder each. ``run_dir`` is taken instead; it may exist, but hold no run. ``resume="auto"``
    does what is left to do in ``run_dir``: nothing if that run has finished, the rest from its newest checkpoint if it
    has one, all of it otherwise. ``resume=PATH`` (a checkpoint or a run folder) continues there, or in ``run_dir``.

    Raises:
        ValueError: if ``run_dir`` is a file or already holds a run that is not resumed, or ``resume`` cannot be.
    """
    folder = None if run_dir is None else Path(run_dir).expanduser()
    if folder is not None and folder.exists() and not folder.is_dir():
        raise ValueError(f"run_dir must be a folder: got the file {folder}.")
    if resume is None:
        return RunPlan(_new_folder(root, name, folder))
    if str(resume) == "auto":
        if folder is None:
            raise ValueError("resume=auto needs run_dir=PATH, the folder to continue; got none.")
        if not _holds_run(folder):
            return RunPlan(folder)
        if (read_status(folder) or {}).get("state") == "finished":
            return RunPlan(folder, finished=True)
        return RunPlan(folder, latest_checkpoint(folder))
    source = Path(resume).expanduser()
    checkpoint = source if source.is_file() else latest_checkpoint(source)
    if checkpoint is None:
        raise ValueError(f"resume must be auto, a checkpoint, or a run folder that holds one: got {source}.")
    in_run_folder = checkpoint.parent.name == CHECKPOINT_FOLDER
    old = checkpoint.parent.parent if in_run_folder else checkpoint.parent
    if (folder is not None and folder.resolve() == old.resolve()) or (folder is None and in_run_folder):
        return RunPlan(old, checkpoint)
    return RunPlan(_new_folder(root, name, folder), checkpoint, copy_from=old)


def make_run_folder(root: str | Path, name: str, run_dir: str | Path | None = None) -> Path:
    """Makes the folder of a new run and returns it: ``run_dir``, or one under ``root`` that no other run has.

    Raises:
        ValueError: if ``run_dir`` is a file or already holds a run.

    Examples:
        >>> import tempfile
        >>> make_run_folder(tempfile.mkdtemp(), "eqr_sac-dmc/cheetah-run-0").name
        'eqr_sac-dmc-cheetah-run-0-...'
    """
    return carry_out(plan_run(root, name, run_dir=run_dir))


def carry_out(plan: RunPlan) -> Path:
    """Makes the folder of a plan; tables of a run that is started over go, those of one continued elsewhere come."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    for file in (METRICS_FILE, EVALUATIONS_FILE, CONFIG_FILE):
        if plan.checkpoint is None and file != CONFIG_FILE:
            (plan.folder / file).unlink(missing_ok=True)
        elif plan.copy_from is not None and (plan.copy_from / file).is_file():
            shutil.copy2(plan.copy_from / file, plan.folder / file)
    return plan.folder


def _new_folder(root: str | Path, name: str, folder: Path | None) -> Path:
    if folder is None:
        stem = re.sub(r"[^\w.=+-]+", "-", name).strip("-.") or "run"
        return Path(root).expanduser() / f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:8]}"
    if _holds_run(folder):
        state = (read_status(folder) or {"state": "unknown"})["state"]
        raise ValueError(
            f"run_dir={folder} already holds a run ({state}); choose another folder, or continue with resume=auto."
        )
    return folder


def _holds_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in (STATUS_FILE, CONFIG_FILE, METRICS_FILE, CHECKPOINT_FOLDER))
