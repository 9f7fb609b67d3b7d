"""What an end earns follows the end: the goal of MountainCar paid in front of it, and the agent stopped there."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from eqr_torchrl.imagination import ModelBasedEnv
from eqr_torchrl.lab.diagnostics import held_out_errors
from eqr_torchrl.testing import toy_env
from eqr_torchrl.world_models import FixedStepsFit, GaussianEnsemble

GOAL, PAID = 1.0, 10.0


def reached(next_observation, action):
    return next_observation[..., :1] >= GOAL


def walk(rows: int, paid: float = PAID) -> TensorDict:
    """x' = x + 0.3 a of a line with a goal: 0.1 x - 0.5 a^2 for each step, and ``paid`` beyond for the last one."""
    state, action = 3 * torch.rand(rows, 3) - 2, 2 * torch.rand(rows, 1) - 1
    after = state + 0.3 * action
    ended = reached(after, action)
    reward = 0.1 * state[:, :1] - 0.5 * action.square() + paid * ended
    return TensorDict(
        {"observation": state, "action": action, "next": {"observation": after, "reward": reward, "terminated": ended}},
        [rows],
    )


def model_of(data: TensorDict, num_steps: int = 300) -> GaussianEnsemble:
    model = GaussianEnsemble(3, 1, num_members=3, num_cells=(32, 32))
    FixedStepsFit(model, num_steps=num_steps, lr=3e-3)(data)
    return model


def test_it_is_the_mean_of_ends_less_that_of_other_transitions():
    data = walk(4)
    data["next", "reward"] = torch.tensor([[1.0], [3.0], [8.0], [14.0]])
    data["next", "terminated"] = torch.tensor([[False], [False], [True], [True]])
    assert model_of(data, num_steps=1).terminal_reward.item() == (8 + 14) / 2 - (1 + 3) / 2
    for same in (False, True):  # nothing to compare with
        data["next", "terminated"] = torch.full((4, 1), same)
        assert model_of(data, num_steps=1).terminal_reward.item() == 0


def test_imagined_rewards_are_paid_where_the_member_ends_and_nowhere_else():
    model = model_of(walk(2000))
    env = ModelBasedEnv(model, toy_env(), termination_fn=reached)
    near = walk(500)
    near["observation"] = GOAL + 0.3 * torch.randn(500, 3)  # about the goal
    observation, action = (near[key].expand(3, -1, -1) for key in ("observation", "action"))
    with torch.no_grad():
        after, reward, ended = env.step_rows(observation, action)
    assert torch.equal(ended, reached(after, action)) and 0.2 < ended.float().mean() < 0.8
    expected = 0.1 * observation[..., :1] - 0.5 * action.square() + PAID * ended
    assert (reward - expected).abs().max() < 1.0  # a smooth prediction of the sum is wrong by half of 10 at the goal


def test_the_bounds_clip_what_is_paid_in_all():
    model = model_of(walk(500))
    env = ModelBasedEnv(model, toy_env(), termination_fn=reached, reward_bounds=(-1.0, 2.0))
    with torch.no_grad():
        _, reward, ended = env.step_rows(torch.full((3, 20, 3), 1.5), torch.zeros(3, 20, 1))
    assert ended.all() and (reward == 2.0).all()


def test_held_out_errors_count_what_the_end_earned():
    torch.manual_seed(0)
    errors = held_out_errors(model_of(walk(2000)), walk(1000))
    assert errors.explained[:, -1].min() > 0.98


def test_data_that_do_not_say_what_ended_fit_too():
    data = walk(50).exclude(("next", "terminated"))
    assert model_of(data, num_steps=1).terminal_reward.item() == 0


def test_an_end_is_paid_once_where_a_later_fit_sees_ends_alone():
    data = walk(200)
    data["next", "reward"] = 100.0 * data["next", "terminated"]
    model = GaussianEnsemble(3, 1, num_members=3, num_cells=(32, 32))
    fit = FixedStepsFit(model, num_steps=300, lr=3e-3)
    fit(data)
    ends = data[data["next", "terminated"].squeeze(-1)]
    fit(ends)
    env = ModelBasedEnv(model, toy_env(), termination_fn=reached)
    observation, action = (ends[key].expand(3, -1, -1) for key in ("observation", "action"))
    _, reward, terminated = env.sample_next(observation, action, torch.zeros(3, len(ends), 1, 4))
    assert reward[terminated].mean().item() == pytest.approx(100.0, abs=10)
