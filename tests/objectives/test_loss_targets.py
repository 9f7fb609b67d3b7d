"""What the critic is trained towards: closed forms, and the same arithmetic written as loops."""

from __future__ import annotations

import math

import pytest
import torch
from loss_parts import linear_critic, make_loss, narrow_actor, seeded, total, uniform_actor
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs.transforms import MultiStepTransform
from torchrl.modules import ProbabilisticActor, TanhNormal
from torchrl.objectives import SoftUpdate, TQCLoss

from eqr_torchrl.objectives import EpistemicQuantileLoss
from eqr_torchrl.testing import toy_actor, toy_batch, toy_critic, toy_env


def constant_loss(*atoms: float, gamma: float, critics=None):
    """Of critics whose values are ``atoms`` everywhere, without entropy to speak of."""
    critics = critics or linear_critic([0.0], [0.0], list(atoms))
    return make_loss(narrow_actor(0.0), critics, gamma=gamma, alpha_init=1e-12, target_entropy=0.0)


@pytest.mark.parametrize("num_next_actions", [1, 3])
def test_target_of_a_linear_critic_and_a_deterministic_model_in_closed_form(num_next_actions):
    # q_n(s, a) = w s + v a + b_n and a = gain s, so
    # y_mn = mean_k r_mk + gamma mean_k (1 - d_mk) (w s'_mk + v gain s'_mk + b_n)
    w, v, b, gain, gamma = 2.0, 3.0, torch.tensor([-1.0, 0.0, 5.0]), 0.5, 0.8
    settings = {"gamma": gamma, "num_next_actions": num_next_actions, "alpha_init": 1e-12, "target_entropy": -1.0}
    loss = make_loss(narrow_actor(gain), linear_critic([w], [v], b), **settings)
    batch = toy_batch(B=6, M=4, K=2, observation_dim=1)
    batch["next", "terminated"].bernoulli_(0.3)
    alive = (~batch["next", "terminated"]).float()
    next_value = (w + v * gain) * batch["next", "observation"] + b  # [B, M, K, N]
    expected = batch["next", "reward"].mean(2) + gamma * (alive * next_value).mean(2)  # [B, M, N]
    torch.testing.assert_close(loss.compute_target(batch), expected.flatten(1), atol=1e-4, rtol=1e-4)


def test_entropy_enters_the_target_once_for_each_next_state_that_goes_on():
    # uniform policy on [-4, 4]^2: -log pi = 2 log 8; 3 of 4 next states go on
    critic = linear_critic([0.0] * 3, [0.0] * 2, [1.0, 2.0])
    loss = make_loss(uniform_actor(4.0, 2), critic, gamma=0.5, alpha_init=0.7, target_entropy=0.0)
    batch = toy_batch(B=1, M=1, K=4, action_dim=2)
    batch["next", "reward"].fill_(10.0)
    batch["next", "terminated"][0, 0, 1] = True
    bonus = 0.7 * 2 * math.log(8)
    expected = torch.tensor([[10 + 0.5 * 0.75 * (1 + bonus), 10 + 0.5 * 0.75 * (2 + bonus)]])
    torch.testing.assert_close(loss.compute_target(batch), expected)


class Recording(nn.Module):
    """A critic of random features that notes what it is asked."""

    asked: list = []  # noqa: RUF012 - shared by the copies that a loss makes

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 5))

    def forward(self, observation, action):
        self.asked.append((observation.detach(), action.detach()))
        return torch.cat([observation, action], -1) @ self.weight


