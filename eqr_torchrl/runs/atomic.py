"""Replacing a file so that a reader or a crash sees the old file or the new one, never a part of one."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path

TEMPORARY_SUFFIX = ".tmp"


def replace_file(path: str | Path, write: Callable[[Path], object]) -> None:
    """Write ``path`` by way of a temporary neighbour that is synced to disk and then renamed over it.

    Args:
        path: the file to create or replace; its folder must exist.
        write: writes the whole content to the path it is given.

    Raises:
        Exception: whatever ``write`` raises; ``path`` is then untouched and the temporary file is gone.

    Examples:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "notes.txt"
        >>> replace_file(path, lambda temporary: temporary.write_text("done"))
        >>> path.read_text()
        'done'
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}{TEMPORARY_SUFFIX}")
    try:
        write(temporary)
        sync_file(temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def sync_file(path: Path) -> None:
    """Block until what was written to ``path`` is on the disk."""
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    # the rename itself lives in the folder; where folders cannot be opened (Windows) there is nothing to sync
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
