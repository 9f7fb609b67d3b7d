"""Networks: the stochastic policy and the critic."""

from __future__ import annotations

from .actor import GaussianHead, make_actor
from .critic import make_critic
from .layers import OrthogonalLinear, mlp

__all__ = ["GaussianHead", "OrthogonalLinear", "make_actor", "make_critic", "mlp"]
