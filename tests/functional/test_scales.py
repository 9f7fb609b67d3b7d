"""Scales that follow from the data: they have the unit of the data, and tell what is rare from what is common."""

from __future__ import annotations

import pytest
import torch

from eqr_torchrl.functional import plausible_reward, rarity_weights, reward_unit


@pytest.mark.parametrize(
    ("rewards", "bounds", "expected"),
    [
        ([2.0, 5.0], None, 5.0),  # 0 to 5
        ([-3.0, 1.0], None, 4.0),
        ([-3.0, -1.0], None, 3.0),
        ([0.0, 0.0], None, 1.0),
        ([0.0, 0.0], (-0.05, 50.0), 50.05),
        ([1.0, 1.0], (-16.0, 0.0), 16.0),
    ],
)
def test_the_unit_of_rewards_holds_zero_and_what_is_possible(rewards, bounds, expected):
    assert reward_unit(torch.tensor(rewards), bounds) == pytest.approx(expected)


@pytest.mark.parametrize("unit", [0.01, 1.0, 100.0])
def test_a_prior_of_rewards_is_their_deviation_where_they_vary_and_half_the_range_where_they_are_rare(unit):
    def scale(count: int, **options: float) -> float:  # of 1,000 rewards, of which so many are 0.2 and all others 0
        rewards = torch.cat([torch.full((count,), 0.2), torch.zeros(1000 - count)])
        return plausible_reward(unit * rewards, (0.0, unit), **options) / unit

    # 11 of 1,000 have 0.2: variance 0.2^2 p (1 - p) n / (n - 1); below 10 they are rare
    assert scale(11) == pytest.approx(0.2 * (0.011 * 0.989 * 1000 / 999) ** 0.5, rel=1e-5)
    assert scale(9) == pytest.approx(0.5)
    assert scale(0, share=0.2) == pytest.approx(0.2)


def test_small_costs_beside_a_large_goal_count_as_no_variation():
    fuel = -0.05 * torch.rand(1000)  # of MountainCar with a goal of 50
    assert plausible_reward(fuel, (-0.05, 50.0)) == pytest.approx(25.025)
    assert plausible_reward(fuel) == pytest.approx(float(fuel.std()))  # where nothing says that there is a goal


def test_rare_rows_count_as_often_as_they_exceed_the_threshold():
    # 100 zeros and one 1: mean 1 / 101, deviation sqrt(100) / 101, so it lies 10 deviations out, the zeros 0.1: 10 / 3
    values, expected = torch.zeros(101, 4), torch.ones(101)
    values[7, 3], expected[7] = 1.0, 10 / 3
    torch.testing.assert_close(rarity_weights(values, 3.0), expected)
    torch.testing.assert_close(rarity_weights(5 - 1000 * values, 3.0), expected)  # whatever the units and the sign


@pytest.mark.parametrize(
    "values",  # one deviation from the mean, all of them; entries that never vary
    [
        torch.tensor([[0.0], [1.0]]).repeat(50, 1),
        torch.full((9, 2), 3.0),
        torch.full((1, 2), 3.0),
        torch.full((9, 1), 1e4),
    ],
)
def test_common_rows_and_entries_that_never_vary_count_like_all_others(values):
    assert (rarity_weights(values, 1.0) == 1).all()
