"""Losses and hand-made networks that the loss tests share."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import distributions as D
from torch import nn
from torchrl.envs.utils import ExplorationType
from torchrl.modules import IndependentNormal, ProbabilisticActor
from torchrl.objectives import SoftUpdate

from eqr_torchrl.objectives import EpistemicQuantileLoss, MemberwiseSACLoss
from eqr_torchrl.testing import toy_actor, toy_batch, toy_critic

LOSSES = ("loss_qvalue", "loss_actor", "loss_alpha")


def total(losses: TensorDict) -> torch.Tensor:
    return losses["loss_qvalue"] + losses["loss_actor"] + losses["loss_alpha"]


def seeded(function, *arguments, seed: int = 1):
    torch.manual_seed(seed)
    return function(*arguments)


def make_loss(actor=None, critic=None, *, gamma: float = 0.9, tau: float = 0.1, **kwargs) -> EpistemicQuantileLoss:
    """A loss on toy networks with a discount and target networks equal to the critics; ``loss.updater`` moves them."""
    actor = toy_actor() if actor is None else actor
    return _ready(EpistemicQuantileLoss(actor, toy_critic() if critic is None else critic, **kwargs), gamma, tau)


def make_memberwise(critics=None, actor=None, *, gamma: float = 0.9, **kwargs) -> MemberwiseSACLoss:
    """Likewise, of one critic of three outputs, or of those given."""
    actor, critics = toy_actor() if actor is None else actor, critics or toy_critic(num_quantiles=3)
    return _ready(MemberwiseSACLoss(actor, critics, **kwargs), gamma, 0.1)


def _ready(loss, gamma: float, tau: float):
    loss.make_value_estimator(gamma=gamma)
    loss.__dict__["updater"] = SoftUpdate(loss, tau=tau)
    return loss


def scalar_critics(count: int = 3) -> list[TensorDictModule]:
    return [toy_critic(num_quantiles=1) for _ in range(count)]


def member_batch(B: int = 4, M: int = 3, **kwargs) -> TensorDict:
    """States for the policy, and ``"members"`` with a row of its own for each of ``M`` critics."""
    batch = toy_batch(B=B, **kwargs).select("observation")
    return batch.set("members", torch.stack([toy_batch(B=B, **kwargs) for _ in range(M)], 1))


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
