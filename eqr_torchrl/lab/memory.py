"""How much memory a buffer will use, before it is allocated."""

from __future__ import annotations

import math
import os

import torch
from tensordict import TensorDictBase

from eqr_torchrl.imagination.buffers import floating_type

__all__ = ["check_memory"]


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
    floating = None if dtype is None else floating_type(dtype)
    num_bytes = capacity * sum(
        value.numel() * (floating if floating and value.is_floating_point() else value.dtype).itemsize
        for value in transition.values(True, True)
    )
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
    else:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else math.inf
    gib = num_bytes / 2**30
    size = f"{gib:.2f} GiB" if gib >= 0.1 else f"{math.ceil(gib * 1024)} MiB"
    if num_bytes > total:
        raise ValueError(
            f"{name} must fit into the {total / 2**30:.2f} GiB of {device} memory: {capacity:,} transitions need "
            f"{size}; lower the capacity (D: replay_capacity; D_model: rollouts, horizon, retained rounds) or store "
            "it as float16."
        )
    return f"{name} ({capacity:,} transitions) will use up to {size} of {device} memory."
