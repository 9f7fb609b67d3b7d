"""One state, one action, a self-loop: member m earns r_m, so that its value is r_m / (1 - gamma)."""

from __future__ import annotations

import math
import re

import pytest
import torch
from linear_models import gaussian_policy, never
from tensordict.nn import TensorDictModule
from toy_env import WalkEnv

from eqr_torchrl.imagination import ModelBasedEnv
from eqr_torchrl.lab.diagnostics import ValueSpread, plot_start_values, spread_verdict, value_spread
from eqr_torchrl.world_models import WorldModel

GAMMA = 0.9
REWARDS = torch.tensor([1.0, 2.0, 3.0, 6.0])  # mean 3, variance (4 + 1 + 0 + 9) / 4 = 3.5
DEVIATION = math.sqrt(3.5)
VALUES = REWARDS / (1 - GAMMA)


class Loops(WorldModel):
    def __init__(self, rewards: torch.Tensor = REWARDS, noise: float = 0.0) -> None:
        super().__init__(1, num_members=len(rewards))
        self.rewards, self.noise = rewards.view(-1, 1, 1), noise

    def forward(self, observation, action):
        loc = torch.cat([observation, self.rewards.expand_as(observation)], -1)
        return loc, torch.tensor([0.0, self.noise]).expand_as(loc)


def critic(atoms: torch.Tensor) -> TensorDictModule:
    return TensorDictModule(
        lambda s, a: atoms.expand(*s.shape[:-1], len(atoms)),
        in_keys=["observation", "action"],
        out_keys=["state_action_value"],
    )


def spread_of(
    atoms: torch.Tensor, *, horizon: int, model: WorldModel | None = None, states=1, **options
) -> ValueSpread:
    model_env = ModelBasedEnv(model or Loops(), WalkEnv(), termination_fn=never)
    return value_spread(
        model_env, gaussian_policy(), critic(atoms), torch.zeros(states, 1), horizon=horizon, gamma=GAMMA, **options
    )


def test_exact_member_values_are_calibrated_at_every_horizon():
    for horizon in (1, 3, 100):
        spread = spread_of(VALUES, horizon=horizon, memberwise=True)
        assert spread.ratio == pytest.approx(1.0, rel=1e-5)
        assert spread.member_std == pytest.approx(DEVIATION / (1 - GAMMA), rel=1e-5)
        assert spread.error == pytest.approx(0.0, abs=1e-3)
        assert spread.left_out == pytest.approx(GAMMA**horizon)
    assert (
        spread_verdict(spread)
        == "Spread agrees with the models: the critic's standard deviation is 100% of the members'."
    )


def test_pooled_fixed_point_is_too_narrow_by_the_ratio_of_the_theory():
    # Z = r + gamma Z' with independent r: variance 3.5 / (1 - gamma^2), against 3.5 / (1 - gamma)^2 in the members
    atoms = REWARDS.mean() / (1 - GAMMA) + DEVIATION / math.sqrt(1 - GAMMA**2) * torch.tensor([-1.0, 1.0])
    spread = spread_of(atoms, horizon=300)
    assert spread.ratio == pytest.approx(math.sqrt((1 - GAMMA) / (1 + GAMMA)), rel=1e-4)
    assert spread.error == pytest.approx(0.0, abs=1e-3)
    assert spread_verdict(spread) == (
        "Too narrow: the critic's standard deviation is at most 23% of the members'; use algorithm=member_values."
    )


def test_without_values_of_each_member_the_spread_beyond_the_horizon_is_left_out():
    atoms = REWARDS.mean() / (1 - GAMMA) + torch.tensor([-1.0, 1.0])
    spread = spread_of(atoms, horizon=5)
    assert spread.member_std == pytest.approx(DEVIATION * (1 - GAMMA**5) / (1 - GAMMA), rel=1e-5)


def test_member_values_of_half_the_spread():
    # after 3 steps: (1 - gamma^3) of the true deviation and gamma^3 of half of it
    atoms = VALUES.mean() + 0.5 * (VALUES - VALUES.mean())
    spread = spread_of(atoms, horizon=3, memberwise=True)
    assert spread.ratio == pytest.approx(0.5 / (1 - 0.5 * GAMMA**3), rel=1e-4)
    assert spread.error == pytest.approx(0.5 * DEVIATION / (1 - GAMMA), rel=1e-4)


