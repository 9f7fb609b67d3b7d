"""Diagnostics of a trained agent: its models and its critic compared with the real environment."""

from __future__ import annotations

from eqr_torchrl.lab.diagnostics.calibration import (
    calibration_error,
    central_interval_coverage,
    probability_integral_transform,
)
from eqr_torchrl.lab.diagnostics.conformal import ConformalInterval, conformal_interval
from eqr_torchrl.lab.diagnostics.critic_values import value_map, value_quantiles
from eqr_torchrl.lab.diagnostics.drift import RolloutDrift, rollout_drift, trajectory_windows, trusted_horizon
from eqr_torchrl.lab.diagnostics.model_errors import ModelErrors, held_out_errors
from eqr_torchrl.lab.diagnostics.plots import plot_calibration, plot_steps, plot_value_distribution, plot_value_maps
from eqr_torchrl.lab.diagnostics.returns import Episodes, MemberReturns, member_returns, sample_episodes
from eqr_torchrl.lab.diagnostics.spread import ValueSpread, spread_verdict, value_spread
from eqr_torchrl.lab.diagnostics.start_values import plot_start_values, tail_steps

__all__ = [
    "ConformalInterval",
    "Episodes",
    "MemberReturns",
    "ModelErrors",
    "RolloutDrift",
    "ValueSpread",
    "calibration_error",
    "central_interval_coverage",
    "conformal_interval",
    "held_out_errors",
    "member_returns",
    "plot_calibration",
    "plot_start_values",
    "plot_steps",
    "plot_value_distribution",
    "plot_value_maps",
    "probability_integral_transform",
    "rollout_drift",
    "sample_episodes",
    "spread_verdict",
    "tail_steps",
    "trajectory_windows",
    "trusted_horizon",
    "value_map",
    "value_quantiles",
    "value_spread",
]
