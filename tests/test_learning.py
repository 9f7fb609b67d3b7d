"""Learning in seconds on problems whose answer is known on paper."""

from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.objectives import SoftUpdate
from toy_env import WalkEnv

from eqr_torchrl.functional import quantile_midpoints
from eqr_torchrl.imagination import (
    EnsembleSuccessors,
    ModelBasedEnv,
    branched_rollout,
    make_model_buffer,
    make_replay_buffer,
    never_terminates,
)
from eqr_torchrl.lab.evaluation import evaluate
from eqr_torchrl.objectives import EpistemicQuantileLoss, make_optimizer, make_update
from eqr_torchrl.testing import toy_actor, toy_batch, toy_critic, toy_env
from eqr_torchrl.world_models import FixedStepsFit, GaussianEnsemble, WorldModel


class LinearCritic(nn.Module):
    """``q_n(s, a) = w_n features(s) + b_n``: each quantile a linear function of its own."""

    def __init__(self, num_quantiles: int, num_features: int, features) -> None:
        super().__init__()
        self.features, self.linear = features, nn.Linear(num_features, num_quantiles)
        nn.init.zeros_(self.linear.weight)

    def forward(self, observation, action):
        return self.linear(self.features(observation, action))


def linear_critic(num_quantiles: int, num_features: int, features) -> TensorDictModule:
    return TensorDictModule(
        LinearCritic(num_quantiles, num_features, features), ["observation", "action"], ["state_action_value"]
    )


def train_critic(critic, batches, *, gamma: float, num_updates: int, kappa: float = 1.0, lr: float = 0.05):
    """Trains the critic alone, without entropy, at a falling rate; returns its quantiles as a function of states."""
    observation_dim = next(iter(batches()["observation"].shape[-1:]))
    loss = EpistemicQuantileLoss(
        toy_actor(observation_dim), critic, alpha_init=1e-8, fixed_alpha=True, kappa=kappa
    ).make_value_estimator(gamma=gamma)
    optimizer, updater = torch.optim.Adam(critic.parameters(), lr=lr), SoftUpdate(loss, tau=0.2)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, num_updates)
    for _ in range(num_updates):
        value, _ = loss.qvalue_v2_loss(batches())
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        updater.step()
        scheduler.step()

    def quantiles(*states):
        observation = torch.tensor(states)
        action = torch.zeros(len(states), 1)
        return critic.module(observation, action).detach()

    return quantiles


# --- ends of episodes


# gamma = 0.75: 1 / (1 - 0.75) = 4 for ever; 1 if every step is the last one
@pytest.mark.parametrize(("end", "value"), [({"time_limit": 1}, 4.0), ({"time_limit": 5}, 4.0), ({"goal": 1.0}, 1.0)])
def test_a_time_limit_does_not_lower_the_value_and_a_termination_does(end, value):
    ahead = WalkEnv(**end).rollout(20, lambda td: td.set("action", torch.ones(1)), break_when_any_done=False)
    assert (ahead["next", "reward"] == 1).all()
    for state in (ahead["observation"], ahead["next", "observation"]):
        state.zero_()  # all states are one
    replay = make_replay_buffer(100, batch_size=16)
    replay.extend(ahead)
    critic = linear_critic(3, 1, lambda s, a: s)
    quantiles = train_critic(critic, replay.sample, gamma=0.75, num_updates=250, lr=0.1)
    torch.testing.assert_close(quantiles([0.0]), torch.full((1, 3), value), atol=0.1, rtol=0)


# --- the posterior over values


class Linear(WorldModel):
    """A linear system in ``(phase, x)``. In phase 0 members disagree: ``x' = gain[m] x``. In phase 1 they agree."""

    gains, decay = torch.tensor([-1.0, 0.0, 0.5, 1.0, 3.0]), 0.5

    def __init__(self) -> None:
        super().__init__(2, num_members=5)

    def forward(self, observation, action):
        phase, x = observation.unbind(-1)
        gain = torch.where(phase == 0, self.gains[:, None], self.decay)
        loc = torch.stack([torch.ones_like(x), gain * x, phase * x], -1)  # reward x, from phase 1 on
        return loc, torch.zeros_like(loc)


