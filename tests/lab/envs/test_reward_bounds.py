from __future__ import annotations

import math

import gymnasium
import numpy as np
import pytest
import torch
from gym_toys import Drift
from gymnasium.spaces import Box
from gymnasium.wrappers import RescaleAction, TransformAction, TransformReward
from torchrl.data import Bounded
from torchrl.envs import DMControlEnv, GymEnv, StepCounter, TransformedEnv
from torchrl.envs.transforms import FrameSkipTransform, RewardClipping, RewardScaling, SignTransform

from eqr_torchrl.imagination import never_terminates
from eqr_torchrl.lab.envs import ActionCost, TerminationGuard, make_env, reward_bounds
from eqr_torchrl.testing import toy_env


class Stated(Drift):
    """States that its rewards lie in [-1, 3]; actions in [-0.1, 0.1] x [-0.3, 0.7]."""

    reward_space = Box(-1.0, 3.0, (1,))


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("dmc/pendulum-swingup", {}, (0.0, 1.0)),
        ("dmc/pendulum-swingup", {"reward_scale": 0.5}, (0.0, 0.5)),
        ("dmc/cheetah-run", {"action_cost": 0.1}, (-0.6, 1.0)),  # six actions in [-1, 1]
        ("dmc/cheetah-run", {"action_cost": 0.1, "reward_scale": 10.0}, (-6.0, 10.0)),
        ("MountainCarContinuous-v0", {}, (-0.1, 100.0)),
        ("MountainCarContinuous-v0", {"reward_scale": 0.01, "action_cost": 0.1}, (-0.002, 1.0)),
        ("InvertedPendulum-v5", {"reward_scale": 2.0}, (0.0, 2.0)),
        (Stated, {}, (-1.0, 3.0)),
        (Stated, {"action_cost": 2.0, "max_episode_steps": 5}, (-2.0, 3.0)),  # -1 - 2 (0.01 + 0.49)
    ],
)
def test_bounds_follow_the_settings_of_make_env(name, settings, expected):
    assert reward_bounds(make_env(name, **settings)) == pytest.approx(expected)


def test_rewards_lie_within_them():
    env = make_env("dmc/walker-run", seed=0, action_cost=0.2, reward_scale=3.0)
    reward, bounds = env.rollout(50)["next", "reward"], reward_bounds(env)
    assert bounds is not None and bounds[0] <= reward.min() <= reward.max() <= bounds[1]


def test_a_frame_skip_adds_rewards_up():
    # each of four steps pays -16.27 to 0, and 0 to 1; an end within the four leaves fewer of them
    pendulum, one = make_env(GymEnv("Pendulum-v1", frame_skip=4)), reward_bounds(make_env("Pendulum-v1"))
    assert reward_bounds(pendulum) == pytest.approx((4 * one[0], 0.0))
    rewards = pendulum.rollout(50)["next", "reward"]
    assert rewards.min() < one[0] and rewards.min() >= 4 * one[0]
    assert reward_bounds(make_env(DMControlEnv("cartpole", "balance", frame_skip=4))) == (0.0, 4.0)
    assert reward_bounds(make_env(GymEnv("MountainCarContinuous-v0", frame_skip=3))) == pytest.approx((-0.3, 300.0))


def reward_at(name, state, action):
    """What the simulator pays in a state."""
    env = make_env(name)
    td = env.reset()
    env.unwrapped.state = np.array(state)
    reward = env.step(td.set("action", torch.tensor([action])))["next", "reward"].item()
    return reward, reward_bounds(env)


@pytest.mark.filterwarnings("ignore:.*is out of date")  # Gymnasium on its v4
def test_bounds_of_gymnasium_tasks_are_reached_and_not_exceeded():
    reward, bounds = reward_at("Pendulum-v1", [math.pi, 8.0], 2.0)  # the worst of all
    assert reward == pytest.approx(-(math.pi**2 + 6.4 + 0.004))
    assert bounds == pytest.approx((reward, 0.0))
    assert reward_at("Pendulum-v1", [0.0, 0.0], 0.0)[0] == 0.0  # the best
    assert reward_at("MountainCarContinuous-v0", [-0.5, 0.0], -1.0)[0] == pytest.approx(-0.1)
    assert reward_at("MountainCarContinuous-v0", [0.449, 0.05], 0.0)[0] == 100.0
    for name in ("InvertedPendulum-v5", "InvertedPendulum-v4"):
        rewards = make_env(name, seed=0).rollout(100, break_when_any_done=False)["next", "reward"]
        assert set(rewards.flatten().tolist()) == ({0.0, 1.0} if name[-1] == "5" else {1.0})


def test_facts_of_a_task_do_not_hold_behind_a_wrapper_that_may_change_them():
    car = gymnasium.make("MountainCarContinuous-v0")
    assert reward_bounds(make_env(RescaleAction(car, np.float32(-3), np.float32(3)))) == pytest.approx((-0.1, 100.0))
    assert reward_bounds(make_env(TransformReward(car, lambda reward: -reward))) is None
    assert reward_bounds(make_env(TransformAction(car, lambda a: 2 * a, car.action_space))) is None


@pytest.mark.parametrize("name", ["dmc/lqr-lqr_2_1", "Hopper-v5", Drift])
def test_unknown_bounds_are_none(name):
    assert reward_bounds(make_env(name, action_cost=0.1)) is None


def test_least_effort_counts_where_the_action_cannot_be_zero():
    class Engine(Stated):
        action_space = Box(1.0, 2.0, (2,))

    # efforts from 1 + 1 to 4 + 4
    assert reward_bounds(make_env(Engine, action_cost=0.5)) == pytest.approx((-5.0, 2.0))


def test_torchrl_environment_states_them_in_its_spec():
    real = toy_env()
    real.reward_spec = Bounded(-4.0, 0.0, torch.Size([1]))
    assert reward_bounds(real) == (-4.0, 0.0)
    assert reward_bounds(make_env(real, reward_scale=0.25)) == (-1.0, 0.0)


@pytest.mark.parametrize(
    ("transforms", "expected"),
    [
        ([StepCounter(9), TerminationGuard(never_terminates)], (0.0, 1.0)),
        ([RewardScaling(1.0, 2.0)], (1.0, 3.0)),
        ([RewardScaling(1.0, 2.0, standard_normal=True)], (-0.5, 0.0)),
        ([RewardClipping(0.25, 2.0)], (0.25, 1.0)),
        ([ActionCost(1.0), RewardClipping(-0.5, 0.5)], (-0.5, 0.5)),  # the pendulum has one action in [-1, 1]
        ([SignTransform(in_keys=["reward"])], None),
        ([FrameSkipTransform(4)], None),
        ([lambda tensordict: tensordict], None),
    ],
)
def test_transforms_appended_later_count(transforms, expected):
    env = make_env("dmc/pendulum-swingup")
    for transform in transforms:
        env = TransformedEnv(env, transform, auto_unwrap=False)
    assert reward_bounds(env) == expected


def test_clipping_alone_bounds_a_reward():
    assert reward_bounds(TransformedEnv(GymEnv("Hopper-v5"), RewardClipping(-1.0, 0.0))) == (-1.0, 0.0)
