"""Pure tensor mathematics: tensors in, tensors out; no state, no TensorDict, no reduction over the batch."""

from __future__ import annotations

from eqr_torchrl.functional.bellman import epistemic_quantile_target
from eqr_torchrl.functional.gaussian import gaussian_nll, soft_clamp, stratified_normal, tanh_normal
from eqr_torchrl.functional.products import onednn_products
from eqr_torchrl.functional.quantiles import (
    quantile_huber_loss,
    quantile_midpoints,
    quantile_projection,
    wasserstein_distance,
)
from eqr_torchrl.functional.risk import conditional_value_at_risk, entropic_value, mean_plus_std, quantile_value

__all__ = [
    "conditional_value_at_risk",
    "entropic_value",
    "epistemic_quantile_target",
    "gaussian_nll",
    "mean_plus_std",
    "onednn_products",
    "quantile_huber_loss",
    "quantile_midpoints",
    "quantile_projection",
    "quantile_value",
    "soft_clamp",
    "stratified_normal",
    "tanh_normal",
    "wasserstein_distance",
]
