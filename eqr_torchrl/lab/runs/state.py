"""What a checkpoint of a run holds: the state of every part, and of every random number generator."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, cast

import torch
from tensordict import TensorDict
from torch import nn
from torchrl.checkpoint import GlobalRNGState
from torchrl.data import ReplayBuffer, TensorStorage

_RNG = "rng"


def capture_state(**parts: Any) -> dict[str, Any]:
    """Collects the state of all parts of a run, and of the global random number generators, for ``save_checkpoint``.

    Nothing is copied, and of a replay buffer the filled part alone is kept: save the result before training continues.

    Args:
        **parts: modules (losses with their target networks, world models), optimisers, TorchRL replay buffers,
            ``torch.Generator`` objects, anything made of such parts (its ``state_parts`` maps names to them), anything
            else with ``state_dict`` and ``load_state_dict``, and plain values, which are kept unchanged.

    Returns:
        One entry per part and ``"rng"``: the global generators of Python, NumPy and torch (CPU and CUDA).

    Raises:
        ValueError: if a part is called ``rng``, or a replay buffer prefetches or is not a tensor storage of one
            dimension.

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

    Build everything first, since building draws random numbers; restore before anything is captured in a CUDA graph,
    since optimisers get new state tensors. Restored on another kind of device, a run continues, but not bit for bit.

    Args:
        state: from :func:`capture_state`, perhaps by way of a checkpoint; it is not changed and not shared.
        **parts: the parts, under the names they were captured with. Plain values are read from ``state`` instead.

    Raises:
        ValueError: if a part is not in ``state``, or does not have the shapes it was saved with; one line names both.
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
        _check_shapes(name, part.state_dict(), saved)
        part.load_state_dict(saved)
    else:
        if isinstance(part, torch.optim.Optimizer):
            sizes = [[len(group["params"]) for group in state["param_groups"]] for state in (part.state_dict(), saved)]
            if sizes[0] != sizes[1]:
                raise ValueError(f"{name} does not fit the checkpoint: groups of {sizes[0]}, saved {sizes[1]}.")
        # torch keeps tensors that already have the right device and dtype: a copy, or two optimisers could share them
        part.load_state_dict(copy.deepcopy(dict(saved)))


def _check_shapes(name: str, needed: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    for key in sorted({*needed, *saved}):
        shapes = [_shape(entries[key]) if key in entries else "nothing" for entries in (needed, saved)]
        if shapes[0] != shapes[1]:
            raise ValueError(f"{name} does not fit the checkpoint: {key} must be {shapes[0]}, saved is {shapes[1]}.")


def _shape(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__


def _replay_state(buffer: ReplayBuffer) -> dict[str, Any]:
    """Rows, cursor, sampler, transforms and generator; the rows are views of the storage, cut to the filled part."""
    if not isinstance(buffer.storage, TensorStorage) or buffer.storage.ndim != 1:
        kind = type(buffer.storage).__name__
        raise ValueError(f"a saved replay buffer must have a tensor storage of one dimension: got {kind}.")
    if buffer._prefetch:  # batches in flight would be lost
        raise ValueError("a saved replay buffer must be built with prefetch=None: got one that prefetches.")
    state, num_rows = buffer.state_dict(), len(buffer)
    storage: Any = buffer.storage
    rows = storage.get(slice(0, num_rows)) if num_rows else {}
    if isinstance(rows, torch.Tensor):
        rows = {"": rows}
    leaves = rows.items() if isinstance(rows, dict) else rows.items(include_nested=True, leaves_only=True)
    return {
        "capacity": int(buffer.storage.max_size),
        "num_rows": num_rows,
        "rows": {key if isinstance(key, tuple) else (key,): _without_the_rest(value) for key, value in leaves},
        "writer": state["_writer"],
        "sampler": state["_sampler"],
        "transforms": state["_transforms"],
        "generator": state["_rng"],
    }


def _restore_replay(name: str, buffer: ReplayBuffer, state: Mapping[str, Any]) -> None:
    num_rows, old, new = state["num_rows"], state["capacity"], int(buffer.storage.max_size)
    if num_rows > new or (num_rows == old and old != new):
        raise ValueError(
            f"{name}: {num_rows} rows of a buffer of capacity {old} do not fit into one of capacity {new}."
        )
    buffer.empty()
    if num_rows:
        rows, storage = state["rows"], cast(Any, buffer.storage)  # typed for single rows by TorchRL
        storage.set(slice(0, num_rows), rows[("",)] if ("",) in rows else TensorDict(rows, [num_rows]))
    buffer.writer.load_state_dict(state["writer"])
    buffer.sampler.load_state_dict(state["sampler"])
    buffer._transform.load_state_dict(state["transforms"])
    if state["generator"] is not None:
        generator_state, device = state["generator"]
        generator = torch.Generator(device=device)
        generator.set_state(generator_state)
        buffer.set_rng(generator)


def _without_the_rest(view: torch.Tensor) -> torch.Tensor:
    """The same memory as ``view``, as a tensor that owns nothing else: ``torch.save`` writes whole storages."""
    if not view.is_contiguous():
        return view.clone(memory_format=torch.contiguous_format)
    start = view.storage_offset() * view.element_size()
    storage = view.untyped_storage()[start : start + view.numel() * view.element_size()]
    return torch.empty(0, dtype=view.dtype, device=view.device).set_(storage, 0, view.shape, view.stride())
