from __future__ import annotations

import pytest
import torch

from eqr_torchrl.lab.logs import (
    check_log_fits,
    check_transitions,
    episode_ends,
    episodes_of,
    returns_to_go,
    specs_of,
    split_episodes,
)
from eqr_torchrl.testing import toy_env


@pytest.fixture
def log():
    """Twenty episodes of thirty steps."""
    return toy_env(max_steps=30).rollout(600, break_when_any_done=False).clone()


def by_topic(data, **bounds):
    findings = check_transitions(data, **bounds)
    assert all("\n" not in str(finding) for finding in findings)
    return {finding.topic: finding for finding in findings}


def test_however_much_is_held_out_one_episode_is_left_to_train_on():
    two = toy_env(max_steps=5).rollout(10, break_when_any_done=False)
    assert [len(part) for part in split_episodes(two, 0.9)] == [5, 5]


def test_a_good_log_has_no_fault():
    good = toy_env(max_steps=30).rollout(1350, break_when_any_done=False).clone()  # 45 episodes
    assert {finding.level for finding in check_transitions(good)} == {"ok"}
    assert "fewer than 45" in by_topic(good[:-30])["episode"].message


def nan(data):
    data["observation"][7, 1] = float("nan")


def shuffled(data):
    data.copy_(data[torch.randperm(len(data))])


def gaps(data):
    data["next", "observation"][99] += 1.0


def shifted(data):
    data["next", "observation"] = data["observation"].clone()


def next_episode(data):
    ends = data["next", "done"].flatten()
    data["next", "observation"][ends] = data["observation"].roll(-1, 0)[ends]


def time_limits(data):
    data["next", "terminated"] = data["next", "done"].clone()


def clipped_later(data):
    data["action"][:5] = 3.0


def fixed_action(data):
    data["action"].fill_(0.25)


def narrow_actions(data):
    data["action"].mul_(0.1)


def dead_entry(data):
    data["observation"][:, 2] = 4.0
    data["next", "observation"][:, 2] = 4.0


def large_rewards(data):
    data["next", "reward"].mul_(1e6)


def no_reward(data):
    data["next", "reward"].zero_()


def twice(data):
    data[300:].copy_(data[:300])


def written_twice(data):
    """Row 50 is there again, as row 51, and its next observation was taken from there."""
    data["observation"][51], data["action"][51] = data["observation"][50], data["action"][50]
    data["next", "reward"][51] = data["next", "reward"][50]
    data["next", "observation"][50] = data["observation"][51]


def paying_ends(data):
    data["next", "reward"].fill_(-2.0)
    data["next", "reward"][0] = -2.001  # not all the same
    for row in (9, 44, 75):
        data["next", "terminated"][row] = data["next", "done"][row] = True


def one_episode(data):
    data["next", "done"].zero_()
    data["observation"][1:] = data["next", "observation"][:-1]


@pytest.mark.parametrize(
    ("spoil", "topic", "level", "message"),
    [
        (nan, "values", "error", "not finite: observation entry 1 in 1 rows, first 7 (rows as read, from 0"),
        (shuffled, "order", "error", "rows are shuffled"),
        (
            gaps,
            "order",
            "warning",
            "1 gaps, the first after row 99, where the next row starts elsewhere; they count as ends",
        ),
        (shifted, "order", "error", "next observations equal observations in 600 of 600 rows; shift them by a row"),
        (next_episode, "order", "error", "episodes end with a next observation that is the first of the next episode"),
        (
            time_limits,
            "termination",
            "error",
            "20 of 20 episodes terminated, after 30 steps each: this looks like a time limit",
        ),
        (clipped_later, "action", "error", "5 of 600 actions lie outside -1 to 1: what was applied must be logged"),
        (fixed_action, "action", "error", "action entries [0] never vary: their effect cannot be learned"),
        (narrow_actions, "action", "warning", "cover 20% of their range: a policy should stay inside"),
        (dead_entry, "observation", "warning", "entries [2] never change: drop them if you can"),
        (large_rewards, "reward", "warning", "large: multiply it by"),
        (no_reward, "reward", "error", "the same in every row, so that there is nothing to improve"),
        (twice, "duplicates", "warning", "300 of 600 transitions are there twice"),
        (
            written_twice,
            "duplicates",
            "warning",
            "1 rows equal the row before them in observation, action and reward, the first is row 51: leave out",
        ),
        (
            paying_ends,
            "termination",
            "warning",
            "give ends a penalty as large as what is lost, -60 in 30 steps",  # 30 steps of -2
        ),
        (one_episode, "episode", "error", "nothing can be held out"),
    ],
)
def test_each_malformed_log_has_its_one_line(log, spoil, topic, level, message):
    spoil(log)
    finding = by_topic(log, action_low=-1.0, action_high=1.0)[topic]
    assert finding.level == level and message in finding.message


