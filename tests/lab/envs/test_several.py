"""Several simulators behind one environment: rows behave as single environments do."""

from __future__ import annotations

import functools
import os
import signal

import gymnasium
import numpy as np
import pytest
import torch
from gym_toys import Counter, Drift, drift_terminates

from eqr_torchrl.imagination import BranchedRollouts, make_replay_buffer, never_terminates
from eqr_torchrl.lab.envs import (
    ActionCost,
    TerminationGuard,
    make_env,
    real,
    renew_noise,
    reward_bounds,
    termination_for,
)
from eqr_torchrl.networks import make_actor, make_critic
from eqr_torchrl.testing import toy_env
from eqr_torchrl.world_models import make_world_model


def seeds(first):
    """Those of two rows, by TorchRL's rule."""
    return [first, toy_env().set_seed(first)]


def test_ctrl_c_of_a_terminal_does_not_end_the_simulators_in_other_processes():
    """It reaches all processes of the group; the main one decides what is saved, and ends the others."""
    before = signal.getsignal(signal.SIGINT)
    make = functools.partial(real._open, os.getpid() + 1, "Pendulum-v1", None, {})
    try:
        make().close()  # as in a worker, whose number is another
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    functools.partial(real._open, os.getpid(), "Pendulum-v1", None, {})().close()
    assert signal.getsignal(signal.SIGINT) == before


