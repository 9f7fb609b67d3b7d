"""D and D_model: what the agent saw, what it imagines, and the successors that targets average over."""

from __future__ import annotations

from eqr_torchrl.data.buffers import announce_buffer, make_model_buffer, make_replay_buffer, model_buffer_bytes
from eqr_torchrl.data.member_buffers import MemberReplayBuffers, make_member_buffers
from eqr_torchrl.data.rollouts import TRANSITION_KEYS, branched_rollout
from eqr_torchrl.data.sampler import UniformSampler, WholeStorage
from eqr_torchrl.data.successors import EnsembleSuccessors

__all__ = [
    "TRANSITION_KEYS",
    "EnsembleSuccessors",
    "MemberReplayBuffers",
    "UniformSampler",
    "WholeStorage",
    "announce_buffer",
    "branched_rollout",
    "make_member_buffers",
    "make_model_buffer",
    "make_replay_buffer",
    "model_buffer_bytes",
]
