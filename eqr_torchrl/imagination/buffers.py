"""Replay of real transitions (D), and of imagined ones (D_model) of all members together or of each alone."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import LazyTensorStorage, ReplayBuffer, TensorDictReplayBuffer
from torchrl.envs.transforms import Transform

from eqr_torchrl.networks.layers import check_counts


def make_replay_buffer(capacity: int = 100_000, *, batch_size: int = 256, device=None) -> TensorDictReplayBuffer:
    """First-in, first-out buffer of the last ``capacity`` real transitions, sampled uniformly with replacement.

    Transitions with a NaN or an infinity are left out. ``device`` is that of the storage.

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
    """First-in, first-out buffer of imagined transitions, whose memory is allocated with the first one.

    Args:
        capacity: number of transitions kept, such as :attr:`BranchedRollouts.capacity`.
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


class MemberReplayBuffers:
    """First-in, first-out buffers of imagined transitions: one for each of ``M`` members, and one of other ``states``.

    :func:`branched_rollout` extends it like a model buffer, and it samples the batch of
    :class:`~eqr_torchrl.objectives.MemberwiseSACLoss`. The key ``"member"`` of a transition selects the buffer: ``0``
    to ``M - 1`` is the buffer of that member; with ``-1``, no member, the ``observation`` goes to the states.

    Args:
        capacity: number of transitions kept in all ``M + 1`` buffers together, which share it evenly.
        num_members: members of the world model, ``M``.
        **kwargs: of :func:`make_model_buffer`.

    Examples:
        >>> buffers = make_member_buffers(600, num_members=2, batch_size=4)
        >>> buffers.extend(toy_batch(B=9).set("member", torch.tensor([0, 1, -1] * 3).unsqueeze(-1)))
        >>> batch = buffers.sample()
        >>> batch["observation"].shape, batch["members", "next", "reward"].shape
        (torch.Size([4, 3]), torch.Size([4, 2, 1]))
    """

    def __init__(self, capacity: int, *, num_members: int, **kwargs: Any) -> None:
        check_counts(num_members=num_members)
        buffers = [make_model_buffer(capacity // (num_members + 1), **kwargs) for _ in range(num_members + 1)]
        self.members, self.states = buffers[:-1], buffers[-1]

    @property
    def state_parts(self) -> dict[str, ReplayBuffer]:
        """The buffers by name."""
        return {**{f"member_{i}": buffer for i, buffer in enumerate(self.members)}, "states": self.states}

    def extend(self, tensordict: TensorDictBase) -> None:
        """Adds transitions ``[n]`` with ``"member"``, int64 ``[n, 1]``, to the buffers of their members."""
        member, num_members = tensordict["member"].flatten(), len(self.members)
        if len(member) and not (member.min() >= -1 and member.max() < num_members):
            found = f"{int(member.min())} to {int(member.max())}"
            raise ValueError(f'"member" must be -1 or one of {num_members} members from 0 on, got {found}.')
        order, sizes = member.argsort(stable=True), torch.bincount(member + 1, minlength=num_members + 1).tolist()
        without, *rows = tensordict.exclude("member")[order].split(sizes)
        for buffer, part in zip(self.members, rows, strict=True):
            if len(part):
                buffer.extend(part)
        if len(without):
            self.states.extend(without.select("observation"))

    def sample(self) -> TensorDict:
        """Samples ``B`` of every buffer: ``observation`` of the states, and ``"members"`` of size ``[B, M]``."""
        members = torch.stack([buffer.sample() for buffer in self.members], 1)
        states = self.states.sample()
        return TensorDict({"observation": states.get("observation"), "members": members}, states.batch_size)


make_member_buffers = MemberReplayBuffers  # a function like the other parts


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
