"""Networks: the stochastic policy, the critic, layers of an ensemble, and randomised priors."""

from __future__ import annotations

from eqr_torchrl.networks.actor import GaussianHead, make_actor
from eqr_torchrl.networks.critic import make_critic
from eqr_torchrl.networks.ensemble import RandomPrior
from eqr_torchrl.networks.fast import fast_inference
from eqr_torchrl.networks.layers import Normalizer, OrthogonalLinear, Tanh, mlp

__all__ = [
    "GaussianHead",
    "Normalizer",
    "OrthogonalLinear",
    "RandomPrior",
    "Tanh",
    "fast_inference",
    "make_actor",
    "make_critic",
    "mlp",
]
