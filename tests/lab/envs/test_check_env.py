from __future__ import annotations

import gc
import re

import numpy as np
import pytest
import torch
from gym_toys import Counter, Diverging, Drift, Spaces, Unseeded, answering, drift_terminates
from gymnasium.spaces import Box, Discrete

from eqr_torchrl.imagination import never_terminates
from eqr_torchrl.lab.envs import check_env, import_by_name, make_env
from eqr_torchrl.lab.envs.check import main


def by_topic(*args, **kwargs):
    findings = check_env(*args, **kwargs)
    assert all("\n" not in str(finding) for finding in findings)
    return {finding.topic: finding for finding in findings}


def levels(findings):
    return {topic: finding.level for topic, finding in findings.items()}


GOOD = dict.fromkeys(["observation", "action", "reward", "termination", "episode", "seed"], "ok")


def test_fitting_environments_have_one_ok_per_topic():
    assert levels(by_topic("dmc/cheetah-run")) == GOOD
    assert levels(by_topic("Hopper-v5", num_steps=300)) == GOOD
    drift = by_topic(Drift, drift_terminates, 300, max_episode_steps=50)
    assert levels(drift) == GOOD
    assert drift["action"].message == "size 2, from [-0.1, -0.3] to [0.1, 0.7]."
    assert by_topic(make_env("Pendulum-v1"), num_steps=200)["episode"].message.startswith("1 episode ended within 200")


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (None, "of 200 steps terminated; no termination rule is known for 'Drift': pass your own termination_fn"),
        (never_terminates, "pass the rule of this environment"),
        (
            lambda observation, action: observation[..., 7:8].max() < 0,
            "for observations (200, 2) and actions (200, 2): <lambda> raised RuntimeError: max()",
        ),
        (lambda observation, action: observation[..., 1] > 5.0, "must return a bool tensor of shape (200, 1)"),
        (lambda observation, action: (observation[..., 1:2] > 5.0).float(), "returned float32 of shape (200, 1)"),
        (lambda observation, action: observation[..., 1:2] > 1.0, "false alarms"),
        (
            lambda observation, action: observation[..., 1:2] > 50.0,
            "fix it: imagined rollouts would continue past the end",
        ),
    ],
)
def test_wrong_rule_is_an_error(rule, message):
    finding = by_topic(Drift, rule, 200)["termination"]
    assert finding.level == "error"
    assert message in finding.message
    assert "time limit, which" not in finding.message  # episodes differ in length


def test_rule_that_was_never_put_to_the_test_is_a_warning():
    finding = by_topic("MountainCarContinuous-v0", num_steps=50)["termination"]
    assert finding.level == "warning"
    assert "raise num_steps, or, where random actions cannot reach the end, call the rule on states" in finding.message


class Costly(Drift):
    """Rewards are never positive; an end has a penalty beside."""

    def step(self, action):
        state, _, terminated, truncated, info = super().step(action)
        return state, -1.0 - 9.0 * terminated, terminated, truncated, info


def test_an_end_that_is_not_seen_is_free_where_rewards_are_never_positive():
    free = "rewards are never positive and no end was seen: models would learn that an end is free; make its penalty"
    far = {"env": Costly, "num_steps": 5}  # too few steps to reach the end
    finding = by_topic(**far, termination_fn=drift_terminates)["termination"]
    assert (finding.level, free in finding.message) == ("warning", True)

    def penalty(s, a, n):
        return -1.0 - 9.0 * drift_terminates(n, a)

    for settings in (
        far | {"termination_fn": drift_terminates, "reward_fn": penalty},  # which states it
        far | {"termination_fn": never_terminates},  # no end to learn
        {"env": Costly, "termination_fn": drift_terminates, "num_steps": 300},  # ends were seen, with their penalty
        {"env": Drift, "termination_fn": drift_terminates, "num_steps": 5, "reward_scale": 1.0},
    ):
        finding = by_topic(**settings)["termination"]
        assert "is free" not in finding.message, finding.message


class Odd(Drift):
    """Large rewards, one entry that never changes, no end, wide actions."""

    action_space = Box(-1e6, 1e6, (2,), np.float64)

    def __init__(self, reward: float) -> None:
        super().__init__()
        self.reward = reward

    def reset(self, **kwargs):
        super().reset(**kwargs)
        self.state[0] = 0.0
        return self.state, {}

    def step(self, action):
        action *= np.array([0.0, 1e-7])
        self.state[:] += action
        return self.state, self.reward * self.state[1], False, False, {}


