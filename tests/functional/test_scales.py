"""Scales that follow from rewards have their unit, and tell tasks with rare rewards from others."""

from __future__ import annotations

import pytest
import torch

from eqr_torchrl.functional import plausible_reward, reward_unit


@pytest.mark.parametrize(
    ("rewards", "bounds", "expected"),
    [
        ([2.0, 5.0], None, 5.0),  # 0 to 5
        ([-3.0, 1.0], None, 4.0),
        ([0.0, 0.0], None, 1.0),
        ([0.0, 0.0], (-0.05, 50.0), 50.05),
        ([1.0, 1.0], (-16.0, 0.0), 16.0),
    ],
)
def test_the_unit_of_rewards_holds_zero_and_what_is_possible(rewards, bounds, expected):
    assert reward_unit(torch.tensor(rewards), bounds) == pytest.approx(expected)


def rewards_of(share: float, *, unit: float = 1.0) -> torch.Tensor:
    rewards = torch.zeros(1000)
    rewards[: round(1000 * share)] = 0.2
    return unit * rewards


@pytest.mark.parametrize("unit", [0.01, 1.0, 100.0])
def test_a_prior_of_rewards_is_their_deviation_where_they_vary_and_half_the_range_where_they_are_rare(unit):
    # 50 of 1,000 have 0.2: variance 0.2^2 p (1 - p) n / (n - 1)
    common = 0.2 * (0.05 * 0.95 * 1000 / 999) ** 0.5
    assert plausible_reward(rewards_of(0.05, unit=unit), (0.0, unit)) == pytest.approx(unit * common, rel=1e-5)
    assert plausible_reward(rewards_of(0.009, unit=unit), (0.0, unit)) == pytest.approx(unit * 0.5)
    assert plausible_reward(rewards_of(0.0, unit=unit), (0.0, unit), share=0.2) == pytest.approx(unit * 0.2)


def test_small_costs_beside_a_large_goal_count_as_no_variation():
    fuel = -0.05 * torch.rand(1000)  # of MountainCar with a goal of 50
    assert plausible_reward(fuel, (-0.05, 50.0)) == pytest.approx(25.025)
    assert plausible_reward(fuel) == pytest.approx(float(fuel.std()))  # where nothing says that there is a goal
