"""Pure tensor mathematics: tensors in, tensors out; no state, no TensorDict, no reduction over the batch."""

from __future__ import annotations

from eqr_torchrl.functional.bellman import epistemic_quantile_target
from eqr_torchrl.functional.gaussian import gaussian_nll, soft_clamp, stratified_normal, tanh_normal
from eqr_torchrl.functional.quantiles import (
    quantile_huber_loss,
    quantile_midpoints,
    quantile_projection,
    wasserstein_distance,
)
from eqr_torchrl.functional.scales import plausible_reward, rarity_weights, reward_unit

__all__ = [
    "epistemic_quantile_target",
    "gaussian_nll",
    "plausible_reward",
    "quantile_huber_loss",
    "quantile_midpoints",
    "quantile_projection",
    "rarity_weights",
    "reward_unit",
    "soft_clamp",
    "stratified_normal",
    "tanh_normal",
    "wasserstein_distance",
]
