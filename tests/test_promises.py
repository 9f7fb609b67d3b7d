"""What the method promises, on tasks small enough to know the answer: what data remove, what optimism finds."""

from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.objectives import SoftUpdate

from eqr_torchrl import (
    EnsembleSuccessors,
    EpistemicQuantileLoss,
    FixedStepsFit,
    GaussianEnsemble,
    MeanUtility,
    ModelBasedEnv,
    OptimisticUtility,
    WorldModel,
)
from eqr_torchrl.imagination import never_terminates
from eqr_torchrl.objectives import make_optimizer, make_update
from eqr_torchrl.testing import toy_actor, toy_critic, toy_env

GAMMA, NOISE = 0.5, 1.0


def noisy_rewards(num_rows: int) -> TensorDict:
    """Transitions whose states hardly matter and whose rewards are noise: N(0, 1), whatever is done."""
    state, action = torch.rand(num_rows, 1) * 2 - 1, torch.rand(num_rows, 1) * 2 - 1
    flag = torch.zeros(num_rows, 1, dtype=torch.bool)
    after = {
        "observation": 0.9 * state + 0.01 * torch.randn(num_rows, 1),
        "reward": NOISE * torch.randn(num_rows, 1),
        "done": flag,
        "terminated": flag.clone(),
    }
    return TensorDict({"observation": state, "action": action, "next": TensorDict(after, [num_rows])}, [num_rows])


def learnt_spread(num_rows: int, *, replayed: bool) -> float:
    """Standard deviation of the critic's quantiles, for models learnt from ``num_rows`` transitions."""
    data = noisy_rewards(num_rows)
    model = GaussianEnsemble(1, 1, num_members=5, num_cells=(16, 16))
    FixedStepsFit(model, num_steps=min(60 * num_rows // 64, 600), lr=3e-3, batch_size=64)(data)
    model_env = ModelBasedEnv(model, toy_env(1, 1), termination_fn=never_terminates)
    draws, sampling = (1, "iid") if replayed else (16, "stratified")
    successors = EnsembleSuccessors(model_env, num_next_states=draws, sampling=sampling)
    critic = toy_critic(1, num_quantiles=11, num_cells=(16,))
    loss = EpistemicQuantileLoss(toy_actor(1), critic, alpha_init=1e-8, fixed_alpha=True, kappa=0.1)
    loss.make_value_estimator(gamma=GAMMA)
    adam, updater = torch.optim.Adam(critic.parameters(), lr=1e-2), SoftUpdate(loss, tau=0.1)
    for _ in range(400):
        batch = successors(data[torch.randint(num_rows, (64,))].select("observation", "action"))
        if replayed:  # QR-MBPO: one successor, of a random member
            member = torch.randint(5, (64,))
            batch["next"] = batch["next"][torch.arange(64), member, 0]
        value, _ = loss.qvalue_v2_loss(batch)
        value.backward()
        adam.step()
        adam.zero_grad()
        updater.step()
    with torch.no_grad():
        quantiles = critic(noisy_rewards(200))["state_action_value"]
    return quantiles.std(-1).mean().item()


@pytest.mark.slow
def test_data_remove_epistemic_spread_and_leave_the_noise_of_returns():
    # the return of N(0, 1) rewards has standard deviation 1 / sqrt(1 - 1/4) = 1.15 whatever the data
    torch.manual_seed(0)
    few, many = (learnt_spread(count, replayed=False) for count in (40, 4000))
    assert many < 0.5 * few and many < 0.1
    few, many = (learnt_spread(count, replayed=True) for count in (40, 4000))
    assert many == pytest.approx(NOISE / math.sqrt(1 - GAMMA**2), rel=0.2)
    assert many > 0.7 * few


class Chain(WorldModel):
    """A walk on ``[0, 1]`` whose far end nobody has seen: one member in five holds it to pay, the others to cost."""

    def __init__(self) -> None:
        super().__init__(1, num_members=5)
        self.register_buffer("pays", torch.tensor([2.0, -0.6, -0.6, -0.6, -0.6]).view(-1, 1, 1))  # mean -0.08

    def forward(self, observation, action):
        position = (observation + 0.1 * action).clamp(0, 1)
        loc = torch.cat([position, self.pays * (position > 0.8)], -1)
        return loc, torch.zeros_like(loc)


def cells_visited(utility: nn.Module) -> int:
    """Tenths of the chain that the trained policy sees in 100 steps from the near end."""
    torch.manual_seed(0)
    env, model = toy_env(1, 1), Chain()
    model_env = ModelBasedEnv(model, env, termination_fn=never_terminates)
    actor, critic = toy_actor(1), toy_critic(1, num_quantiles=11, num_cells=(32, 32))
    loss = EpistemicQuantileLoss(actor, critic, utility=utility, kappa=0.1, alpha_init=0.01, fixed_alpha=True)
    loss.make_value_estimator(gamma=0.9)
    successors = EnsembleSuccessors(model_env, num_next_states=1)
    optimizer = make_optimizer(loss, lr_actor=1e-2, lr_critic=1e-2)
    update = make_update(lambda batch: loss(successors(batch)), optimizer, SoftUpdate(loss, tau=0.1))
    for _ in range(600):
        update(TensorDict({"observation": torch.rand(64, 1), "action": torch.rand(64, 1) * 2 - 1}, [64]))
    position, seen = torch.zeros(1), set()
    for _ in range(100):
        action = actor(TensorDict({"observation": position}, []))["action"].detach()
        position = (position + 0.1 * action).clamp(0, 1)
        seen.add(min(int(10 * position), 9))
    return len(seen)


@pytest.mark.slow
def test_optimism_walks_to_the_end_of_the_chain_that_the_mean_shuns():
    assert cells_visited(OptimisticUtility()) == 10
    assert cells_visited(MeanUtility()) <= 8
