"""Losses: what a batch says about the critic, the policy and the temperature."""

from __future__ import annotations

from .epistemic_quantile import EpistemicQuantileLoss

__all__ = ["EpistemicQuantileLoss"]
