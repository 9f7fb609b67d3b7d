"""What a run was worth: returns, their comparison over seeds, and diagnostics of the model and the value posterior."""

from __future__ import annotations

from eqr_torchrl.evaluation.evaluate import EpisodeRow, evaluate

__all__ = ["EpisodeRow", "evaluate"]
