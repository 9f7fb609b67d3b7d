"""Checkpoint files: the state of all parts of a run, written completely or not at all, loaded without running code.

A checkpoint holds state. Choices (rates, discount, bounds of the temperature) are those of the run that loads it.
``torchrl.checkpoint`` (0.14.1) was tried first: on a full disk its memory-mapped files kill the process (SIGBUS), it
removes older checkpoints before the new one is synced to disk, and folders of a killed save are never removed.
"""

from __future__ import annotations

import copy
import math
import os
import pickle
import platform
import shutil
import warnings
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from torch import nn
from torch.utils.serialization import config
from torchrl.checkpoint import GlobalRNGState
from torchrl.data import ReplayBuffer, TensorStorage
from torchrl.objectives import LossModule

from eqr_torchrl.objectives import SoftActorCriticLoss

FORMAT = 3
CHECKPOINT_FOLDER = "checkpoints"
_PLAIN = (str, int, float, bool, bytes, type(None), torch.Tensor, torch.Size, torch.dtype, torch.device)
_PACKAGES = ("eqr_torchrl", "torch", "torchrl", "tensordict", "numpy")
_RNG = "rng"


def save_checkpoint(
    path: str | Path,
    state: Mapping[str, Any],
    *,
    fingerprint: Mapping[str, Any] | None = None,
    keep_last: int | None = None,
) -> Path:
    """Writes ``state`` to ``path`` so that neither a crash nor a full disk can harm what was saved before.

    Tensors are written from where they are. Older checkpoints are removed only when the new one is on the disk.

    Args:
        path: the file, e.g. ``checkpoint_path(run_dir, env_steps)``; its folder is made.
        state: nested dictionaries, lists and tuples of tensors, numbers and strings, as
            :func:`~eqr_torchrl.lab.runs.capture_state` makes it. What ``torch.load(weights_only=True)`` would refuse is
            an error that names it, before anything is written.
        fingerprint: plain values that a run which resumes from here must share (algorithm, environment, sizes).
        keep_last: how many checkpoints of this folder to keep, newest first; ``None`` keeps all.

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
    for old in [] if keep_last is None else checkpoints_in(path.parent)[:-keep_last]:
        if old != path:
            old.unlink(missing_ok=True)
    return path


def load_checkpoint(path: str | Path, *, fingerprint: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The ``state`` that :func:`save_checkpoint` wrote, on the CPU.

    The tensors are mapped from the file, so that a replay buffer of tens of gigabytes is in memory once when it is
    restored, not twice; nothing done to them reaches the file. ``fingerprint``, what this run would have saved itself,
    is compared entry by entry; other versions of Python, torch or the libraries in between are a warning.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"no checkpoint at {path}.")
    content = read_file(path)
    if "state" not in content:
        raise ValueError(f"{path} must be a checkpoint of format {FORMAT}: got {content.get('kind')}.")
    different = differences(content["fingerprint"], fingerprint) if fingerprint is not None else []
    if different:
        saved, current = (", ".join(f"{name}={pair[i]!r}" for name, *pair in different) for i in (0, 1))
        reason = "which cannot take effect on resume; use the same settings"
        raise ValueError(f"{path} was saved with {saved}, this run has {current}, {reason}.")
    changed = [f"{name} {old} (now {new})" for name, old, new in differences(content["versions"], versions())]
    if changed:
        warnings.warn(f"{path} was written with {', '.join(changed)}; results may differ slightly.", stacklevel=2)
    return content["state"]


def read_file(path: Path) -> dict[str, Any]:
    """The content of a checkpoint or a policy file, mapped from the disk; nothing in it is run."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, OSError) as error:
        other = "it is no file of torch.save, is damaged, or holds more than data"
        reason = error.strerror if isinstance(error, OSError) else other
        raise ValueError(f"cannot read {path} as a checkpoint or a policy: {reason}.") from error
    content = content if isinstance(content, dict) else {}
    if content.get("format", FORMAT) != FORMAT:
        raise ValueError(
            f"{path} has format {content['format']}, of an older version of eqr_torchrl: format {FORMAT} is needed; "
            "use that version, or train again."
        )
    return content


