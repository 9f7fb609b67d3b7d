"""Where the policy acts: real environments, their reward shaping, and when they end."""

from __future__ import annotations

from eqr_torchrl.lab.envs._simulators import PAPER_DMC_TASKS
from eqr_torchrl.lab.envs.check_env import Finding, check_env
from eqr_torchrl.lab.envs.guards import NonFiniteGuard, RewardGuard, TerminationGuard
from eqr_torchrl.lab.envs.lookup import import_by_name
from eqr_torchrl.lab.envs.real import make_env, renew_noise
from eqr_torchrl.lab.envs.reward_bounds import reward_bounds
from eqr_torchrl.lab.envs.terminations import (
    ant_terminates,
    hopper_terminates,
    humanoid_terminates,
    inverted_pendulum_terminates,
    mountain_car_terminates,
    termination_for,
    walker2d_terminates,
)
from eqr_torchrl.lab.envs.transforms import ActionCost, VectorObservation
from eqr_torchrl.lab.envs.wiring import add_guards, open_envs, rules_for

__all__ = [
    "PAPER_DMC_TASKS",
    "ActionCost",
    "Finding",
    "NonFiniteGuard",
    "RewardGuard",
    "TerminationGuard",
    "VectorObservation",
    "add_guards",
    "ant_terminates",
    "check_env",
    "hopper_terminates",
    "humanoid_terminates",
    "import_by_name",
    "inverted_pendulum_terminates",
    "make_env",
    "mountain_car_terminates",
    "open_envs",
    "renew_noise",
    "reward_bounds",
    "rules_for",
    "termination_for",
    "walker2d_terminates",
]
