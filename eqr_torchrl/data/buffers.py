"""Replay of real transitions (D) and of imagined ones (D_model)."""

from __future__ import annotations

import math
import os
from typing import Any

import torch
from tensordict import TensorDictBase
from torchrl.data import LazyTensorStorage, ReplayBuffer, TensorDictReplayBuffer
from torchrl.envs.transforms import Transform

from eqr_torchrl.data.sampler import CapturableSampler, CapturableStorage


def make_replay_buffer(capacity: int = 100_000, *, batch_size: int = 256, device=None) -> TensorDictReplayBuffer:
    """First-in, first-out buffer of real transitions, sampled uniformly with replacement.

    Rows with a NaN or an infinity, such as those that :class:`~eqr_torchrl.envs.NonFiniteGuard` cut, are left out.

    Args:
        capacity: number of transitions kept.
        batch_size: size of a sampled batch, ``B``.
        device: device of the storage. Defaults to the CPU.

    Raises:
        ValueError: if a number is not positive.

    Examples:
        >>> replay = make_replay_buffer(100, batch_size=8)
        >>> _ = replay.extend(toy_batch(B=20))
        >>> replay.sample().batch_size
        torch.Size([8])
    """
    buffer = TensorDictReplayBuffer(**_buffer_parts(capacity, batch_size, device))
    buffer.append_transform(_FiniteRows())
    return buffer


def make_model_buffer(
    capacity: int, *, batch_size: int = 256, dtype: torch.dtype | str | None = None, device=None
) -> ReplayBuffer:
    """First-in, first-out buffer of imagined transitions.

    Its capacity follows from the retained rollouts: :attr:`BranchedRollouts.capacity`. Memory is allocated with the
    first row; :func:`check_memory` reports the total beforehand. Rows hold only what is added: a
    ``TensorDictReplayBuffer`` would add an index of 8 bytes to each.

    Args:
        capacity: number of transitions kept.
        batch_size: size of a sampled batch, ``B``.
        dtype: floating type of the storage, or its name, such as ``float16`` for less memory; batches come back in
            float32. Values too large for it are stored as its largest number (65504). Defaults to float32.
        device: device of the storage. Defaults to the CPU.

    Raises:
        ValueError: if a number is not positive, or ``dtype`` is not a floating type.

    Examples:
        >>> buffer = make_model_buffer(100, batch_size=8, dtype="float16")
        >>> _ = buffer.extend(toy_batch(B=20))
        >>> buffer.sample()["observation"].dtype
        torch.float32
    """
    dtype = _floating_type(dtype)
    buffer = ReplayBuffer(**_buffer_parts(capacity, batch_size, device))
    if dtype != torch.float32:
        buffer.append_transform(_StoredAs(dtype))
    return buffer


def check_counts(**counts: int) -> None:
    """Raises a ValueError that names the first argument that is not a positive integer."""
    for name, value in counts.items():
        if type(value) is not int or value < 1:
            raise ValueError(f"{name} must be a positive integer, got {value}.")


def _buffer_parts(capacity: int, batch_size: int, device) -> dict[str, Any]:
    check_counts(capacity=capacity, batch_size=batch_size)
    device = torch.device(device or "cpu")
    if device.type == "cuda":  # draws there may be recorded in a CUDA graph
        parts = {"storage": CapturableStorage(capacity, device=device), "sampler": CapturableSampler()}
    else:
        parts = {"storage": LazyTensorStorage(capacity, device=device)}
    return {**parts, "batch_size": batch_size}


def _floating_type(dtype: torch.dtype | str | None) -> torch.dtype:
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype or torch.float32
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ValueError(f"dtype must be a floating type such as float16, got {dtype}.")
    return found


def check_memory(
    name: str,
    capacity: int,
    transition: TensorDictBase,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
) -> str:
    """Reports in one line how much memory a buffer will use; an error if the machine has less.

    Args:
        name: name of the buffer in the message.
        capacity: number of transitions kept.
        transition: one transition with the stored keys, batch size ``[]``.
        dtype: floating type of the storage, or its name. Defaults to the types of ``transition``.
        device: device of the storage. Defaults to the CPU.

    Raises:
        ValueError: if the device has less memory.

    Examples:
        >>> check_memory("D_model", 2**28, toy_batch(B=1)[0].select("observation"))  # 12 bytes each
        'D_model (268,435,456 transitions) will use up to 3.00 GiB of cpu memory.'
    """
    device = torch.device(device or "cpu")
    floating = None if dtype is None else _floating_type(dtype)
    num_bytes = capacity * sum(
        value.numel() * (floating if floating and value.is_floating_point() else value.dtype).itemsize
        for value in transition.values(True, True)
    )
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
    else:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    gib = num_bytes / 2**30
    size = f"{gib:.2f} GiB" if gib >= 0.1 else f"{math.ceil(gib * 1024)} MiB"
    if num_bytes > total:
        raise ValueError(
            f"{name} must fit into the {total / 2**30:.2f} GiB of {device} memory: {capacity:,} transitions need "
            f"{size}; lower the capacity (D: replay_capacity; D_model: rollouts, horizon, retained rounds) or store "
            "it as float16."
        )
    return f"{name} ({capacity:,} transitions) will use up to {size} of {device} memory."


class _StoredAs(Transform):
    """Casts floating entries on their way into the storage, and back to float32 on their way out."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.apply(lambda value: value.float() if value.is_floating_point() else value)  # pyright: ignore

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        largest = torch.finfo(self.dtype).max  # infinities would make whole batches useless
        return tensordict.apply(  # pyright: ignore[reportReturnType]
            lambda v: v.clamp(-largest, largest).to(self.dtype) if v.is_floating_point() else v
        )


class _FiniteRows(Transform):
    """Stores only rows whose floating-point entries are all finite."""

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        finite = [value.isfinite() for value in tensordict.values(True, True) if value.is_floating_point()]
        if all(entry.all() for entry in finite):
            return tensordict
        rows = tensordict.shape[0] if tensordict.batch_dims else 1
        keep = torch.stack([entry.reshape(rows, -1).all(-1) for entry in finite]).all(0)  # [N]
        return tensordict[keep] if keep.any() else None  # pyright: ignore[reportReturnType]; None: nothing is written
