"""Replay of real transitions (D) and of imagined ones (D_model)."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs.transforms import Transform


def make_replay_buffer(capacity: int = 100_000, *, batch_size: int = 256, device=None) -> TensorDictReplayBuffer:
    """First-in, first-out buffer of real transitions, sampled uniformly with replacement.

    Args:
        capacity: number of transitions kept.
        batch_size: size of a sampled batch, ``B``.
        device: device of the storage. Defaults to the CPU.

    Returns:
        A TorchRL replay buffer.

    Raises:
        ValueError: if a number is not positive.

    Examples:
        >>> replay = make_replay_buffer(100, batch_size=8)
        >>> _ = replay.extend(toy_batch(B=20))
        >>> replay.sample().batch_size
        torch.Size([8])
    """
    for name, value in (("capacity", capacity), ("batch_size", batch_size)):
        if value < 1:
            raise ValueError(f"{name} must be positive, got {value}.")
    return TensorDictReplayBuffer(storage=LazyTensorStorage(capacity, device=device or "cpu"), batch_size=batch_size)


def make_model_buffer(
    capacity: int, *, batch_size: int = 256, dtype: torch.dtype | None = None, device=None
) -> TensorDictReplayBuffer:
    """First-in, first-out buffer of imagined transitions.

    Its capacity follows from rollouts kept: horizon x starts x members x retained rounds. Memory is taken as it fills;
    :func:`model_buffer_bytes` tells the total beforehand.

    Args:
        capacity: number of transitions kept.
        batch_size: size of a sampled batch, ``B``.
        dtype: floating type in which the transitions are stored, for less memory (``torch.float16`` or
            ``torch.bfloat16``); batches come back in float32. Defaults to float32.
        device: device of the storage. Defaults to the CPU.

    Returns:
        A TorchRL replay buffer.

    Raises:
        ValueError: if a number is not positive, or ``dtype`` is not a floating type.

    Examples:
        >>> buffer = make_model_buffer(100, batch_size=8, dtype=torch.float16)
        >>> _ = buffer.extend(toy_batch(B=20))
        >>> buffer.sample()["observation"].dtype
        torch.float32
    """
    if dtype is not None and not dtype.is_floating_point:
        raise ValueError(f"dtype must be a floating type, got {dtype}.")
    buffer = make_replay_buffer(capacity, batch_size=batch_size, device=device)
    if dtype not in (None, torch.float32):
        buffer.append_transform(_StoredAs(dtype))
    return buffer


def model_buffer_bytes(capacity: int, transition: TensorDictBase, *, dtype: torch.dtype | None = None) -> int:
    """Bytes that ``capacity`` transitions take.

    Args:
        capacity: number of transitions kept.
        transition: one transition with the stored keys, batch size ``[]``.
        dtype: floating type of the storage. Defaults to that of ``transition``.

    Returns:
        Number of bytes.

    Examples:
        >>> model_buffer_bytes(1000, toy_batch(B=1)[0].select("observation", "action"))  # 4 bytes x (3 + 1)
        16000
    """
    size = 0
    for value in transition.flatten_keys().values():
        itemsize = dtype.itemsize if dtype is not None and value.is_floating_point() else value.element_size()
        size += value.numel() * itemsize
    return capacity * size


class _StoredAs(Transform):
    """Casts floating entries on their way into the storage, and back to float32 on their way out."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.apply(lambda value: value.float() if value.is_floating_point() else value)  # pyright: ignore

    def inv(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.apply(lambda v: v.to(self.dtype) if v.is_floating_point() else v)  # pyright: ignore
