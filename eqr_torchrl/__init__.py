"""Composable TorchRL components for epistemic quantile regression: uncertainty about values in continuous control."""

from __future__ import annotations

__version__ = "0.1.0"
