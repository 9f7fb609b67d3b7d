"""Calls of networks by tensors are those by TensorDicts, to the digit; and an update takes few calls of Python."""

from __future__ import annotations

import sys

import pytest
import torch
from loss_parts import make_loss, make_memberwise, member_batch, scalar_critics, seeded, total
from tensordict import TensorDict, TensorDictParams
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.modules import ProbabilisticActor, TanhNormal

from eqr_torchrl.objectives import EpistemicQuantileLoss, _calls, make_optimizer, make_update
from eqr_torchrl.objectives.update import _target_step
from eqr_torchrl.testing import toy_actor, toy_batch, toy_critic


def losses_and_gradients(loss, batch):
    loss.zero_grad()
    out = seeded(loss, batch.clone())
    total(out).backward()
    return [*out.detach().values(), *(p.grad.clone() for p in loss.parameters() if p.grad is not None)]


def slow_way(monkeypatch) -> None:
    """Every network is called by a TensorDict, with parameters swapped by TensorDict."""
    monkeypatch.setattr(_calls, "_find_slots", lambda *_: False)
    monkeypatch.setattr(_calls, "has_hooks", lambda _: True)


class Features(nn.Module):
    """Reads two entries, one of them an image, and has running statistics."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(4), nn.Linear(4 + sizes[0], sizes[1])

    def forward(self, pixels, *others):
        features = pixels.flatten(-2)
        shape = features.shape
        features = self.norm(features.reshape(-1, 4)).reshape(shape)
        return self.out(torch.cat([features, *others], -1))


def pixel_parts():
    encoder = TensorDictModule(Features(3, 2), ["pixels", "observation"], ["hidden"])
    head = TensorDictModule(lambda x: (x[..., :1], x[..., 1:].exp()), ["hidden"], ["loc", "scale"])
    actor = ProbabilisticActor(
        TensorDictSequential(encoder, head), ["loc", "scale"], distribution_class=TanhNormal, return_log_prob=True
    )
    critic = TensorDictModule(Features(1, 5), ["pixels", "action"], ["state_action_value"])
    return actor, critic


def with_pixels(batch):
    batch["pixels"], batch["next", "pixels"] = (torch.randn(*size, 2, 2) for size in (batch.shape, batch["next"].shape))
    return batch


class Encoding(nn.Module):
    """What it calculates is a method, beside a ``forward`` of another meaning."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 5)

    def forward(self, observation, action):
        raise AssertionError("the method was named")

    def values(self, observation, action):
        return self.net(torch.cat([observation, action], -1))


def by_method():
    return TensorDictModule(Encoding(), ["observation", "action"], ["state_action_value"], method="values")


CASES = {
    "method": lambda: (make_loss(critic=by_method()), toy_batch(B=6)),
    "replayed": lambda: (make_loss(), toy_batch(B=6)),
    "ensemble": lambda: (make_loss(num_qvalue_nets=2, num_next_actions=2), toy_batch(B=6, M=2, K=3)),
    "no delay": lambda: (
        EpistemicQuantileLoss(toy_actor(), toy_critic(), delay_qvalue=False),
        toy_batch(B=6, M=2, K=3),
    ),
    "member values": lambda: (make_memberwise(), toy_batch(B=6, M=3, K=2)),
    "members": lambda: (make_memberwise(scalar_critics()), member_batch()),
    "pixels": lambda: (make_loss(*pixel_parts(), target_entropy=-1.0), with_pixels(toy_batch(B=6, M=2, K=3))),
}