def test_error_is_that_of_the_mean_or_of_each_member():
    # shifted by 20: seen in the first 3 steps as 20 (1 - gamma^3), reported as 20
    assert spread_of(VALUES + 20, horizon=3).error == pytest.approx(20.0, rel=1e-4)
    assert spread_of(VALUES + 20, horizon=3, memberwise=True).error == pytest.approx(20.0, rel=1e-4)
    # members in reverse order: the mean is right, members 0 and 3 are off by 50, members 1 and 2 by 10
    assert spread_of(VALUES.flip(0), horizon=300).error == pytest.approx(0.0, abs=1e-3)
    reversed_error = math.sqrt((2 * 50**2 + 2 * 10**2) / 4)
    assert spread_of(VALUES.flip(0), horizon=300, memberwise=True).error == pytest.approx(reversed_error, rel=1e-4)


def test_noise_of_few_rollouts_is_not_mistaken_for_disagreement():
    # a return of 50 steps has variance 4 / (1 - gamma^2) = 21; the mean of two rollouts half of it
    noisy = Loops(rewards=torch.ones(4), noise=2.0)
    spread = spread_of(torch.full((4,), 10.0), horizon=50, model=noisy, states=4000, num_rollouts=2)
    uncorrected = math.sqrt(3 / 4 * 21 / 2)
    assert spread.member_std < 0.25 * uncorrected
    assert spread.error < 0.25 * uncorrected
    apart = Loops(noise=2.0)
    spread = spread_of(VALUES, horizon=50, model=apart, states=4000, num_rollouts=2, memberwise=True)
    assert spread.member_std == pytest.approx(DEVIATION / (1 - GAMMA), rel=0.01)


@pytest.mark.parametrize("shift", [0.0, 50.0])
def test_the_figure_of_a_run_shows_the_members_beside_the_critic(tmp_path, figures, shift):
    model_env = ModelBasedEnv(Loops(), WalkEnv(), termination_fn=never)
    title = plot_start_values(
        WalkEnv(), gaussian_policy(), critic(VALUES + shift), model_env, tmp_path / "start.png", gamma=GAMMA
    )
    # 44 steps, until 0.9^44 = 0.97 % are left, which the critic's mean completes; the standard deviation of VALUES is
    # 18.7, that of the members 18.5
    expected = (1 - 0.9**44) * VALUES + 0.9**44 * (VALUES.mean() + shift)
    members = [line for line in figures[0].axes[0].lines if line.get_marker() == "o"]
    assert [line.get_xdata().tolist() for line in members] == [pytest.approx(expected.tolist())] * 3
    assert figures[0].legends[0].get_title().get_text() == title
    assert title.startswith("Not converged: the critic" if shift else "The critic")
    assert float(re.search(r"critic is (\S+) from", title)[1]) == pytest.approx(shift, abs=1e-3)
    assert title.endswith("standard deviation 18.7, of its models 18.5; not compared with real episodes")


def test_without_discount_a_thousand_steps_are_compared(tmp_path, figures):
    model_env = ModelBasedEnv(Loops(), WalkEnv(), termination_fn=never)
    title = plot_start_values(
        WalkEnv(), gaussian_policy(), critic(1000 * VALUES), model_env, tmp_path / "start.png", gamma=1.0
    )
    assert title.startswith(("The critic is", "Not converged"))


GOOD = ValueSpread(100, 0.1, True, critic_std=1.0, member_std=1.0, error=0.5)