class Noisy(gymnasium.Env):
    """A random walk from where it begins."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = self.np_random.standard_normal(1).astype(np.float32)
        return self.x, {}

    def step(self, action):
        self.x = self.x + self.np_random.standard_normal(1).astype(np.float32)
        return self.x, 0.0, False, False, {}


def test_episodes_that_start_alike_differ_in_their_noise_where_it_is_renewed():
    env, found = make_env(Noisy, seed=0), []
    for noise in (1, 1, 2):
        env.set_seed(5)
        start = env.reset()
        renew_noise(env, noise)
        found.append(env.rollout(3, tensordict=start, auto_reset=False)["next", "observation"].flatten().tolist())
        found.append(start["observation"].item())
    assert found[1] == found[3] == found[5]
    assert found[0] == found[2] != found[4]
    for name in ("dmc/cartpole-balance", lambda: toy_env()):  # without noise, and without such a generator
        renew_noise(make_env(name, seed=0), 1)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("Pendulum-v1", {"max_episode_steps": 4, "reward_scale": 0.5, "action_cost": 0.1}),
        ("dmc/reacher-easy", {"max_episode_steps": 4}),
        (lambda: toy_env(max_steps=30), {"max_episode_steps": 3}),  # TorchRL's own, whose limit is counted outside
    ],
)
def test_rows_equal_single_environments(name, settings):
    together = make_env(name, seed=5, num_envs=2, parallel=False, **settings)
    actions = torch.rand(10, 2, *together.action_spec_unbatched.shape) - 0.5
    rows, td = [], together.reset()
    for action in actions:
        step, td = together.step_and_maybe_reset(td.set("action", action))
        rows.append(step)
    rows = torch.stack(rows, 1)  # [2, 10]
    assert rows["next", "truncated"].sum() == 2 * (10 // settings["max_episode_steps"])
    for row, seed in enumerate(seeds(5)):
        env = make_env(name, seed=seed, **settings)
        td = env.reset()
        for t, action in enumerate(actions[:, row]):
            step, td = env.step_and_maybe_reset(td.set("action", action))
            for key in ("observation", ("next", "observation"), ("next", "reward"), ("next", "done")):
                torch.testing.assert_close(rows[row, t][key], step[key], rtol=0, atol=0)
    assert not torch.equal(rows["observation"][0], rows["observation"][1])


def test_episodes_of_different_lengths_end_and_begin_alone():
    class Short(Counter):
        def step(self, action):  # ends when the count reaches 2 or 3, by its seed
            observation, reward, _, _, info = super().step(action)
            return observation, reward, False, self.state[0] >= 2 + (self.np_random.uniform() < 0.5), info

    data = make_env(Short, seed=0, num_envs=3, parallel=False).rollout(30, break_when_any_done=False)
    count, following = data["next", "observation"][..., 0], data["observation"][:, 1:, 0]
    done = data["next", "done"][..., 0]
    torch.testing.assert_close(following, torch.where(done[:, :-1], 0.0, count[:, :-1]))
    assert len({tuple(row.tolist()) for row in done}) > 1


def test_a_row_that_diverges_is_cut_alone():
    class Fragile(Drift):
        def step(self, action):
            out = super().step(action)
            return (self.state * float("nan"), *out[1:]) if self.state[0] > 0.05 else out

    env, replay = make_env(Fragile, seed=0, num_envs=2, parallel=False), make_replay_buffer(100, batch_size=4)
    td = env.reset()
    with pytest.warns(RuntimeWarning, match="Fragile produced"):
        td = env.step(td.set("action", torch.tensor([[0.09, 0.0], [-0.09, 0.0]])))
    assert td["next", "truncated"].tolist() == [[True], [False]]
    assert td["next", "observation"].isfinite().all()
    replay.extend(td.reshape(-1))
    assert len(replay) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of TorchRL's collector, by TorchRL
def test_parts_are_built_as_for_one_environment():
    from torchrl.collectors import Collector

    env = make_env("Hopper-v5", num_envs=2, parallel=False, healthy_z_range=(0.9, 2.0), action_cost=0.1)
    rule = termination_for(env)
    assert rule.keywords == {"z_range": (0.9, 2.0)}
    env.append_transform(TerminationGuard(rule, env.env_name))
    assert env.env_name == "Hopper-v5"
    actor, critic, model = make_actor(env), make_critic(env), make_world_model(env)
    assert (model.observation_dim, model.noise_dim) == (11, 12)
    assert critic(actor(env.reset()))["state_action_value"].shape[0] == 2
    imagine = BranchedRollouts(model, env, termination_fn=rule, starts_per_step=2, steps_per_round=2)
    assert imagine.model_env.action_spec.shape[-1] == 3
    assert imagine.transition["observation"].numel() / imagine.transition.numel() == 11
    collector = Collector(
        env, actor, frames_per_batch=2, total_frames=400, auto_register_policy_transforms=False, storing_device="cpu"
    )
    rows = torch.cat([batch.reshape(-1) for batch in collector])
    assert rows.shape == (400,)
    assert rows["next", "terminated"].sum() > 1  # and the guard is content
    collector.shutdown()


def test_bounds_of_rewards_are_those_of_one():
    for name in ("dmc/cheetah-run", "Pendulum-v1"):
        together = make_env(name, num_envs=2, parallel=False, action_cost=0.1, reward_scale=3.0)
        assert reward_bounds(together) == reward_bounds(make_env(name, action_cost=0.1, reward_scale=3.0))
    assert reward_bounds(make_env(Drift, num_envs=2, parallel=False).append_transform(ActionCost(1.0))) is None


@pytest.mark.parametrize("number", [0, 2])
def test_what_cannot_be_had_several_times(number):
    with pytest.raises(ValueError, match=f"num_envs must be at least 1, and 1 for .* already built: got {number}"):
        make_env(Drift(), num_envs=number)


def test_simulators_are_closed_with_the_environment():
    opened = []

    def build():
        opened.append(Counter())
        return opened[-1]

    env = make_env(build, num_envs=3, parallel=False)
    env.reset()
    before = sum(counter.times_closed for counter in opened)  # those that were opened to look at
    env.close()
    assert sum(counter.times_closed for counter in opened) - before == 3


@pytest.mark.slow
def test_processes_give_what_turns_give():
    data = []
    for parallel in (False, True):
        env = make_env("Pendulum-v1", seed=3, num_envs=2, parallel=parallel, max_episode_steps=5)
        env.append_transform(TerminationGuard(never_terminates, env.env_name))
        assert termination_for(env) is never_terminates
        torch.manual_seed(0)
        first = env.rollout(12, break_when_any_done=False)
        env.set_seed(3)  # as after a checkpoint
        torch.manual_seed(0)
        again = env.rollout(12, break_when_any_done=False)
        assert (first == again).all()
        data.append(first)
        env.close()
    torch.testing.assert_close(*data)


def test_wrong_rule_in_one_row_is_named():
    env = make_env(Drift, seed=0, num_envs=2, parallel=False).append_transform(TerminationGuard(never_terminates))
    with pytest.raises(RuntimeError, match="terminated where termination_fn predicted no end"):
        env.rollout(200, break_when_any_done=False)
    right = make_env(Drift, seed=0, num_envs=2, parallel=False).append_transform(TerminationGuard(drift_terminates))
    assert right.rollout(200, break_when_any_done=False)["next", "terminated"].any(1).all()
