"""D and D_model: real and imagined transitions, and the successors that targets average over."""

from __future__ import annotations

from eqr_torchrl.data.buffers import check_memory, make_model_buffer, make_replay_buffer
from eqr_torchrl.data.member_buffers import MemberReplayBuffers, make_member_buffers
from eqr_torchrl.data.rollouts import TRANSITION_KEYS, BranchedRollouts, branched_rollout
from eqr_torchrl.data.sampler import CapturableSampler, CapturableStorage
from eqr_torchrl.data.successors import EnsembleSuccessors

__all__ = [
    "TRANSITION_KEYS",
    "BranchedRollouts",
    "CapturableSampler",
    "CapturableStorage",
    "EnsembleSuccessors",
    "MemberReplayBuffers",
    "branched_rollout",
    "check_memory",
    "make_member_buffers",
    "make_model_buffer",
    "make_replay_buffer",
]
