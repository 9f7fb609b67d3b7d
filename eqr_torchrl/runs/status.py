"""``status.json``: what a run is doing, for people, sweeps and the next start of the same job."""

from __future__ import annotations

import json
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal

from eqr_torchrl.runs.atomic import replace_file

try:
    import fcntl
except ImportError:  # Windows: no lock, so a killed run reads as running
    fcntl = None

State = Literal["running", "finished", "failed", "killed"]
STATUS_FILE = "status.json"
_LOCK_FILE = ".lock"
_LOCK_TRIES = 10


class RunStatus:
    """Context that keeps a run folder's ``status.json`` true: running, then finished or failed with the reason.

    While it is open it holds a lock on the folder, so that two processes never write one run; the operating system
    drops the lock when the process dies, which is how :func:`read_status` tells a killed run from a running one.

    Args:
        folder: an existing run folder.
        env_steps: environment steps taken so far, e.g. read from the checkpoint that is resumed.

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
        self.folder = Path(folder)
        self.env_steps = env_steps
        self._lock: IO[bytes] | None = None

    def __enter__(self) -> RunStatus:
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
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                details = "".join(traceback.format_exception(kind, error, trace))
                self._write("failed", reason=reason, traceback=details)
        finally:
            if self._lock is not None:
                self._lock.close()
                self._lock = None

    def update(self, env_steps: int) -> None:
        """Note that the run has taken ``env_steps`` environment steps."""
        self.env_steps = int(env_steps)
        self._write("running")

    def _write(self, state: State, reason: str | None = None, **details: str) -> None:
        content = {"state": state, "reason": reason, "env_steps": self.env_steps, "updated": time.time(), **details}
        text = json.dumps(content, indent=2) + "\n"
        replace_file(self.folder / STATUS_FILE, lambda path: path.write_text(text, encoding="utf-8"))


def read_status(folder: str | Path) -> dict[str, Any] | None:
    """Read a run folder's status.

    Args:
        folder: a run folder.

    Returns:
        ``state`` (``running``, ``finished``, ``failed``, or ``killed``: it says running, but no process holds it),
        ``reason`` (one line, of a failure), ``env_steps``, ``updated`` (seconds since 1970) and, of a failure,
        ``traceback``. ``None`` if the folder holds no status.

    Examples:
        >>> import tempfile
        >>> read_status(tempfile.mkdtemp()) is None
        True
    """
    folder = Path(folder)
    try:
        status = json.loads((folder / STATUS_FILE).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except json.JSONDecodeError as error:
        return {"state": "failed", "reason": f"unreadable {STATUS_FILE}: {error}", "env_steps": 0, "updated": 0.0}
    if status["state"] == "running" and not _is_locked(folder):
        status.update(state="killed", reason="the process ended without a word (killed or pre-empted)")
    return status


def _take_lock(folder: Path) -> IO[bytes]:
    """The folder's lock, as a file that holds it for as long as it stays open."""
    file = open(folder / _LOCK_FILE, "ab")  # noqa: SIM115 - closed by RunStatus
    for _ in range(_LOCK_TRIES):  # somebody who reads the status holds the lock for a moment
        try:
            if fcntl is not None:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
        except OSError:  # a file system without locks: run on without one
            return file
        else:
            return file
    file.close()
    raise RuntimeError(f"run_dir={folder} is being written by another process; wait for it or stop it.")


def _is_locked(folder: Path) -> bool:
    if fcntl is None:
        return True
    try:
        with open(folder / _LOCK_FILE, "rb") as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:  # held by the run, or not to be known
        return True
    return False