def checkpoint_path(run_dir: str | Path, env_steps: int) -> Path:
    """Where a run saves its checkpoint after ``env_steps`` environment steps; all of the warm-up under 0.

    Examples:
        >>> checkpoint_path("runs/seed=0", 12000).as_posix()
        'runs/seed=0/checkpoints/step_000012000.pt'
    """
    return Path(run_dir) / CHECKPOINT_FOLDER / f"step_{max(env_steps, 0):09d}.pt"


def latest_checkpoint(folder: str | Path) -> Path | None:
    """The checkpoint with the most environment steps in a run folder, or in a folder of checkpoints, or ``None``.

    Examples:
        >>> latest_checkpoint("no/such/folder") is None
        True
    """
    found = checkpoints_in(Path(folder) / CHECKPOINT_FOLDER) or checkpoints_in(Path(folder))
    return found[-1] if found else None


def find_checkpoint(source: str | Path) -> tuple[Path | None, Path]:
    """The checkpoint that a path names (a file, or the newest of a run folder), and the run folder."""
    source = Path(source).expanduser()
    checkpoint = source if source.is_file() else latest_checkpoint(source)
    folder = source if checkpoint is None else checkpoint.parent
    return checkpoint, folder.parent if folder.name == CHECKPOINT_FOLDER else folder


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints in a folder, by environment steps."""
    named = [file for file in folder.glob("step_*.pt") if file.stem.removeprefix("step_").isdecimal()]
    return sorted(named, key=step_of)


def step_of(checkpoint: Path) -> int:
    """Environment steps in the name of a checkpoint; 0 in the warm-up."""
    return int(checkpoint.stem.removeprefix("step_"))


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


def capture_state(**parts: Any) -> dict[str, Any]:
    """Collects the state of all parts of a run, and of the global random number generators, for ``save_checkpoint``.

    Nothing is copied, and of a replay buffer the filled part alone is kept: save the result before training continues.
    One entry per part, and ``"rng"``: the global generators of Python, NumPy and torch (CPU and CUDA).

    Args:
        **parts: modules (losses with their target networks, world models), optimisers, TorchRL replay buffers,
            ``torch.Generator`` objects, anything made of such parts (its ``state_parts`` maps names to them), anything
            else with ``state_dict`` and ``load_state_dict``, and plain values, which are kept unchanged.

    Examples:
        >>> network = torch.nn.Linear(2, 1)
        >>> state = capture_state(network=network, env_steps=1000)
        >>> a = torch.rand(1)
        >>> restore_state(state, network=network)
        >>> torch.equal(a, torch.rand(1))
        True
    """
    if _RNG in parts:
        raise ValueError("no part can be named 'rng': the global random number generators are saved under that name.")
    return {name: _state_of(part) for name, part in parts.items()} | {_RNG: GlobalRNGState().state_dict()}


def restore_state(state: Mapping[str, Any], **parts: Any) -> None:
    """Restores the state of all parts, and last that of the global random number generators.

    Choices stay those of the parts: the hyper-parameters of optimisers (rates, ...) and the coefficients of losses
    (``gamma``, ``target_entropy``, bounds of the temperature). The temperature itself, and a scheduled rate, are state.
    A part that is not in ``state``, other shapes, and a choice that cannot take effect any more are a ``ValueError``.

    Build everything first, since building draws random numbers; restore before anything is captured in a CUDA graph,
    since optimisers get new state tensors. Restored on another kind of device, a run continues, but not bit for bit.
    ``state`` is not changed and not shared; plain values are read from it instead.
    """
    missing = [name for name in parts if name not in state]
    if missing:
        raise ValueError(f"the checkpoint must hold {', '.join(missing)}: it holds {', '.join(sorted(state))}.")
    for name, part in parts.items():
        _restore(name, part, state[name])
    saved = dict(state.get(_RNG, {}))
    if not torch.cuda.is_available():
        saved.pop("torch_cuda", None)
    GlobalRNGState().load_state_dict(saved)


def _state_of(part: Any) -> Any:
    if isinstance(part, ReplayBuffer):
        return _replay_state(part)
    if isinstance(part, torch.Generator):
        return part.get_state()
    if hasattr(part, "state_parts"):
        return {name: _state_of(inner) for name, inner in part.state_parts.items()}
    return part.state_dict() if hasattr(part, "state_dict") else part


def _restore(name: str, part: Any, saved: Any) -> None:
    if isinstance(part, ReplayBuffer):
        _restore_replay(name, part, saved)
    elif isinstance(part, torch.Generator):
        part.set_state(saved)
    elif hasattr(part, "state_parts"):
        for key, inner in part.state_parts.items():
            if key not in saved:
                raise ValueError(f"{name} does not fit the checkpoint: {key} must be there, saved is {sorted(saved)}.")
            _restore(f"{name}/{key}", inner, saved[key])
    elif isinstance(part, nn.Module):
        restore_module(name, part, saved)
    else:
        optimizer: Any = part if isinstance(part, torch.optim.Optimizer) else getattr(part, "optimizer", None)
        groups = optimizer.param_groups if isinstance(optimizer, torch.optim.Optimizer) else []
        if groups and "param_groups" in saved:
            sizes = [[len(group["params"]) for group in found] for found in (groups, saved["param_groups"])]
            if sizes[0] != sizes[1]:
                raise ValueError(f"{name} does not fit the checkpoint: groups of {sizes[0]}, saved {sizes[1]}.")
        choices = [{key: value for key, value in group.items() if key != "params"} for group in groups]
        rates = getattr(part, "base_lrs", None)  # of a scheduler: the rates that it starts from
        if rates is not None and rates != saved.get("base_lrs", rates):
            raise ValueError(f"{name}: rates {rates} cannot take effect, saved is a schedule of {saved['base_lrs']}.")
        # torch keeps tensors that already have the right device and dtype: a copy, or two optimisers could share them
        part.load_state_dict(copy.deepcopy(dict(saved)))
        scheduled = part.get_last_lr() if rates is not None else [choice.get("lr") for choice in choices]
        # torch replaces the groups as it loads
        for group, choice, rate in zip(optimizer.param_groups if groups else [], choices, scheduled, strict=True):
            group.update(choice, lr=rate)


def restore_module(name: str, part: nn.Module, saved: Mapping[str, Any]) -> None:
    """Loads the state of a module but for the coefficients of a loss; a state that does not fit is a ``ValueError``."""
    chosen = _coefficients(part) if isinstance(part, LossModule) else ()
    needed, found = ({k: v for k, v in one.items() if k not in chosen} for one in (part.state_dict(), saved))
    for key in sorted({*needed, *found}):
        shapes = [_shape(entries[key]) if key in entries else "nothing" for entries in (needed, found)]
        if shapes[0] != shapes[1]:
            why = "" if "nothing" not in shapes else ": another version wrote it, or other settings"
            what = f"{key} must be {shapes[0]}, saved is {shapes[1]}{why}"
            raise ValueError(f"{name} does not fit the checkpoint: {what}.")
    now, before = getattr(part, "alpha_init", None), saved.get("alpha_init")
    learned = isinstance(getattr(part, "log_alpha", None), nn.Parameter)
    if learned and now is not None and before is not None and float(now) != float(before):
        reason = f"the temperature is saved, and began at {float(before):g}"
        raise ValueError(f"{name}.alpha_init={float(now):g} cannot take effect: {reason}; leave it.")
    part.load_state_dict(found, strict=False)
    if isinstance(part, SoftActorCriticLoss) and not learned:  # a choice, in the unit of the values, which is state
        loss: Any = part
        loss.log_alpha.fill_(math.log(float(loss.alpha_init) * float(loss.value_unit)))


def _coefficients(part: LossModule) -> set[str]:
    """Names, in the state of a loss, of the scalars that it was constructed with."""
    names = {*getattr(type(part), "_all_schedulable_buffers", ()), *part._buffers, "target_entropy", "_target_entropy"}
    estimator = getattr(part, "_value_estimator", None)
    names |= {f"_value_estimator.{name}" for name in getattr(estimator, "_buffers", ())}
    return names - set(part._parameters)


def _shape(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__


def _replay_state(buffer: ReplayBuffer) -> dict[str, Any]:
    """Rows, cursor, sampler, transforms and generator; rows are views of the filled part of the storage."""
    if not isinstance(buffer.storage, TensorStorage) or buffer.storage.ndim != 1:
        kind = type(buffer.storage).__name__
        raise ValueError(f"a saved replay buffer must have a tensor storage of one dimension: got {kind}.")
    if buffer._prefetch:  # batches in flight would be lost
        raise ValueError("a saved replay buffer must be built with prefetch=None: got one that prefetches.")
    state, num_rows = buffer.state_dict(), len(buffer)
    rows: Any = buffer.storage.get(slice(0, num_rows)) if num_rows else TensorDict()
    leaves = rows.items(include_nested=True, leaves_only=True)
    return {
        "capacity": int(buffer.storage.max_size),
        "num_rows": num_rows,
        "rows": {key if isinstance(key, tuple) else (key,): _own_storage(value) for key, value in leaves},
        "writer": state["_writer"],
        "sampler": state["_sampler"],
        "transforms": state["_transforms"],
        "generator": state["_rng"],
    }


def _restore_replay(name: str, buffer: ReplayBuffer, state: Mapping[str, Any]) -> None:
    num_rows, old, new = state["num_rows"], state["capacity"], int(buffer.storage.max_size)
    if num_rows > new:
        raise ValueError(f"{name}: {num_rows} rows do not fit into a buffer of capacity {new}.")
    buffer.empty()
    cursor = state["writer"]["_cursor"]
    if num_rows:
        rows: Any = TensorDict(state["rows"], [num_rows])
        if num_rows == old < new:  # the oldest row of a full ring is at its cursor
            rows, cursor = torch.cat([rows[cursor:], rows[:cursor]]), num_rows
        storage: Any = buffer.storage  # typed for single rows by TorchRL
        storage.set(slice(0, num_rows), rows)
    buffer.writer.load_state_dict({**state["writer"], "_cursor": cursor % new})  # 0 where the rows fill the buffer
    buffer.sampler.load_state_dict(state["sampler"])
    buffer.transform.load_state_dict(state["transforms"])
    if state["generator"] is not None:
        generator_state, device = state["generator"]
        generator = torch.Generator(device=device)
        generator.set_state(generator_state)
        buffer.set_rng(generator)


def _own_storage(view: torch.Tensor) -> torch.Tensor:
    """The same data as a tensor whose storage holds nothing else: ``torch.save`` writes whole storages."""
    if not view.is_contiguous():
        return view.clone(memory_format=torch.contiguous_format)
    start = view.storage_offset() * view.element_size()
    storage = view.untyped_storage()[start : start + view.numel() * view.element_size()]
    return torch.empty(0, dtype=view.dtype, device=view.device).set_(storage, 0, view.shape, view.stride())


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


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries that decide on a run's numbers."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:  # used from a source folder
            found[package] = "unknown"
    return found


def differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Name, saved and current value of the entries in which two mappings differ."""
    names = {**saved, **current}
    return [(name, saved.get(name), current.get(name)) for name in names if saved.get(name) != current.get(name)]