@pytest.mark.parametrize("action_sampling", ["stratified", "iid"])
@pytest.mark.parametrize("num_next_actions", [1, 3])
def test_target_equals_a_loop_over_the_pairs_that_the_critic_saw(num_next_actions, action_sampling):
    B, M, K, Y, gamma, alpha = 3, 2, 4, num_next_actions, 0.9, 0.3
    actor = toy_actor()
    critic = TensorDictModule(Recording(), ["observation", "action"], ["state_action_value"])
    weight = critic.module.weight.detach().clone()
    loss = make_loss(actor, critic, gamma=gamma, alpha_init=alpha, num_next_actions=Y, action_sampling=action_sampling)
    batch = toy_batch(B=B, M=M, K=K)
    batch["next", "terminated"].bernoulli_(0.3)
    Recording.asked.clear()
    target = loss.compute_target(batch)
    assert target.shape == (B, M * 5) and not target.requires_grad
    [(observation, action)] = Recording.asked
    assert observation.shape == (B, M, K, Y, 3) and action.shape == (B, M, K, Y, 1)
    torch.testing.assert_close(observation, batch["next", "observation"].unsqueeze(3).expand(B, M, K, Y, 3))
    assert len(action.unique()) == action.numel()  # an action of its own for every pair
    actor(policy := batch["next"].clone())
    for i in range(B):
        for m in range(M):
            total = torch.zeros(5)
            for k in range(K):
                for y in range(Y):
                    s, a = observation[i, m, k, y], action[i, m, k, y]
                    density = TanhNormal(policy["loc"][i, m, k], policy["scale"][i, m, k])
                    value = torch.cat([s, a]) @ weight - alpha * density.log_prob(a)
                    total += gamma * (0.0 if batch["next", "terminated"][i, m, k] else value) / Y
                total += batch["next", "reward"][i, m, k]
            torch.testing.assert_close(target[i, 5 * m : 5 * m + 5], total.detach() / K, atol=2e-4, rtol=1e-4)


def test_stratified_actions_are_unbiased_and_lower_the_variance():
    actor, critic = toy_actor(), toy_critic()
    loss, iid = (make_loss(actor, critic, action_sampling=s, alpha_init=1e-6) for s in ("stratified", "iid"))
    batch, draws = toy_batch(B=1, M=1, K=1), 3000
    at_one_state = batch.clone().set("next", batch["next"].expand(1, 1, 60_000).clone())
    expected = iid.compute_target(at_one_state)[0, 0]
    four_at_a_time = batch.expand(draws).clone().set("next", batch["next"].expand(draws, 1, 4).clone())
    targets = loss.compute_target(four_at_a_time)[:, 0]
    assert abs(targets.mean() - expected) < 5 * targets.std() / math.sqrt(draws) + 0.002
    independent = iid.compute_target(four_at_a_time)[:, 0]
    assert abs(independent.mean() - expected) < 5 * independent.std() / math.sqrt(draws) + 0.002
    assert targets.var() < 0.3 * independent.var()


@pytest.mark.parametrize("num_next_actions", [1, 2])
def test_a_replayed_successor_is_one_member_with_one_draw(num_next_actions):
    batch = toy_batch(B=7)
    batch["next", "terminated"][::3] = True
    as_ensemble = batch.clone().set("next", batch["next"][:, None, None].clone())
    loss = make_loss(action_sampling="iid", num_next_actions=num_next_actions)
    ensemble = seeded(loss, as_ensemble)
    for key, value in seeded(loss, batch).items():
        torch.testing.assert_close(value, ensemble[key])


def test_several_critics_give_their_minimum_quantile_by_quantile():
    # atoms of the critics: (0, 5, 9) and (3, 4, 10); minimum (0, 4, 9)
    critics = [linear_critic([0.0], [0.0], [0.0, 5.0, 9.0]), linear_critic([0.0], [0.0], [3.0, 4.0, 10.0])]
    loss = constant_loss(gamma=1.0, critics=critics)
    batch = toy_batch(B=2, M=1, K=3, observation_dim=1)
    batch["next", "reward"].zero_()
    torch.testing.assert_close(loss.compute_target(batch), torch.tensor([[0.0, 4.0, 9.0]] * 2))
    # the policy's value is the same minimum: mean 13 / 3, and no entropy to speak of
    torch.testing.assert_close(loss(batch)["loss_actor"], torch.tensor(-13 / 3))


def test_a_time_limit_bootstraps_and_a_termination_does_not():
    loss = constant_loss(7.0, gamma=0.5)
    batch = toy_batch(B=2, observation_dim=1)
    batch["next", "reward"].fill_(1.0)
    batch["next", "done"].fill_(True)
    batch["next", "terminated"][1] = True
    torch.testing.assert_close(loss.compute_target(batch), torch.tensor([[1 + 0.5 * 7], [1.0]]))


# --- transitions over several steps


