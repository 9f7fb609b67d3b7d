"""Losses of critic, policy and temperature on a batch, and one update with them."""

from __future__ import annotations

from eqr_torchrl.objectives._soft_actor_critic import SoftActorCriticLoss
from eqr_torchrl.objectives.annealing import Annealing
from eqr_torchrl.objectives.epistemic_quantile import EpistemicQuantileLoss
from eqr_torchrl.objectives.memberwise_sac import MemberwiseSACLoss
from eqr_torchrl.objectives.update import make_optimizer, make_update

__all__ = [
    "Annealing",
    "EpistemicQuantileLoss",
    "MemberwiseSACLoss",
    "SoftActorCriticLoss",
    "make_optimizer",
    "make_update",
]
