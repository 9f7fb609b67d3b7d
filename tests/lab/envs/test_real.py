from __future__ import annotations

import math
import sys

import gymnasium
import numpy as np
import pytest
import torch
from gym_toys import Diverging, Drift, Spaces
from gymnasium.spaces import Box, Dict, Discrete
from torchrl.envs import CatTensors, DMControlEnv, DoubleToFloat, GymEnv, SerialEnv, TransformedEnv
from torchrl.envs.utils import check_env_specs

from eqr_torchrl.imagination import make_replay_buffer
from eqr_torchrl.lab.envs import PAPER_DMC_TASKS, make_env
from eqr_torchrl.testing import toy_env

# observation entries (S) and actions (A) of the paper's tasks
DIMS = {
    "acrobot-swingup": (6, 1),
    "ball_in_cup-catch": (8, 2),
    "cartpole-balance_sparse": (5, 1),
    "cartpole-swingup_sparse": (5, 1),
    "cheetah-run": (17, 6),
    "finger-spin": (9, 2),
    "finger-turn_easy": (12, 2),
    "fish-swim": (24, 5),
    "fish-upright": (21, 5),
    "pendulum-swingup": (3, 1),
    "quadruped-escape": (101, 12),
    "quadruped-run": (78, 12),
    "quadruped-walk": (78, 12),
    "reacher-easy": (6, 2),
    "reacher-hard": (6, 2),
    "walker-run": (24, 6),
}


def steps(env, actions):
    """Plays given actions from a reset; returns the transitions stacked."""
    td, out = env.reset(), []
    for action in actions:
        td = env.step(td.set("action", torch.as_tensor(action, dtype=torch.float32)))
        out.append(td.clone())
        td = env.step_mdp(td)
    return torch.stack(out)


def random_rollout(env, num_steps, seed=0):
    env.set_seed(seed)
    torch.manual_seed(seed)
    return env.rollout(num_steps, break_when_any_done=False)


def test_the_paper_has_sixteen_tasks():
    assert tuple(f"dmc/{task}" for task in DIMS) == PAPER_DMC_TASKS


@pytest.mark.parametrize("name", PAPER_DMC_TASKS)
def test_dmc_task_has_published_dimensions_in_alphabetical_order(name):
    env = make_env(name, seed=0)
    data = env.rollout(3)
    simulator = env.base_env._env
    entries = simulator.task.get_observation(simulator.physics)
    expected = np.concatenate([np.ravel(entries[key]) for key in sorted(entries)])
    np.testing.assert_array_equal(data["next", "observation"][-1].numpy(), expected.astype(np.float32))
    assert (data["observation"].shape[-1], data["action"].shape[-1]) == DIMS[name.removeprefix("dmc/")]
    assert {leaf.dtype for leaf in data.values(True, True)} == {torch.float32, torch.bool}
    assert env.env_name == name


def test_quadruped_keeps_its_asymmetric_action_bounds():
    action = make_env("dmc/quadruped-run").action_spec
    assert action.space.high.max().item() == pytest.approx(1.1)
    assert action.space.low.min().item() == -1.0


@pytest.mark.parametrize(
    ("name", "limit", "length"),
    [
        ("dmc/pendulum-swingup", None, 1000),
        ("dmc/walker-run", 7, 7),
        ("dmc/finger-spin", 7, 7),
        ("MountainCarContinuous-v0", None, 999),
        ("Pendulum-v1", 7, 7),
        (Drift, 7, 7),
        (lambda: GymEnv("Pendulum-v1"), 7, 7),
    ],
)
def test_time_limit_is_truncation_and_no_termination(name, limit, length):
    data = random_rollout(make_env(name, max_episode_steps=limit), length + 2)
    expected = torch.zeros(length + 2, 1, dtype=torch.bool)
    expected[length - 1] = True
    torch.testing.assert_close(data["next", "truncated"], expected)
    torch.testing.assert_close(data["next", "done"], expected)
    assert not data["next", "terminated"].any()


