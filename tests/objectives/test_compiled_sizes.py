"""Losses, successors and imagined steps compiled once serve batches of any size."""

from __future__ import annotations

import shutil

import pytest
import torch
from loss_parts import make_loss
from torchrl.objectives import SoftUpdate

from eqr_torchrl.imagination import EnsembleSuccessors, ModelBasedEnv, never_terminates
from eqr_torchrl.objectives import MemberwiseSACLoss
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


def same_draws(function, *arguments):
    torch.manual_seed(1)
    return function(*(value.clone() for value in arguments))


def state_action(size: int):
    return toy_batch(B=size).select("observation", "action")


@pytest.mark.parametrize("sampling", ["stratified", "iid"])
def test_successors(sampling):
    successors = EnsembleSuccessors(model_env(), sampling=sampling)
    compiled = torch.compile(successors, backend="eager", fullgraph=True)
    for size in SIZES:
        batch = state_action(size)
        found, expected = (same_draws(one, batch)["next"] for one in (compiled, successors))
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value)


@pytest.mark.parametrize("member", ["fixed", "resampled"])
def test_steps_of_the_imagined_environment(member):
    env = model_env(member=member)
    compiled = torch.compile(env.step_rows, backend="eager", fullgraph=True)
    for size in SIZES:
        inputs = torch.randn(3, size, 3), torch.rand(3, size, 1)
        torch.testing.assert_close(same_draws(compiled, *inputs), same_draws(env.step_rows, *inputs))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["replayed", "ensemble", "memberwise", "member values"])
def test_losses_and_gradients(kind):
    if kind.startswith("member"):
        critics = [toy_critic(num_quantiles=1, num_cells=(8,)) for _ in range(2)]
        one = toy_critic(num_quantiles=2, num_cells=(8,))
        loss = MemberwiseSACLoss(toy_actor(num_cells=(8,)), critics if kind == "memberwise" else one)
        SoftUpdate(loss, tau=0.1)
    else:
        loss = make_loss(toy_actor(num_cells=(8,)), toy_critic(num_cells=(8,)))
    compiled = torch.compile(loss, backend="eager", fullgraph=True, dynamic=True)  # traced once for both sizes
    for size in SIZES[:2]:
        batch, gradients = toy_batch(size, *((2, 3) if kind in ("ensemble", "member values") else ())), []
        if kind == "memberwise":
            batch = batch.select("observation").set("members", torch.stack([batch, batch], 1))
        found, expected = (same_draws(one, batch) for one in (compiled, loss))
        for losses in (found, expected):
            loss.zero_grad()
            (losses["loss_qvalue"] + losses["loss_actor"] + losses["loss_alpha"]).backward()
            gradients.append([p.grad.clone() for p in loss.parameters()])
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value)
        torch.testing.assert_close(*gradients)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="the inductor backend needs a C++ compiler")
def test_inductor_gives_the_critic_loss_and_its_gradient_on_successors():
    successors = EnsembleSuccessors(model_env(), num_next_states=2)
    loss = make_loss(toy_actor(num_cells=(8,)), toy_critic(num_cells=(8,)))

    def critic_loss(batch):
        return loss.qvalue_v2_loss(successors(batch))[0]

    compiled = torch.compile(critic_loss, dynamic=True, options={"fallback_random": True})
    for size in SIZES:
        batch, outs = state_action(size), []
        for one in (compiled, critic_loss):
            loss.zero_grad()
            value = same_draws(one, batch)
            value.backward()
            outs.append([value.detach(), *(p.grad.clone() for p in loss.parameters() if p.grad is not None)])
        assert len(outs[0]) == 5  # the value, and weight and bias of two layers
        torch.testing.assert_close(*outs, rtol=1e-4, atol=1e-5)
