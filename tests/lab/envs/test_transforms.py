from __future__ import annotations

import math

import pytest
import torch
from gym_toys import Diverging, Drift, drift_terminates
from tensordict import TensorDict
from torchrl.envs import GymEnv, TransformedEnv

from eqr_torchrl.imagination import never_terminates
from eqr_torchrl.lab.envs import ActionCost, NonFiniteGuard, RewardGuard, TerminationGuard, VectorObservation, make_env
from eqr_torchrl.testing import toy_env

nan = math.nan


def test_vector_observation_sorts_casts_and_drops():
    td = TensorDict(
        {
            "b": torch.tensor([[2.0], [5.0]]).double(),
            "a": torch.tensor([[1, 1], [4, 4]]),
            "z": torch.zeros(2, 1),
        },
        [2],
    )
    out = VectorObservation(["b", "a"])(td)
    torch.testing.assert_close(out["observation"], torch.tensor([[1.0, 1.0, 2.0], [4.0, 4.0, 5.0]]))
    assert set(out.keys()) == {"observation", "z"}


def test_vector_observation_copies_a_single_entry():
    observation = torch.zeros(3)
    out = VectorObservation(["observation"])(TensorDict({"observation": observation}))
    observation += 1.0
    assert out["observation"].tolist() == [0.0] * 3


def test_vector_observation_joins_nested_entries_by_dotted_name():
    td = TensorDict({"arm": {"speed": torch.ones(1)}, "a": torch.zeros(1)})
    assert VectorObservation([("arm", "speed"), "a"])(td)["observation"].tolist() == [0.0, 1.0]


def test_vector_observation_needs_entries():
    with pytest.raises(ValueError, match="in_keys must name at least one"):
        VectorObservation([])


@pytest.mark.parametrize("cost", [-0.1, float("inf"), float("nan")])
def test_action_cost_must_be_finite_and_not_negative(cost):
    with pytest.raises(ValueError, match="cost must be"):
        ActionCost(cost)


def test_action_cost_charges_the_action_of_the_step():
    env = TransformedEnv(GymEnv("Pendulum-v1"), ActionCost(0.1))
    plain = GymEnv("Pendulum-v1")
    env.set_seed(0)
    plain.set_seed(0)
    td, reference = env.reset(), plain.reset()
    for action in ([1.0], [-2.0]):
        td = env.step(td.set("action", torch.tensor(action)))
        reference = plain.step(reference.set("action", torch.tensor(action)))
        charge = 0.1 * action[0] ** 2
        torch.testing.assert_close(td["next", "reward"], reference["next", "reward"] - charge)
        td, reference = env.step_mdp(td), plain.step_mdp(reference)


def guarded(next_observation, next_reward=0.0, terminated=False):
    """One row per observation through NonFiniteGuard; the last observation is 7."""
    observation = torch.tensor(next_observation)[:, None]
    root = TensorDict({"observation": torch.full_like(observation, 7.0), "action": torch.zeros_like(observation)})
    flag = torch.full(observation.shape, terminated)
    reward = torch.full(observation.shape, next_reward)
    no = torch.zeros_like(flag)
    after = {"observation": observation, "reward": reward, "terminated": flag, "truncated": no, "done": flag.clone()}
    return NonFiniteGuard("toy")._step(root, TensorDict(after))


def test_guard_cuts_only_the_rows_that_diverged():
    with pytest.warns(RuntimeWarning, match="toy produced"):
        out = guarded([1.0, nan, -math.inf], next_reward=3.0)
    assert out["observation"].flatten().tolist() == [1.0, 7.0, 7.0]
    torch.testing.assert_close(out["reward"].flatten(), torch.tensor([3.0, nan, nan]), equal_nan=True)
    assert out["truncated"].flatten().tolist() == out["done"].flatten().tolist() == [False, True, True]
    assert not out["terminated"].any()


def test_guard_keeps_a_true_termination():
    with pytest.warns(RuntimeWarning, match="toy produced"):
        out = guarded([nan], terminated=True)
    assert out["terminated"].item() and not out["truncated"].item() and out["observation"].item() == 7.0


