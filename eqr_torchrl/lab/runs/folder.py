"""A run folder: where a run writes, what it resumes, how it ended, which settings it had, and its one history."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import shutil
import sys
import time
import traceback
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, NamedTuple

from eqr_torchrl.lab.runs.checkpoint import (
    CHECKPOINT_FOLDER,
    checkpoints_in,
    differences,
    find_checkpoint,
    latest_checkpoint,
    replace_file,
    step_of,
)

try:
    import fcntl
except ImportError:  # Windows: no lock, so a killed run reads as running
    fcntl = None

State = Literal["running", "finished", "stopped", "failed", "interrupted", "killed"]
STATUS_FILE, CONFIG_FILE = "status.json", "config.yaml"
METRICS_FILE, EVALUATIONS_FILE = "metrics.csv", "evaluations.csv"
POLICY_FILE, BEST_POLICY_FILE = "policy.pt", "policy_best.pt"
STEP = "env_steps"
_LOCK_FILE = ".lock"
_TYPE_NAMES = {"int": "an integer", "float": "a number", "bool": "true or false", "str": "text", "None": "null"}
_TYPE_NAMES["list"] = "a list such as [64,64]"
_LAUNCH_ONLY = ("resume", "run_dir", "runs_root", "progress", "num_threads")  # how it was started, not what it does


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
    completes the run in ``run_dir``: it skips a finished run, continues from the newest checkpoint if there is one, and
    starts the run otherwise. ``resume=PATH`` (a checkpoint or a run folder) continues there, or in ``run_dir``.
    """
    folder = None if run_dir is None else Path(run_dir).expanduser()
    if resume is None:
        return RunPlan(_new_folder(root, name, folder))
    if str(resume) == "auto":
        if folder is None:
            raise ValueError("resume=auto needs run_dir=PATH, the folder to continue; got none.")
        finished = (read_status(folder) or {}).get("state") == "finished"
        return RunPlan(folder, None if finished else latest_checkpoint(folder), finished)
    checkpoint, old = find_checkpoint(resume)
    if checkpoint is None:
        raise ValueError(f"resume must be auto, a checkpoint, or a run folder that holds one: got {resume}.")
    in_run_folder = checkpoint.parent != old
    if (folder is not None and folder.resolve() == old.resolve()) or (folder is None and in_run_folder):
        return RunPlan(old, checkpoint)
    return RunPlan(_new_folder(root, name, folder), checkpoint, copy_from=old)


def prepare_folder(plan: RunPlan, step: int = -1) -> Path:
    """Makes the folder of a plan, and removes what was written there beyond the step that is resumed.

    Tables and settings of a run that is continued in another folder are copied there; its own folder is not changed.
    """
    _make_folder(plan.folder)
    for file in (METRICS_FILE, EVALUATIONS_FILE, CONFIG_FILE):
        if plan.copy_from is not None and (plan.copy_from / file).is_file():
            shutil.copy2(plan.copy_from / file, plan.folder / file)
    rewind(plan.folder, step)
    return plan.folder


def rewind(folder: str | Path, step: int) -> None:
    r"""Removes what a run wrote beyond an environment step, so that its folder has one history.

    Rows of the tables, checkpoints, and the policy files, which a resumed run writes anew from its checkpoint.

    Examples:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "metrics.csv").write_text("env_steps,x\n10,1\n20,2\n")
        >>> rewind(folder, 10)
        >>> read_csv(folder / "metrics.csv")
        [{'env_steps': '10', 'x': '1'}]
    """
    folder = Path(folder)
    for table in (folder / METRICS_FILE, folder / EVALUATIONS_FILE):
        if table.is_file():
            rows = read_csv(table)
            kept = [row for row in rows if float(row[STEP]) <= step]
            write_csv(table, list(rows[0]), kept) if kept else table.unlink()
    for checkpoint in checkpoints_in(folder / CHECKPOINT_FOLDER):
        if step_of(checkpoint) > step:
            checkpoint.unlink()
    for policy in (POLICY_FILE, BEST_POLICY_FILE):
        (folder / CHECKPOINT_FOLDER / policy).unlink(missing_ok=True)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"the folder {folder} cannot be made: {error.strerror}.") from error


def _new_folder(root: str | Path, name: str, folder: Path | None) -> Path:
    if folder is None:
        stem = re.sub(r"[^\w.=+-]+", "-", name).strip("-.") or "run"
        return Path(root).expanduser() / f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:8]}"
    if any(
        (folder / name).exists()
        for name in (STATUS_FILE, CONFIG_FILE, METRICS_FILE, EVALUATIONS_FILE, CHECKPOINT_FOLDER)
    ):
        state = (read_status(folder) or {"state": "unknown"})["state"]
        choice = "choose another folder, or continue with resume=auto"
        raise ValueError(f"run_dir={folder} already holds a run ({state}); {choice}.")
    return folder


