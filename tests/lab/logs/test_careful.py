from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from eqr_torchrl.imagination import ModelBasedEnv, branched_rollout, make_model_buffer, never_terminates
from eqr_torchrl.lab.logs import NearTheLog, PenalizedModel, clone_behaviour, clone_loss, disagreement, uncertainty_stop
from eqr_torchrl.testing import toy_actor, toy_batch, toy_env
from eqr_torchrl.world_models import WorldModel


class Fan(WorldModel):
    """Two members that step by the action, and part by twice the distance from 0: member means x + a -+ |x|."""

    def __init__(self):
        super().__init__(1, num_members=2)
        self.sign = torch.nn.Parameter(torch.tensor([-1.0, 1.0]).view(2, 1, 1), requires_grad=False)

    def forward(self, observation, action):
        loc = torch.cat([observation + action + self.sign * observation.abs(), torch.zeros_like(action)], -1)
        return loc, torch.zeros_like(loc)


def rows(*states):
    return torch.tensor(states).unsqueeze(-1), torch.zeros(len(states), 1)


def test_disagreement_is_the_spread_of_the_members():
    # means 3 -+ 3 for the state, deviation 3, and 0 -+ 0 for the reward: sqrt((9 + 0) / 2)
    found = disagreement(Fan(), *rows(3.0, 0.0))
    torch.testing.assert_close(found, torch.tensor([[4.5**0.5], [0.0]]))


def test_rollouts_end_where_members_disagree_more_than_on_held_out_data():
    held_out = TensorDict({"observation": torch.linspace(0, 1, 101)[:, None], "action": torch.zeros(101, 1)}, [101])
    stop = uncertainty_stop(Fan(), held_out, level=0.5)
    assert stop.threshold == pytest.approx(0.5 / 2**0.5)
    assert stop(*rows(0.4, 0.6)).flatten().tolist() == [False, True]

    def stay(tensordict):
        return tensordict.set("action", torch.zeros(*tensordict.batch_size, 1))

    model_env, buffer = ModelBasedEnv(Fan(), toy_env(1), termination_fn=never_terminates), make_model_buffer(100)
    # member 1 doubles the state: 0.3, 0.6 (the last, as 0.6 > 0.5); member 0 stays at 0 from its second step on
    branched_rollout(model_env, stay, torch.tensor([[0.3]]), buffer, num_starts=1, horizon=4, stop_fn=stop)
    assert sorted(round(x, 3) for x in buffer[:]["observation"].flatten().tolist()) == [0.0, 0.0, 0.0, 0.3, 0.3, 0.6]
    assert not buffer[:]["next", "terminated"].any()  # as a time limit would end it


def test_penalised_rewards_are_less_by_the_disagreement():
    observation, action = rows(3.0, 0.0)
    pairs = observation.expand(2, -1, -1), action.expand(2, -1, -1)  # the same rows in both members
    rewards = PenalizedModel(Fan(), 2.0)(*pairs)[0][..., -1]
    torch.testing.assert_close(rewards, torch.tensor([[-2 * 4.5**0.5, 0.0]] * 2))
    own = torch.tensor([[[3.0]], [[0.0]]]), torch.zeros(2, 1, 1)  # rows of its own in each
    torch.testing.assert_close(PenalizedModel(Fan(), 2.0)(*own)[0][:, 0, -1], torch.tensor([-2 * 4.5**0.5, 0.0]))


def test_penalties_are_those_of_each_members_own_action():
    """The states may be one view of all members, as the first step of a rollout has them, and actions differ."""

    class Push(Fan):
        def forward(self, observation, action):
            loc = torch.cat([self.sign * action, torch.zeros_like(action)], -1)
            return loc, torch.zeros_like(loc)

    state, action = torch.zeros(1, 1).expand(2, -1, -1), torch.tensor([[[1.0]], [[3.0]]])
    rewards = PenalizedModel(Push(), 1.0)(state, action)[0][:, 0, -1]
    torch.testing.assert_close(rewards, -torch.tensor([1.0, 3.0]) / 2**0.5)  # members part by -+a: deviation a


def test_penalties_need_a_learned_reward():
    class Known(Fan):
        def __init__(self):
            super().__init__()
            self.predicts_reward = False

    with pytest.raises(ValueError, match="world_model must predict rewards"):
        PenalizedModel(Known(), 1.0)


def test_cloning_repeats_the_logged_actions_also_at_their_bounds():
    data, actor = toy_batch(B=200), toy_actor()
    data["observation"] = data["observation"].sign()
    data["action"] = torch.where(data["observation"][:, :1] > 0, 1.0, -0.5)
    assert clone_behaviour(actor, data, num_steps=300, lr=1e-2)["nll"] < 0
    states = torch.tensor([[1.0, 1.0, 1.0], [-1.0, 1.0, 1.0]])
    with torch.no_grad():
        found = actor.get_dist(TensorDict({"observation": states}, [2])).deterministic_sample
    assert found[0] > 0.9 and -0.6 < found[1] < -0.4


