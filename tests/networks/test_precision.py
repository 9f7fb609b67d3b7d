"""Targets with hidden matmuls in bfloat16 against the same ones in float32."""

from __future__ import annotations

from functools import partial

import torch
from tensordict import TensorDict

from eqr_torchrl.networks import fast_inference, make_actor, make_critic
from eqr_torchrl.networks._cpu import Precision
from eqr_torchrl.objectives import EpistemicQuantileLoss
from eqr_torchrl.testing import toy_env
from eqr_torchrl.world_models import EarlyStoppingFit, FixedStepsFit, GaussianEnsemble

S, A, B, M, K = 8, 2, 32, 5, 4


def batch(state: torch.Tensor) -> TensorDict:
    """Next states that members and draws spread by 0.1 around each of ``state``, whose entries are of order one."""
    successors = {
        "observation": state[:, None, None] + 0.1 * torch.randn(B, M, K, S),
        "reward": torch.zeros(B, M, K, 1),
        "terminated": torch.zeros(B, M, K, 1, dtype=torch.bool),
    }
    action = torch.zeros(B, A)
    return TensorDict({"observation": state, "action": action, "next": TensorDict(successors, (B, M, K))}, [B])


def test_bf16_moves_target_quantiles_by_less_than_a_tenth_of_their_own_noise():
    torch.manual_seed(0)
    env = toy_env(S, A)
    actor, critic = make_actor(env), make_critic(env)
    critic.module.network[4].weight.data *= 20  # returns of order a hundred, which vary with the state
    critic.module.network[4].bias.data += 100
    state = torch.randn(B, S)

    def targets(precision: Precision) -> torch.Tensor:
        inference = partial(fast_inference, precision=precision)
        loss = EpistemicQuantileLoss(actor, critic, delay_qvalue=False, target_inference=inference)
        drawn = []
        for seed in range(20):
            torch.manual_seed(seed)
            drawn.append(loss.compute_target(batch(state)))
        return torch.stack(drawn)

    draws = targets("fp32")
    change = targets("bf16") - draws
    noise = draws.std(0).square().mean().sqrt()
    assert 0 < change.square().mean().sqrt() < 0.1 * noise


def test_bf16_moves_predictions_by_less_than_the_noise_of_a_fitted_model():
    torch.manual_seed(0)
    env = toy_env()  # noise of 0.01 on states of order one
    data = env.rollout(400, break_when_any_done=False)
    model = GaussianEnsemble(3, 1, num_members=3, num_cells=(64, 64, 64), precision="bf16")
    EarlyStoppingFit(model, max_epochs=30)(data)
    state, action = (data[key].expand(3, 400, -1) for key in ("observation", "action"))
    with torch.no_grad():
        loc, scale = model(state, action)
        model.uses_bf16 = False
        exact_loc, exact_scale = model(state, action)
    change = (loc - exact_loc).abs()
    assert 0 < (change / exact_scale).mean() < 0.1
    torch.testing.assert_close(scale, exact_scale, rtol=0.05, atol=0)


def test_bf16_in_a_fit_moves_its_error_by_less_than_the_seed_does():
    env = toy_env()
    env.set_seed(0)
    data = env.rollout(400, break_when_any_done=False)
    fresh = env.rollout(400, break_when_any_done=False)
    state, action, after = (fresh[key] for key in ("observation", "action", ("next", "observation")))

    def error(seed: int, precision: Precision) -> torch.Tensor:
        torch.manual_seed(seed)
        model = GaussianEnsemble(3, 1, num_members=3, num_cells=(32, 32, 32), precision=precision)
        FixedStepsFit(model, num_steps=150, lr=3e-3, batch_size=128)(data)
        model.uses_bf16 = False  # both are judged alike
        with torch.no_grad():
            loc = model(state.expand(3, -1, -1), action.expand(3, -1, -1))[0][..., :3]
        return (loc - after).square().mean().log()

    exact = torch.stack([error(seed, "fp32") for seed in range(4)])
    change = torch.stack([error(seed, "bf16") for seed in range(4)]) - exact
    assert exact.exp().max() < 0.02**2  # of noise 0.01 and a step of order one
    assert 0 < change.square().mean().sqrt() < exact.std()