@pytest.mark.parametrize("size", [(), (2, 3)])
def test_transitions_over_n_steps_bootstrap_with_gamma_to_the_n(size):
    # Q = 10 everywhere, reward 0: 10 gamma^n, where one step has 9
    loss = constant_loss(10.0, gamma=0.9)
    batch = toy_batch(4, *size, observation_dim=1)
    batch["next", "reward"].zero_()
    batch["steps_to_next_obs"] = torch.tensor([[1], [2], [3], [3]])
    batch["next", "terminated"][3] = True
    expected = torch.tensor([[9.0], [8.1], [7.29], [0.0]]).expand(4, size[0] if size else 1)
    torch.testing.assert_close(loss.compute_target(batch), expected)


def test_the_target_over_n_steps_is_that_of_tqc_on_a_replay_buffer_of_torchrl():
    actor, critic = narrow_actor(0.3), linear_critic([0.5], [-1.0], [0.0, 1.0, 3.0])
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100), batch_size=60, transform=MultiStepTransform(n_steps=3, gamma=0.9)
    )
    episode = toy_batch(B=60, observation_dim=1)
    episode["next", "done"][19::20] = episode["next", "terminated"][19::20] = True
    episode.set(("collector", "traj_ids"), torch.arange(60) // 20)
    buffer.extend(episode)
    batch = buffer.sample()
    assert set(batch["steps_to_next_obs"].flatten().tolist()) == {1, 2, 3} and batch["next", "terminated"].any()
    tqc = TQCLoss(
        actor, [critic], num_qvalue_nets=1, top_quantiles_to_drop_per_net=0, alpha_init=1e-12, target_entropy=0.0
    )
    tqc.make_value_estimator(gamma=0.9)
    SoftUpdate(tqc, tau=0.1)
    ours = make_loss(actor, critic, gamma=0.9, alpha_init=1e-12, target_entropy=0.0)
    expected = tqc.compute_target(batch.clone()).reshape(60, 3)
    torch.testing.assert_close(ours.compute_target(batch), expected, atol=1e-4, rtol=1e-4)


# --- types


@pytest.mark.parametrize("flag_type", [torch.uint8, torch.int64, torch.float32])
@pytest.mark.parametrize("reward_type", [torch.int64, torch.uint8, torch.float64, torch.bfloat16])
def test_rewards_and_flags_may_have_any_type(reward_type, flag_type):
    loss = constant_loss(4.0, gamma=0.5)
    batch = toy_batch(B=2, observation_dim=1)
    batch["next", "reward"] = torch.tensor([[3], [1]], dtype=reward_type)
    batch["next", "terminated"] = torch.tensor([[0], [1]], dtype=flag_type)
    torch.testing.assert_close(loss.compute_target(batch).float(), torch.tensor([[3 + 0.5 * 4], [1.0]]))
    assert loss(batch)["loss_qvalue"].dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("action_sampling", ["stratified", "iid"])
@pytest.mark.parametrize("size", [(), (2, 3)])
def test_a_loss_of_another_precision_is_that_of_float32_to_its_digits(size, action_sampling, dtype):
    actor, critic = toy_actor(), toy_critic()
    batch = toy_batch(50, *size)
    batch["next", "terminated"].fill_(True)  # the targets are the rewards, whatever actions are drawn
    expected = make_loss(actor, critic, action_sampling=action_sampling)(batch)
    loss = make_loss(actor, critic, action_sampling=action_sampling).to(dtype)
    out = loss(batch.to(dtype))  # casts the flags too
    total(out).backward()
    assert all(p.grad.dtype == dtype and torch.isfinite(p.grad).all() for p in loss.parameters())
    for key in ("loss_qvalue", "epistemic_std", "target_value"):
        assert out[key].dtype == dtype
        torch.testing.assert_close(out[key].float(), expected[key], rtol=0.03, atol=0.01)


def test_a_policy_of_one_fixed_scale():
    mean = TensorDictModule(nn.Linear(3, 1), ["observation"], ["loc"])
    options = {"distribution_class": TanhNormal, "distribution_kwargs": {"scale": 0.5}}
    actor = ProbabilisticActor(mean, in_keys=["loc"], spec=toy_env().action_spec, **options)
    loss = EpistemicQuantileLoss(actor, toy_critic(), delay_qvalue=False)
    assert loss.compute_target(toy_batch(4, 2, 3)).isfinite().all()
