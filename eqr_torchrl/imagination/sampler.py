"""Draws rows of a buffer without reading their number on the CPU, as a CUDA graph requires."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchrl.data import LazyTensorStorage, RandomSampler


class CapturableStorage(LazyTensorStorage):
    """A storage that a CUDA graph can read: it indexes its whole allocation.

    TorchRL's storage first slices it to its current length, which a recorded graph would freeze. Indices are not
    checked against the number of filled rows; :class:`CapturableSampler` draws valid ones.

    Examples:
        >>> storage = CapturableStorage(100)
        >>> storage.set(range(20), toy_batch(B=20))
        >>> storage.get(torch.tensor([3, 5])).batch_size
        torch.Size([2])
    """

    def get(self, index: Any) -> Any:
        """Rows at ``index``."""
        if isinstance(index, Tensor) and self.initialized:
            return self._storage[index]
        return super().get(index)  # pyright: ignore[reportArgumentType]


class CapturableSampler(RandomSampler):
    """Uniform draws with replacement that can be recorded in a CUDA graph.

    TorchRL's own sampler draws from a range that is a Python number, which a recorded graph would freeze. Here the
    number of rows is a tensor on the storage's device. The buffers of this package use it on CUDA devices.

    Raises:
        RuntimeError: in ``sample``, if the buffer is empty.

    Examples:
        >>> from torchrl.data import ReplayBuffer
        >>> buffer = ReplayBuffer(storage=CapturableStorage(100), sampler=CapturableSampler(), batch_size=8)
        >>> _ = buffer.extend(toy_batch(B=20))
        >>> buffer.sample().batch_size
        torch.Size([8])
    """

    def __init__(self) -> None:
        super().__init__()
        self._count, self._rows = 0, None

    def sample(self, storage: Any, batch_size: int) -> tuple[Tensor, dict]:
        """Indices ``[batch_size]`` into the storage, on its device."""
        count = len(storage)
        if count == 0:
            raise RuntimeError("the buffer must hold rows before a batch is drawn: it is empty.")
        if self._rows is None:
            self._rows = torch.zeros((), dtype=torch.float64, device=storage.device)  # exact up to 2^53 rows
        self._set(count)
        draws = torch.rand(batch_size, dtype=torch.float64, device=storage.device, generator=self._rng)
        return (draws * self._rows).long(), {}

    def add(self, index: int) -> None:
        """Records that the row ``index`` was written."""
        self._set(max(self._count, int(index) + 1))

    def extend(self, index: Tensor) -> None:
        """Records that the rows ``index`` were written."""
        self.add(int(index.max()))

    def _empty(self) -> None:
        self._set(0)

    def _set(self, count: int) -> None:
        if self._rows is not None and count != self._count:
            self._rows.fill_(count)
            self._count = count