def test_boundaries_are_recovered_where_the_log_does_not_mark_them(log):
    ends = log["next", "done"].flatten().clone()
    log["next", "done"].zero_()
    assert torch.equal(episode_ends(log), ends)
    assert [len(episode) for episode in episodes_of(log)] == [30] * 20


def test_the_split_keeps_episodes_whole_and_marks_their_ends(log):
    log["next", "done"].zero_()
    train, held = split_episodes(log, 0.25, seed=1)
    assert (len(train), len(held)) == (450, 150)
    assert train["next", "done"].sum() == train["next", "truncated"].sum() == 15
    rows = torch.cat([train["observation"], held["observation"]])
    assert len(torch.unique(rows, dim=0)) == 600
    assert not torch.equal(split_episodes(log, 0.25, seed=2)[1]["observation"], held["observation"])
    with pytest.raises(ValueError, match="of at least 2 episodes: got 0.2 of 1"):
        split_episodes(log[:30], 0.2)


def test_returns_to_go_sum_what_follows():
    episode = toy_env(max_steps=3).rollout(3).clone()
    episode["next", "reward"] = torch.tensor([[1.0], [2.0], [4.0]])
    assert returns_to_go(episode).tolist() == [7, 6, 4]
    assert returns_to_go(episode, 0.5).tolist() == [1 + 0.5 * 2 + 0.25 * 4, 2 + 0.5 * 4, 4]


def test_bounds_of_a_log_are_those_given_or_seen(log):
    specs = specs_of(log, action_high=2.0, name="plant")
    assert specs.action_spec.space.high.item() == 2.0
    assert specs.action_spec.space.low.item() == log["action"].min().item()
    assert specs.fake_tensordict()["next", "observation"].shape == (3,)
    with pytest.raises(ValueError, match="action_low must lie below action_high"):
        specs_of(log, action_low=1.0, action_high=-1.0)
    for bad in ("low", [0.0, 1.0]):  # a word, and two bounds for one entry
        with pytest.raises(ValueError, match="action_low must be a number, or one for each of 1 entries, got "):
            specs_of(log, action_low=bad)
        [action] = [finding for finding in check_transitions(log, action_low=bad) if finding.topic == "action"]
        assert action.level == "error" and "action_low must be a number" in action.message


def test_ends_that_cost_what_is_lost_do_not_pay(log):
    paying_ends(log)
    log["next", "reward"][log["next", "terminated"]] = -61.0  # 30 steps of -2 are lost
    assert "penalty" not in by_topic(log)["termination"].message
    log["next", "reward"][0] = 1.0  # going on may earn something
    log["next", "reward"][log["next", "terminated"]] = -2.0
    assert "penalty" not in by_topic(log)["termination"].message


def test_entries_that_are_not_finite_are_named_and_hide_nothing(log):
    nan(log)
    log["next", "reward"][9] = float("inf")
    log["action"][20] = 3.0
    columns = {"observation": ["x", "price", "y"], "reward": "cost"}
    found = by_topic(log, columns=columns, action_low=-1.0, action_high=1.0)
    assert "observation entry 1 (price) in 1 rows, first 7; reward entry 0 (cost) in 1 rows, first 9" in (
        found["values"].message
    )
    log["next", "observation"][3, 1] = float("nan")
    assert "next observation entry 1 (price) in 1 rows, first 3" in by_topic(log, columns=columns)["values"].message
    assert "1 of 598 actions lie outside" in found["action"].message
    log["observation"][:, 2] = float("nan")
    assert list(by_topic(log)) == ["values"]


def test_an_order_that_may_have_been_made_is_said_to_be_unchecked(log):
    log["next", "observation"][:-1] = torch.where(
        log["next", "done"][:-1], log["next", "observation"][:-1], log["observation"][1:]
    )
    finding = by_topic(log)["order"]
    assert finding.level == "ok" and "if taken from there, this checks nothing" in finding.message
    assert "checks nothing" not in by_topic(log, columns={"time": "when"})["order"].message  # gaps were found by it
    log["next", "observation"] *= 1 + 1e-6  # as a table that rounds
    assert "checks nothing" not in by_topic(log)["order"].message


def test_a_log_fits_an_environment_by_its_sizes_and_its_rewards():
    data = toy_env(3).rollout(50, break_when_any_done=False)
    check_log_fits(data, toy_env(3), (data["next", "reward"].min().item(), 0.0))
    with pytest.raises(ValueError, match="data must have the sizes of toy, action 2: got 1"):
        check_log_fits(data, toy_env(3, 2))
    with pytest.raises(ValueError, match=r"data must have rewards within reward_bounds, -0.01 to 0: got .* \(rewa"):
        check_log_fits(data, toy_env(3), (-0.01, 0.0))
    check_log_fits(data, toy_env(3), capacity=50)
    with pytest.raises(ValueError, match="replay_capacity must be at least 50, the rows of the log: got 49"):
        check_log_fits(data, toy_env(3), capacity=49)