def read_csv(path: str | Path) -> list[dict[str, str]]:
    """Rows of ``metrics.csv`` or ``evaluations.csv``, column to text, without an unfinished last line.

    A process that was killed, or a full disk, leaves such a line; empty cells are ``""``.
    """
    text = Path(path).read_text(encoding="utf-8")
    rows = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1]))
    return [row for row in rows if None not in row and None not in row.values()]


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Replaces a CSV file as a whole."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    replace_file(path, lambda file: file.write_text(text.getvalue(), encoding="utf-8", newline=""))


def save_settings(settings: Mapping[str, Any], folder: str | Path, **record: Any) -> None:
    """Writes a run's settings to ``config.yaml``, and prints those that change in a resumed run.

    What they were resolved to (``record``: versions, target entropy) is added for people. Without OmegaConf the file is
    JSON, which every reader of YAML takes.
    """
    path = Path(folder) / CONFIG_FILE
    found = differences(flat(read_settings_file(path)), flat(settings)) if path.is_file() else []
    if changed := [f"{key}={new} (was {old})" for key, old, new in found if key not in _LAUNCH_ONLY]:
        print(f"resuming with changed settings: {', '.join(changed)}")
    content = {**settings, **({"record": record} if record else {})}
    try:
        from omegaconf import OmegaConf

        text = OmegaConf.to_yaml(OmegaConf.create(content))
    except ImportError:
        text = json.dumps(content, indent=2) + "\n"
    replace_file(path, lambda file: file.write_text(text, encoding="utf-8"))


def settings_of_run(source: str | Path) -> dict[str, Any]:
    """The settings of a run folder, or of one of its checkpoints, without the folder written to and what was resumed.

    Examples:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "config.yaml").write_text("{gamma: 0.9, resume: null, run_dir: here}")
        >>> settings_of_run(folder)
        {'gamma': 0.9}
    """
    path = find_checkpoint(source)[1] / CONFIG_FILE
    if not path.is_file():
        raise ValueError(f"no settings of a run at {path}: a run folder or one of its checkpoints is needed.")
    return {key: value for key, value in read_settings_file(path).items() if key not in ("resume", "run_dir")}


def differing_settings(folders: Sequence[str | Path]) -> dict[str, list[Any]]:
    """The settings in which runs differ that are compared as seeds of one algorithm: one value for each folder.

    Those of the seed, and what changes no number, are left out, and folders without a ``config.yaml``.

    Examples:
        >>> import tempfile
        >>> folders = [Path(tempfile.mkdtemp()), Path(tempfile.mkdtemp())]
        >>> for seed, folder in enumerate(folders):
        ...     _ = (folder / "config.yaml").write_text(f"{{seed: {seed}, tau: {0.1 * (seed + 1)}}}")
        >>> differing_settings(folders)
        {'tau': [0.1, 0.2]}
    """
    files = [Path(folder) / CONFIG_FILE for folder in folders if (Path(folder) / CONFIG_FILE).is_file()]
    settings = [flat(read_settings_file(file)) for file in files]
    names = dict.fromkeys(name for one in settings for name in one if name not in ("seed", *_LAUNCH_ONLY))
    values = {name: [one.get(name) for one in settings] for name in names}
    return {name: found for name, found in values.items() if any(value != found[0] for value in found)}