@pytest.mark.parametrize("scale", [1.0, 0.5, 0.1])
def test_mountain_car_rewards_are_scaled_at_every_step(scale):
    env = make_env("MountainCarContinuous-v0", seed=0, reward_scale=scale)
    # r = -0.1 a^2 everywhere but at the goal
    rewards = steps(env, [[1.0], [-0.5], [0.0]])["next", "reward"].flatten()
    torch.testing.assert_close(rewards, scale * torch.tensor([-0.1, -0.025, 0.0]))
    td = env.reset()
    env.unwrapped.state = np.array([0.449, 0.05], dtype=np.float32)
    last = env.step(td.set("action", torch.ones(1)))["next"]
    torch.testing.assert_close(last["reward"], torch.tensor([scale * (100.0 - 0.1)]))
    assert last["terminated"].item()
    assert not last["truncated"].item()


def test_reward_is_scale_times_reward_minus_cost_of_effort():
    actions = [[0.5, -1.0, 0.25, 0.0, 0.0, 1.0], [1.0] * 6]
    plain = steps(make_env("dmc/cheetah-run", seed=0), actions)["next", "reward"]
    charged = steps(make_env("dmc/cheetah-run", seed=0, reward_scale=0.5, action_cost=0.1), actions)["next", "reward"]
    # sum of squares: 0.25 + 1 + 0.0625 + 1 = 2.3125, and 6
    torch.testing.assert_close(charged, 0.5 * (plain - 0.1 * torch.tensor([[2.3125], [6.0]])))


@pytest.mark.parametrize("name", ["dmc/reacher-easy", "dmc/quadruped-escape", "Pendulum-v1", Drift])
def test_seed_reproduces_episodes(name):
    env = make_env(name, max_episode_steps=4)
    first, again, other = (random_rollout(env, 10, seed) for seed in (3, 3, 4))
    fresh = random_rollout(make_env(name, max_episode_steps=4), 10, 3)
    assert (first == again).all()
    assert (first == fresh).all()
    assert not torch.equal(first["observation"][0], other["observation"][0])
    assert not torch.equal(first["observation"][0], first["observation"][4])  # but episodes differ


@pytest.mark.parametrize(
    "custom",
    [Drift(), Drift, lambda: Drift(), "gym_toys:Drift", lambda: TransformedEnv(GymEnv("Pendulum-v1"))],
    ids=["instance", "class", "callable", "import path", "TorchRL"],
)
def test_custom_env_gives_float32_everywhere(custom):
    env = make_env(custom, seed=0)
    data = env.rollout(4)
    assert {leaf.dtype for leaf in data.values(True, True)} == {torch.float32, torch.bool}
    for specs in (env.input_spec, env.output_spec):  # nothing float64 may travel to a device that lacks it
        assert torch.float64 not in {leaf.dtype for leaf in specs.values(True, True)}
    check_env_specs(env)


def test_custom_env_may_reuse_its_arrays_and_spoil_its_arguments():
    data = random_rollout(make_env(Drift), 5)
    moved = data["observation"] + data["action"]
    torch.testing.assert_close(data["next", "observation"], moved, rtol=0, atol=1e-6)
    torch.testing.assert_close(data["observation"][1:], data["next", "observation"][:-1])
    assert data["action"].abs().min() > 0


def test_float32_action_on_the_bound_lies_within_float64_bounds():
    user = Drift()  # asserts that its action space contains the action
    env = make_env(user)
    steps(env, [env.action_spec.space.high, env.action_spec.space.low])
    np.testing.assert_allclose(user.actions, [[0.1, 0.7], [-0.1, -0.3]], rtol=1e-7)


def test_arguments_reach_the_simulator():
    assert make_env("Pendulum-v1", g=5.0).unwrapped.g == 5.0
    assert make_env(Drift, start=3.0).unwrapped.start == 3.0


