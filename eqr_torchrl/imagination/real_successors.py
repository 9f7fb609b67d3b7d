"""Batches in which some transitions are real."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import ReplayBuffer

_OUTCOME = "observation", "reward", "terminated", "done"


class RealSuccessors:
    r"""Replaces a share of an imagined batch by real transitions, whose outcome all members share.

    Where the environment was seen, there is nothing for the members to disagree about. A value that only imagined
    transitions support can rest on an error that all members have in common: a robot that lies on its back, and moves
    a little further in each imagined step, gets up in the end. Real transitions say that it stays.

    Args:
        successors: writes ``"next"``, batch size ``[B]`` or ``[B, M, K]``, into a batch of observations and actions,
            such as :class:`EnsembleSuccessors`.
        replay: real transitions.
        share: of the batch, in ``[0, 1)``.

    Examples:
        >>> model = GaussianEnsemble(3, 1, num_members=5, num_cells=(8,))
        >>> imagined = EnsembleSuccessors(ModelBasedEnv(model, toy_env(), termination_fn=never_terminates))
        >>> replay = make_replay_buffer(100)
        >>> _ = replay.extend(toy_batch(B=20))
        >>> RealSuccessors(imagined, replay, share=0.5)(toy_batch(B=8))["next", "reward"].shape
        torch.Size([8, 5, 4, 1])
    """

    def __init__(
        self, successors: Callable[[TensorDictBase], TensorDictBase], replay: ReplayBuffer, *, share: float = 0.5
    ) -> None:
        if not 0 <= share < 1:
            raise ValueError(f"share must be in [0, 1), got {share}.")
        self.successors, self.replay, self.share = successors, replay, share

    def __call__(self, batch: TensorDictBase) -> TensorDictBase:
        """A batch of the same size, real transitions first."""
        count = round(self.share * len(batch))
        if not count:
            return self.successors(batch)
        rest: Any = batch[count:]
        imagined = self.successors(rest)
        if imagined.get("next", None) is None:
            raise ValueError(f'share must be 0 for batches without "next", of members\' buffers: got {self.share}.')
        real: Any = self.replay[torch.randint(len(self.replay), (count,))].to(imagined.device)
        size = (count, *imagined["next"].shape[1:])
        outcome = real["next"].select(*_OUTCOME).view(count, *[1] * (len(size) - 1))
        rows = {"observation": real["observation"], "action": real["action"], "next": outcome.expand(size)}
        return torch.cat([TensorDict(rows, [count]), imagined.select(*rows)])  # pyright: ignore
