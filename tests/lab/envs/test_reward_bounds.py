from __future__ import annotations

import pytest
import torch
from gym_toys import Drift
from gymnasium.spaces import Box
from torchrl.data import Bounded
from torchrl.envs import GymEnv, StepCounter, TransformedEnv
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
        (Stated, {}, (-1.0, 3.0)),
        (Stated, {"action_cost": 2.0, "max_episode_steps": 5, "device": "cpu"}, (-2.0, 3.0)),  # -1 - 2 (0.01 + 0.49)
    ],
)
def test_bounds_follow_the_settings_of_make_env(name, settings, expected):
    assert reward_bounds(make_env(name, **settings)) == pytest.approx(expected)


def test_rewards_lie_within_them():
    env = make_env("dmc/walker-run", seed=0, action_cost=0.2, reward_scale=3.0)
    reward = env.rollout(50)["next", "reward"]
    bounds = reward_bounds(env)
    assert bounds is not None
    low, high = bounds
    assert low <= reward.min() <= reward.max() <= high


@pytest.mark.parametrize("name", ["dmc/lqr-lqr_2_1", "Pendulum-v1", Drift])
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
    assert reward_bounds(TransformedEnv(GymEnv("Pendulum-v1"), RewardClipping(-1.0, 0.0))) == (-1.0, 0.0)