def read_settings_file(path: Path) -> dict[str, Any]:
    """The settings of a ``config.yaml``, without what is recorded for people."""
    try:
        from omegaconf import OmegaConf

        found: Any = OmegaConf.to_container(OmegaConf.load(path))
    except ImportError:
        found = json.loads(path.read_text(encoding="utf-8"))
    return {key: value for key, value in found.items() if key != "record"}


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Nested settings by their dotted names."""
    if not isinstance(tree, Mapping) or not tree:
        return {prefix.rstrip("."): tree}
    return {key: value for name, node in tree.items() for key, value in flat(node, f"{prefix}{name}.").items()}


def check_types(annotations: Mapping[str, Any], values: Mapping[str, Any], prefix: str = "") -> None:
    """Checks values against annotations of plain types and of lists; other annotations are left to the constructor."""
    for name in annotations.keys() & values.keys():
        annotation, value = annotations[name], values[name]
        text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
        kinds = [re.sub(r"^(Sequence|list|tuple)\[.*", "list", kind.strip()) for kind in text.split("|")]
        found = "None" if value is None else type(value).__name__
        fits = found in kinds or (found == "int" and "float" in kinds) or (found == "str" and "list" in kinds)  # "auto"
        if set(kinds) <= set(_TYPE_NAMES) and not fits:
            raise ValueError(
                f"{prefix}{name} must be {' or '.join(_TYPE_NAMES[kind] for kind in kinds)}, got {value!r}."
            )


class RunStatus:
    """Context that keeps a run folder's ``status.json``: running, then finished, interrupted or failed.

    While it is open it holds a lock on the folder, so that two processes never write one run (a RuntimeError on entry);
    the operating system drops the lock when the process dies, by which :func:`read_status` recognises a killed run.

    Examples:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> with RunStatus(folder) as status:
        ...     status.update(env_steps=1000)
        ...     read_status(folder)["state"]
        'running'
        >>> read_status(folder)["state"], read_status(folder)["env_steps"]
        ('finished', 1000)
    """

    def __init__(self, folder: str | Path, *, env_steps: int = 0) -> None:
        self.folder, self.env_steps = Path(folder), env_steps
        self.ending: tuple[State, str | None] | None = None  # state and reason; None leaves them to the error

    def __enter__(self) -> RunStatus:
        _make_folder(self.folder)
        self._lock = _take_lock(self.folder)
        self._write("running")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None or self.ending is not None:
                self._write(*(self.ending or ("finished", None)))
            else:
                state = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                self._write(state, reason, traceback="".join(traceback.format_exception(kind, error, trace)))
        except OSError as full:  # a full disk: what ended the run is the error to be seen
            print(f"the state of the run could not be saved: {full}", file=sys.stderr)
        finally:
            self._lock.close()

    def update(self, env_steps: int) -> None:
        """Records that the run has taken ``env_steps`` environment steps."""
        self.env_steps = int(env_steps)
        with contextlib.suppress(OSError):  # a full disk: the next checkpoint reports it
            self._write("running")

    def _write(self, state: State, reason: str | None = None, **details: str) -> None:
        content = {"state": state, "reason": reason, STEP: self.env_steps, "updated": time.time(), **details}
        text = json.dumps(content, indent=2) + "\n"
        replace_file(self.folder / STATUS_FILE, lambda path: path.write_text(text, encoding="utf-8"))


def read_status(folder: str | Path) -> dict[str, Any] | None:
    """The status of a run folder, ``None`` if there is none.

    ``state`` (``running``; ``finished``: all steps taken; ``stopped``: its loop was left early; ``interrupted`` by
    Ctrl-C or SIGTERM; ``failed``; or ``killed``: no process holds it any more), ``reason`` (one line), ``env_steps``,
    ``updated`` (seconds since 1970) and, of an error, ``traceback``.
    """
    folder = Path(folder)
    try:
        status = json.loads((folder / STATUS_FILE).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    if status["state"] == "running" and not _is_locked(folder):
        status.update(state="killed", reason="the process died without reporting")
    return status


def summarise_sweep(root: str | Path) -> list[dict[str, Any]]:
    """What :func:`read_status` says of all runs under a folder, at any depth, by ``folder``; without tracebacks.

    Examples:
        >>> import tempfile
        >>> root = tempfile.mkdtemp()
        >>> with RunStatus(root, env_steps=500):
        ...     pass
        >>> [(run["folder"], run["state"], run["env_steps"]) for run in summarise_sweep(root)]
        [('.', 'finished', 500)]
    """
    root = Path(root)
    if not root.is_dir():
        raise ValueError(f"root must be a folder with runs in it: got {root}.")
    runs = []
    for file in sorted(root.rglob(STATUS_FILE)):
        status = read_status(file.parent) or {}
        names = ("state", STEP, "reason", "updated")
        runs.append({"folder": file.parent.relative_to(root).as_posix()} | {name: status.get(name) for name in names})
    return runs


def _take_lock(folder: Path) -> IO[bytes]:
    """The folder's lock, as a file that holds it for as long as it stays open."""
    file = open(folder / _LOCK_FILE, "ab")  # noqa: SIM115 - closed by RunStatus
    if fcntl is None:
        return file
    for _ in range(10):  # a process that reads the status holds the lock for a moment
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            time.sleep(0.02)
        except OSError:  # a file system without locks: continue without one
            return file
    file.close()
    raise RuntimeError(f"run_dir={folder} is being written by another process; wait for it or stop it.")


def _is_locked(folder: Path) -> bool:
    if fcntl is None:
        return True
    try:
        with open(folder / _LOCK_FILE, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:  # held by the run, or unknown
        return True
    return False
