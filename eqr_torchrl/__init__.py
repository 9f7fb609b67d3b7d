"""Composable TorchRL components for epistemic quantile regression: uncertainty about values in continuous control."""

from __future__ import annotations

from eqr_torchrl import _versions as _versions  # first: it reports incompatible versions before they fail obscurely
from eqr_torchrl.imagination import (
    EnsembleSuccessors,
    ModelBasedEnv,
    branched_rollout,
    make_model_buffer,
    make_replay_buffer,
)
from eqr_torchrl.networks import make_actor, make_critic
from eqr_torchrl.objectives import EpistemicQuantileLoss
from eqr_torchrl.utility import CVaRUtility, EntropicUtility, MeanUtility, OptimisticUtility, QuantileUtility
from eqr_torchrl.world_models import FixedStepsFit, GaussianEnsemble, WorldModel

__version__ = "0.2.0"

__all__ = [
    "CVaRUtility",
    "EnsembleSuccessors",
    "EntropicUtility",
    "EpistemicQuantileLoss",
    "FixedStepsFit",
    "GaussianEnsemble",
    "MeanUtility",
    "ModelBasedEnv",
    "OptimisticUtility",
    "QuantileUtility",
    "WorldModel",
    "branched_rollout",
    "make_actor",
    "make_critic",
    "make_model_buffer",
    "make_replay_buffer",
]
