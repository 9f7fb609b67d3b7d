"""Member values: one value for each member that bootstraps in its own member, against closed forms and exact solves."""

from __future__ import annotations

import math

import pytest
import torch
from loss_parts import linear_critic, make_memberwise, scalar_critics, seeded, uniform_actor
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from eqr_torchrl.functional import quantile_midpoints
from eqr_torchrl.objectives import EpistemicQuantileLoss, MemberwiseSACLoss
from eqr_torchrl.testing import toy_actor, toy_batch, toy_critic
from eqr_torchrl.utility import OptimisticUtility

LOG_4 = math.log(4.0)  # entropy of a uniform distribution on [-2, 2]: its -log pi


class Table(nn.Module):
    """A value ``[N]`` for each of S states, which observations name by a one-hot code; actions do not matter."""

    def __init__(self, num_states: int, num_values: int) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.zeros(num_states, num_values))

    def forward(self, observation, action):
        return observation @ self.values + 0 * action


def tabular(loss_class, num_states: int, num_values: int, gamma: float):
    """A loss on a table without target delay, and the table."""
    table = Table(num_states, num_values)
    critic = TensorDictModule(table, ["observation", "action"], ["state_action_value"])
    settings = {"alpha_init": 1e-12, "fixed_alpha": True, "target_entropy": -1.0, "delay_qvalue": False}
    loss = loss_class(uniform_actor(2.0), critic, **settings)
    loss.make_value_estimator(gamma=gamma)
    return loss, table


def successors_of(next_state: torch.Tensor, reward: torch.Tensor, num_states: int) -> TensorDict:
    """Every state once, and what follows it: next states ``[S, M, K]`` and rewards ``[S, M, K]``."""
    flag = torch.zeros(*next_state.shape, 1, dtype=torch.bool)
    after = {
        "observation": nn.functional.one_hot(next_state, num_states).float(),
        "reward": reward.unsqueeze(-1),
        "terminated": flag,
        "done": flag,
    }
    states = {"observation": torch.eye(num_states), "action": torch.zeros(num_states, 1)}
    return TensorDict({**states, "next": TensorDict(after, next_state.shape)}, [num_states])


def test_one_state_that_loops_member_values_are_exact_and_pooling_is_too_narrow():
    # r_m with deviation s: values r_m / (1 - gamma), deviation s / (1 - gamma) = 10 s. Pooled atoms follow
    # Z = r + gamma Z' with independent r: deviation s / sqrt(1 - gamma^2), narrower by sqrt((1 + gamma) / (1 - gamma)).
    gamma, M = 0.9, 41
    reward = torch.special.ndtri(quantile_midpoints(M))  # standard normal, as its quantiles
    batch = successors_of(torch.zeros(1, M, 1, dtype=torch.long), reward.view(1, M, 1), 1)

    loss, table = tabular(MemberwiseSACLoss, 1, M, gamma)
    for _ in range(200):  # the minimiser of the squared error is the target
        table.values.data = loss.compute_target(batch.clone())
    torch.testing.assert_close(table.values[0], reward / (1 - gamma), rtol=1e-4, atol=1e-4)

    N = 101
    pooled, quantiles = tabular(EpistemicQuantileLoss, 1, N, gamma)
    for _ in range(200):  # the minimiser of the quantile loss is the quantile of the target's atoms
        atoms = pooled.compute_target(batch.clone())[0]
        quantiles.values.data = torch.quantile(atoms, quantile_midpoints(N)).unsqueeze(0)
    spread = reward.std(correction=0)
    narrow = quantiles.values.std(correction=0).detach()
    torch.testing.assert_close(narrow, spread / math.sqrt(1 - gamma**2), rtol=0.05, atol=0.0)
    ratio = table.values.std(correction=0).detach() / narrow
    torch.testing.assert_close(ratio, torch.tensor(math.sqrt((1 + gamma) / (1 - gamma))), rtol=0.05, atol=0.0)


def test_tabular_member_values_are_those_of_exact_solves_with_cycles():
    S, M, K, gamma = 6, 4, 5, 0.95
    next_state, reward = torch.randint(S, (S, M, K)), torch.randn(S, M, K)
    loss, table = tabular(MemberwiseSACLoss, S, M, gamma)
    batch = successors_of(next_state, reward, S)
    for _ in range(600):
        table.values.data = loss.compute_target(batch.clone())
    for m in range(M):  # K equally likely successors: P_m(s'|s) = count / K
        P = nn.functional.one_hot(next_state[:, m], S).double().mean(1)
        exact = torch.linalg.solve(torch.eye(S) - gamma * P, reward[:, m].double().mean(-1))
        torch.testing.assert_close(table.values[:, m].double(), exact, rtol=1e-3, atol=1e-3)