def test_guard_is_not_fooled_by_a_sum_that_overflows():
    out = guarded([3e38, 3e38])
    assert out["observation"].flatten().tolist() == pytest.approx([3e38, 3e38]) and not out["done"].any()


def test_guard_cuts_on_a_bad_reward():
    with pytest.warns(RuntimeWarning, match="toy produced"):
        out = guarded([1.0], next_reward=math.inf)
    assert math.isnan(out["reward"].item()) and out["truncated"].item()  # an infinity of the simulator as well


def test_guard_refuses_a_bad_first_observation():
    with pytest.raises(RuntimeError, match="first observation of Drift must be finite"):
        make_env(Drift, start=float("nan")).reset()


def test_environment_that_terminates_for_a_model_that_never_does_is_an_error():
    env = make_env(Drift, seed=0).append_transform(TerminationGuard(never_terminates, "Drift"))
    with pytest.raises(
        RuntimeError, match="Drift terminated where termination_fn predicted no end: pass the rule of this"
    ):
        env.rollout(200, break_when_any_done=False)


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        (100.0, "Drift terminated where termination_fn predicted no end"),
        (2.0, "Drift continued where termination_fn predicted an end: .* or, where sensors are noisy, expect this"),
    ],
)
def test_wrong_rule_warns_once(limit, message):
    def wrong(next_observation, action):
        return next_observation[..., 1:2] > limit

    env = make_env(Drift, seed=0).append_transform(TerminationGuard(wrong, "Drift"))
    with pytest.warns(RuntimeWarning, match=message) as caught:
        env.rollout(200, break_when_any_done=False)
    assert len(caught) == 1


def test_right_rule_is_silent():
    env = make_env(Drift, seed=0).append_transform(TerminationGuard(drift_terminates, "Drift"))
    assert env.rollout(200, break_when_any_done=False)["next", "terminated"].sum() > 1


def test_rule_of_a_wrong_shape_is_one_sentence_in_the_first_step():
    env = make_env(Drift, seed=0).append_transform(TerminationGuard(lambda s, a: s[..., 1] > 5.0, "Drift"))
    needed = r"termination_fn must return a bool tensor of shape \(1,\) for observations \(2,\) and actions \(2,\): "
    with pytest.raises(ValueError, match=needed + r"<lambda> returned bool of shape \(\)"):
        env.rollout(1)


@pytest.mark.parametrize("truncated", [True, False])
def test_time_limit_reported_as_termination_is_named(truncated):
    class Confused(Drift):
        def step(self, action):
            observation, reward, _, _, info = super().step(action)
            over = len(self.actions) == 4
            return observation, reward, over, truncated and over, info

    env = make_env(Confused, seed=0).append_transform(TerminationGuard(never_terminates, "Confused"))
    with pytest.raises(RuntimeError, match="If a time limit ended the episode, .* report it as truncated only"):
        env.rollout(5)


def test_first_reward_outside_the_bounds_warns_once_at_the_line_of_the_user():
    env = toy_env().append_transform(RewardGuard((-1e-9, 0.0), "toy"))  # it pays minus the squared norm of the state
    with pytest.warns(
        RuntimeWarning, match=r"toy gave a reward of -\d.*, outside reward_bounds, -1e-09 to 0: "
    ) as caught:
        env.rollout(5)
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize("bounds", [(-1e3, 0.0), (-1e3, 1e3)])
def test_rewards_within_the_bounds_are_silent(bounds):
    toy_env().append_transform(RewardGuard(bounds)).rollout(5)


def test_warning_about_a_sensor_shows_the_line_of_the_user():
    with pytest.warns(RuntimeWarning, match="non-finite") as caught:
        make_env(Diverging).rollout(3)
    assert [warning.filename for warning in caught] == [__file__]


def test_a_reward_above_the_bounds_warns_too():
    env = toy_env().append_transform(RewardGuard((-2000.0, -1000.0), "toy"))  # it pays minus the squared norm
    with pytest.warns(RuntimeWarning, match=r"toy gave a reward of -\d.*, outside reward_bounds, -2000 to -1000: "):
        env.rollout(1)
