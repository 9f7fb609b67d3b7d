"""Networks: the stochastic policy and the critic."""

from __future__ import annotations

from eqr_torchrl.modules.actor import GaussianHead, make_actor
from eqr_torchrl.modules.critic import make_critic
from eqr_torchrl.modules.layers import MLP, OrthogonalLinear, Tanh, mlp

__all__ = ["MLP", "GaussianHead", "OrthogonalLinear", "Tanh", "make_actor", "make_critic", "mlp"]
