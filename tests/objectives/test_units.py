"""Units of actions, rewards and observations: the same problem in other units has the same losses and updates."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from loss_parts import seeded, total
from tensordict.nn import TensorDictSequential
from torchrl.data import Bounded, Composite, Unbounded
from torchrl.objectives import SoftUpdate

from eqr_torchrl.networks import make_actor, make_critic
from eqr_torchrl.objectives import EpistemicQuantileLoss, MemberwiseSACLoss, make_optimizer, make_update
from eqr_torchrl.testing import toy_actor, toy_batch, toy_critic, toy_env

KINDS = [EpistemicQuantileLoss, MemberwiseSACLoss]


def env_with_actions(low: Any, high: Any, action_dim: int = 1):
    env = toy_env(3, action_dim)
    env.action_spec = Bounded(torch.as_tensor(low), torch.as_tensor(high), torch.Size([action_dim]))
    return env


def make_loss(kind, env, *, alpha_init: float = 1.0, **parts) -> Any:
    torch.manual_seed(0)
    parts = {"num_cells": (16, 16), **parts}
    loss = kind(make_actor(env, **parts), make_critic(env, num_quantiles=3, **parts), alpha_init=alpha_init)
    loss.make_value_estimator(gamma=0.9)
    loss.__dict__["updater"] = SoftUpdate(loss, tau=0.1)
    return loss


def losses_and_gradients(loss, batch):
    out = seeded(loss, batch)
    total(out).backward()
    return out, {name: parameter.grad for name, parameter in loss.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("low", "high"), [(-0.01, 0.01), (-1000.0, 1000.0), (-0.006, 0.01)])
def test_the_unit_of_the_action_changes_no_loss_and_no_gradient(kind, low, high):
    middle, half = (low + high) / 2, (high - low) / 2
    batch = toy_batch(B=6, M=3, K=2)
    other = batch.clone()
    other["action"] = middle + half * batch["action"]
    plain, gradients = losses_and_gradients(make_loss(kind, toy_env()), batch)
    scaled, others = losses_and_gradients(make_loss(kind, env_with_actions(low, high)), other)
    for name in ("loss_qvalue", "loss_actor", "loss_alpha", "target_value", "epistemic_std"):
        torch.testing.assert_close(scaled[name], plain[name], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(others, gradients, rtol=1e-3, atol=1e-5)
    # p(a) = p(u) / half for a = middle + half u, so that log half is added to the entropy, and to its target
    torch.testing.assert_close(scaled["entropy"] - plain["entropy"], torch.tensor(math.log(half)), rtol=0, atol=1e-4)


def test_what_bounded_rewards_allow_does_not_depend_on_the_unit_of_the_action():
    losses = [make_loss(MemberwiseSACLoss, env) for env in (toy_env(), env_with_actions(-0.01, 0.01))]
    plain, scaled = (torch.stack(loss._value_bounds(0.0, 1.0)) for loss in losses)
    # alpha of 1, a discount of 0.9, and an entropy of -1: 10 steps of rewards of 0 to 1 and of 1 nat, either way
    torch.testing.assert_close(plain, torch.tensor([-10.0, 20.0]))
    torch.testing.assert_close(scaled, plain)


def test_the_automatic_target_entropy_is_in_nats_of_the_environment():
    # two entries: -2 + log 2 + log 0.01
    loss = make_loss(EpistemicQuantileLoss, env_with_actions([-2.0, 0.0], [2.0, 0.02], 2))
    assert loss.target_entropy.item() == pytest.approx(-2 + math.log(2) + math.log(0.01), rel=1e-6)


def trained_in_units(kind, reward_unit: float = 1.0, observation_unit: float = 1.0) -> Any:
    """Ten updates on rewards and observations in other units, with networks that know the scales."""
    options = {"layer_norm": True, "normalize": True, "activation_class": torch.nn.ReLU}
    loss = make_loss(kind, toy_env(), alpha_init=0.1, **options)
    update = make_update(loss, make_optimizer(loss, lr_critic=1e-2), loss.updater)
    batch = toy_batch(B=64, M=3, K=2)
    batch["observation"] *= observation_unit
    batch["next", "observation"] *= observation_unit
    batch["next", "reward"] *= reward_unit
    loss.set_scales(batch["observation"], reward_unit)
    torch.manual_seed(1)
    for _ in range(10):
        out = update(batch)
    return loss, batch, out


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("reward", "observation"), [(0.01, 1.0), (100.0, 1.0), (1.0, 100.0)])
def test_units_of_rewards_and_observations_change_no_update(kind, reward, observation):
    _, _, plain = trained_in_units(kind)
    _, _, scaled = trained_in_units(kind, reward, observation)
    for name in ("loss_qvalue", "loss_actor"):  # in the unit of value
        torch.testing.assert_close(scaled[name], plain[name], rtol=1e-4, atol=1e-5)
    for name in ("target_value", "epistemic_std", "alpha"):  # in units of return
        torch.testing.assert_close(scaled[name] / reward, plain[name], rtol=1e-4, atol=1e-5)


def test_a_unit_of_value_must_be_positive():
    with pytest.raises(ValueError, match=r"value_unit must be positive and finite, got 0.0."):
        make_loss(MemberwiseSACLoss, toy_env()).set_scales(torch.randn(9, 3), 0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_later_unit_of_value_keeps_values_and_temperature(kind):
    loss, batch, _ = trained_in_units(kind)
    states = {"observation": batch["observation"]}
    before = [loss._values(network, states, batch["action"]).detach() for network in ("online", "target")]
    alpha = loss.log_alpha.item()
    loss.set_scales(batch["observation"], 7.0)
    after = [loss._values(network, states, batch["action"]).detach() for network in ("online", "target")]
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-6)
    assert (float(loss.value_unit), loss.log_alpha.item()) == (7.0, alpha)


def test_the_first_unit_of_value_is_that_of_values_and_temperature():
    states, action = {"observation": torch.ones(2, 3)}, torch.zeros(2, 1)
    for normalize, factor in ((True, 50.0), (False, 1.0)):
        loss = make_loss(MemberwiseSACLoss, toy_env(), normalize=normalize, alpha_init=0.1)
        before = loss._values("target", states, action)
        loss.set_scales(torch.tensor([[-1.0] * 3, [1.0] * 3]) / 2**0.5, 50.0)  # mean 0, deviation 1
        torch.testing.assert_close(loss._values("target", states, action), factor * before)
        assert loss.log_alpha.exp().item() == pytest.approx(0.1 * factor)


def test_normalised_networks_read_observations_in_standard_deviations():
    data = (torch.randn(100, 3) + 5) * torch.tensor([1e3, 1.0, 1e-3])
    loss = make_loss(MemberwiseSACLoss, toy_env(), normalize=True)
    loss.set_scales(data)
    unit = (data - data.mean(0)) / data.std(0)
    layers = loss.get_stateful_net("actor_network")[0].module.network
    torch.testing.assert_close(layers(data), layers[1:](unit), rtol=1e-3, atol=1e-4)
    action = torch.rand(100, 1) * 2 - 1
    critic = loss.get_stateful_net("qvalue_network").critics[0]
    expected = critic.module.network(torch.cat([unit, action], -1))
    for network in ("online", "target"):
        values = loss._values(network, {"observation": data}, action).squeeze(-2)
        torch.testing.assert_close(values, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("spec", [Bounded(-1.0, 1.0, torch.Size([1])), Unbounded(torch.Size([1]))])
def test_a_critic_reads_actions_in_the_unit_range_and_those_without_bounds_as_they_are(spec):
    env = toy_env()
    env.action_spec = spec
    critic, action = make_critic(env), torch.tensor([0.3])
    value = critic(observation=torch.ones(3), action=action)
    assert torch.equal(value, critic.module.network(torch.cat([torch.ones(3), action])))


def test_the_bounds_of_a_batch_of_environments_are_those_of_one():
    one = Bounded(-2.0, 2.0, torch.Size([1]))
    many = Composite(action=one.expand(8, 1), shape=[8])
    losses = [EpistemicQuantileLoss(toy_actor(), toy_critic(), action_spec=spec) for spec in (one, many)]
    # minus one entry, plus log 2
    torch.testing.assert_close([loss.target_entropy.item() for loss in losses], [math.log(2) - 1] * 2)


@pytest.mark.parametrize("unit", [1.0, 100.0, 1e-3])
def test_bounds_of_the_temperature_have_its_unit(unit):
    env = toy_env()
    bounds = {"alpha_init": 5.0, "min_alpha": 0.01, "max_alpha": 2.0, "delay_qvalue": False}
    loss = EpistemicQuantileLoss(make_actor(env), make_critic(env, normalize=True), **bounds)
    loss.set_scales(torch.randn(20, 3), unit)
    assert loss(toy_batch(B=4))["alpha"].item() == pytest.approx(2 * unit, rel=1e-5)


def test_a_critic_inside_others_has_its_unit():
    env = toy_env()
    critic = make_critic(env, num_quantiles=3, normalize=True)
    losses = []
    for network in (critic, TensorDictSequential(copy.deepcopy(critic))):
        torch.manual_seed(0)
        loss = EpistemicQuantileLoss(make_actor(env), network, delay_qvalue=False)
        loss.set_scales(torch.randn(20, 3), 100.0)
        losses.append(seeded(loss, toy_batch(B=4)))
        assert loss.value_unit == 100
    torch.testing.assert_close(*losses)