@pytest.mark.parametrize("settings", [{}, {"action_cost": 0.1, "reward_scale": 2.0}])
@pytest.mark.parametrize("name", ["dmc/cheetah-run", "Pendulum-v1"])
def test_specs_hold(name, settings):
    check_env_specs(make_env(name, seed=0, **settings))


def test_wrapped_torchrl_env_equals_named_task():
    ours = random_rollout(make_env("dmc/walker-run"), 20)
    theirs = random_rollout(make_env(DMControlEnv("walker", "run")), 20)
    assert (ours == theirs).all()
    assert make_env(DMControlEnv("walker", "run")).env_name == "dmc/walker-run"
    torchrl = TransformedEnv(DMControlEnv("walker", "run"))
    torchrl.append_transform(CatTensors(["velocity", "height", "orientations"], "observation"))
    torchrl.append_transform(DoubleToFloat())
    torch.testing.assert_close(random_rollout(torchrl, 20).select(*ours.keys(True, True)), ours)


def test_works_in_batched_envs():
    env = SerialEnv(2, lambda: make_env("dmc/pendulum-swingup", max_episode_steps=3))
    assert env.rollout(5, break_when_any_done=False)["observation"].shape == (2, 5, 3)
    flat = make_env(SerialEnv(2, lambda: GymEnv("Pendulum-v1")))
    assert flat.rollout(5)["observation"].shape == (2, 5, 3)


def space(observation=None, action=None):
    return Spaces(observation, action)


def test_an_id_without_a_version_is_found_behind_its_module():
    gymnasium.register("drifting", entry_point="gym_toys:Drift")
    try:
        assert make_env("gym_toys:drifting").env_name == "gym_toys:drifting"  # the module has no such name
    finally:
        del gymnasium.registry["drifting"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (space(action=Discrete(3)), "action must be a Box of floats: got Discrete(3)"),
        (space(action=Box(0, 5, (2,), np.int64)), "action must be a Box of floats"),
        (
            space(action=Box(-np.inf, np.inf, (2,))),
            "must be finite, with low < high in every entry: got low=[-inf, -inf], high=[inf, inf]",
        ),
        (space(action=Box(np.array([-1.0, 0.5]), np.array([1.0, 0.5]), dtype=np.float64)), "low < high in every entry"),
        (space(action=Box(-1.0, 1.0, (2, 2))), "action must be a vector of floats"),
        (space(Box(0, 255, (3, 96, 96), np.uint8)), "got shape (3, 96, 96) of uint8; images are not supported"),
        (space(Box(-1.0, 1.0, (4, 5))), "FlattenObservation"),
        (
            space(Dict(camera=Box(0, 1, (2, 2)), speed=Box(0, 1, (1,)))),
            "got Dict('camera': Box(0.0, 1.0, (2, 2), float32), 'speed': Box(",
        ),
        (space(Discrete(4)), "observation must be a vector (Box): got Discrete(4)"),
        ("dmc/cheetah-jump", "unknown task 'dmc/cheetah-jump': did you mean dmc/cheetah-run"),
        ("cheetah-run", "did you mean dmc/cheetah-run"),
        ("Pendulum-v0", "did you mean Pendulum-v1"),
        ("gym/xyz", "valid are, for example,"),
        ("nowhere.to_be:Found", "must name something that can be imported"),
        ("CartPole-v1", "discrete actions are not supported"),
        (3, "name must be a name"),
        (lambda: None, "name must be a name"),
    ],
)
def test_unfit_environment_is_one_line(name, message):
    with pytest.raises(ValueError) as caught:
        make_env(name)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "arguments",
    [
        {"reward_scale": 0.0},
        {"reward_scale": float("nan")},
        {"action_cost": -1.0},
        {"max_episode_steps": 0},
        {"gravitas": 5.0},
    ],
)
@pytest.mark.parametrize("name", ["Pendulum-v1", "dmc/cheetah-run", "instance"])
def test_bad_argument_is_named(name, arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        make_env(Drift() if name == "instance" else name, **arguments)


@pytest.mark.parametrize(
    ("package", "name", "extra"),
    [("dm_control", "dmc/cheetah-run", "[dmc]"), ("gymnasium", "Pendulum-v1", "[gym]")],
)
def test_missing_simulator_names_the_extra(monkeypatch, package, name, extra):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError) as caught:
        make_env(name)
    assert extra in str(caught.value)


