"""Who learns from what: gradients, optimisers, targets, and rows that hold nonsense."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from loss_parts import linear_critic, make_loss, narrow_actor, seeded, total
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.modules import ProbabilisticActor, TanhNormal
from torchrl.objectives import HardUpdate

from eqr_torchrl.objectives import EpistemicQuantileLoss, make_optimizer, make_update
from eqr_torchrl.testing import toy_actor, toy_batch, toy_critic
from eqr_torchrl.utility import OptimisticUtility

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


def test_its_parameters_are_the_users_own_and_one_optimiser_trains_them_all():
    actor, critic = toy_actor(), toy_critic()
    loss = make_loss(actor, critic)
    own = [*actor.parameters(), *critic.parameters(), loss.log_alpha]
    assert {id(p) for p in loss.parameters()} == {id(p) for p in own}
    before, optimizer = copy.deepcopy(own), torch.optim.Adam(loss.parameters(), lr=1e-2)
    total(loss(toy_batch(B=6, M=2, K=3))).backward()
    optimizer.step()
    assert not any(map(torch.equal, before, own))


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


# --- targets


def test_targets_are_copies_that_a_hard_update_moves_or_the_critics_themselves():
    loss, live = make_loss(), EpistemicQuantileLoss(toy_actor(), toy_critic(), delay_qvalue=False)
    updater = HardUpdate(loss, value_network_update_interval=1)  # TorchRL counts the step before as well

    def equal(one) -> bool:
        return bool((one.target_qvalue_network_params == one.qvalue_network_params.detach()).all())

    assert equal(loss) and equal(live)
    for one in (loss, live):
        for parameter in one.qvalue_network_params.parameters():
            parameter.data.add_(1.0)
    assert not equal(loss) and equal(live)
    updater.step()
    assert not equal(loss)
    updater.step()
    assert equal(loss)
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
        assert (seeded(loss, batch).detach() == seeded(fresh, batch).detach()).all()
        fresh.updater.step()
        loss.updater.step()
        assert (fresh.target_qvalue_network_params == loss.target_qvalue_network_params).all()


def test_a_deep_copy_is_equal_and_independent():
    loss, batch = make_loss(), toy_batch(B=6, M=2, K=3)
    twin = copy.deepcopy(loss)
    assert (seeded(loss, batch).detach() == seeded(twin, batch).detach()).all()
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
    expected, out = seeded(loss, harmless), seeded(loss, batch)
    total(out).backward()
    assert (out.detach() == expected.detach()).all()
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
    total(out).backward()
    assert all(torch.isfinite(p.grad).all() for p in loss.parameters())
    # E[-log pi] = entropy of the Gaussian + log half range + E[log(1 - tanh^2 u)], by quadrature in double precision
    u = location + scale * torch.linspace(-8, 8, 100_001, dtype=torch.float64)
    weight = torch.softmax(-0.5 * ((u - location) / scale) ** 2, 0)
    log_slope = 2 * (math.log(2) - u.abs() - torch.log1p(torch.exp(-2 * u.abs())))
    expected = 0.5 * math.log(2 * math.pi * math.e * scale**2) + math.log(3.5) + (weight * log_slope).sum().item()
    assert out["entropy"].item() == pytest.approx(expected, rel=0.02, abs=0.05)


def test_an_unbounded_gaussian_policy_reports_its_entropy():
    loss = make_loss(narrow_actor(0.0, 2.0), target_entropy=-1.0)
    entropy = 0.5 * math.log(2 * math.pi * math.e * 4)
    assert loss(toy_batch(B=20_000))["entropy"].item() == pytest.approx(entropy, abs=0.03)


def test_rewards_of_any_size_give_finite_losses_and_updates():
    loss, batch = make_loss(), toy_batch(B=6, M=2, K=3)
    batch["next", "reward"] *= 1e6
    update = make_update(loss, make_optimizer(loss), loss.updater)
    for _ in range(20):
        assert all(value.isfinite() for value in update(batch.copy()).values())
    assert all(torch.isfinite(p).all() for p in loss.parameters())
