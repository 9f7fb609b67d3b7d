"""Checkpoint files: written completely or not at all, loadable without running code; the newest are kept.

``torchrl.checkpoint`` (0.14.1) was tried first: on a full disk its memory-mapped files kill the process (SIGBUS), it
removes older checkpoints before the new one is synced to disk, and folders of a killed save are never removed.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils.serialization import config

from eqr_torchrl.lab.runs.atomic import replace_file
from eqr_torchrl.lab.runs.settings import differences, versions

FORMAT = 2
CHECKPOINT_FOLDER = "checkpoints"
_PLAIN = (str, int, float, bool, bytes, type(None), torch.Tensor, torch.Size, torch.dtype, torch.device)


def save_checkpoint(
    path: str | Path,
    state: Mapping[str, Any],
    *,
    fingerprint: Mapping[str, Any] | None = None,
    keep_last: int | None = None,
) -> Path:
    """Writes ``state`` to ``path`` so that neither a crash nor a full disk can harm what was saved before.

    Tensors are written from where they are, without a copy in memory. Older checkpoints are removed only when the new
    one is on the disk.

    Args:
        path: the file, e.g. ``checkpoint_path(run_dir, env_steps)``; its folder is made.
        state: nested dictionaries, lists and tuples of tensors, numbers and strings; see
            :func:`~eqr_torchrl.lab.runs.capture_state`.
        fingerprint: plain values that a run which resumes from here must share (algorithm, environment, sizes).
        keep_last: how many checkpoints of this folder to keep, newest first; ``None`` keeps all.

    Returns:
        ``path``.

    Raises:
        ValueError: if ``state`` holds something that ``torch.load(weights_only=True)`` would refuse (it is named), or
            ``keep_last`` is not positive. Nothing is written then.
        OSError: if the disk is full; the file and the reason are named.

    Examples:
        >>> import tempfile
        >>> path = checkpoint_path(tempfile.mkdtemp(), env_steps=1000)
        >>> _ = save_checkpoint(path, {"weight": torch.ones(2)}, fingerprint={"algorithm": "eqr_sac"})
        >>> load_checkpoint(path, fingerprint={"algorithm": "eqr_sac"})["weight"]
        tensor([1., 1.])
    """
    if keep_last is not None and keep_last < 1:
        raise ValueError(f"keep_last must be at least 1, or None to keep all checkpoints: got {keep_last}.")
    path = Path(path)
    content = {
        "format": FORMAT,
        "versions": versions(),
        "fingerprint": _plain(fingerprint or {}, "fingerprint"),
        "state": _plain(state, "state"),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    for leftover in path.parent.glob(".*.tmp"):  # of a process that was killed while it wrote
        leftover.unlink(missing_ok=True)
    # without checksums, which take six times as long as the rest and are ignored by a memory map
    with config.patch({"save.compute_crc32": False}):
        replace_file(path, lambda temporary: torch.save(content, temporary))
    if keep_last is not None:
        for old in _checkpoints(path.parent)[:-keep_last]:
            if old != path:
                old.unlink(missing_ok=True)
    return path


def load_checkpoint(path: str | Path, *, fingerprint: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Reads what :func:`save_checkpoint` wrote, to the CPU.

    The tensors are mapped from the file, so that a replay buffer of tens of gigabytes is in memory once when it is
    restored, not twice; nothing done to them reaches the file.

    Args:
        path: the file.
        fingerprint: what this run would have saved with a checkpoint of its own; compared entry by entry.

    Returns:
        The saved ``state``.

    Raises:
        ValueError: if there is no readable checkpoint at ``path``, or its fingerprint differs; the entries are named.

    Warns:
        UserWarning: if it was written with other versions of Python, torch or the libraries in between.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"no checkpoint at {path}.")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, OSError) as error:
        raise ValueError(f"cannot read checkpoint {path}: {str(error).splitlines()[0]}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        found = content.get("format") if isinstance(content, dict) else type(content).__name__
        raise ValueError(f"{path} must be a checkpoint of format {FORMAT}: got {found}.")
    if fingerprint is not None:
        different = differences(content["fingerprint"], _plain(fingerprint, "fingerprint"))
        if different:
            saved, current = (", ".join(f"{name}={pair[i]!r}" for name, *pair in different) for i in (0, 1))
            raise ValueError(f"{path} was saved with {saved}, this run has {current}; use the same settings.")
    changed = [f"{name} {old} (now {new})" for name, old, new in differences(content["versions"], versions())]
    if changed:
        warnings.warn(f"{path} was written with {', '.join(changed)}; results may differ slightly.", stacklevel=2)
    return content["state"]


def checkpoint_path(run_dir: str | Path, env_steps: int) -> Path:
    """Where a run saves its checkpoint after ``env_steps`` environment steps.

    Examples:
        >>> checkpoint_path("runs/seed=0", 12000).as_posix()
        'runs/seed=0/checkpoints/step_000012000.pt'
    """
    return Path(run_dir) / CHECKPOINT_FOLDER / f"step_{env_steps:09d}.pt"


def latest_checkpoint(folder: str | Path) -> Path | None:
    """The checkpoint with the most environment steps in a run folder, or in a folder of checkpoints, or ``None``.

    Examples:
        >>> latest_checkpoint("no/such/folder") is None
        True
    """
    found = _checkpoints(Path(folder) / CHECKPOINT_FOLDER) or _checkpoints(Path(folder))
    return found[-1] if found else None


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("step_[0-9]*.pt"), key=lambda path: (len(path.name), path.name))


def _plain(value: Any, where: str) -> Any:
    """``value`` in containers that ``weights_only`` accepts, tensors untouched."""
    if isinstance(value, Mapping):
        return {key: _plain(item, f"{where}[{key!r}]") for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(item, f"{where}[{i}]") for i, item in enumerate(value))
    if isinstance(value, torch.nn.Parameter):
        return value.detach()
    if type(value) in _PLAIN:
        return value
    kind = f"{type(value).__module__}.{type(value).__name__}"
    raise ValueError(f"a checkpoint holds tensors, numbers, strings and containers of them: got {kind} at {where}.")