def test_diverging_simulator_cuts_the_episode():
    env = make_env(Diverging, seed=0)
    with pytest.warns(RuntimeWarning, match="Diverging produced a non-finite observation"):
        data = env.rollout(7, break_when_any_done=False)
    expected = torch.tensor([False, False, True, False, False, True, False])
    torch.testing.assert_close(data["next", "truncated"].flatten(), expected)
    assert not data["next", "terminated"].any()
    torch.testing.assert_close(data["next", "reward"].isnan().flatten(), expected)
    assert all(leaf.isfinite().all() for leaf in data.exclude(("next", "reward")).values(True, True))
    torch.testing.assert_close(data["next", "observation"][2], data["observation"][2])  # the last good one


def test_physics_error_cuts_the_episode(monkeypatch):
    from dm_control.rl.control import PhysicsError

    env = make_env("dmc/cheetah-run", seed=0)
    simulator, calls = env.base_env._env, []
    original = simulator.step

    def step(action):
        calls.append(action)
        if len(calls) == 3:
            raise PhysicsError("BADQACC")
        return original(action)

    monkeypatch.setattr(simulator, "step", step)
    with pytest.warns(RuntimeWarning, match="dmc/cheetah-run"):
        data = env.rollout(5, break_when_any_done=False)
    cut = [False, False, True, False, False]
    assert data["next", "truncated"].flatten().tolist() == data["next", "reward"].isnan().flatten().tolist() == cut
    assert data["next", "observation"].isfinite().all()


@pytest.mark.parametrize("name", ["dmc/pendulum-swingup", "Pendulum-v1", Drift, lambda: toy_env()])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_finite_action_is_an_error_before_the_simulator_steps(monkeypatch, name, value):
    env = make_env(name, seed=0)
    tensordict, stepped = env.rand_action(env.reset()), []
    simulator = getattr(env.base_env, "_env", env.base_env)
    monkeypatch.setattr(simulator, "step" if simulator is not env.base_env else "_step", stepped.append)
    tensordict["action"][-1] = value
    with pytest.raises(
        RuntimeError, match=rf"the action for {env.env_name} must be finite: the policy returned .*{value}"
    ):
        env.step(tensordict)
    assert not stepped


@pytest.mark.parametrize("rows", [1, 4, 8])
def test_steps_that_were_cut_do_not_reach_a_replay_buffer(rows):
    env, replay = make_env(Diverging, seed=0), make_replay_buffer(100, batch_size=4)
    with pytest.warns(RuntimeWarning, match="Diverging produced a non-finite observation"):
        data = env.rollout(8, break_when_any_done=False)
    for transitions in data.split(rows):
        replay.extend(transitions)
    stored = replay[:]
    assert len(stored) == 6  # the third and the sixth of eight are cut
    torch.testing.assert_close(stored["next", "observation"], stored["observation"] + stored["action"])
    assert not stored["next", "done"].any()


def test_simulator_name_is_kept():
    assert make_env("gym/Pendulum-v1").env_name == "Pendulum-v1"
    assert make_env(gymnasium.make("Pendulum-v1")).env_name == "Pendulum-v1"
    assert make_env(Drift).env_name == "Drift"
    assert make_env(GymEnv("Pendulum-v1")).env_name == "Pendulum-v1"
