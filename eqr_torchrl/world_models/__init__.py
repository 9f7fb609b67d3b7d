"""The posterior over MDPs: an ensemble of learned models, and how it is fitted."""

from __future__ import annotations

from eqr_torchrl.world_models.base import WorldModel
from eqr_torchrl.world_models.fit import EarlyStoppingFit, FixedStepsFit, WorldModelFit
from eqr_torchrl.world_models.gaussian import GaussianEnsemble, make_world_model

__all__ = [
    "EarlyStoppingFit",
    "FixedStepsFit",
    "GaussianEnsemble",
    "WorldModel",
    "WorldModelFit",
    "make_world_model",
]
