"""A replay buffer as checkpoint content: the rows it holds, not its capacity, without a copy in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import ReplayBuffer, TensorStorage

_KIND = "replay_buffer"
_CHUNK = 1 << 20  # rows copied at a time


def is_replay_state(value: Mapping[Any, Any]) -> bool:
    """Whether ``value`` was made by :func:`replay_state`."""
    return value.get("kind") == _KIND


def replay_state(buffer: ReplayBuffer) -> dict[str, Any]:
    """Everything a replay buffer needs to go on: rows, cursor, sampler, transforms, generator.

    The rows are views of the buffer's storage, cut to the filled part, so saving 25 million of them takes no memory.
    Save the state before the buffer is written again.

    Args:
        buffer: a TorchRL replay buffer over a one-dimensional tensor storage, without prefetching.

    Returns:
        A dictionary for :func:`restore_replay` and :func:`~eqr_torchrl.runs.save_checkpoint`.

    Raises:
        ValueError: if the buffer prefetches (batches in flight would be lost), or if its storage holds anything but
            tensors or has more than one dimension.
    """
    _check(buffer)
    num_rows = len(buffer)
    state = buffer.state_dict()
    return {
        "kind": _KIND,
        "capacity": int(buffer.storage.max_size),
        "num_rows": num_rows,
        "rows": _leading_rows(buffer, num_rows) if num_rows else {},
        "writer": state["_writer"],
        "sampler": state["_sampler"],
        "transforms": state["_transforms"],
        "generator": state["_rng"],
    }


def restore_replay(buffer: ReplayBuffer, state: Mapping[str, Any]) -> None:
    """Fill ``buffer`` with what :func:`replay_state` saw, so that it draws and overwrites the same rows as the old one.

    Args:
        buffer: a buffer built as the saved one was, fresh or used; what it holds is replaced.
        state: from :func:`replay_state`, perhaps by way of a checkpoint. Its rows are copied.

    Raises:
        ValueError: if the rows do not fit into the buffer, or it was full and its capacity has changed since.
    """
    _check(buffer)
    num_rows, old, new = state["num_rows"], state["capacity"], int(buffer.storage.max_size)
    if num_rows > new or (num_rows == old and old != new):
        raise ValueError(f"{num_rows} rows of a replay buffer of capacity {old} do not fit into one of capacity {new}.")
    rows = state["rows"]
    if buffer.storage.initialized:
        _check_rows(buffer, rows)
    buffer.empty()
    storage: Any = buffer.storage  # typed for single rows by TorchRL; a slice moves whole blocks
    for start in range(0, num_rows, _CHUNK):
        stop = min(start + _CHUNK, num_rows)
        chunk = {key: value[start:stop] for key, value in rows.items()}
        data = chunk[()] if () in chunk else TensorDict(chunk, batch_size=[stop - start])
        storage.set(slice(start, stop), data)
    buffer.writer.load_state_dict(state["writer"])
    buffer.sampler.load_state_dict(state["sampler"])
    buffer._transform.load_state_dict(state["transforms"])
    if state["generator"] is not None:
        generator_state, device = state["generator"]
        generator = buffer._rng or torch.Generator(device=device)
        generator.set_state(generator_state)
        buffer.set_rng(generator)


def _leading_rows(buffer: ReplayBuffer, num_rows: int) -> dict[tuple[str, ...], torch.Tensor]:
    filled = _rows(buffer, num_rows)
    if isinstance(filled, torch.Tensor):
        return {(): _without_the_rest(filled)}
    leaves = {}
    for key, value in filled.items(include_nested=True, leaves_only=True):
        if not isinstance(value, torch.Tensor):
            raise ValueError(f"a saved replay buffer must hold tensors only: got {type(value).__name__} at {key!r}.")
        leaves[key if isinstance(key, tuple) else (key,)] = _without_the_rest(value)
    return leaves


def _rows(buffer: ReplayBuffer, stop: int) -> Any:
    storage: Any = buffer.storage
    return storage.get(slice(0, stop))  # views


def _without_the_rest(view: torch.Tensor) -> torch.Tensor:
    """The same memory as ``view``, as a tensor that owns nothing else: ``torch.save`` writes whole storages."""
    if not view.is_contiguous():
        return view.clone(memory_format=torch.contiguous_format)
    start = view.storage_offset() * view.element_size()
    storage = view.untyped_storage()[start : start + view.numel() * view.element_size()]
    return torch.empty(0, dtype=view.dtype, device=view.device).set_(storage, 0, view.shape, view.stride())


def _check(buffer: ReplayBuffer) -> None:
    if not isinstance(buffer.storage, TensorStorage) or buffer.storage.ndim != 1:
        kind = type(buffer.storage).__name__
        raise ValueError(f"a saved replay buffer must have a tensor storage of one dimension: got {kind}.")
    if buffer._prefetch:
        raise ValueError("a saved replay buffer must be built with prefetch=None: got one that prefetches.")


def _check_rows(buffer: ReplayBuffer, rows: Mapping[tuple[str, ...], torch.Tensor]) -> None:
    stored = _rows(buffer, 1) if len(buffer) else None
    if not isinstance(stored, TensorDictBase):
        return
    current = {key if isinstance(key, tuple) else (key,): value for key, value in stored.items(True, True)}
    saved_shapes = {key: (tuple(value.shape[1:]), value.dtype) for key, value in rows.items()}
    for key, value in current.items():
        found, needed = saved_shapes.get(key), (tuple(value.shape[1:]), value.dtype)
        if rows and found != needed:
            raise ValueError(f"replay buffer key {key} must have shape and dtype {needed}: the checkpoint has {found}.")
