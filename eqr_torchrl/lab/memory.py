"""How much memory buffers will use, compared with what this process may use, and memory that is given back."""

from __future__ import annotations

import ctypes
import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from tensordict import TensorDictBase

from eqr_torchrl.imagination.buffers import floating_type

__all__ = ["BufferMemory", "buffer_memory", "check_memory", "memory_limit", "release_memory"]


@dataclass(frozen=True)
class BufferMemory:
    """Memory of a buffer once it is full.

    Args:
        name: name in messages.
        capacity: number of transitions kept.
        num_bytes: memory of all of them, in bytes.
        device: where they are, as PyTorch names it.

    Examples:
        >>> print(BufferMemory("D", 1000, 64_000_000))
        D (1,000 transitions) will use up to 62 MiB of cpu memory.
    """

    name: str
    capacity: int
    num_bytes: int
    device: str = "cpu"

    def __str__(self) -> str:
        size = _size(self.num_bytes)
        return f"{self.name} ({self.capacity:,} transitions) will use up to {size} of {self.device} memory."


def buffer_memory(
    name: str,
    capacity: int,
    transition: TensorDictBase,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
) -> BufferMemory:
    """Measures how much memory a buffer of such transitions will use.

    Args:
        name: name of the buffer in messages.
        capacity: number of transitions kept.
        transition: one or more transitions with the stored keys, of any batch size.
        dtype: floating type of the storage, or its name. Defaults to the types of ``transition``.
        device: device of the storage. Defaults to the CPU.

    Examples:
        >>> buffer_memory("D_model", 2**28, toy_batch().select("observation")).num_bytes // 2**28  # three entries
        12
    """
    floating = None if dtype is None else floating_type(dtype)
    num_bytes = sum(
        value.numel() * (floating if floating and value.is_floating_point() else value.dtype).itemsize
        for value in transition.values(True, True)
    )
    return BufferMemory(name, capacity, capacity * num_bytes // transition.numel(), str(torch.device(device or "cpu")))


def check_memory(*buffers: BufferMemory) -> None:
    """Prints how much memory buffers will use, and checks that this process may use that much on their devices.

    Args:
        *buffers: all that will be allocated.

    Raises:
        ValueError: if those of one device need more than its :func:`memory_limit`.

    Examples:
        >>> check_memory(buffer_memory("D", 1000, toy_batch().select("observation")))
        D (1,000 transitions) will use up to 1 MiB of cpu memory.
    """
    for device in dict.fromkeys(buffer.device for buffer in buffers):
        there = [buffer for buffer in buffers if buffer.device == device]
        limit, source = memory_limit(device)
        if sum(buffer.num_bytes for buffer in there) > limit:
            names = " and ".join(buffer.name for buffer in there)
            needs = " and ".join(f"{buffer.capacity:,} transitions need {_size(buffer.num_bytes)}" for buffer in there)
            raise ValueError(
                f"{names} must fit into {_size(limit)}, {source}: {needs}; lower the capacity (D: replay_capacity; "
                "D_model: rollouts, horizon, retained rounds) or store it as float16."
            )
    print(*buffers, sep="\n")


def memory_limit(device: torch.device | str = "cpu") -> tuple[float, str]:
    """Bytes that this process may use, and what limits them; infinity where the system does not tell.

    The least of the memory of the machine, of its container (control groups of Linux, versions 1 and 2, with those
    above) and of the job (``ulimit -v``, ``ulimit -d``); on a GPU, the memory of the device.

    Args:
        device: a CPU or a GPU.

    Examples:
        >>> memory_limit()[0] > 2**20
        True
    """
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory, f"the memory of {device}"
    limits = [(math.inf, "unknown"), *_of_machine(), *_of_containers(), *_of_job()]
    return min(limits, key=lambda limit: limit[0])


def release_memory() -> None:
    """Returns memory that this process has freed to the system, where the C library keeps it (glibc).

    Data grow between two fits and rollouts change their length, so later tensors do not fit into freed blocks: without
    this call, a run of 25,000 steps grew from 0.6 to 8 GiB. The call takes milliseconds.

    Examples:
        >>> release_memory()
    """
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "malloc_trim"):  # musl has none
        library.malloc_trim(0)


def _of_machine() -> list[tuple[float, str]]:
    try:
        return [(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "the memory of the machine")]
    except (AttributeError, OSError, ValueError):  # not POSIX
        return []


def _of_containers(root: Path = Path("/sys/fs/cgroup"), groups: Path = Path("/proc/self/cgroup")) -> list:
    try:
        lines = groups.read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return []
    limits = []
    for line in lines:  # "0::/path" in version 2, "5:memory:/path" in version 1
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base, file = (root / "memory", "memory.limit_in_bytes") if controllers else (root, "memory.max")
        group = base / path.lstrip("/")
        for folder in [group, *group.parents][: len(group.parts) - len(base.parts) + 1]:
            try:
                limits.append((int((folder / file).read_text(encoding="utf-8")), "the limit of the container or job"))
            except (OSError, ValueError):  # not there, or "max"
                continue
    return limits


def _of_job() -> list[tuple[float, str]]:
    try:
        import resource
    except ImportError:  # Windows
        return []
    soft = [resource.getrlimit(getattr(resource, name))[0] for name in ("RLIMIT_AS", "RLIMIT_DATA")]
    return [(limit, "the limit of the job (ulimit)") for limit in soft if limit != resource.RLIM_INFINITY]


def _size(num_bytes: float) -> str:
    gib = num_bytes / 2**30
    return f"{gib:.2f} GiB" if gib >= 0.1 else f"{math.ceil(gib * 1024)} MiB"
