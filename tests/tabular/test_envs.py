from __future__ import annotations

import pytest
import torch
from torchrl.envs import StepCounter, TransformedEnv
from torchrl.envs.utils import check_env_specs

from eqr_torchrl.tabular import (
    MDPEnv,
    count_transitions,
    nroom_cells,
    nroom_mdp,
    sample_toy_parameter,
    toy_mdp,
)

LEFT, RIGHT, DOWN, UP = range(4)


@pytest.mark.parametrize(
    "env",
    [
        MDPEnv(toy_mdp(beta=0.5, x=0.5)),
        MDPEnv(toy_mdp(beta=torch.tensor([0.1, 0.9]), x=0.5)),
        MDPEnv(nroom_mdp(), batch_size=(2, 3)),
        TransformedEnv(MDPEnv(nroom_mdp(success_probability=0.9)), StepCounter(20)),
    ],
)
def test_specs_hold(env):
    check_env_specs(env, break_when_any_done="both")


def test_frequencies_match_the_transition_table():
    env = MDPEnv(toy_mdp(beta=0.7, x=0.2), batch_size=(4000,))
    env.set_seed(0)
    seen = count_transitions(env.rollout(20, break_when_any_done=False), 4, 1).counts.sum(0)[:3]  # never leaves the end
    share = seen / seen.sum(-1, keepdim=True)
    torch.testing.assert_close(share, toy_mdp(0.7, 0.2).transitions[:3], atol=0.04, rtol=0)


def test_each_element_of_a_batch_follows_its_own_mdp():
    grid = MDPEnv(toy_mdp(beta=0.0, x=torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0]])))
    assert grid.rollout(2, break_when_any_done=False)["observation"][..., 1].tolist() == [[1, 2, 1], [2, 1, 2]]
    env = MDPEnv(toy_mdp(beta=0.0, x=torch.tensor([0.0, 1.0])))
    rollout = env.rollout(2, break_when_any_done=False)
    assert rollout["observation"].tolist() == [[0, 1], [0, 2]]
    assert rollout["next", "reward"].squeeze(-1).tolist() == [[0.0, 1.0], [0.0, -1.0]]
    assert rollout["next", "terminated"].squeeze(-1).tolist() == [[False, True]] * 2


def test_seed_repeats_a_rollout():
    env = MDPEnv(nroom_mdp(success_probability=0.5), batch_size=(5,))
    policy = lambda td: td.set("action", torch.ones(5, dtype=torch.long))  # noqa: E731
    runs = []
    for seed in (3, 3, 4):
        env.set_seed(seed)
        runs.append(env.rollout(15, policy, break_when_any_done=False)["observation"])
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_the_prize_is_paid_and_the_episode_ended_on_leaving():
    env = MDPEnv(nroom_mdp())
    rollout = env.rollout(20, lambda td: td.set("action", torch.tensor(RIGHT)))
    assert rollout["observation"].tolist() == [38, 39, 40, 41, 42, 43, 44]
    assert rollout["next", "terminated"].flatten().tolist() == [False] * 6 + [True]
    assert rollout["next", "reward"].sum() == pytest.approx(1.01)


def test_layout_of_three_rooms():
    cells, mdp = nroom_cells(), nroom_mdp()
    assert [row for row, column in cells if column in (5, 11)] == [2, 2]  # doorways in the middle row only

    def moved(cell, action):
        return int(mdp.transitions[cells.index(cell), action].argmax())

    assert moved((0, 4), RIGHT) == cells.index((0, 4))  # a wall
    assert moved((2, 4), RIGHT) == cells.index((2, 5))  # the doorway
    assert moved((2, 5), UP) == cells.index((2, 5))
    assert moved((0, 0), DOWN) == cells.index((1, 0))
    assert moved((0, 0), UP) == moved((0, 0), LEFT) == 0
    assert moved((2, 14), LEFT) == 77
    rewarded = {cells[int(s)]: float(mdp.rewards[s, 0]) for s in mdp.rewards[:, 0].nonzero()}
    assert rewarded == {(2, 2): 0.1, (2, 8): 0.01, (2, 14): 1.0}


def test_slips_go_the_other_ways():
    mdp = nroom_mdp(success_probability=0.7)
    cells = nroom_cells()
    row = mdp.transitions[cells.index((1, 1)), RIGHT]
    assert row[cells.index((1, 2))] == pytest.approx(0.7)
    for other in ((1, 0), (0, 1), (2, 1)):
        assert row[cells.index(other)] == pytest.approx(0.1)


def test_both_readings_of_truncation():
    clipped, truncated = (
        sample_toy_parameter("heavy_tailed", 200_000, truncation=t, generator=torch.Generator().manual_seed(0))
        for t in ("clipped", "truncated")
    )
    # the wide component N(0.5, 0.15) has 2 * 0.043 % of its mass outside: half of it falls on each end
    assert float((clipped == 1).double().mean()) == pytest.approx(0.5 * 4.3e-4, rel=0.3)
    assert not bool(((truncated == 0) | (truncated == 1)).any())
    torch.testing.assert_close(clipped.mean(), truncated.mean(), atol=2e-3, rtol=0)
    torch.testing.assert_close(clipped.std(), truncated.std(), atol=2e-3, rtol=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: toy_mdp(1.1, 0.5), "beta"),
        (lambda: toy_mdp(0.5, torch.tensor([0.5, -0.1])), "x must"),
        (lambda: sample_toy_parameter("cauchy", 10), "gaussian, bimodal"),
        (lambda: sample_toy_parameter("bimodal", 11), "num_samples"),
        (lambda: sample_toy_parameter("gaussian", 10, truncation="cut"), "truncation"),
        (lambda: nroom_mdp(2), "num_rooms"),
        (lambda: nroom_mdp(room_size=4), "room_size"),
        (lambda: nroom_mdp(success_probability=1.5), "success_probability"),
        (lambda: MDPEnv(toy_mdp(0.5, torch.rand(2)), batch_size=(2,)), "batch_size"),
    ],
)
def test_errors_name_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
