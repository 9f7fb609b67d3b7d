"""Where a run writes: a folder of its own, and what a second start of the same job finds there."""

from __future__ import annotations

import re
import shutil
import time
import uuid
from pathlib import Path
from typing import NamedTuple

from eqr_torchrl.runs.checkpoint import latest_checkpoint
from eqr_torchrl.runs.csv_table import EVALUATIONS_FILE, METRICS_FILE
from eqr_torchrl.runs.status import STATUS_FILE, read_status

CONFIG_FILE = "config.yaml"
CHECKPOINT_FOLDER = "checkpoints"


class RunPlan(NamedTuple):
    """What :func:`open_run` decided: the ``folder`` to write, the ``checkpoint`` to go on from, or nothing to do."""

    folder: Path
    checkpoint: Path | None = None
    finished: bool = False


def make_run_folder(root: str | Path, name: str, run_dir: str | Path | None = None) -> Path:
    """Make the folder of a new run.

    Args:
        root: folder of all runs; made if it is not there.
        name: what the run is, e.g. ``"eqr_sac-dmc/cheetah-run-0"``. The folder's name is this, the time, and six random
            characters, so that runs started in the same second, on several machines, get a folder each.
        run_dir: exactly this folder instead. It may exist, but hold no run.

    Returns:
        The folder, which exists.

    Raises:
        ValueError: if ``run_dir`` is a file or already holds a run.

    Examples:
        >>> import tempfile
        >>> root = tempfile.mkdtemp()
        >>> folder = make_run_folder(root, "eqr_sac-dmc/cheetah-run-0")
        >>> folder.name.startswith("eqr_sac-dmc-cheetah-run-0-"), folder.is_dir()
        (True, True)
        >>> folder == make_run_folder(root, "eqr_sac-dmc/cheetah-run-0")
        False
    """
    if run_dir is not None:
        folder = Path(run_dir).expanduser()
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"run_dir must be a folder: got the file {folder}.")
        if _holds_run(folder):
            status = read_status(folder)
            state = "unknown" if status is None else status["state"]
            raise ValueError(
                f"run_dir={folder} already holds a run ({state}); name another folder, or go on with resume=auto."
            )
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    stem = re.sub(r"[^\w.=+-]+", "-", name).strip("-.") or "run"
    while True:
        folder = Path(root).expanduser() / f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder


def open_run(
    root: str | Path, name: str, *, run_dir: str | Path | None = None, resume: str | Path | None = None
) -> RunPlan:
    """Decide where a run writes and what it goes on from, so that a sweep can simply be started again.

    Args:
        root: folder of all runs.
        name: what the run is; see :func:`make_run_folder`.
        run_dir: the run's folder, exactly.
        resume: ``None`` starts a new run. ``"auto"``, with ``run_dir``, does what is left to do: nothing if that run
            has finished, the rest from its newest checkpoint if it has one, all of it otherwise (rows logged before the
            first checkpoint are then dropped). A path (a checkpoint or a run folder) goes on from there, in the same
            folder, or in ``run_dir``, to which the rows logged so far are copied.

    Returns:
        The folder, the checkpoint to load or ``None``, and whether the run is finished and to be skipped.

    Raises:
        ValueError: if ``run_dir`` already holds a run and ``resume`` is ``None``, if ``resume`` is ``"auto"`` without
            ``run_dir``, or if there is no checkpoint where ``resume`` says.
        RuntimeError: if another process is writing the run that would be resumed.

    Examples:
        >>> import tempfile
        >>> run_dir = Path(tempfile.mkdtemp()) / "seed=0"
        >>> open_run("runs", "eqr_sac", run_dir=run_dir, resume="auto").checkpoint is None
        True
    """
    if resume is None:
        return RunPlan(make_run_folder(root, name, run_dir))
    if str(resume) == "auto":
        if run_dir is None:
            raise ValueError("resume=auto needs run_dir=PATH, the folder to go on with; got none.")
        return _open_again(Path(run_dir).expanduser())
    return _open_checkpoint(Path(resume).expanduser(), root, name, run_dir)


def _open_again(folder: Path) -> RunPlan:
    if not _holds_run(folder):
        return RunPlan(make_run_folder(folder.parent, folder.name, folder))
    status = read_status(folder)
    if status is not None and status["state"] == "finished":
        return RunPlan(folder, finished=True)
    _refuse_if_running(folder)
    checkpoint = latest_checkpoint(folder / CHECKPOINT_FOLDER)
    if checkpoint is None:
        for file in (METRICS_FILE, EVALUATIONS_FILE):
            (folder / file).unlink(missing_ok=True)
    return RunPlan(folder, checkpoint)


def _open_checkpoint(source: Path, root: str | Path, name: str, run_dir: str | Path | None) -> RunPlan:
    if source.is_dir():
        checkpoint = latest_checkpoint(source / CHECKPOINT_FOLDER) or latest_checkpoint(source)
    else:
        checkpoint = source if source.is_file() else None
    if checkpoint is None:
        raise ValueError(f"resume must be auto, a checkpoint, or a run folder that holds one: got {source}.")
    in_run_folder = checkpoint.parent.name == CHECKPOINT_FOLDER
    old_folder = checkpoint.parent.parent if in_run_folder else checkpoint.parent
    same = run_dir is not None and Path(run_dir).expanduser().resolve() == old_folder.resolve()
    if same or (run_dir is None and in_run_folder):
        _refuse_if_running(old_folder)
        return RunPlan(old_folder, checkpoint)
    folder = make_run_folder(root, name, run_dir)
    for file in (METRICS_FILE, EVALUATIONS_FILE, CONFIG_FILE):
        if (old_folder / file).is_file():
            shutil.copy2(old_folder / file, folder / file)
    return RunPlan(folder, checkpoint)


def _holds_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in (STATUS_FILE, CONFIG_FILE, METRICS_FILE, CHECKPOINT_FOLDER))


def _refuse_if_running(folder: Path) -> None:
    status = read_status(folder)
    if status is not None and status["state"] == "running":
        raise RuntimeError(f"run_dir={folder} is being written by another process; wait for it or stop it.")