def test_oddities_are_warnings_with_advice():
    large = by_topic(Odd, never_terminates, 50, reward=1e6)
    assert levels(large) == dict(GOOD, observation="warning", action="warning", reward="warning", episode="warning")
    assert "entries [0] never change" in large["observation"].message
    assert "pass reward_scale=" in large["reward"].message
    assert "rescale them, as gymnasium's RescaleAction" in large["action"].message
    assert "pass max_episode_steps" in large["episode"].message
    assert "small: pass reward_scale=" in by_topic(Odd, never_terminates, 50, reward=1e-4)["reward"].message
    assert "the same in every step" in by_topic(Odd, never_terminates, 50, reward=0.0)["reward"].message


class Old(Drift):
    """Follows the API of former times in one of its methods."""

    def __init__(self, old: str) -> None:
        super().__init__()
        self.old = old
        if old == "seed":
            self.reset = lambda: self.state

    def reset(self, **kwargs):
        out = super().reset(**kwargs)
        return out[0] if self.old == "reset" else out

    def step(self, action):
        out = super().step(action)
        return out[:4] if self.old == "step" else out


def test_environment_that_ignores_its_seed():
    finding = by_topic(Unseeded, drift_terminates, 50)["seed"]
    assert finding.level == "warning"
    assert "self.np_random" in finding.message


def test_diverging_environment():
    findings = check_env(Diverging, drift_terminates, 50)
    assert "non-finite" in findings[0].message
    assert findings[0].level == "error"
    episode = next(finding for finding in findings if finding.topic == "episode")
    # each third step of 50
    assert episode.message.startswith(
        "16 episodes ended within 50 steps, after 3 steps; 16 of them were truncated at a"
    )


def test_first_observations_of_episodes_count_as_seen():
    # one step an episode, to an observation that is always zero
    bandit = Counter(answer=lambda t, step: (np.zeros(3), -float(t), True, False, {}))
    finding = by_topic(bandit, lambda s, a: torch.ones_like(s[..., :1], dtype=torch.bool), 60)["observation"]
    assert "seen from 0 to 0.9" in finding.message
    assert "entries [0, 2] never change" in finding.message


def test_rewards_outside_the_stated_bounds_are_an_error():
    finding = by_topic(Counter(10, reward_space=Box(-0.5, 0.5, (1,))), never_terminates, 50, reward_scale=2.0)["reward"]
    assert finding.level == "error"
    assert "per step from 2 to 2, mean 2: outside the stated -1 to 1" in finding.message
    assert "correct reward_space" in finding.message
    within = by_topic(Counter(10, reward_space=Box(0.0, 1.0, (1,))), never_terminates, 50)
    assert within["reward"].level == "warning"  # all the same


def test_unit_of_the_action_is_remarked_on_without_a_warning():
    kilonewtons = Counter(action_space=Box(-0.006, 0.01, (1,)))
    assert str(by_topic(kilonewtons, never_terminates, 20)["action"]) == (
        "ok      action       size 1, from -0.006 to 0.01, which the policy scales from -1 to 1."
    )
    assert by_topic(Counter, never_terminates, 20)["action"].message == "size 1, from -1 to 1."


class NoisyDrift(Drift):
    """Its sensor is noisy, its end is not."""

    noise = 0.05

    def step(self, action):
        state, *rest = super().step(action)
        return (state + self.noise * self.np_random.standard_normal(2), *rest)


def test_rule_that_noise_makes_uncertain_is_a_warning_that_says_so():
    finding = by_topic(NoisyDrift, drift_terminates, 3000)["termination"]
    assert finding.level == "warning"
    assert "fix it, or, where sensors are noisy, expect this near the threshold" in finding.message
    assert by_topic(NoisyDrift, lambda s, a: s[..., :1] > 1.0, 1000)["termination"].level == "error"


class VeryNoisyDrift(NoisyDrift):
    """Its sensor errs by more than the way to the end."""

    noise = 2.0


def test_noise_is_named_also_where_too_many_ends_are_wrong_for_a_warning():
    finding = by_topic(VeryNoisyDrift, drift_terminates, 1000)["termination"]
    missed, ended, early = (
        int(n) for n in re.search(r"misses (\d+) of (\d+) .* (\d+) false", finding.message).groups()
    )
    assert min(missed, early) > 0
    assert max(missed, early) > ended / 2  # the bound of a warning
    assert finding.level == "error"
    assert "where sensors are noisy, expect this near the threshold" in finding.message


