from __future__ import annotations

import functools
import math

import gymnasium
import numpy as np
import pytest
import torch
from gym_toys import Drift, drift_terminates
from gymnasium.wrappers import (
    NormalizeObservation,
    NormalizeReward,
    RecordEpisodeStatistics,
    RescaleAction,
    RescaleObservation,
    TimeLimit,
    TransformObservation,
)
from torchrl.envs import GymEnv, InitTracker, ObservationNorm, RewardSum, StepCounter, TransformedEnv

from eqr_torchrl.imagination import never_terminates
from eqr_torchrl.lab.envs import (
    PAPER_DMC_TASKS,
    TerminationGuard,
    ant_terminates,
    hopper_terminates,
    humanoid_terminates,
    inverted_pendulum_terminates,
    make_env,
    mountain_car_terminates,
    termination_for,
    walker2d_terminates,
)

RULES = {
    "Hopper": hopper_terminates,
    "Walker2d": walker2d_terminates,
    "Humanoid": humanoid_terminates,
    "Ant": ant_terminates,
    "InvertedPendulum": inverted_pendulum_terminates,
    "HalfCheetah": never_terminates,
}
ALL_RULES = [*RULES.values(), mountain_car_terminates]
nan, inf = math.nan, math.inf


@pytest.mark.filterwarnings("ignore:.*is out of date")  # Gymnasium on its v4
@pytest.mark.parametrize("version", ["v4", "v5"])
@pytest.mark.parametrize("name", RULES)
def test_rule_gives_the_flag_of_the_environment(name, version):
    env = make_env(f"{name}-{version}", seed=0)
    data = env.rollout(1000 if version == "v5" else 200, break_when_any_done=False)
    rule = termination_for(env)
    assert rule is RULES[name] is termination_for(f"{name}-{version}")
    flags = data["next", "terminated"]
    agree = rule(data["next", "observation"], data["action"]) == flags
    assert agree.float().mean() >= 0.999
    assert flags.sum() >= (0 if name == "HalfCheetah" else 1)  # there was something to agree on


def test_mountain_car_rule_gives_the_flag_of_the_environment():
    env = make_env("MountainCarContinuous-v0", seed=0)
    td, agree, ends = env.reset(), [], 0
    for _ in range(1000):  # pushing with the velocity reaches the goal in about 100 steps
        td = env.step(td.set("action", torch.sign(td["observation"][1:] + 1e-9)))
        terminated = td["next", "terminated"]
        agree.append(mountain_car_terminates(td["next", "observation"], td["action"]) == terminated)
        ends += terminated.item()
        td = env.reset() if td["next", "done"].item() else env.step_mdp(td)
    assert torch.stack(agree).all()
    assert ends >= 5


@pytest.mark.parametrize(
    ("rule", "observation", "expected"),
    [
        (mountain_car_terminates, [0.45, 0.0], True),
        (mountain_car_terminates, [0.45, -1e-3], False),
        (hopper_terminates, [0.7, 0.0, 0.0], True),  # the range is open
        (hopper_terminates, [0.71, 0.19, 0.0], False),
        (hopper_terminates, [0.71, -0.2, 0.0], True),
        (hopper_terminates, [200.0, 0.0, 0.0], False),  # height has no upper bound, everything else has
        (hopper_terminates, [1.0, 0.0, 100.0], True),
        (walker2d_terminates, [2.0, 0.0], True),
        (walker2d_terminates, [1.9, -0.99], False),
        (humanoid_terminates, [1.0, 5.0], True),
        (humanoid_terminates, [1.99, 5.0], False),
        (ant_terminates, [0.2, 0.0], False),  # the range is closed
        (ant_terminates, [1.001, 0.0], True),
        (ant_terminates, [0.5, inf], True),
        (inverted_pendulum_terminates, [3.0, -0.19, 0.0, 0.0], False),
        (inverted_pendulum_terminates, [3.0, -0.21, 0.0, 0.0], True),
        (never_terminates, [nan, nan], False),
    ],
)
def test_rule_at_its_thresholds(rule, observation, expected):
    assert rule(torch.tensor(observation), None).tolist() == [expected]


@pytest.mark.parametrize("rule", ALL_RULES)
def test_rule_works_on_any_batch_and_under_compile(rule):
    observation = torch.randn(5, 3, 2, 7)
    expected = rule(observation, torch.zeros(5, 3, 2, 1))
    assert expected.shape == (5, 3, 2, 1)
    assert expected.dtype == torch.bool
    assert torch.equal(rule(observation[1, 2], None), expected[1, 2])
    compiled = torch.compile(rule, backend="eager", fullgraph=True)
    assert torch.equal(compiled(observation, None), expected)
    # rounding to bfloat16 may move a value across a threshold, but nothing else
    assert (rule(observation.bfloat16(), None) == expected).float().mean() > 0.95


@pytest.mark.parametrize("rule", set(ALL_RULES) - {never_terminates})
def test_nan_is_the_end(rule):
    assert rule(torch.full((1, 4), nan), None).item()


