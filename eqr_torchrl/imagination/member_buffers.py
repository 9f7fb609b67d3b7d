"""D_model with a buffer for each member of the posterior, for critics that are trained member by member."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import ReplayBuffer

from eqr_torchrl.imagination.buffers import check_counts, make_model_buffer


class MemberReplayBuffers:
    """A replay buffer for each of ``M`` members, and one of states from rollouts that belong to no member.

    :func:`~eqr_torchrl.imagination.branched_rollout` extends it like a model buffer, and it samples the batch of
    :class:`~eqr_torchrl.objectives.MemberwiseSACLoss`. The key ``"member"`` of a transition selects the buffer: ``0``
    to ``M - 1`` that of the member; of those with ``-1`` the ``observation`` goes to the states.

    Args:
        members: one TorchRL replay buffer for each member, with equal batch sizes.
        states: the buffer of the policy's states.

    Examples:
        >>> buffers = make_member_buffers(600, num_members=2, batch_size=4)
        >>> buffers.extend(toy_batch(B=9).set("member", torch.tensor([0, 1, -1] * 3).unsqueeze(-1)))
        >>> batch = buffers.sample()
        >>> batch["observation"].shape, batch["members", "next", "reward"].shape
        (torch.Size([4, 3]), torch.Size([4, 2, 1]))
    """

    def __init__(self, members: Sequence[ReplayBuffer], states: ReplayBuffer) -> None:
        if not members:
            raise ValueError("members must hold one buffer for each member, got none.")
        self.members, self.states = list(members), states

    @property
    def state_parts(self) -> dict[str, ReplayBuffer]:
        """The buffers by name."""
        return {**{f"member_{i}": buffer for i, buffer in enumerate(self.members)}, "states": self.states}

    def __len__(self) -> int:
        """Transitions in all buffers."""
        return sum(len(buffer) for buffer in self.state_parts.values())

    def extend(self, tensordict: TensorDictBase) -> None:
        """Adds transitions with ``"member"``, int64 ``[n, 1]``, batch size ``[n]``, to the buffers of their members."""
        member = tensordict.get("member", None)
        if member is None:
            found = sorted(map(str, tensordict.keys()))
            raise RuntimeError(f'rows must hold "member", the buffer they go to: got {found}.')
        member, num_members = member.flatten(), len(self.members)
        low, high = (int(value) for value in member.aminmax())
        if low < -1 or high >= num_members:
            raise RuntimeError(f'"member" must be between -1 (none) and {num_members - 1}: got {low} to {high}.')
        order, sizes = member.argsort(stable=True), torch.bincount(member + 1, minlength=num_members + 1).tolist()
        without, *rows = tensordict.exclude("member")[order].split(sizes)
        for buffer, part in zip(self.members, rows, strict=True):
            if len(part):
                buffer.extend(part)
        if len(without):
            self.states.extend(without.select("observation"))

    def sample(self) -> TensorDict:
        """Samples ``B`` of every buffer: ``observation`` of the states, and ``"members"`` of size ``[B, M]``."""
        empty = [name for name, buffer in self.state_parts.items() if not len(buffer)]
        if empty:
            raise RuntimeError(f"every buffer must hold rows before a batch is drawn: {', '.join(empty)} is empty.")
        members = torch.stack([buffer.sample() for buffer in self.members], 1)
        states = self.states.sample()
        return TensorDict({"observation": states.get("observation"), "members": members}, states.batch_size)


def make_member_buffers(capacity: int, *, num_members: int, **kwargs: Any) -> MemberReplayBuffers:
    """First-in, first-out buffers of imagined transitions, one for each member and one for the policy's states.

    Args:
        capacity: number of transitions kept in all ``M + 1`` buffers together, which share it evenly.
        num_members: members of the world model, ``M``.
        **kwargs: ``batch_size``, ``dtype`` and ``device``, as for :func:`~eqr_torchrl.imagination.make_model_buffer`.

    Examples:
        >>> buffers = make_member_buffers(600, num_members=5, batch_size=4)
        >>> [buffer.storage.max_size for buffer in buffers.members]
        [100, 100, 100, 100, 100]
    """
    check_counts(num_members=num_members)
    if capacity <= num_members:
        raise ValueError(f"capacity must be at least one row for each of {num_members + 1} buffers, got {capacity}.")
    *members, states = [make_model_buffer(capacity // (num_members + 1), **kwargs) for _ in range(num_members + 1)]
    return MemberReplayBuffers(members, states)
