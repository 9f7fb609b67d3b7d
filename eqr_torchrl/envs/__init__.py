"""Where the policy acts: real environments, their reward shaping, and when they end."""

from eqr_torchrl.envs.real import PAPER_DMC_TASKS, make_env
from eqr_torchrl.envs.transforms import ActionCost, VectorObservation

__all__ = ["PAPER_DMC_TASKS", "ActionCost", "VectorObservation", "make_env"]
