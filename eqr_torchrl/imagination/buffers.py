"""Replay of real transitions (D) and of imagined ones (D_model)."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torchrl.data import LazyTensorStorage, ReplayBuffer, TensorDictReplayBuffer
from torchrl.envs.transforms import Transform


def make_replay_buffer(capacity: int = 100_000, *, batch_size: int = 256, device=None) -> TensorDictReplayBuffer:
    """First-in, first-out buffer of real transitions, sampled uniformly with replacement.

    Transitions with a NaN or an infinity are left out.

    Args:
        capacity: number of transitions kept.
        batch_size: size of a sampled batch, ``B``.
        device: of the storage. Defaults to the CPU.

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
    first transition.

    Args:
        capacity: number of transitions kept.
        batch_size: size of a sampled batch, ``B``.
        dtype: floating type of the storage, or its name, such as ``float16`` for less memory; batches come back in
            float32. Values too large for it are stored as its largest number (65504). Defaults to float32.
        device: of the storage. Defaults to the CPU.

    Examples:
        >>> buffer = make_model_buffer(100, batch_size=8, dtype="float16")
        >>> _ = buffer.extend(toy_batch(B=20))
        >>> buffer.sample()["observation"].dtype
        torch.float32
    """
    dtype = floating_type(dtype)
    buffer = ReplayBuffer(**_buffer_parts(capacity, batch_size, device))  # a TensorDictReplayBuffer would add an index
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
    return {"storage": LazyTensorStorage(capacity, device=torch.device(device or "cpu")), "batch_size": batch_size}


def floating_type(dtype: torch.dtype | str | None) -> torch.dtype:
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype or torch.float32
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ValueError(f"dtype must be a floating type such as float16, got {dtype}.")
    return found


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
    """Stores only transitions whose floating-point entries are all finite."""

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        finite = [value.isfinite() for value in tensordict.values(True, True) if value.is_floating_point()]
        if all(entry.all() for entry in finite):
            return tensordict
        rows = tensordict.shape[0] if tensordict.batch_dims else 1
        keep = torch.stack([entry.reshape(rows, -1).all(-1) for entry in finite]).all(0)  # [N]
        return tensordict[keep] if keep.any() else None  # pyright: ignore[reportReturnType]; None: nothing is written