def test_the_clone_loss_counts_in_standard_deviations_of_the_logs_returns():
    data, actor = toy_batch(B=3), toy_actor()
    data["next", "reward"] = torch.tensor([[1.0], [2.0], [4.0]])
    data["next", "done"] = torch.tensor([[False], [False], [True]])
    data["next", "observation"][:2] = data["observation"][1:]
    spread = ((4 / 9 + 1 / 9 + 1 / 9) / 3) ** 0.5  # of 1 + 0.5 (2 + 0.5 4) = 3, 2 + 0.5 4 = 4 and 4, whose mean is 11/3
    losses = TensorDict({"loss_actor": torch.tensor(7.0)})
    for improve, own in ((True, 7.0), (False, 0.0)):
        torch.manual_seed(0)
        found = NearTheLog(actor, data, weight=0.1, gamma=0.5)(losses.clone(), improve=improve)["loss_actor"]
        torch.manual_seed(0)
        assert found.item() == pytest.approx(own + 0.1 * spread * clone_loss(actor, data).item(), rel=1e-5)


def test_the_unit_of_the_reward_does_not_change_how_near_to_the_log_a_policy_stays():
    """Of rewards of another unit, losses of critics that learn in it are the same numbers: so is the clone's share."""
    data, actor, found = toy_batch(B=50), toy_actor(), []
    for unit in (1.0, 1000.0):
        log = data.clone()
        log["next", "reward"] *= unit
        near = NearTheLog(actor, log, weight=0.1, gamma=0.9)
        torch.manual_seed(0)
        found.append(near(TensorDict({"loss_actor": torch.tensor(7.0)}), improve=True, unit=unit)["loss_actor"].item())
    assert found[0] == pytest.approx(found[1], rel=1e-5) and found[0] != 7.0


def test_a_policy_near_the_log_does_not_follow_values_that_no_action_of_the_log_supports():
    """Values that promise more the larger the action is: alone they lead to 1, with the log's actions near to 0.2."""
    data = toy_batch(B=200)
    data["action"] = 0.2 + 0.05 * torch.randn(200, 1)
    data["next", "reward"], data["next", "done"] = torch.randn(200, 1), torch.ones(200, 1, dtype=torch.bool)
    found = []
    for weight in (0.0, 1.0):
        torch.manual_seed(0)
        actor = toy_actor()
        near, optimizer = NearTheLog(actor, data, weight=weight, gamma=0.9), torch.optim.Adam(actor.parameters(), 1e-2)
        for _ in range(200):
            dist = actor.get_dist(data.select("observation"))
            losses = near(TensorDict({"loss_actor": -dist.deterministic_sample.mean()}), improve=True)
            optimizer.zero_grad()
            losses["loss_actor"].backward()
            optimizer.step()
        with torch.no_grad():
            found.append(actor.get_dist(data.select("observation")).deterministic_sample.mean().item())
    assert found[0] > 0.9 and 0.1 < found[1] < 0.4


@pytest.mark.parametrize("weight", [-1.0, "two", float("nan")])
def test_a_weight_that_is_none_is_named(weight):
    with pytest.raises(ValueError, match="weight must be a finite number of at least 0, got"):
        NearTheLog(toy_actor(), toy_batch(B=5), weight=weight, gamma=0.9)


def test_disagreement_counts_in_deviations_of_the_targets_where_the_model_knows_them():
    model = Fan()
    model.target_scale = torch.tensor([2.0, 0.0])  # the reward never changed in the fit, and is no entry
    torch.testing.assert_close(disagreement(model, *rows(3.0)), torch.tensor([[1.5]]))  # 3 -+ 3: deviation 3, of 2


def test_ends_earn_the_same_with_penalised_rewards():
    model, always = Fan(), lambda observation, action: torch.ones_like(observation, dtype=torch.bool)
    model.terminal_reward.fill_(7.0)
    rewards = []
    for one in (model, PenalizedModel(model, 2.0)):
        env = ModelBasedEnv(one, toy_env(1), termination_fn=always)
        zero = torch.zeros(2, 1, 1)
        rewards.append(env.sample_next(3 + zero, zero, torch.zeros(2, 1, 1, 2))[1].flatten())
    assert rewards[0].tolist() == [7.0, 7.0]
    torch.testing.assert_close(rewards[1], torch.full((2,), 7 - 2 * 4.5**0.5))  # disagreement sqrt((9 + 0) / 2)
