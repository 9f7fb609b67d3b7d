"""Losses, successors and imagined steps compiled once serve batches of any size."""

from __future__ import annotations

import shutil

import pytest
import torch
from loss_parts import make_loss, make_memberwise, member_batch, scalar_critics, seeded, total

from eqr_torchrl.imagination import EnsembleSuccessors, ModelBasedEnv, never_terminates
from eqr_torchrl.testing import toy_actor, toy_batch, toy_critic, toy_env
from eqr_torchrl.world_models import GaussianEnsemble

pytestmark = pytest.mark.filterwarnings("ignore")  # tracing tensordict warns of its own future
SIZES = (256, 128, 1)


@pytest.fixture(autouse=True)
def _forget_compiled_code():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def model_env(**kwargs) -> ModelBasedEnv:
    model = GaussianEnsemble(3, 1, num_members=3, num_cells=(8,))
    return ModelBasedEnv(model, toy_env(), termination_fn=never_terminates, **kwargs)


def state_action(size: int):
    return toy_batch(B=size).select("observation", "action")


@pytest.mark.parametrize("sampling", ["stratified", "iid"])
def test_successors(sampling):
    successors = EnsembleSuccessors(model_env(), sampling=sampling)
    compiled = torch.compile(successors, backend="eager", fullgraph=True)
    for size in SIZES:
        batch = state_action(size)
        found, expected = (seeded(one, batch.clone())["next"] for one in (compiled, successors))
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value)


@pytest.mark.parametrize("member", ["fixed", "resampled"])
def test_steps_of_the_imagined_environment(member):
    env = model_env(member=member)
    compiled = torch.compile(env.step_rows, backend="eager", fullgraph=True)
    for size in SIZES:
        inputs = torch.randn(3, size, 3), torch.rand(3, size, 1)
        torch.testing.assert_close(seeded(compiled, *inputs), seeded(env.step_rows, *inputs))


SMALL = {"num_cells": (8,)}
KINDS = {  # loss, size of "next", and whether all three losses are compiled: those of policy and temperature are shared
    "ensemble": (lambda: make_loss(toy_actor(**SMALL), toy_critic(**SMALL)), (2, 3), True),
    "replayed": (lambda: make_loss(toy_actor(**SMALL), toy_critic(**SMALL)), (), False),
    "members": (lambda: make_memberwise(scalar_critics(2), toy_actor(**SMALL)), None, False),
    "member values": (lambda: make_memberwise(toy_critic(num_quantiles=2, **SMALL), toy_actor(**SMALL)), (2, 3), False),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(KINDS))
def test_losses_and_gradients(kind):
    make, successors, whole = KINDS[kind]
    loss = make()
    function = loss if whole else loss.qvalue_v2_loss
    compiled = torch.compile(function, backend="eager", fullgraph=True, dynamic=True)  # traced once for both sizes
    for size in SIZES[:2]:
        batch = member_batch(size, 2) if successors is None else toy_batch(size, *successors)
        outs, gradients = [], []
        for one in (compiled, function):
            loss.zero_grad()
            out = seeded(one, batch.clone())
            (total(out) if whole else out[0]).backward()
            outs.append(out.to_dict() if whole else out)
            gradients.append([p.grad.clone() for p in loss.parameters() if p.grad is not None])
        torch.testing.assert_close(*outs)
        torch.testing.assert_close(*gradients)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="the inductor backend needs a C++ compiler")
def test_inductor_gives_the_critic_loss_and_its_gradient_on_successors():
    successors = EnsembleSuccessors(model_env(), num_next_states=2)
    loss = make_loss(toy_actor(**SMALL), toy_critic(**SMALL))

    def critic_loss(batch):
        return loss.qvalue_v2_loss(successors(batch))[0]

    compiled = torch.compile(critic_loss, dynamic=True, options={"fallback_random": True})
    for size in SIZES[:2]:  # a batch of one would be compiled once more
        batch, outs = state_action(size), []
        for one in (compiled, critic_loss):
            loss.zero_grad()
            value = seeded(one, batch.clone())
            value.backward()
            outs.append([value.detach(), *(p.grad.clone() for p in loss.parameters() if p.grad is not None)])
        assert len(outs[0]) == 5  # the value, and weight and bias of two layers
        torch.testing.assert_close(*outs, rtol=1e-4, atol=1e-5)
