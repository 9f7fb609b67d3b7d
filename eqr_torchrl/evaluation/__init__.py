"""Returns of a policy in an environment."""

from __future__ import annotations

from eqr_torchrl.evaluation.evaluate import EpisodeRow, evaluate, evaluation_mode, isolated_rng

__all__ = ["EpisodeRow", "evaluate", "evaluation_mode", "isolated_rng"]
