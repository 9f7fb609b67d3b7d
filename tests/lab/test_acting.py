"""Acting goes on in another process while this one learns; one such process leaves a record for several tests."""

from __future__ import annotations

import functools
import os
import time
import warnings
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from tensordict import TensorDict
from tensordict.nn import TensorDictModule

from eqr_torchrl.imagination import never_terminates
from eqr_torchrl.lab.envs import add_guards, make_env
from eqr_torchrl.lab.runs import LoopSettings, Run, read_csv
from eqr_torchrl.testing import toy_actor, toy_env

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of TorchRL's collectors, at import
    from eqr_torchrl.lab.acting import ActingProcess

LENGTH, EPISODES = 10, 4  # in the fifth episode the environment terminates


class Plant(gymnasium.Env):
    """Observes its step and what was done; writes down what happens to it."""

    observation_space = Box(-np.inf, np.inf, (2,))
    action_space = Box(-1.0, 1.0, (1,))

    def __init__(self, record):
        self.record, self.steps = record, 0
        self.write(f"open {os.getpid()}")

    def write(self, words):
        with open(self.record, "a", encoding="utf-8") as file:
            file.write(f"{words}\n")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.write("reset" if seed is None else f"reset {seed}")
        self.state = np.zeros(2, np.float32)
        return self.state.copy(), {}

    def step(self, action):
        self.write("step")
        self.steps += 1
        self.state += 1, action[0]
        return self.state.copy(), 2.0, self.steps == LENGTH * EPISODES + 3, False, {}

    def close(self):
        self.write("close")


class Constant(torch.nn.Module):
    """The same action, whatever is observed."""

    def __init__(self):
        super().__init__()
        self.value = torch.nn.Parameter(torch.tensor([0.0]))

    def forward(self, observation):
        return self.value.expand(*observation.shape[:-1], 1)


def lines(record: Path) -> list[str]:
    return record.read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def acted(tmp_path_factory):
    """Four episodes and the error in the fifth, with what the plant had written at some moments."""
    record = tmp_path_factory.mktemp("plant") / "record.txt"
    module = Constant()
    policy = TensorDictModule(module, ["observation"], ["action"])
    guard = functools.partial(add_guards, termination_fn=never_terminates, reward_bounds=(0.0, 1.0))
    open_env = functools.partial(make_env, Plant, max_episode_steps=LENGTH, record=record)
    threads = torch.get_num_threads()
    acting = ActingProcess(open_env, policy, prepare=guard)
    rows, found = [], {"error": None, "record": record}
    transitions = iter(acting)
    try:
        acting.set_seed(7)
        acting.reset()
        rows.append(next(transitions))
        deadline = time.monotonic() + 60
        while lines(record).count("step") < 2 * LENGTH and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.3)  # time for a reset, were it not waiting
        found["while learning"] = lines(record)
        for episode in range(EPISODES):
            with torch.no_grad():  # learning goes on within the episodes
                module.value.fill_(0.25 * (episode + 1))
            acting.set_seed(8)
            acting.reset()
            for _ in range(LENGTH):  # the last one is the first of the next episode, which the fifth has none of
                rows.append(next(transitions))
    except RuntimeError as error:
        found["error"] = str(error)
    found["threads"] = threads, torch.get_num_threads()
    found["data"] = torch.cat(rows).reshape(EPISODES, LENGTH)
    return found


def test_it_acts_one_episode_ahead_and_waits_before_the_reset(acted):
    # the loop had taken one transition: the first episode is there, the second was acted meanwhile, the third waits
    record = acted["while learning"]
    assert record.count("step") == 2 * LENGTH
    assert record[-LENGTH:] == ["step"] * LENGTH


def test_an_episode_has_one_policy_which_has_learned_from_all_but_the_last(acted):
    # the first two begin with the initial policy; 0.25 is learned in the first, and sent when the second is taken
    actions = acted["data"]["action"][..., 0]
    assert actions.tolist() == [[value] * LENGTH for value in (0.0, 0.0, 0.25, 0.5)]


def test_transitions_come_in_order_and_each_once(acted):
    data = acted["data"]
    steps = torch.arange(LENGTH, dtype=torch.float32).expand(EPISODES, -1)
    torch.testing.assert_close(data["observation"][..., 0], steps, rtol=0, atol=0)
    torch.testing.assert_close(data["next", "observation"][..., 0], steps + 1, rtol=0, atol=0)
    assert data["next", "truncated"][:, -1].all() and data["next", "done"].sum() == EPISODES


def test_the_error_of_a_guard_is_raised_in_the_loop_and_the_environment_closed(acted):
    assert "Plant terminated where termination_fn predicted no end" in acted["error"]
    assert "\n" not in acted["error"]
    assert lines(acted["record"])[-1] == "close"


def test_one_environment_is_open_in_a_process_of_its_own(acted):
    [opened] = [words for words in lines(acted["record"]) if words.startswith("open")]
    assert opened != f"open {os.getpid()}"


def test_a_seed_is_heeded_before_the_first_episode_alone(acted):
    assert [words for words in lines(acted["record"]) if words.startswith("reset ")] == ["reset 7"]


def test_the_learner_keeps_its_threads(acted):
    before, after = acted["threads"]
    assert before == after


class Endless:
    """Another process, as far as a run sees it: single transitions of episodes of 4 steps."""

    running = False

    def __init__(self):
        self.seeds, self.closed, self.steps = [], 0, 0

    def set_seed(self, seed):
        self.seeds.append((seed, self.running))

    def reset(self):
        assert not self.running

    def __iter__(self):
        self.running = True
        try:
            while True:
                self.steps += 1
                done = torch.tensor([[self.steps % 4 == 0]])
                yield TensorDict({"next": {"done": done, "reward": torch.ones(1, 1)}}, [1])
        finally:
            self.running, self.closed = False, self.closed + 1


def test_a_run_lets_it_act_on_after_a_checkpoint_seeds_what_is_resumed_and_ends_it(tmp_path):
    def trained(env_steps, **changes):
        acting = Endless()
        settings = LoopSettings(
            env_steps=env_steps, warmup_steps=2, checkpoint_every=3, log_every=env_steps, eval_every=None,
            run_dir=str(tmp_path), progress=False, **changes,
        )  # fmt: skip
        run = Run(settings, labels={"algorithm": "none", "utility": ""})
        run.keep(env=toy_env(), policy=toy_actor())
        transitions = run.watch(acting)
        with run:
            for _ in run.steps():
                next(transitions)
        return acting

    first = trained(14)  # 16 steps are four whole episodes; saved first at the step 6, which ends the second of them
    assert (first.seeds, first.closed, first.steps) == ([], 1, 16)
    assert read_csv(tmp_path / "metrics.csv")[0]["collect/episode_return"] == "4.0"
    second = trained(16, resume=str(tmp_path))
    [(seed, running)] = second.seeds
    assert seed > 0 and not running and second.closed == 1 and second.steps == 2
