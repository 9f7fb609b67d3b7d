"""Logs in place of a simulator: reading and checking them, careful imagination, and judging a policy."""

from __future__ import annotations

from eqr_torchrl.lab.logs.careful import PenalizedModel, disagreement, uncertainty_stop
from eqr_torchrl.lab.logs.check import check_transitions
from eqr_torchrl.lab.logs.cloning import NearTheLog, clone_behaviour, clone_loss
from eqr_torchrl.lab.logs.episodes import (
    check_log_fits,
    episode_ends,
    episodes_of,
    returns_to_go,
    specs_of,
    split_episodes,
    spread_of_returns,
)
from eqr_torchrl.lab.logs.reading import read_transitions, transitions_from

__all__ = [
    "NearTheLog",
    "PenalizedModel",
    "check_log_fits",
    "check_transitions",
    "clone_behaviour",
    "clone_loss",
    "disagreement",
    "episode_ends",
    "episodes_of",
    "read_transitions",
    "returns_to_go",
    "specs_of",
    "split_episodes",
    "spread_of_returns",
    "transitions_from",
    "uncertainty_stop",
]