@pytest.mark.parametrize("name", [*PAPER_DMC_TASKS, "Pendulum-v1", "gym/Pendulum-v1", "Swimmer-v5"])
def test_tasks_without_termination(name):
    assert termination_for(name) is never_terminates


def test_rule_follows_the_settings_of_the_environment():
    env = make_env("Hopper-v5", healthy_z_range=(0.9, 2.0))
    rule = termination_for(env)
    assert isinstance(rule, functools.partial)
    assert rule.keywords == {"z_range": (0.9, 2.0)}
    narrow = termination_for(make_env("Hopper-v5", healthy_state_range=(-1.0, 1.0)))
    state = torch.zeros(2, 11)
    state[:, 0], state[1, 10] = 1.25, 1.5  # a height that is healthy; a speed that is too large in the second row
    assert narrow(state, torch.zeros(2, 3)).flatten().tolist() == [False, True]
    assert termination_for(make_env("Hopper-v5", terminate_when_unhealthy=False)) is never_terminates
    assert termination_for(make_env(gymnasium.make("Walker2d-v5"))) is walker2d_terminates
    with pytest.raises(ValueError, match="exclude_current_positions_from_observation"):
        termination_for(make_env("Ant-v5", exclude_current_positions_from_observation=False))


@pytest.mark.parametrize("name", ["Hopper-v3", "Hopper", "InvertedDoublePendulum-v5", "BipedalWalker-v3", "hopper-v5"])
def test_unknown_environment_is_an_error_and_never_a_default(name):
    with pytest.raises(ValueError, match="pass your own termination_fn"):
        termination_for(name)


def test_custom_environment_needs_its_own_rule():
    env = make_env(Drift, seed=0)
    with pytest.raises(ValueError, match="no termination rule is known for 'Drift'"):
        termination_for(env)
    data = env.rollout(200, break_when_any_done=False)
    assert torch.equal(drift_terminates(data["next", "observation"], data["action"]), data["next", "terminated"])


def reversed_observation(env):
    return TransformObservation(env, lambda seen: seen[::-1], env.observation_space)


class Unknown(gymnasium.Wrapper):
    """May do anything."""


def _rescaled(env):
    return RescaleObservation(env, np.zeros(2, np.float32), np.ones(2, np.float32))


def fixed(wrapper):
    """Without running statistics, which make_env refuses."""

    def wrap(env):
        env = wrapper(env)
        env.update_running_mean = False
        return env

    return wrap


@pytest.mark.parametrize("wrap", [fixed(NormalizeObservation), reversed_observation, _rescaled, Unknown])
@pytest.mark.parametrize("order", ["outermost", "below others"])
def test_rule_is_refused_where_a_wrapper_may_change_the_observation(wrap, order):
    env = wrap(gymnasium.make("MountainCarContinuous-v0"))
    name = type(env).__name__
    if order == "below others":
        env = TimeLimit(RescaleAction(env, np.float32(-0.5), np.float32(0.5)), 100)
    with pytest.raises(ValueError, match=f"own observation, which {name} may change: pass your own"):
        termination_for(make_env(env))


def test_rule_is_kept_where_wrappers_pass_the_observation_on():
    env = gymnasium.make("MountainCarContinuous-v0")
    for wrap in (
        RecordEpisodeStatistics,
        fixed(NormalizeReward),
        lambda env: RescaleAction(env, np.float32(-0.5), np.float32(0.5)),
    ):
        env = wrap(env)
    assert termination_for(make_env(env, reward_scale=0.5, action_cost=0.1)) is mountain_car_terminates
    assert termination_for(make_env(GymEnv("MountainCarContinuous-v0"))) is mountain_car_terminates
    wrapped = make_env(fixed(NormalizeObservation)(gymnasium.make("Pendulum-v1")))
    assert termination_for(wrapped) is never_terminates  # whatever the observation is


@pytest.mark.parametrize(
    ("transform", "name"),
    [
        (lambda: ObservationNorm(0.0, 2.0, in_keys=["observation"]), "ObservationNorm"),
        (lambda: lambda tensordict: tensordict, "_CallableTransform"),
    ],
)
def test_rule_is_refused_where_a_transform_may_change_the_observation(transform, name):
    env = make_env("MountainCarContinuous-v0").append_transform(transform())
    with pytest.raises(ValueError, match=f"which {name} may change"):
        termination_for(env)
    inner = TransformedEnv(GymEnv("MountainCarContinuous-v0"), transform())
    with pytest.raises(ValueError, match=f"which {name} may change"):
        termination_for(make_env(inner))


def test_rule_is_kept_where_transforms_leave_the_observation_alone():
    env = make_env("MountainCarContinuous-v0")
    for transform in (StepCounter(10), RewardSum(), InitTracker(), TerminationGuard(mountain_car_terminates)):
        env.append_transform(transform)
    assert termination_for(env) is mountain_car_terminates
