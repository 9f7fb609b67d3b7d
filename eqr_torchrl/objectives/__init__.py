"""Losses of critic, policy and temperature on a batch, and one update with them."""

from __future__ import annotations

from eqr_torchrl.objectives._soft_actor_critic import SoftActorCriticOptions
from eqr_torchrl.objectives.epistemic_quantile import EpistemicQuantileLoss
from eqr_torchrl.objectives.memberwise_sac import MemberwiseSACLoss
from eqr_torchrl.objectives.units import reward_unit
from eqr_torchrl.objectives.update import make_optimizer, make_update

__all__ = ["EpistemicQuantileLoss", "MemberwiseSACLoss", "SoftActorCriticOptions", "make_optimizer", "make_update", "reward_unit"]
