"""The posterior over MDPs: an ensemble of learned models, and how it is fitted."""

from __future__ import annotations

from eqr_torchrl.world_models.base import WorldModel
from eqr_torchrl.world_models.fit import check_fit_arguments, fit_world_model
from eqr_torchrl.world_models.gaussian import GaussianEnsemble, make_world_model
from eqr_torchrl.world_models.normalizer import Normalizer

__all__ = [
    "GaussianEnsemble",
    "Normalizer",
    "WorldModel",
    "check_fit_arguments",
    "fit_world_model",
    "make_world_model",
]