@pytest.mark.parametrize(
    ("spread", "coverage", "expected"),
    [
        (GOOD, 0.5, "Spread agrees with the models: the critic's standard deviation is 100% of the members'."),
        (
            GOOD,
            0.1,
            "Spread agrees with the models, not with the environment: .* 10% of real .* raise world_model.prior_scale",
        ),
        (  # 0.9 of the value was compared: 0.9 * 2.1 = 1.89
            GOOD._replace(error=2.1),
            0.5,
            "Not converged: .* off by 1.89 from its own models over 100 steps, in all by about 2.1, .* more updates",
        ),
        (GOOD._replace(critic_std=0.4), 0.5, "Too narrow: .* is 40% of .* train with more updates"),
        (GOOD._replace(critic_std=0.4, memberwise=False), 0.5, "Too narrow: .* at most 40% .*algorithm=member_values"),
        (GOOD._replace(critic_std=3.0), 0.5, "Too wide: .* is 300% of .* more updates"),
        (GOOD._replace(left_out=0.95, horizon=5), 0.5, "Not judged: the models can be trusted for 5 steps, and 95% of"),
        # where members have no values of their own, the spread that comes later is missing in theirs ...
        (GOOD._replace(left_out=0.6), 0.5, "Spread agrees with the models: "),
        (GOOD._replace(left_out=0.6, memberwise=False), 0.5, "Not judged"),
        # ... but what is narrower than a part of it is too narrow
        (GOOD._replace(left_out=0.6, memberwise=False, critic_std=0.1), 0.5, "Too narrow"),
        (GOOD._replace(critic_std=0.0, member_std=0.0, error=0.0), 0.5, "No spread: the members agree"),
        (GOOD._replace(member_std=0.0), None, "Too wide: .* positive, and the members' is 0"),
    ],
)
def test_verdicts(spread, coverage, expected):
    verdict = spread_verdict(spread, coverage=coverage)
    assert re.match(expected, verdict), verdict


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: spread_of(VALUES[:3], horizon=1, memberwise=True), "critic must have one atom for each of 4 members"),
        (lambda: spread_of(VALUES, horizon=1, num_rollouts=1), "num_rollouts must be at least 2, .*, got 1"),
        (lambda: spread_of(VALUES, horizon=-1), "horizon must not be negative, got -1"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_entropy_bonus_is_in_the_members_too():
    # v_m = r_m + gamma (v_m + alpha H) with the entropy H of a standard normal: without it 12.8 less
    entropy = 0.5 * math.log(2 * math.pi * math.e)
    soft = (REWARDS + GAMMA * entropy) / (1 - GAMMA)
    for memberwise in (True, False):
        assert spread_of(soft, horizon=20, states=10, alpha=1.0, memberwise=memberwise).error < 1.0


def test_the_critic_is_averaged_over_the_actions_of_the_policy():
    # atoms VALUES - 1 + a^2, and a^2 is 1 on average: VALUES; at the deterministic action they are 1 less
    critic = TensorDictModule(
        lambda s, a: VALUES - 1 + a.square(), in_keys=["observation", "action"], out_keys=["state_action_value"]
    )
    env = ModelBasedEnv(Loops(), WalkEnv(), termination_fn=never)
    states = torch.zeros(100, 1)
    spread = value_spread(env, gaussian_policy(), critic, states, horizon=2, gamma=GAMMA, num_rollouts=2)
    # standard error sqrt(2 / (32 * 100)) = 0.025
    torch.testing.assert_close(spread.atoms.mean(0), VALUES, atol=0.15, rtol=0)


def test_as_much_noise_is_subtracted_as_few_rollouts_leave():
    options = {"horizon": 20, "states": 4000, "num_rollouts": 2}
    # a return of 20 steps has variance 4 (1 - gamma^40) / (1 - gamma^2) = 20.7, the mean of two rollouts half of it:
    # uncorrected, an error of sqrt(10.4) / (1 - gamma^20) = 3.7 for each member
    assert spread_of(VALUES, model=Loops(noise=2.0), memberwise=True, **options).error < 1.5
    # of the mean of four members a quarter of it is noise; a shift of 3 is left
    assert spread_of(VALUES + 3, model=Loops(noise=2.0), **options).error == pytest.approx(3.0, rel=0.1)
    # members that part by a tenth: deviation 0.1 sqrt(3.5) / (1 - gamma) = 1.87, beside noise of variance 10.4
    near = 3 + 0.1 * (REWARDS - 3)
    spread = spread_of(near / (1 - GAMMA), model=Loops(near, noise=2.0), memberwise=True, **options)
    assert spread.member_std == pytest.approx(0.1 * DEVIATION / (1 - GAMMA), rel=0.12)
