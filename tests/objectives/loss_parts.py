"""Losses and hand-made networks that the loss tests share."""

from __future__ import annotations

import torch
from tensordict.nn import TensorDictModule
from torch import distributions as D
from torch import nn
from torchrl.envs.utils import ExplorationType
from torchrl.modules import IndependentNormal, ProbabilisticActor
from torchrl.objectives import SoftUpdate

from eqr_torchrl.objectives import EpistemicQuantileLoss
from eqr_torchrl.testing import toy_actor, toy_critic


def make_loss(actor=None, critic=None, *, gamma: float = 0.9, tau: float = 0.1, **kwargs) -> EpistemicQuantileLoss:
    """A loss on toy networks with a discount and target networks equal to the critics; ``loss.updater`` moves them."""
    actor = toy_actor() if actor is None else actor
    loss = EpistemicQuantileLoss(actor, toy_critic() if critic is None else critic, **kwargs)
    loss.make_value_estimator(gamma=gamma)
    loss.__dict__["updater"] = SoftUpdate(loss, tau=tau)
    return loss


class LinearQuantiles(nn.Module):
    """``q_n = w s + v a + b_n``: one slope for all quantiles, an offset for each."""

    def __init__(self, w, v, b) -> None:
        super().__init__()
        self.w, self.v, self.b = (nn.Parameter(torch.as_tensor(x, dtype=torch.float32)) for x in (w, v, b))

    def forward(self, observation, action):
        return (observation @ self.w + action @ self.v).unsqueeze(-1) + self.b


def linear_critic(w, v, b) -> TensorDictModule:
    return TensorDictModule(LinearQuantiles(w, v, b), ["observation", "action"], ["state_action_value"])


class UniformPolicy(D.Independent):
    """Uniform on ``[-half, half]``: its log-density is a constant, whatever is drawn."""

    def __init__(self, half) -> None:
        super().__init__(D.Uniform(-half, half), 1)


class _Head(nn.Module):
    def __init__(self, function, num_outputs: int) -> None:
        super().__init__()
        self.function, self.bias = function, nn.Parameter(torch.zeros(num_outputs))

    def forward(self, observation):
        return self.function(observation, self.bias)


def uniform_actor(half: float, action_dim: int = 1) -> ProbabilisticActor:
    """Draws every action entry from ``[-half, half]``; log-density ``-action_dim log(2 half)``."""
    head = _Head(lambda s, bias: s[..., :1].expand(*s.shape[:-1], action_dim) * 0 + half + bias, action_dim)
    return ProbabilisticActor(
        TensorDictModule(head, ["observation"], ["half"]),
        in_keys=["half"],
        distribution_class=UniformPolicy,
        default_interaction_type=ExplorationType.RANDOM,
    )


def narrow_actor(gain: float, scale: float = 1e-6) -> ProbabilisticActor:
    """A Gaussian about ``gain`` times the first state entry, so narrow that the action is known."""
    head = _Head(lambda s, bias: (gain * s[..., :1] + bias, torch.full_like(s[..., :1], scale)), 1)
    return ProbabilisticActor(
        TensorDictModule(head, ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=IndependentNormal,
        default_interaction_type=ExplorationType.RANDOM,
    )
