"""What the policy is trained on: the world model as an environment, rollouts in it, successors, and buffers."""

from __future__ import annotations

from eqr_torchrl.imagination.buffers import (
    MemberReplayBuffers,
    make_member_buffers,
    make_model_buffer,
    make_replay_buffer,
)
from eqr_torchrl.imagination.horizon import newest_transitions, open_loop_errors, steps_within
from eqr_torchrl.imagination.model_based import ModelBasedEnv
from eqr_torchrl.imagination.rollouts import TRANSITION_KEYS, BranchedRollouts, branched_rollout
from eqr_torchrl.imagination.successors import EnsembleSuccessors, RealSuccessors
from eqr_torchrl.imagination.terminations import TerminationFn, never_terminates

__all__ = [
    "TRANSITION_KEYS",
    "BranchedRollouts",
    "EnsembleSuccessors",
    "MemberReplayBuffers",
    "ModelBasedEnv",
    "RealSuccessors",
    "TerminationFn",
    "branched_rollout",
    "make_member_buffers",
    "make_model_buffer",
    "make_replay_buffer",
    "never_terminates",
    "newest_transitions",
    "open_loop_errors",
    "steps_within",
]
