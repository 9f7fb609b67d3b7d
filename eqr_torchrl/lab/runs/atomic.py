"""Replacing a file so that a reader or a crash sees the old file or the new one, never a part of one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path


def replace_file(path: str | Path, write: Callable[[Path], object]) -> None:
    """Writes ``path`` through a temporary file beside it, which is synced to disk and then renamed.

    The temporary name is always the same, so that what a killed process left behind is overwritten; a run folder's
    lock ensures that there is one writer. An ``OSError`` names ``path``, which stays as it was.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        write(temporary)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        free = shutil.disk_usage(path.parent).free
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) or (isinstance(error, RuntimeError) and free < 2**20):  # torch.save's own error
            reason = "no space left on the disk" if free < 2**20 else str(error)
            raise OSError(f"cannot write {path}: {reason}.") from error
        raise
    if hasattr(os, "O_DIRECTORY"):  # the rename itself lives in the folder; Windows cannot open folders
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
