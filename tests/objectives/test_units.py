"""Units of actions, rewards and observations: the same problem in other units has the same losses and updates."""

from __future__ import annotations

import math

import pytest
import torch
from torchrl.data import Bounded, Unbounded
from torchrl.objectives import SoftUpdate

from eqr_torchrl.networks import make_actor, make_critic
from eqr_torchrl.objectives import EpistemicQuantileLoss, MemberwiseSACLoss
from eqr_torchrl.testing import toy_batch, toy_env

KINDS = [EpistemicQuantileLoss, MemberwiseSACLoss]


def env_with_bounds(low: float, high: float):
    env = toy_env()
    env.action_spec = Bounded(low, high, torch.Size([1]))
    return env


def make_loss(kind, env, **options):
    torch.manual_seed(0)
    loss = kind(make_actor(env, num_cells=(16, 16)), make_critic(env, num_quantiles=3, num_cells=(16, 16)), **options)
    loss.make_value_estimator(gamma=0.9)
    loss.__dict__["updater"] = SoftUpdate(loss, tau=0.1)
    return loss


def losses_and_gradients(loss, batch):
    torch.manual_seed(1)
    out = loss(batch)
    (out["loss_qvalue"] + out["loss_actor"] + out["loss_alpha"]).backward()
    return out, {name: parameter.grad for name, parameter in loss.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("low", "high"), [(-0.01, 0.01), (-1000.0, 1000.0), (-0.006, 0.01)])
def test_the_unit_of_the_action_changes_no_loss_and_no_gradient(kind, low, high):
    middle, half = (low + high) / 2, (high - low) / 2
    batch = toy_batch(B=6, M=3, K=2)
    other = batch.clone()
    other["action"] = middle + half * batch["action"]
    plain, gradients = losses_and_gradients(make_loss(kind, toy_env()), batch)
    scaled, others = losses_and_gradients(make_loss(kind, env_with_bounds(low, high)), other)
    for name in ("loss_qvalue", "loss_actor", "loss_alpha", "target_value", "epistemic_std"):
        torch.testing.assert_close(scaled[name], plain[name], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(others, gradients, rtol=1e-3, atol=1e-5)
    # p(a) = p(u) / half for a = middle + half u, so that log half is added to the entropy, and to its target
    torch.testing.assert_close(scaled["entropy"] - plain["entropy"], torch.tensor(math.log(half)), rtol=0, atol=1e-4)


def test_the_automatic_target_entropy_is_in_nats_of_the_environment():
    # two entries: -2 + log 2 + log 0.01
    env = toy_env(action_dim=2)
    env.action_spec = Bounded(torch.tensor([-2.0, 0.0]), torch.tensor([2.0, 0.02]), torch.Size([2]))
    loss = EpistemicQuantileLoss(make_actor(env), make_critic(env))
    assert loss.target_entropy.item() == pytest.approx(-2 + math.log(2) + math.log(0.01), rel=1e-6)


@pytest.mark.parametrize("spec", [Bounded(-1.0, 1.0, torch.Size([1])), Unbounded(torch.Size([1]))])
def test_a_critic_reads_actions_in_the_unit_range_and_those_without_bounds_as_they_are(spec):
    env = toy_env()
    env.action_spec = spec
    critic, action = make_critic(env), torch.tensor([0.3])
    value = critic(observation=torch.ones(3), action=action)
    assert torch.equal(value, critic.module.network(torch.cat([torch.ones(3), action])))
