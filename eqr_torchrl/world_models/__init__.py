"""The posterior over MDPs: an ensemble of learned models, and how it is fitted."""

from __future__ import annotations

from eqr_torchrl.world_models.base import WorldModel
from eqr_torchrl.world_models.early_stopping import EarlyStoppingFit
from eqr_torchrl.world_models.fit import WorldModelFit
from eqr_torchrl.world_models.fixed_steps import FixedStepsFit
from eqr_torchrl.world_models.gaussian import GaussianEnsemble, make_world_model
from eqr_torchrl.modules.normalizer import Normalizer
from eqr_torchrl.world_models.prior import RandomPrior
from eqr_torchrl.world_models.trust import TrustedHorizon, open_loop_errors

__all__ = [
    "EarlyStoppingFit",
    "FixedStepsFit",
    "GaussianEnsemble",
    "Normalizer",
    "RandomPrior",
    "WorldModel",
    "WorldModelFit",
    "TrustedHorizon",
    "make_world_model",
    "open_loop_errors",
]
