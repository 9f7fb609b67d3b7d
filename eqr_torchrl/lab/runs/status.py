"""``status.json``: the state of a run, for people, sweeps and the next start of the same job."""

from __future__ import annotations

import contextlib
import json
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal

from eqr_torchrl.lab.runs.atomic import replace_file

try:
    import fcntl
except ImportError:  # Windows: no lock, so a killed run reads as running
    fcntl = None

State = Literal["running", "finished", "failed", "interrupted", "killed"]
STATUS_FILE = "status.json"
_LOCK_FILE = ".lock"
_LOCK_TRIES = 10


class RunStatus:
    """Context that keeps a run folder's ``status.json``: running, then finished, interrupted or failed.

    While it is open it holds a lock on the folder, so that two processes never write one run; the operating system
    drops the lock when the process dies, by which :func:`read_status` recognises a killed run.

    Args:
        folder: the run folder, made if need be.
        env_steps: environment steps taken so far.

    Raises:
        RuntimeError: on entry, if another process is writing this run.

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

    def __enter__(self) -> RunStatus:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = _take_lock(self.folder)
        self._write("running")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._write("finished")
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
        content = {"state": state, "reason": reason, "env_steps": self.env_steps, "updated": time.time(), **details}
        text = json.dumps(content, indent=2) + "\n"
        replace_file(self.folder / STATUS_FILE, lambda path: path.write_text(text, encoding="utf-8"))


def read_status(folder: str | Path) -> dict[str, Any] | None:
    """Reads a run folder's status.

    Returns:
        ``state`` (``running``, ``finished``, ``failed``, ``interrupted`` by Ctrl-C, or ``killed``: no process holds it
        any more), ``reason`` (one line), ``env_steps``, ``updated`` (seconds since 1970) and, of an error,
        ``traceback``. ``None`` if the folder holds no status.
    """
    folder = Path(folder)
    try:
        status = json.loads((folder / STATUS_FILE).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except json.JSONDecodeError as error:
        return {"state": "failed", "reason": f"unreadable {STATUS_FILE}: {error}", "env_steps": 0, "updated": 0.0}
    if status["state"] == "running" and not _is_locked(folder):
        status.update(state="killed", reason="the process died without reporting")
    return status


def summarise_sweep(root: str | Path) -> list[dict[str, Any]]:
    """Collects the status of all runs under a folder, at any depth.

    Returns:
        One dictionary per run, sorted by folder: ``folder`` (relative to ``root``) and the entries of
        :func:`read_status` without the traceback.

    Raises:
        ValueError: if ``root`` is no folder.

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
        fields = {name: status.get(name) for name in ("state", "env_steps", "reason", "updated")}
        runs.append({"folder": file.parent.relative_to(root).as_posix(), **fields})
    return runs


def _take_lock(folder: Path) -> IO[bytes]:
    """The folder's lock, as a file that holds it for as long as it stays open."""
    file = open(folder / _LOCK_FILE, "ab")  # noqa: SIM115 - closed by RunStatus
    if fcntl is None:
        return file
    for _ in range(_LOCK_TRIES):  # a process that reads the status holds the lock for a moment
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
            continue
        except OSError:  # a file system without locks: continue without one
            pass
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