def test_a_rule_that_only_ends_too_early_is_on_the_safe_side():
    finding = by_topic(Drift, lambda s, a: drift_terminates(s * 2, a), 1000)["termination"]
    assert finding.message.startswith("<lambda> misses 0 of ")
    assert finding.level == "error"
    assert "on the safe side, since imagined rollouts only end too early: fix it, unless you chose" in finding.message


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (Spaces(action_space=Discrete(3)), "discrete actions are not supported"),
        (Spaces(), "reset must return (observation, info), as in Gymnasium: got one NoneType."),
        (Old("reset"), "reset must return (observation, info), as in Gymnasium: got one ndarray."),
        (Old("step"), "step must return (observation, reward, terminated, truncated, info)"),
        (Old("seed"), "Old: reset must take (seed=None, options=None) by keyword, as in Gymnasium: got reset()."),
        ("Pendulum-v0", "did you mean"),
        ("gym_toys:Drfit", "gym_toys neither has nor registers an environment 'Drfit': did you mean Drift"),
    ],
)
def test_unusable_environment_is_one_error(env, message):
    (finding,) = check_env(env)
    assert (finding.level, finding.topic) == ("error", "environment")
    assert message in finding.message


def test_check_leaves_the_global_generator_alone():
    state = torch.get_rng_state()
    check_env("Pendulum-v1", num_steps=10)
    assert torch.equal(torch.get_rng_state(), state)