def test_target_by_hand():
    # Q_0 = s, Q_1 = 10 s; alpha 2, gamma 0.5, -log pi = log 4.
    # member 0: mean(1 + .5 (3 + 2 log 4), 3 + .5 (5 + 2 log 4)) = 4 + log 4
    # member 1: mean(7, terminated, and 1 + .5 (20 + 2 log 4))
    critics = [linear_critic([1.0], [0.0], [0.0]), linear_critic([10.0], [0.0], [0.0])]
    loss = make_memberwise(critics, uniform_actor(2.0), gamma=0.5, alpha_init=2.0, target_entropy=-1.0)
    batch = toy_batch(B=1, M=2, K=2, observation_dim=1)
    batch["next", "observation"][0, :, :, 0] = torch.tensor([[3.0, 5.0], [float("nan"), 2.0]])
    batch["next", "reward"][0, :, :, 0] = torch.tensor([[1.0, 3.0], [7.0, 1.0]])
    batch["next", "terminated"][0, 1, 0] = True
    expected = torch.tensor([[4 + LOG_4, (7 + 1 + 0.5 * (20 + 2 * LOG_4)) / 2]])
    torch.testing.assert_close(loss.compute_target(batch), expected)


def test_loss_and_gradient_by_loops_over_members_and_draws():
    critic, actor = toy_critic(num_quantiles=3), uniform_actor(2.0)
    loss = make_memberwise(critic, actor, alpha_init=0.5, target_entropy=-1.0)
    batch = toy_batch(B=4, M=3, K=2)
    batch["next", "terminated"][1, 2, 0] = True
    torch.manual_seed(5)
    value = loss.qvalue_v2_loss(batch.clone())[0]
    parameters = {  # "critics.0." before the critic's own names
        name: value for name, value in loss.qvalue_network_params.flatten_keys(".").items() if value.requires_grad
    }
    ours = dict(zip(parameters, torch.autograd.grad(value, list(parameters.values())), strict=True))

    torch.manual_seed(5)
    action = actor.get_dist(batch["next"].select("observation")).rsample()
    total = torch.zeros(())
    for b in range(4):
        row = TensorDict({key: batch[key][b] for key in ("observation", "action")}, [])
        q = critic(row)["state_action_value"]
        for m in range(3):
            y = 0.0
            for k in range(2):
                after = batch["next"][b, m, k]
                bootstrap = 0.0
                if not after["terminated"]:
                    pair = TensorDict({"observation": after["observation"], "action": action[b, m, k]}, [])
                    bootstrap = critic(pair)["state_action_value"][m].detach() + 0.5 * LOG_4
                y = y + (after["reward"] + 0.9 * bootstrap) / 2
            total = total + (q[m] - y).square().sum() / 4
    torch.testing.assert_close(value, total)
    names = [f"critics.0.{name}" for name, _ in critic.named_parameters()]
    brute = dict(zip(names, torch.autograd.grad(total, list(critic.parameters())), strict=True))
    torch.testing.assert_close(ours, brute, rtol=1e-4, atol=1e-6)


def test_one_network_of_m_outputs_and_m_networks_give_the_same_targets():
    # the same linear values, once as three outputs of one critic and once as three scalar critics
    offsets = [1.0, -2.0, 5.0]
    whole = linear_critic([1.0, 2.0, 3.0], [0.5], offsets)
    parts = [linear_critic([1.0, 2.0, 3.0], [0.5], [b]) for b in offsets]
    batch, targets = toy_batch(B=4, M=3, K=2), []
    for critic in (whole, parts):
        loss = make_memberwise(critic, uniform_actor(2.0), target_entropy=-1.0)
        targets.append(seeded(loss.compute_target, batch.clone()))
    torch.testing.assert_close(*targets)


