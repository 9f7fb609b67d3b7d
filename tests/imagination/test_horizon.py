"""How long rollouts may be: errors of open-loop predictions of transitions that came later."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torchrl.envs import SerialEnv

from eqr_torchrl.imagination import (
    BranchedRollouts,
    make_model_buffer,
    make_replay_buffer,
    never_terminates,
    newest_transitions,
    open_loop_errors,
    steps_within,
)
from eqr_torchrl.testing import toy_env


def walk(length: int, start: float = 0.0) -> TensorDict:
    """One episode that moves every entry by 1 in each step."""
    state = start + torch.arange(length + 1.0).unsqueeze(-1).expand(-1, 3)
    done = torch.zeros(length, 1, dtype=torch.bool)
    done[-1] = True
    after = {"observation": state[1:], "reward": torch.zeros(length, 1), "done": done, "terminated": done.clone()}
    return TensorDict({"observation": state[:-1], "action": torch.zeros(length, 1), "next": after}, [length])


def test_errors_are_those_of_each_member_alone_in_deviations(known_model):
    # after t steps members are off by 0.1 t, 0.2 t and 0.6 t; the median is that of the second
    model = known_model([1.1, 1.2, 1.6], [0.0] * 3)
    errors = open_loop_errors(model, walk(40), longest=8, scale=torch.full((3,), 2.0))
    torch.testing.assert_close(errors, 0.2 * torch.arange(1.0, 9.0) / 2)
    assert steps_within(errors, 0.35) == 3
    # by default in the data's own deviations: those of 0 to 39 are sqrt((40^2 - 1) / 12)
    own = open_loop_errors(model, walk(40), longest=2)
    torch.testing.assert_close(own, 0.2 * torch.arange(1.0, 3.0) / (1599 / 12) ** 0.5)


def test_the_error_of_a_state_is_the_root_mean_square_of_its_entries(known_model):
    data = walk(20)
    for key in ("observation", ("next", "observation")):
        data[key][:, 1:] = 0.0  # two of three entries stay, and are predicted to move by 1
    errors = open_loop_errors(known_model([1.0], [0.0]), data, longest=1, scale=torch.ones(3))
    torch.testing.assert_close(errors, torch.tensor([(2 / 3) ** 0.5]))


def test_trajectories_end_with_their_episode_and_where_rows_do_not_follow(known_model):
    model, scale = known_model([1.0], [0.0]), torch.ones(3)
    # episodes of 5 steps: 4 x 5 starts with one step, 4 x 4 with two, 4 x 3, and only 4 x 2 with four: fewer than ten
    short = torch.cat([walk(5, start) for start in (0.0, 50.0, 100.0, 150.0)])
    errors = open_loop_errors(model, short, longest=6, scale=scale)
    assert errors.isfinite().tolist() == [True, True, True, False, False, False] and errors[:3].abs().max() < 1e-4
    whole = walk(40)
    whole["next", "done"][:] = False
    torn = torch.cat([whole[:20], whole[21:]])  # a row is missing, and no flag says so
    assert open_loop_errors(model, torn, longest=3, scale=scale)[:3].abs().max() < 1e-4


def test_predictions_that_are_not_finite_are_not_trusted(known_model):
    errors = open_loop_errors(known_model([float("nan")], [0.0]), walk(20), longest=3, scale=torch.ones(3))
    assert steps_within(errors, 1e9) == 0


def test_the_newest_transitions_are_those_that_came_last_also_in_a_full_buffer():
    replay = make_replay_buffer(30)
    for row in walk(50).split(1):
        replay.extend(row)
        last = newest_transitions(replay, 12)["next", "observation"][:, 0]
        end = row["next", "observation"][0, 0].item()
        assert last.tolist() == [x + 1 for x in range(max(0, int(end) - 12), int(end))]


@pytest.mark.parametrize("lost", [0, 1])
def test_the_newest_transitions_of_several_simulators_follow_one_another(lost):
    """Rows 0, 50, 1, 51, ... of two that were written in turn; one row less moves the turn."""
    replay = make_replay_buffer(100)
    replay.extend(torch.stack([walk(20), walk(20, 50.0)], 1).reshape(-1)[: 40 - lost])
    last = newest_transitions(replay, 7, num_envs=2)["observation"][:, 0].tolist()  # three of each
    one, other = [17.0, 18.0, 19.0], [67.0, 68.0, 69.0]
    assert last == (one + other if lost == 0 else [66.0, 67.0, 68.0, *one])


def test_the_horizon_of_several_simulators_is_that_of_each(known_model):
    replay = make_replay_buffer(100)
    replay.extend(torch.stack([walk(30), walk(30, 50.0)], 1).reshape(-1))
    two = BranchedRollouts(
        known_model([1.0], [0.0]), SerialEnv(2, toy_env), termination_fn=never_terminates, horizon_range="auto",
        steps_per_round=60,
    )  # fmt: skip
    assert two.adapt_horizon(replay) == 25  # the most; six trajectories of each are so long


def rollouts(model, **kwargs) -> BranchedRollouts:
    settings = {"horizon": 4, "starts_per_step": 3, "steps_per_round": 20, "horizon_range": (2, 10)}
    return BranchedRollouts(model, toy_env(), termination_fn=never_terminates, **(settings | kwargs))


def still(tensordict):
    return tensordict.set("action", torch.zeros(*tensordict.batch_size, 1))


@pytest.mark.parametrize(("drift", "expected"), [(1.0, 10), (1.7, 8), (30.0, 2)])
def test_the_horizon_follows_the_errors_and_a_round_stays_as_large(known_model, drift, expected):
    # the buffer holds 40 steps: a deviation of 11.5 for each entry, half of which is 5.77; 0.7 t is below it up to 8,
    # but of the 20 newest rows ten trajectories have at most 11 steps
    imagine, replay = rollouts(known_model([drift] * 2, [0.0] * 2)), make_replay_buffer(100)
    replay.extend(walk(40))
    capacity = imagine.capacity
    assert imagine.adapt_horizon(replay) == expected and imagine.capacity == capacity == 2 * 4 * 60 * 10
    buffer = make_model_buffer(imagine.capacity)
    report = imagine(still, replay[:], buffer)["fixed"]
    assert report["horizon"] == expected
    # 60 starts of 4 steps in each of two members: 480 transitions, in rollouts of another length too
    assert report["rows"] == 2 * (240 // expected) * expected == len(buffer)


@pytest.mark.parametrize(("drift", "given", "expected"), [(9.0, None, 4), (1.0, "auto", 25)])
def test_without_a_range_nothing_adapts_and_auto_is_one_to_twenty_five_steps(known_model, drift, given, expected):
    imagine = rollouts(known_model([drift], [0.0]), horizon_range=given, steps_per_round=60)
    replay = make_replay_buffer(100)
    replay.extend(walk(60))
    assert imagine.adapt_horizon(replay) == expected
    assert imagine.horizon_range == (given and (1, 25))