def test_command_prints_findings_and_returns_a_status(capsys):
    assert main(["gym_toys:Drift", "--num-steps", "100", "--max-episode-steps", "20", "--reward-scale", "0.5"]) == 1
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 6
    assert printed[3].startswith("error   termination")
    assert main(["Pendulum-v1", "--num-steps", "200", "--never-terminates"]) == 0
    rule = "eqr_torchrl.imagination:never_terminates"
    assert main(["Pendulum-v1", "--num-steps", "200", "--termination-fn", rule]) == 0
    capsys.readouterr()
    assert main(["gym_toys:Counter", "limit=7", "--num-steps", "20", "--never-terminates"]) == 0
    assert "2 episodes ended within 20 steps, after 7 steps" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["limit"], "must be of the form key=value: got limit."),
        (["num_steps=3"], "num_steps: use the option of this name."),
        (["--num-steps", "0"], "--num-steps must be at least 1: got 0."),
        (["--termination-fn", "nowhere:rule"], "--termination-fn: 'nowhere:rule' must name something"),
        (["--reward-fn", "nowhere:reward"], "--reward-fn: 'nowhere:reward' must name something"),
    ],
)
def test_command_refuses_in_one_line(words, message, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["gym_toys:Counter", *words])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("never_terminates", "must be of the form module:name: got 'never_terminates'"),
        ("./my_env.py:Rail", "got './my_env.py:Rail'; for a file ./my_env.py, write my_env:Rail."),
        ("my_env.py:Rail", "got 'my_env.py:Rail'; for a file my_env.py, write my_env:Rail."),
        (r"C:\work\my_env.py:Rail", r"for a file C:\work\my_env.py, write my_env:Rail."),
        (r"work\my_env:Rail", r"for a file work\my_env, write my_env:Rail."),
        ("no_such_module:rule", "a module of your own must be on PYTHONPATH"),
        ("eqr_torchrl.lab.envs:rule", "must name something in eqr_torchrl.lab.envs"),
    ],
)
def test_names_that_cannot_be_looked_up(name, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        import_by_name(name)


@pytest.mark.parametrize(
    ("env", "topic", "message"),
    [
        (Counter(10, first=lambda seen: np.zeros(4)), "observation", "must have 3 entries, as its space has: got 4"),
        (answering(0, np.zeros(4), only_at=5), "observation", "must have 3 entries, as its space has: got 4"),
        (answering(1, only_at=3), "reward", "reward must be a single float: step returned None"),
        (answering(2, "no"), "termination", "terminated must be a single bool: step returned str 'no'"),
    ],
)
def test_wrong_answer_of_the_simulator_is_one_error_on_its_topic(env, topic, message):
    (finding,) = check_env(env, never_terminates, 50)
    assert (finding.level, finding.topic) == ("error", topic)
    assert message in finding.message


@pytest.mark.parametrize("rule", [None, never_terminates])
@pytest.mark.parametrize("truncated", [False, True])
def test_time_limit_reported_as_termination_is_named_as_such(rule, truncated):
    def confused(t, step):
        observation, reward, _, over, info = step
        return observation, reward, over, over and truncated, info

    finding = by_topic(Counter(10, answer=confused), rule, 100)["termination"]
    assert finding.level == "error"
    advice = "after 10 steps: this looks like a time limit, which the environment must report as truncated only"
    assert advice in finding.message
    assert "pass the rule of this environment" not in finding.message


@pytest.mark.parametrize("offset", [1e8, 1.7e9])
def test_large_entry_is_named_also_where_rounding_makes_it_constant(offset):
    def clock(t, step):
        return (np.array([offset + t, step[0][1], 7.0]), *step[1:])

    space = Box(-np.inf, np.inf, (3,), np.float64)
    env = Counter(10, answer=clock, first=lambda seen: np.array([offset, 0.5, 7.0]), observation_space=space)
    finding = by_topic(env, never_terminates, 50)["observation"]
    assert finding.level == "warning"
    assert f"entries [0] reach {offset:.2g}: rescale them or subtract an offset" in finding.message
    assert "entries [2] never change: drop them if you can" in finding.message


@pytest.mark.parametrize(("limit", "level"), [(20, "warning"), (10, "ok"), (5, "ok")])
def test_limit_that_the_environment_undercuts_is_a_warning(limit, level):
    finding = by_topic(Counter(10), never_terminates, 50, max_episode_steps=limit)["episode"]
    assert finding.level == level
    undercut = "after 10 steps; the environment has a limit of its own below max_episode_steps=20"
    assert (undercut in finding.message) == (level == "warning")


def drift_reward(observation, action, next_observation):
    return next_observation.sum(-1, keepdim=True)


def test_known_reward_is_compared_with_the_real_one():
    findings = by_topic(Drift, drift_terminates, 200, reward_fn=drift_reward, max_episode_steps=50)
    assert levels(findings) == GOOD | {"reward_fn": "ok"}
    assert findings["reward_fn"].message == "drift_reward gives the environment's own reward in 200 of 200 steps."


@pytest.mark.parametrize(
    ("reward_fn", "settings", "messages"),
    [
        (
            lambda s, a, n: s.sum(-1, keepdim=True),
            {},
            [
                "<lambda> gives the environment's own reward in",
                ": fix it (reward_scale and action_cost are part of the reward), or, where it reads noisy sensors, ",
            ],
        ),
        (
            drift_reward,
            {"reward_scale": 0.5},
            ["of 200 steps; it returns "],
        ),
        (lambda s, a, n: n.sum(-1), {}, ["reward_fn must return a float tensor of shape (200, 1)", "of shape (200,)"]),
        (lambda s, a, n: 1.0, {}, ["<lambda> returned a float"]),
        (lambda s, a, n: n.sum(-1, keepdim=True) / 0.0, {}, ["in 0 of 200 steps; it returns inf where"]),
    ],
)
def test_wrong_known_reward_is_an_error(reward_fn, settings, messages):
    finding = by_topic(Drift, drift_terminates, 200, reward_fn=reward_fn, **settings)["reward_fn"]
    assert finding.level == "error"
    assert all(message in finding.message for message in messages), finding.message


# the largest reward of these episodes is about 5 + 0: one thousandth of it is allowed
@pytest.mark.parametrize(("error", "level"), [(1e-4, "ok"), (0.125, "error")])
def test_known_reward_may_be_off_by_rounding_only(error, level):
    def off(observation, action, next_observation):
        return next_observation.sum(-1, keepdim=True) + error

    finding = by_topic(Drift, drift_terminates, 200, reward_fn=off)["reward_fn"]
    assert finding.level == level
    stated = "(root mean square error 0.12; rewards have a standard deviation of "
    assert (stated in finding.message) == (level == "error")


def test_command_takes_a_known_reward(capsys):
    options = ["--num-steps", "50", "--termination-fn", "gym_toys:drift_terminates"]
    assert main(["gym_toys:Drift", *options, "--reward-fn", "test_check_env:drift_reward"]) == 0
    assert "ok      reward_fn    drift_reward gives the environment's own reward in 50 of 50" in capsys.readouterr().out


def test_diverging_environment_has_findings_on_the_other_steps():
    findings = by_topic(Diverging, drift_terminates, 50, reward_fn=drift_reward)
    assert "in 34 of 34 steps" in findings["reward_fn"].message  # two of three
    assert "nan" not in findings["reward"].message


def test_what_the_caller_opened_stays_open():
    check_env(own := Counter(10), never_terminates, 10, max_episode_steps=5)
    gc.collect()  # TorchRL's wrappers close as they are deleted
    assert own.times_closed == 0
    own.reset()


def test_what_is_opened_here_is_closed_once():
    opened = []

    def build():
        opened.append(Counter(10))
        return opened[-1]

    check_env(build, never_terminates, 10, max_episode_steps=5)
    gc.collect()
    env = make_env(build, max_episode_steps=5)
    env.close()
    env.close(raise_if_closed=False)  # after a collector, at the end of a script
    assert [counter.times_closed for counter in opened] == [1, 1]


def test_num_steps_must_be_positive():
    with pytest.raises(ValueError, match="num_steps must be at least 1"):
        check_env("Pendulum-v1", num_steps=0)


def test_episodes_of_one_of_several_simulators_follow_one_another():
    findings = check_env("Pendulum-v1", num_steps=300, num_envs=2, parallel=False)
    assert "1 episode ended within 300 steps, after 200 steps" in str(findings[-2])
