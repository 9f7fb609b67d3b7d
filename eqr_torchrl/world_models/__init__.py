"""The posterior over MDPs: an ensemble of learned models, and how it is fitted."""

from __future__ import annotations

from .base import WorldModel
from .fit import fit_world_model
from .gaussian import GaussianEnsemble, make_world_model
from .normalizer import Normalizer

__all__ = ["GaussianEnsemble", "Normalizer", "WorldModel", "fit_world_model", "make_world_model"]
