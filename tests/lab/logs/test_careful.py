from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from eqr_torchrl.imagination import ModelBasedEnv, branched_rollout, make_model_buffer, never_terminates
from eqr_torchrl.lab.logs import PenalizedModel, disagreement, uncertainty_stop
from eqr_torchrl.testing import toy_env
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
