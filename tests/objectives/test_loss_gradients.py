"""Who learns from what: gradients, optimisers, targets, and rows that hold nonsense."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from loss_parts import linear_critic, make_loss, narrow_actor, uniform_actor
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.modules import ProbabilisticActor, TanhNormal
from torchrl.objectives import HardUpdate

from eqr_torchrl.objectives import EpistemicQuantileLoss
from eqr_torchrl.testing import toy_actor, toy_batch, toy_critic
from eqr_torchrl.utility import CVaRUtility, EntropicUtility, OptimisticUtility, QuantileUtility

PARTS = {"loss_qvalue": "qvalue_network_params", "loss_actor": "actor_network_params", "loss_alpha": "log_alpha"}


def parameters_of(loss, part: str) -> list[torch.Tensor]:
    value = getattr(loss, part)
    return [value] if isinstance(value, torch.Tensor) else [p for p in value.values(True, True) if p.requires_grad]


@pytest.mark.parametrize("size", [(), (2, 3)])
@pytest.mark.parametrize("name", list(PARTS))
def test_each_loss_trains_its_own_part_and_no_other(name, size):
    loss = make_loss()
    loss(toy_batch(6, *size))[name].backward()
    for other, part in PARTS.items():
        gradients = [p.grad for p in parameters_of(loss, part)]
        if other == name:
            assert all(g is not None and g.abs().sum() > 0 for g in gradients)
        else:
            assert all(g is None for g in gradients)


def test_parameters_are_those_of_actor_critic_and_temperature():
    actor, critic = toy_actor(), toy_critic()
    loss = make_loss(actor, critic)
    expected = {id(p) for p in (*actor.parameters(), *critic.parameters(), loss.log_alpha)}
    assert {id(p) for p in loss.parameters()} == expected  # the user's own, trained in place


def test_one_adam_over_the_parameters_trains_all_and_the_users_policy_with_them():
    actor, critic = toy_actor(), toy_critic()
    loss = make_loss(actor, critic)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-2)
    before = copy.deepcopy([*actor.parameters(), *critic.parameters(), loss.log_alpha])
    losses = loss(toy_batch(B=6, M=2, K=3))
    sum(losses[name] for name in PARTS).backward()
    optimizer.step()
    for old, new in zip(before, [*actor.parameters(), *critic.parameters(), loss.log_alpha], strict=True):
        assert not torch.equal(old, new)


def test_gradients_are_those_of_finite_differences():
    critic = linear_critic([0.5], [-1.0], [0.0, 1.0, 3.0])
    loss = make_loss(narrow_actor(0.3), critic, alpha_init=1e-6, target_entropy=0.0, utility=OptimisticUtility(0.5))
    batch = toy_batch(B=6, M=2, K=3, observation_dim=1)
    # action = 0.3 s + bias: the policy's loss falls by v = -1 for each unit of bias
    loss(batch)["loss_actor"].backward()
    torch.testing.assert_close(loss.actor_network_params["module", "0", "module", "bias"].grad, torch.tensor([1.0]))
    bias, step, values = critic.module.b, 1e-2, []
    loss.zero_grad()
    loss(batch)["loss_qvalue"].backward()
    gradient = bias.grad[1].item()
    for sign in (1, -1):
        with torch.no_grad():
            bias[1] += sign * step
            values.append(loss(batch)["loss_qvalue"].item())  # targets come from the target network: unmoved
            bias[1] -= sign * step
    assert gradient == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-2, abs=1e-4)


@pytest.mark.parametrize(
    "utility", [OptimisticUtility(1.0), QuantileUtility(0.5), CVaRUtility(0.25), EntropicUtility(0.1)]
)
def test_every_utility_gives_the_policy_finite_gradients(utility):
    loss = make_loss(utility=utility, critic=toy_critic(num_quantiles=1))
    loss(toy_batch(B=6, M=2, K=3))["loss_actor"].backward()
    assert all(torch.isfinite(p.grad).all() and p.grad.any() for p in parameters_of(loss, "actor_network_params"))


# --- targets


@pytest.mark.parametrize("tau", [0.005, 0.3])
def test_the_target_starts_equal_and_moves_by_exactly_tau(tau):
    loss = make_loss(tau=tau)
    params, targets = loss.qvalue_network_params, loss.target_qvalue_network_params
    old = targets.clone().detach()
    assert (params.detach() == old).all()
    with torch.no_grad():
        for parameter in params.parameters():
            parameter.add_(torch.randn_like(parameter))
    loss.updater.step()
    for key in params.keys(True, True):
        expected = old[key] + tau * (params[key].detach() - old[key])
        torch.testing.assert_close(loss.target_qvalue_network_params[key], expected)


def test_hard_updates_and_no_delay():
    loss = EpistemicQuantileLoss(toy_actor(), toy_critic())
    updater = HardUpdate(loss, value_network_update_interval=1)  # TorchRL counts the step before as well
    with torch.no_grad():
        for parameter in loss.qvalue_network_params.parameters():
            parameter.add_(1.0)
    updater.step()
    assert not (loss.target_qvalue_network_params == loss.qvalue_network_params.detach()).all()
    updater.step()
    assert (loss.target_qvalue_network_params == loss.qvalue_network_params.detach()).all()
    live = EpistemicQuantileLoss(toy_actor(), toy_critic(), delay_qvalue=False)
    with torch.no_grad():
        for parameter in live.qvalue_network_params.parameters():
            parameter.add_(1.0)
    assert (live.target_qvalue_network_params == live.qvalue_network_params.detach()).all()
    live(toy_batch(B=6))["loss_qvalue"].backward()


def test_state_dict_loads_into_a_fresh_loss_before_its_first_call_and_after():
    batch = toy_batch(B=6, M=2, K=3)
    for forward_first in (False, True):
        loss, fresh = make_loss(alpha_init=0.3, gamma=0.7), make_loss()
        if forward_first:
            loss(batch)
            with torch.no_grad():
                loss.qvalue_network_params.apply(lambda p: p.add_(0.1))
            loss.updater.step()
        fresh.load_state_dict(loss.state_dict(), strict=True)
        torch.manual_seed(1)
        expected = loss(batch)
        torch.manual_seed(1)
        found = fresh(batch)
        assert (expected.detach() == found.detach()).all()
        fresh.updater.step()
        loss.updater.step()
        assert (fresh.target_qvalue_network_params == loss.target_qvalue_network_params).all()


def test_a_deep_copy_is_equal_and_independent():
    loss, batch = make_loss(), toy_batch(B=6, M=2, K=3)
    twin = copy.deepcopy(loss)
    outs = []
    for one in (loss, twin):
        torch.manual_seed(1)
        outs.append(one(batch))
    assert (outs[0].detach() == outs[1].detach()).all()
    with torch.no_grad():
        twin.actor_network_params.apply(lambda p: p.add_(1.0))
    assert not (twin.actor_network_params.detach() == loss.actor_network_params.detach()).all()


def test_double_precision_and_scheduled_coefficients():
    loss = make_loss(fixed_alpha=True).double()
    batch = toy_batch(B=6, M=2, K=3)
    batch = batch.apply(lambda x: x.double() if x.is_floating_point() else x)
    assert loss(batch)["loss_qvalue"].dtype == torch.float64
    loss.gamma = 0.5
    loss.log_alpha = math.log(0.25)
    assert loss.gamma == 0.5 and loss(batch)["alpha"] == pytest.approx(0.25)


# --- rows that hold nonsense


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("size", [(), (2, 3)])
def test_whatever_follows_a_termination_does_no_harm(size, poison):
    loss, batch = make_loss(), toy_batch(6, *size)
    batch["next", "terminated"][::2] = True
    harmless = batch.clone()
    batch["next", "observation"][::2] = poison
    outs = []
    for one in (harmless, batch):
        torch.manual_seed(1)
        outs.append(loss(one))
    sum(outs[1][name] for name in PARTS).backward()
    assert (outs[0].detach() == outs[1].detach()).all()
    assert all(torch.isfinite(p.grad).all() for p in loss.parameters())


# --- policies


@pytest.mark.parametrize("location", [-30.0, 0.0, 30.0])
def test_a_policy_on_the_action_bound_has_finite_losses_and_gradients_and_the_right_entropy(location):
    low, high, scale = torch.tensor([-2.0]), torch.tensor([5.0]), 0.5
    net = nn.Linear(3, 1)
    nn.init.zeros_(net.weight)
    nn.init.constant_(net.bias, location)
    actor = ProbabilisticActor(
        TensorDictModule(lambda s: (net(s), torch.full_like(s[..., :1], scale)), ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        distribution_kwargs={"low": low, "high": high},
    )
    actor.net = net
    loss = make_loss(actor, target_entropy=-1.0)
    out = loss(toy_batch(B=4000, M=1, K=1))
    sum(out[name] for name in PARTS).backward()
    assert all(torch.isfinite(p.grad).all() for p in loss.parameters())
    # E[-log pi] = entropy of the Gaussian + log half range + E[log(1 - tanh^2 u)], by quadrature in double precision
    u = location + scale * torch.linspace(-8, 8, 100_001, dtype=torch.float64)
    weight = torch.softmax(-0.5 * ((u - location) / scale) ** 2, 0)
    log_slope = 2 * (math.log(2) - u.abs() - torch.log1p(torch.exp(-2 * u.abs())))
    expected = 0.5 * math.log(2 * math.pi * math.e * scale**2) + math.log(3.5) + (weight * log_slope).sum().item()
    assert out["entropy"].item() == pytest.approx(expected, rel=0.02, abs=0.05)


def test_stratified_draws_respect_bounds_that_differ_between_entries():
    actor = toy_actor(3, 2)
    low, high = torch.tensor([-2.0, 0.0]).double(), torch.tensor([2.0, 9.0]).double()
    bounds = {"low": low, "high": high, "event_dims": 1}
    bounded = ProbabilisticActor(
        actor.module[0], in_keys=["loc", "scale"], distribution_class=TanhNormal, distribution_kwargs=bounds
    )
    seen = []

    class Zero(nn.Module):  # without a value the target is the reward and the entropy bonus alone
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, observation, action):
            seen.append(action.detach())
            return self.weight * action[..., :1]

    critic = TensorDictModule(Zero(), ["observation", "action"], ["state_action_value"])
    # in float64, where the density can be computed from a saturated action
    loss = make_loss(bounded, critic, target_entropy=-2.0, gamma=0.5, alpha_init=0.25).double()
    batch = toy_batch(B=50, M=2, K=4, action_dim=2).double()
    target = loss.compute_target(batch)
    [action] = seen
    assert action.shape == (50, 2, 4, 1, 2)
    assert (action >= bounds["low"]).all() and (action <= bounds["high"]).all()
    log_prob = bounded.get_dist(batch["next"].clone()).log_prob(action.squeeze(-2))
    expected = (batch["next", "reward"].squeeze(-1) - 0.5 * 0.25 * log_prob).mean(-1)
    torch.testing.assert_close(target, expected.detach(), atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("action_sampling", ["stratified", "iid"])
@pytest.mark.parametrize("make_actor", [lambda: uniform_actor(1.0), lambda: narrow_actor(0.1, 0.5)])
def test_other_policies_are_drawn_independently(make_actor, action_sampling):
    loss = make_loss(make_actor(), action_sampling=action_sampling, num_next_actions=3, target_entropy=-1.0)
    out = loss(toy_batch(B=6, M=2, K=3))
    sum(out[name] for name in PARTS).backward()
    assert all(torch.isfinite(p.grad).all() for p in parameters_of(loss, "actor_network_params"))


def test_an_unbounded_gaussian_policy_reports_its_entropy():
    loss = make_loss(narrow_actor(0.0, 2.0), target_entropy=-1.0)
    entropy = 0.5 * math.log(2 * math.pi * math.e * 4)
    assert loss(toy_batch(B=20_000))["entropy"].item() == pytest.approx(entropy, abs=0.03)


@pytest.mark.parametrize("magnitude", [1e4, 1e6])
def test_rewards_of_any_size_give_finite_losses_and_updates(magnitude):
    loss, batch = make_loss(), toy_batch(B=6, M=2, K=3)
    batch["next", "reward"] *= magnitude
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)
    for _ in range(20):
        out = loss(batch)
        sum(out[name] for name in PARTS).backward()
        assert all(torch.isfinite(p.grad).all() for p in loss.parameters())
        optimizer.step()
        optimizer.zero_grad()
    assert all(torch.isfinite(out[name]) for name in PARTS)