def test_quantiles_recover_the_members_values_of_a_linear_system():
    # V(1, x) = sum_t (gamma decay)^t x = x / (1 - gamma decay) in every member; V_m(0, x) = gamma gain_m V(1, x)
    gamma = 0.8
    model_env = ModelBasedEnv(Linear(), toy_env(2), termination_fn=never_terminates)
    successors = EnsembleSuccessors(model_env, num_next_states=2)

    def batches():
        phase = torch.randint(2, (64, 1)).float()
        x = torch.rand(64, 1) + 0.5 - 3 * phase * (torch.rand(64, 1) < 0.5)  # in phase 1 of either sign
        return successors(TensorDict({"observation": torch.cat([phase, x], -1), "action": torch.zeros(64, 1)}, [64]))

    critic = linear_critic(5, 2, lambda s, a: torch.stack([(1 - s[..., 0]) * s[..., 1], s[..., 0] * s[..., 1]], -1))
    quantiles = train_critic(critic, batches, gamma=gamma, num_updates=500, kappa=0.02)
    for x in (0.5, 1.0, 1.5):
        agreed = x / (1 - gamma * Linear.decay)
        torch.testing.assert_close(quantiles([1.0, x]), torch.full((1, 5), agreed), atol=0.08, rtol=0)
        values = gamma * Linear.gains * agreed  # five members, five quantiles: one each
        torch.testing.assert_close(quantiles([0.0, x])[0], values, atol=0.12, rtol=0)


def test_members_that_disagree_anew_at_every_step_give_the_fixed_point_of_the_operator(known_model):
    # rewards +1 and -1, gamma = 1/2: sum_t 2^-t (+-1) is uniform on [-2, 2]
    model_env = ModelBasedEnv(known_model([0.0, 0.0], [-1.0, 1.0]), toy_env(), termination_fn=never_terminates)
    successors = EnsembleSuccessors(model_env, num_next_states=1)
    state = toy_batch(B=8).select("observation", "action")
    critic = linear_critic(8, 1, lambda s, a: s[..., :1] * 0)
    quantiles = train_critic(critic, lambda: successors(state.clone()), gamma=0.5, num_updates=400, kappa=0.0)
    # between two atoms the loss is flat: half a spacing, 4 / 8 / 2, of freedom
    torch.testing.assert_close(quantiles([0.0] * 3)[0], 4 * quantile_midpoints(8) - 2, atol=0.27, rtol=0)


def test_agreeing_members_leave_no_spread_and_replayed_successors_keep_the_noise(known_model):
    # rewards N(1, 2^2), gamma = 1/2: mean 2; standard deviation of the return 2 / sqrt(1 - 1/4) = 2.31
    model_env = ModelBasedEnv(known_model([0.0] * 3, [1.0] * 3, scale=2.0), toy_env(), termination_fn=never_terminates)
    state = toy_batch(B=256).select("observation", "action")
    many, one = (
        EnsembleSuccessors(model_env, num_next_states=k, sampling=s) for k, s in ((64, "stratified"), (1, "iid"))
    )

    def averaged():
        return many(state[:16].clone())

    def replayed():
        batch = one(state.clone())
        return batch.set("next", batch["next"][:, 0, 0].clone())

    spread = {}
    for batches in (averaged, replayed):
        critic = linear_critic(11, 1, lambda s, a: s[..., :1] * 0)
        quantiles = train_critic(critic, batches, gamma=0.5, num_updates=300, kappa=0.1, lr=0.1)([0.0] * 3)[0]
        assert quantiles.mean().item() == pytest.approx(2.0, abs=0.25)
        spread[batches.__name__] = quantiles.std().item()
    assert spread["averaged"] < 0.06
    assert spread["replayed"] == pytest.approx(2 / math.sqrt(0.75), rel=0.15)