@pytest.mark.parametrize("case", list(CASES))
def test_losses_and_gradients_are_those_of_calls_by_tensordicts(monkeypatch, case):
    loss, batch = CASES[case]()
    state = {name: value.clone() for name, value in loss.state_dict().items() if isinstance(value, torch.Tensor)}
    short = losses_and_gradients(loss, batch)
    loss.load_state_dict(state, strict=False)  # running statistics
    slow_way(monkeypatch)
    for found, expected in zip(short, losses_and_gradients(loss, batch), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
    assert all(torch.isfinite(value).all() for value in short)


def test_the_networks_get_their_parameters_back():
    actor, critic = toy_actor(), toy_critic()
    before = {name: value for net in (actor, critic) for name, value in net.named_parameters()}
    loss = make_loss(actor, critic)
    loss(toy_batch(B=6, M=2, K=3))
    with pytest.raises(RuntimeError):
        loss(toy_batch(B=6, observation_dim=4))
    after = {name: value for net in (actor, critic) for name, value in net.named_parameters()}
    assert all(after[name] is value for name, value in before.items())


@pytest.mark.parametrize("name", ["actor_network_params", "qvalue_network_params", "target_qvalue_network_params"])
def test_parameters_put_in_the_place_of_the_losss_are_those_that_count(name):
    loss, batch = make_loss(), toy_batch(B=6, M=2, K=3)
    before = losses_and_gradients(loss, batch)
    kept = getattr(loss, name)
    setattr(loss, name, TensorDictParams(kept.data.apply(lambda p: p + 0.1), no_convert=name.startswith("target")))
    changed = losses_and_gradients(loss, batch)
    assert any(not torch.equal(a, b) for a, b in zip(before, changed, strict=False))
    setattr(loss, name, kept)
    torch.testing.assert_close(losses_and_gradients(loss, batch), before, rtol=0, atol=0)


def test_gradients_reach_parameters_of_a_functional_call():
    loss, batch = make_loss(), toy_batch(B=6, M=2, K=3)
    parts = ("actor_network_params", "qvalue_network_params")
    swapped = TensorDict.from_module(loss).data.clone()
    leaves = {part: swapped[part].apply(lambda p: p.requires_grad_(p.is_floating_point())) for part in parts}
    with swapped.to_module(loss, preserve_module_state=False):
        out = seeded(loss, batch.clone())
    expected = seeded(loss, batch.clone())
    for one in (out, expected):
        (one["loss_qvalue"] + one["loss_actor"]).backward()
    for part in parts:
        for key, parameter in getattr(loss, part).items(True, True):
            if parameter.requires_grad:  # not a buffer
                torch.testing.assert_close(leaves[part][key].grad, parameter.grad)


@pytest.mark.parametrize("part", ["actor", "critic"])
def test_hooks_of_the_users_modules_run(part):
    actor, critic, seen = toy_actor(), toy_critic(), []
    module = critic if part == "critic" else actor.module[0]
    module.register_forward_hook(lambda *_: seen.append(part))  # of the TensorDict module itself
    make_loss(actor, critic)(toy_batch(B=6))
    assert len(seen) == (3 if part == "critic" else 2)


@pytest.mark.parametrize("build", ["linear", "batch norm"])
def test_targets_move_as_soft_update_moves_them(build):
    nets = {"linear": [nn.Linear(4, 8)], "batch norm": [nn.Linear(4, 8), nn.BatchNorm1d(8)]}[build]
    body = nn.Sequential(*nets, nn.Linear(8, 5))
    net = TensorDictModule(lambda s, a: body(torch.cat([s, a], -1)), ["observation", "action"], ["state_action_value"])
    net.body = body
    loss = make_loss(critic=net, tau=0.3)
    with torch.no_grad():
        loss.qvalue_network_params.apply(lambda p: p.add_(1) if p.is_floating_point() else p)
    start = loss.target_qvalue_network_params.clone().detach()
    _target_step(loss.updater)()
    found = loss.target_qvalue_network_params.clone().detach()
    loss.target_qvalue_network_params.data.copy_(start)
    loss.updater.step()
    assert (found == loss.target_qvalue_network_params).all() and not (found == start).all()


@pytest.mark.parametrize("kind", ["eqr", "member values"])
def test_an_update_takes_at_most_3300_calls(kind):
    critic = toy_critic(num_quantiles=5)
    loss = make_loss(critic=critic) if kind == "eqr" else make_memberwise(critic)
    update = make_update(loss, make_optimizer(loss), loss.updater)
    batch, calls = toy_batch(B=16, M=5, K=4), 0

    def count(frame, event, arg):
        nonlocal calls
        calls += event in ("call", "c_call")  # as cProfile counts: functions of Python and of C

    for _ in range(3):
        update(batch.copy())
    sys.setprofile(count)
    try:
        update(batch)
    finally:
        sys.setprofile(None)
    assert calls <= 3300  # 9,000 with TensorDict's own swaps and calls
