"""What a user's simulator may answer, and what is said about it otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gym_toys import Counter, answering, shared
from gymnasium.spaces import Box
from gymnasium.wrappers import NormalizeObservation, NormalizeReward, RecordEpisodeStatistics, TimeLimit
from torchrl.envs import DMControlEnv, GymEnv, GymWrapper, TransformedEnv
from torchrl.envs.transforms import StepCounter, VecNorm, VecNormV2

from eqr_torchrl.lab.envs import make_env
from eqr_torchrl.testing import toy_env


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
    space = Box(-np.inf, np.inf, ())
    scalar = Counter(10, first=lambda seen: seen[0], answer=lambda t, step: (t, *step[1:]), observation_space=space)
    assert make_env(scalar).rollout(3)["next", "observation"].tolist() == [[1.0], [2.0], [3.0]]


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
        lambda: RecordEpisodeStatistics(gymnasium.make("Pendulum-v1")),
        lambda: TimeLimit(TimeLimit(gymnasium.make("Pendulum-v1"), 120), 100),
    ],
    ids=["instance", "factory", "below another wrapper", "several"],
)
def test_time_limit_takes_the_place_of_the_environments_own(build, limit):
    data = make_env(build(), max_episode_steps=limit).rollout(400)
    assert len(data) == limit
    assert data["next", "truncated"][-1].item()


@pytest.mark.parametrize(
    ("build", "limit"),
    [
        (lambda: TransformedEnv(GymWrapper(gymnasium.make("Pendulum-v1")), StepCounter()), 200),
        (lambda: TransformedEnv(GymEnv("Pendulum-v1"), StepCounter()), 200),
        (lambda: DMControlEnv("pendulum", "swingup"), 1000),
    ],
)
def test_higher_limit_than_that_of_a_torchrl_environment_is_an_error(build, limit):
    env = build()
    with pytest.raises(ValueError, match=f"max_episode_steps must be at most {limit}, .*: got {limit + 1}"):
        make_env(env, max_episode_steps=limit + 1)
    assert len(make_env(env, max_episode_steps=150).rollout(400)) == 150


def test_time_limit_of_the_callers_object_is_kept():
    own = RecordEpisodeStatistics(gymnasium.make("Pendulum-v1"))
    assert len(make_env(own, max_episode_steps=300).rollout(400)) == 300
    own.reset(seed=0)
    ends = [own.step(own.action_space.sample())[3] for _ in range(200)]
    assert ends == [False] * 199 + [True]


STATISTICS = "the running statistics of {} are neither shared with the environment of evaluations nor saved"


@pytest.mark.parametrize("wrapper", [NormalizeObservation, NormalizeReward])
def test_wrapper_with_running_statistics_is_refused_unless_they_are_fixed(wrapper):
    env = RecordEpisodeStatistics(wrapper(gymnasium.make("Pendulum-v1")))
    with pytest.raises(ValueError, match=STATISTICS.format(wrapper.__name__) + ".* since the world model normalises"):
        make_env(lambda: env)
    env.env.update_running_mean = False
    make_env(env)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("transform", [VecNorm, VecNormV2])
def test_transform_with_running_statistics_is_refused_unless_they_are_frozen(transform):
    env = TransformedEnv(toy_env(), transform(in_keys=["observation"]))
    with pytest.raises(ValueError, match=STATISTICS.format(transform.__name__)):
        make_env(env)
    env.rollout(3)
    env.transform.freeze()
    make_env(env)


class NeedsFile(Counter):
    def __init__(self, file, rate=1.0):
        super().__init__()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "NeedsFile: missing a required argument: 'file'"),
        ({"file": "x", "gravitas": 5.0}, "NeedsFile: got an unexpected keyword argument 'gravitas'"),
    ],
)
def test_arguments_that_a_constructor_lacks_or_does_not_know_are_named(arguments, message):
    advice = r"; it takes \(file, rate=1.0\): "
    advice += r"pass them to make_env, to eqr-check as KEY=..., or to a script as \+env.KEY=..."
    with pytest.raises(ValueError, match=message + advice):
        make_env(NeedsFile, **arguments)
    assert make_env(NeedsFile, file="x", rate=2.0).env_name == "NeedsFile"


def test_error_of_a_constructor_is_its_own_unless_another_environment_is_open():
    class Robot(Counter):
        def __init__(self):
            if Robot.taken:
                raise ConnectionError("port 5555 is taken")
            super().__init__(10)

        taken = True

    with pytest.raises(ConnectionError):
        make_env(Robot)
    Robot.taken = False
    first, Robot.taken = make_env(Robot), True
    with pytest.raises(
        RuntimeError, match=r"a second Robot could not be opened \(ConnectionError: port 5555 is taken\)"
    ):
        make_env(Robot)
    first.close()
    with pytest.raises(ConnectionError):
        make_env(Robot)


def test_closing_an_environment_closes_its_simulator():
    env = make_env(counter := Counter(), reward_scale=0.5, max_episode_steps=3)
    env.rollout(5)
    env.close()
    assert counter.times_closed == 1


def test_an_environment_can_be_forgotten():
    """In a process of its own: what is to be let go is TorchRL's first look at Gymnasium."""
    code = """
import gc, weakref
from gym_toys import Counter
from eqr_torchrl.lab.envs import make_env
def run():
    data = set()  # as a training run has
    env = make_env(Counter)
    env.rollout(2)
    return weakref.ref(env.base_env._env), weakref.ref(data)
left = run()
gc.collect()
assert [ref() for ref in left] == [None, None], left
"""
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": path})


@pytest.mark.parametrize(("task", "size"), [("manipulator-bring_ball", 44), ("stacker-stack_2", 49)])
def test_dmc_tasks_whose_observations_are_matrices(task, size):
    assert make_env(f"dmc/{task}", seed=0).rollout(2)["next", "observation"].shape == (2, size)
