"""What a user's simulator may answer, and what is said about it otherwise."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gym_toys import Counter, answering, shared
from gymnasium.spaces import Box
from gymnasium.wrappers import NormalizeObservation, TimeLimit
from torchrl.envs import DMControlEnv, GymEnv, GymWrapper, TransformedEnv
from torchrl.envs.transforms import StepCounter

from eqr_torchrl.lab.envs import make_env


@pytest.mark.parametrize("length", [1, 2, 4])
def test_observation_of_another_length_than_its_space(length):
    message = f"the observation must have 3 entries, as its space has: got {length}"
    with pytest.raises(RuntimeError, match=message):
        make_env(Counter(first=lambda seen: np.zeros(length, np.float32))).reset()
    with pytest.raises(RuntimeError, match=message):
        make_env(answering(0, np.zeros(length), only_at=5)).rollout(10)


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (
            0,
            Box(-1.0, 1.0, (3,)),
            r"the observation must be an array of numbers: got Box Box\(-1.0, 1.0, \(3,\), float32\)",
        ),
        (0, None, "the observation must be an array of numbers: got None"),
        (0, ["a", "b", "c"], r"the observation must be an array of numbers: got list \['a', 'b', 'c'\]"),
        (0, [[1.0], [1.0, 2.0]], "the observation must be an array of numbers: got list"),
        (1, None, "reward must be a single float: step returned None"),
        (1, [1.0], r"reward must be a single float: step returned list \[1.0\]"),
        (1, np.ones(2), r"reward must be a single float: step returned ndarray array\(\[1., 1.\]\)"),
        (1, "1", "reward must be a single float: step returned str '1'"),
        (2, None, "terminated must be a single bool: step returned None"),
        (2, {}, "terminated must be a single bool: step returned dict {}"),  # info in its place
        (3, 0.5, "truncated must be a single bool: step returned float 0.5"),
    ],
)
@pytest.mark.parametrize("only_at", [None, 3])
def test_wrong_answer_of_a_step_is_named(position, value, message, only_at):
    with pytest.raises(RuntimeError, match=message) as caught:
        make_env(answering(position, value, only_at=only_at)).rollout(10)
    assert "\n" not in str(caught.value)


def test_reset_that_returns_the_space_is_named():
    with pytest.raises(RuntimeError, match="the observation must be an array of numbers: got Box"):
        make_env(Counter(first=lambda seen: Box(-1.0, 1.0, (3,)))).reset()


@pytest.mark.parametrize(
    "value", [2, 2.0, np.float32(2.0), np.int64(2), np.array(2.0), np.array([2.0]), torch.tensor(2.0)]
)
def test_reward_may_be_any_single_number(value):
    assert make_env(answering(1, value)).rollout(3)["next", "reward"].tolist() == [[2.0]] * 3


@pytest.mark.parametrize("value", [True, 1, np.True_, np.array([True]), torch.tensor(True)])
def test_flag_may_be_any_single_bool(value):
    data = make_env(answering(2, value)).rollout(3)
    assert data["next", "terminated"].tolist() == data["next", "done"].tolist() == [[True]]


def test_scalar_action_space_gets_scalar_actions():
    class Scalar(Counter):
        action_space = Box(-1.0, 1.0, ())

        def step(self, action):
            assert self.action_space.contains(action), action
            return super().step(np.reshape(action, 1))

    data = make_env(Scalar(10), seed=0).rollout(4)
    assert data["action"].shape == (4, 1)
    torch.testing.assert_close(data["next", "observation"][:, 2:], data["action"])


def test_scalar_observation_space_is_a_vector_of_one_entry():
    class Scalar(Counter):
        observation_space = Box(-np.inf, np.inf, ())

    env = make_env(Scalar(10, first=lambda seen: seen[0], answer=lambda t, step: (step[0][0], *step[1:])))
    assert env.rollout(3)["next", "observation"].tolist() == [[1.0], [2.0], [3.0]]


def test_name_of_an_instance_is_refused():
    with pytest.raises(ValueError, match="'gym_toys:ENV' must name a class or a function .* an object of type Counter"):
        make_env("gym_toys:ENV")


@pytest.mark.parametrize("build", [lambda: shared, lambda: shared()], ids=["factory", "instance"])
def test_two_environments_cannot_share_a_simulator(build):
    training, evaluation = make_env(build(), seed=0), make_env(build(), seed=0)
    tensordict = training.rollout(3)[-1]
    evaluation.rollout(2)
    with pytest.raises(RuntimeError, match="the simulator was reset by another environment"):
        training.step(training.step_mdp(tensordict).set("action", torch.zeros(1)))
    assert training.rollout(3)["next", "observation"][:, 0].tolist() == [1.0, 2.0, 3.0]  # one after the other is fine


@pytest.mark.parametrize("limit", [150, 300])
@pytest.mark.parametrize(
    "build",
    [
        lambda: gymnasium.make("Pendulum-v1"),
        lambda: lambda: gymnasium.make("Pendulum-v1"),
        lambda: NormalizeObservation(gymnasium.make("Pendulum-v1")),
        lambda: TimeLimit(TimeLimit(gymnasium.make("Pendulum-v1"), 120), 100),
    ],
    ids=["instance", "factory", "below another wrapper", "several"],
)
def test_time_limit_takes_the_place_of_the_environments_own(build, limit):
    data = make_env(build(), max_episode_steps=limit).rollout(400)
    assert len(data) == limit
    assert data["next", "truncated"][-1].item()


@pytest.mark.parametrize("build", [lambda: GymWrapper(gymnasium.make("Pendulum-v1")), lambda: GymEnv("Pendulum-v1")])
def test_higher_limit_than_that_of_a_torchrl_environment_is_an_error(build):
    env = TransformedEnv(build(), StepCounter())
    with pytest.raises(ValueError, match="max_episode_steps must be at most 200, .*: got 300"):
        make_env(env, max_episode_steps=300)
    assert len(make_env(env, max_episode_steps=150).rollout(400)) == 150


def test_higher_limit_than_that_of_a_torchrl_dm_control_environment_is_an_error():
    with pytest.raises(ValueError, match="max_episode_steps must be at most 1000, .*: got 1001"):
        make_env(DMControlEnv("pendulum", "swingup"), max_episode_steps=1001)