# --- the policy


def test_an_optimum_on_the_action_bound_keeps_temperature_losses_and_entropy_sane():
    actor, critic = toy_actor(2, 2, num_cells=(8,)), linear_critic(3, 2, lambda s, a: a)
    loss = EpistemicQuantileLoss(actor, critic).make_value_estimator(gamma=0.9)
    update = make_update(
        loss, make_optimizer(loss, lr_actor=3e-2, lr_critic=3e-2, lr_alpha=3e-2), SoftUpdate(loss, tau=0.1)
    )
    history = []
    for _ in range(300):
        batch = toy_batch(B=32, observation_dim=2, action_dim=2)
        batch["next", "reward"] = batch["action"].sum(-1, keepdim=True)
        batch["next", "terminated"].fill_(True)
        history.append(update(batch))
    history = torch.stack(history)
    assert all(torch.isfinite(value).all() for value in history.values()) and history["alpha"].max() < 10
    batch = toy_batch(B=20_000, observation_dim=2, action_dim=2)
    batch["observation"].zero_()
    out = actor(batch.select("observation"))
    assert out["action"].mean() > 0.5  # pushed towards the bound, as far as the target entropy of -2 lets it
    u = out["loc"].double() + out["scale"].double() * torch.randn(20_000, 2, dtype=torch.float64)
    log_slope = 2 * (math.log(2) - u - torch.nn.functional.softplus(-2 * u))
    gaussian = torch.distributions.Normal(out["loc"].double(), out["scale"].double())
    entropy = -(gaussian.log_prob(u) - log_slope).sum(-1).mean().item()
    assert loss(batch)["entropy"].item() == pytest.approx(entropy, rel=0.05, abs=0.05)
    assert entropy == pytest.approx(-2, abs=0.7)


@pytest.mark.slow
def test_the_whole_pipeline_learns_to_control_the_toy_system():
    # left alone from 1, s falls by 0.9 a step and costs 1 / (1 - 0.81) = 5.3; pushed against, 2.4
    env = toy_env(1, 1, noise=0.02)
    actor, critic = toy_actor(1, num_cells=(32,)), toy_critic(1, num_quantiles=11, num_cells=(32, 32))
    model = GaussianEnsemble(1, 1, num_members=3, num_cells=(32, 32))
    replay, imagined = make_replay_buffer(1000), make_model_buffer(6000, batch_size=64)
    model_env = ModelBasedEnv(model, env, termination_fn=never_terminates)
    successors = EnsembleSuccessors(model_env, num_next_states=4)
    loss = EpistemicQuantileLoss(actor, critic, alpha_init=0.1).make_value_estimator(gamma=0.9)
    optimizer = make_optimizer(loss, lr_actor=1e-2, lr_critic=1e-2, lr_alpha=1e-2)
    update = make_update(loss, optimizer, SoftUpdate(loss, tau=0.1))
    fit = FixedStepsFit(model, num_steps=60, lr=3e-3, batch_size=64)

    def mean_return() -> float:
        episodes = evaluate(env, actor, num_episodes=20, seed=7)
        return sum(row["episode_return"] for row in episodes) / 20

    before = mean_return()
    for _ in range(3):
        replay.extend(env.rollout(160, actor, break_when_any_done=False))  # with the policy's graph, as TorchRL does it
        fit(replay[:])
        states = replay[:]["observation"]
        branched_rollout(model_env, actor, states, imagined, num_starts=200, horizon=3, keys=("observation", "action"))
        for _ in range(100):
            losses = update(successors(imagined.sample()))
    assert torch.isfinite(torch.stack(list(losses.values()))).all()
    assert mean_return() > 0.65 * before  # both are costs