def test_policy_ascends_the_utility_of_the_member_values():
    # values 5 + (0, 45, -15): 5, 50, -10: mean 15, unbiased std sqrt((100 + 1225 + 625) / 2)
    critic = linear_critic([1.0], [0.0], [0.0, 45.0, -15.0])
    settings = {"alpha_init": 2.0, "target_entropy": -1.0, "utility": OptimisticUtility()}
    batch = toy_batch(B=4, M=3, K=2, observation_dim=1)
    batch["observation"].fill_(5.0)
    out = make_memberwise(critic, uniform_actor(2.0), **settings)(batch)
    torch.testing.assert_close(out["loss_actor"], torch.tensor(-2 * LOG_4 - 15.0 - math.sqrt(975)))
    torch.testing.assert_close(out["epistemic_std"], torch.tensor(math.sqrt(975)))


def test_targets_are_clipped_to_what_bounded_rewards_allow():
    # rewards in [0, 1], gamma 0.9: values in [0, 10], and the entropy of a step, at most alpha |H| = 2, ten times: 20
    critic = linear_critic([0.0], [0.0], [1000.0, -1000.0, 5.0])
    settings = {"alpha_init": 2.0, "fixed_alpha": True, "target_entropy": -1.0, "reward_bounds": (0.0, 1.0)}
    loss = make_memberwise(critic, uniform_actor(2.0), **settings)
    batch = toy_batch(B=1, M=3, K=1, observation_dim=1)
    batch["next", "reward"].fill_(0.5)
    inside = 0.5 + 0.9 * (5.0 + 2 * LOG_4)
    torch.testing.assert_close(loss.compute_target(batch), torch.tensor([[30.0, -20.0, inside]]))
    # rewards in [-4, -1]: from -40 without an end to -1 where the episode ends at once
    loss = make_memberwise(critic, uniform_actor(2.0), **{**settings, "reward_bounds": (-4.0, -1.0)})
    batch["next", "reward"].fill_(-2.0)
    torch.testing.assert_close(loss.compute_target(batch)[0, :2], torch.tensor([19.0, -60.0]))
    # without a discount, rewards of one sign bound values on one side
    loss = make_memberwise(critic, uniform_actor(2.0), **{**settings, "alpha_init": 1e-20})
    loss.make_value_estimator(gamma=1.0)
    torch.testing.assert_close(loss.compute_target(batch)[0, :2], torch.tensor([998.0, 0.0]))
    with pytest.raises(ValueError, match=r"reward_bounds must increase, got \(1.0, 0.0\)"):
        make_memberwise(reward_bounds=(1.0, 0.0))


@pytest.mark.parametrize(
    ("critics", "size", "message"),
    [
        (None, (2, 4, 1), "one value for each of 4 members: got 3"),
        (scalar_critics(2), (2, 4, 1), "one critic for each of 4 members: got 2"),
        (None, (2,), r'"next" must have batch size \[\*B, M, K\]'),
    ],
)
def test_batches_that_do_not_fit_are_named(critics, size, message):
    with pytest.raises(RuntimeError, match=message):
        make_memberwise(critics)(toy_batch(*size))


def test_learns_members_values_by_gradient_steps():
    # reward 1 in member 0 and 3 in member 1, for ever, gamma 0.5: values 2 and 6
    critic = toy_critic(1, num_quantiles=2)
    loss = make_memberwise(critic, toy_actor(1), gamma=0.5, alpha_init=1e-8, fixed_alpha=True)
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-2)
    for _ in range(300):
        batch = toy_batch(B=32, M=2, K=1, observation_dim=1)
        batch["next", "reward"] = torch.tensor([1.0, 3.0]).view(1, 2, 1, 1).expand(32, 2, 1, 1)
        loss.qvalue_v2_loss(batch)[0].backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.updater.step()
    values = critic(toy_batch(B=64, observation_dim=1))["state_action_value"].mean(0)
    torch.testing.assert_close(values, torch.tensor([2.0, 6.0]), rtol=0.05, atol=0.0)


def test_over_n_steps_the_discount_is_gamma_to_the_n():
    # Q_m = s at s' = 8 in both members, gamma 0.5, reward 1: 1 + 8 / 2^n
    critics = [linear_critic([1.0], [0.0], [0.0]), linear_critic([1.0], [0.0], [0.0])]
    loss = make_memberwise(critics, uniform_actor(2.0), gamma=0.5, alpha_init=1e-12, target_entropy=-1.0)
    batch = toy_batch(B=3, M=2, K=4, observation_dim=1)
    batch["next", "observation"].fill_(8.0)
    batch["next", "reward"].fill_(1.0)
    batch["steps_to_next_obs"] = torch.tensor([[1], [2], [3]])
    torch.testing.assert_close(loss.compute_target(batch), torch.tensor([[5.0] * 2, [3.0] * 2, [2.0] * 2]))
