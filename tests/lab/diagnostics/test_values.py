from __future__ import annotations

import math

import pytest
import torch
from linear_models import GAINS, LinearModel, gaussian_policy, model_env, never
from tensordict.nn import TensorDictModule
from torch.distributions import Normal
from torchrl.data import Bounded, Composite
from torchrl.modules import ProbabilisticActor, TanhNormal
from toy_env import WalkEnv

from eqr_torchrl.imagination import ModelBasedEnv
from eqr_torchrl.lab.diagnostics import member_returns, sample_episodes, value_map, value_quantiles
from eqr_torchrl.lab.envs import make_env


def member_values(*args, **kwargs) -> torch.Tensor:
    return member_returns(*args, **kwargs).returns.mean(-1)  # [R, M]


def critic() -> TensorDictModule:
    """Three quantiles ``s + 2 a + (-1, 0, 1)``."""
    offsets = torch.tensor([-1.0, 0.0, 1.0])
    return TensorDictModule(
        lambda s, a: s[..., :1] + 2 * a + offsets, in_keys=["observation", "action"], out_keys=["state_action_value"]
    )


def tanh_policy(loc: float, scale: float) -> ProbabilisticActor:
    parameters = TensorDictModule(
        lambda s: (0 * s + loc, 0 * s + scale), in_keys=["observation"], out_keys=["loc", "scale"]
    )
    return ProbabilisticActor(parameters, in_keys=["loc", "scale"], distribution_class=TanhNormal)


def test_value_quantiles_use_the_squashed_action():
    quantiles = value_quantiles(critic(), tanh_policy(3.0, 1.0), torch.tensor([[5.0]]))
    assert quantiles[0].tolist() == pytest.approx([5 + 2 * math.tanh(3) + d for d in (-1, 0, 1)], rel=1e-5)


def test_value_quantiles_average_over_sampled_actions():
    quantiles = value_quantiles(critic(), gaussian_policy(mean=0.5), torch.zeros(2, 3, 1), num_actions=20_000)
    assert quantiles.shape == (2, 3, 3)
    # mean 2 * 0.5, standard error 2 / sqrt(20000) = 0.014
    torch.testing.assert_close(quantiles, torch.tensor([0.0, 1.0, 2.0]).expand(2, 3, 3), atol=0.06, rtol=0)


def test_value_map_is_indexed_by_y_then_x():
    states = TensorDictModule(
        lambda s, a: torch.stack([s[..., 0] + 10 * s[..., 2]] * 2, -1) + torch.tensor([-1.0, 1.0]),
        in_keys=["observation", "action"],
        out_keys=["state_action_value"],
    )
    x, y = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.0, 1.0])
    mean, std = value_map(states, gaussian_policy(), x, y, observation=torch.full((3,), 7.0), entries=(0, 2))
    assert mean.tolist() == [[0.0, 1.0, 2.0], [10.0, 11.0, 12.0]]
    torch.testing.assert_close(std, torch.full((2, 3), math.sqrt(2)))


def test_member_values_match_the_geometric_series():
    gamma, horizon = 0.9, 12
    values = member_values(
        model_env(), gaussian_policy(), torch.tensor([[2.0], [-1.0]]), horizon=horizon, gamma=gamma, deterministic=True
    )
    series = torch.tensor([(1 - (gamma * g) ** horizon) / (1 - gamma * g) for g in GAINS])
    torch.testing.assert_close(values, torch.tensor([[2.0], [-1.0]]) * series)


def test_member_values_stop_at_termination():
    def beyond_three(next_observation, action):
        return next_observation >= 3.0

    # from 0 with a = 1 and gain 1: states 0, 1, 2, then 3 ends it; rewards 0 + 1/2 + 2/4. Gain 1/2 never gets there.
    values = member_values(
        model_env((1.0, 0.5), termination_fn=beyond_three),
        gaussian_policy(mean=1.0),
        torch.zeros(1, 1),
        horizon=50,
        gamma=0.5,
        deterministic=True,
    )
    assert values[0, 0].item() == pytest.approx(1.0)
    assert values[0, 1].item() > 1.0


ENTROPY = 0.5 * math.log(2 * math.pi * math.e)  # of a standard normal


def test_entropy_bonus_starts_one_step_later():
    # s' = s, reward s = 0: what is left is the bonus of steps 1 to 4
    class Still(LinearModel):
        def forward(self, observation, action):
            loc, scale = super().forward(observation, 0 * action)
            return loc, scale

    env = ModelBasedEnv(Still((1.0,)), WalkEnv(), termination_fn=never)
    values = member_values(
        env, gaussian_policy(), torch.zeros(1, 1), horizon=5, gamma=0.5, num_rollouts=20_000, alpha=0.1
    )
    assert values.item() == pytest.approx(0.1 * ENTROPY * (0.5 + 0.25 + 0.125 + 0.0625), rel=0.02)


def test_returns_to_go_by_hand():
    # rewards 1/2 each; truncated after 3 steps
    policy = gaussian_policy(mean=0.5)
    episodes = sample_episodes(
        WalkEnv(time_limit=3), policy, num_episodes=2, max_steps=10, gamma=0.5, deterministic=True
    )
    for returns, tail in zip(episodes.returns, episodes.tail_weight, strict=True):
        assert returns.tolist() == [0.5 + 0.25 + 0.125, 0.5 + 0.25, 0.5]
        assert tail.tolist() == [0.125, 0.25, 0.5]
    terminated = sample_episodes(WalkEnv(goal=1.0), policy, num_episodes=1, max_steps=10, gamma=0.5, deterministic=True)
    assert terminated.returns[0].tolist() == [0.75, 0.5]
    assert terminated.tail_weight[0].tolist() == [0.0, 0.0]


def test_returns_to_go_contain_the_entropy_of_later_actions():
    policy = gaussian_policy(std=0.3)
    soft, hard = (
        sample_episodes(WalkEnv(time_limit=4), policy, num_episodes=1, max_steps=9, gamma=0.5, alpha=alpha)
        for alpha in (0.2, 0.0)
    )
    action = soft.transitions[0]["action"]
    bonus = -0.2 * Normal(0.0, 0.3).log_prob(action).squeeze(-1)
    difference = soft.returns[0] - hard.returns[0]
    assert difference[0].item() == pytest.approx((0.5 * bonus[1] + 0.25 * bonus[2] + 0.125 * bonus[3]).item(), rel=1e-4)
    assert difference[-1].item() == 0.0
    plain = TensorDictModule(lambda s: 0 * s, in_keys=["observation"], out_keys=["action"])
    with pytest.raises(ValueError, match="policy must have get_dist"):
        sample_episodes(WalkEnv(time_limit=2), plain, num_episodes=1, max_steps=9, gamma=0.5, alpha=0.2)


def test_the_entropy_of_saturated_actions_is_that_of_the_distribution():
    # of tanh(u), u ~ N(6, 25): log(5 sqrt(2 pi e)) + E log(1 - tanh(u)^2), where log(1 - tanh(u)^2) is
    # 2 (log 2 - |u| - log(1 + exp(-2 |u|))). An action that float32 rounds to 1 cannot tell its u any more.
    u = 6 + 5 * torch.distributions.Normal(0.0, 1.0).icdf((torch.arange(100_000).double() + 0.5) / 100_000)
    log_slope = 2 * (math.log(2) - u.abs() - torch.log1p(torch.exp(-2 * u.abs())))
    entropy = 0.5 * math.log(2 * math.pi * math.e * 25) + log_slope.mean().item()
    assert entropy == pytest.approx(-8.78, abs=0.01)
    policy = tanh_policy(6.0, 5.0)
    options = {"horizon": 1, "gamma": 1.0, "num_rollouts": 20_000, "final_value": lambda td: torch.zeros(td.batch_size)}
    imagined = member_values(model_env(), policy, torch.zeros(1, 1), alpha=1.0, **options)
    torch.testing.assert_close(imagined, torch.full((1, 3), entropy), atol=0.3, rtol=0)  # 3 of 9.4 / sqrt(20000)
    (soft,), (hard,) = (
        sample_episodes(WalkEnv(time_limit=400), policy, num_episodes=1, max_steps=400, gamma=1.0, alpha=a).returns
        for a in (1.0, 0.0)
    )
    assert ((soft - hard)[0] / 399).item() == pytest.approx(entropy, abs=1.4)  # 3 of 9.4 / sqrt(399)


def test_episodes_start_where_told():
    def from_two(env):
        return env.reset().set("observation", torch.tensor([2.0]))

    episodes = sample_episodes(
        WalkEnv(time_limit=1), gaussian_policy(), num_episodes=1, max_steps=1, gamma=0.9, reset_fn=from_two
    )
    assert episodes.transitions[0]["observation"].item() == 2.0


def test_diagnostics_leave_the_generator_alone_and_depend_on_their_seed():
    torch.manual_seed(0)
    expected = torch.randn(3)
    torch.manual_seed(0)
    values, returns = [], []
    for _ in range(2):
        values.append(member_values(model_env(noise=0.1), gaussian_policy(), torch.zeros(2, 1), horizon=3, gamma=0.9))
        returns.append(sample_episodes(WalkEnv(), gaussian_policy(), num_episodes=1, max_steps=3, gamma=0.9).returns[0])
    torch.testing.assert_close(torch.randn(3), expected)
    torch.testing.assert_close(values[0], values[1])
    torch.testing.assert_close(returns[0], returns[1])


def test_what_comes_after_the_horizon_is_given_by_final_value():
    # in member m the state after 2 steps is g_m^2 s; its value is stated as 10 (m + 1) times it
    def final_value(tensordict):
        return tensordict["observation"].squeeze(-1) * torch.tensor([[10.0], [20.0], [30.0]])

    returns, weight, _ = member_returns(
        model_env(), gaussian_policy(), torch.tensor([[2.0]]), horizon=2, gamma=0.5, num_rollouts=3, deterministic=True,
        final_value=final_value,
    )  # fmt: skip
    expected = [2 * (1 + 0.5 * g + 0.25 * g**2 * 10 * (m + 1)) for m, g in enumerate(GAINS)]
    torch.testing.assert_close(returns, torch.tensor(expected).view(1, 3, 1).expand(1, 3, 3))
    torch.testing.assert_close(weight, torch.full((1, 3, 3), 0.25))


def test_a_rollout_stops_where_told_and_the_rest_is_given_by_final_value():
    """In member m the states are 2 g^t; it stops at the first below 1.4, before that state's reward."""
    returns, weight, num_steps = member_returns(
        model_env(), gaussian_policy(), torch.tensor([[2.0]]), horizon=4, gamma=0.5, num_rollouts=3, deterministic=True,
        stop_fn=lambda observation, action: observation < 1.4,
        final_value=lambda tensordict: 100.0 + tensordict["step_count"],
    )  # fmt: skip
    steps = [1, 4, 2]  # 2, 1; 2, 2, 2, 2, 2; 2, 1.6, 1.28
    expected = [
        sum(0.5**t * 2 * g**t for t in range(n)) + 0.5**n * (100 + n) for g, n in zip(GAINS, steps, strict=True)
    ]
    torch.testing.assert_close(returns, torch.tensor(expected).view(1, 3, 1).expand(1, 3, 3))
    torch.testing.assert_close(weight, 0.5**num_steps)
    assert num_steps[0, :, 0].tolist() == steps


def test_nothing_comes_after_termination():
    def at_once(next_observation, action):
        return torch.ones_like(next_observation, dtype=torch.bool)

    returns, weight, _ = member_returns(
        model_env(termination_fn=at_once), gaussian_policy(), torch.tensor([[2.0]]), horizon=2, gamma=0.5,
        final_value=lambda tensordict: torch.full(tensordict.batch_size, 100.0),
    )  # fmt: skip
    assert returns.unique().tolist() == [2.0]
    assert weight.unique().tolist() == [0.0]


def test_the_entropy_of_the_action_after_the_horizon_counts():
    options = {"horizon": 1, "gamma": 0.5, "num_rollouts": 20_000, "final_value": lambda td: torch.zeros(td.batch_size)}
    values = member_values(model_env(), gaussian_policy(), torch.zeros(1, 1), alpha=0.1, **options)
    torch.testing.assert_close(values, torch.full((1, 3), 0.1 * ENTROPY * 0.5), rtol=0.02, atol=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: member_values(model_env(), gaussian_policy(), torch.zeros(1), horizon=1, gamma=0.9), r"\[R, S\]"),
        (
            lambda: member_values(model_env(), gaussian_policy(), torch.zeros(1, 1), horizon=1, gamma=1.5),
            "gamma must lie",
        ),
        (lambda: value_quantiles(critic(), gaussian_policy(), torch.zeros(1), num_actions=0), "num_actions must be"),
        (
            lambda: sample_episodes(WalkEnv(), gaussian_policy(), num_episodes=0, max_steps=1, gamma=0.9),
            "num_episodes must be positive, got 0",
        ),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_entropy_bonus_is_that_of_actions_in_the_unit_range():
    class Still(LinearModel):
        def forward(self, observation, action):
            return super().forward(observation, 0 * action)

    def policy(bound):
        parameters = TensorDictModule(
            lambda s: (0 * s + 0.3, 0 * s + 0.7), in_keys=["observation"], out_keys=["loc", "scale"]
        )
        return ProbabilisticActor(
            parameters, in_keys=["loc", "scale"], distribution_class=TanhNormal,
            distribution_kwargs={"low": -bound, "high": bound},
            spec=Composite(action=Bounded(-bound, bound, (1,))),
        )  # fmt: skip

    env = ModelBasedEnv(Still((1.0,)), WalkEnv(), termination_fn=never)
    one, ten = (
        member_returns(env, policy(bound), torch.zeros(1, 1), horizon=4, gamma=0.5, alpha=1.0).returns
        for bound in (1.0, 10.0)
    )
    torch.testing.assert_close(one, ten, rtol=1e-4, atol=1e-4)  # else 0.875 log 10 = 2 apart
    one, ten = (
        sample_episodes(WalkEnv(time_limit=4), policy(b), num_episodes=1, max_steps=4, gamma=0.5, alpha=1.0)
        for b in (1.0, 10.0)
    )
    bonus = [
        e.returns[0] - torch.stack([(0.5 ** torch.arange(4 - t)) @ r[t:] for t in range(4)])
        for e in (one, ten)
        for r in [e.transitions[0]["next", "reward"].flatten()]
    ]
    torch.testing.assert_close(*bonus, rtol=1e-4, atol=1e-4)


def test_episodes_depend_on_the_seed_in_environments_with_their_own_generator():
    class Seeded(WalkEnv):
        """Starts are drawn from its own generator, as those of Gymnasium."""

        def _set_seed(self, seed):
            self.generator = torch.Generator().manual_seed(seed)

        def _reset(self, tensordict=None, **kwargs):
            return super()._reset(tensordict).set("observation", torch.rand(1, generator=self.generator))

    env = Seeded()
    env.set_seed(9)
    options = {"num_episodes": 1, "max_steps": 1, "gamma": 0.9}
    first, again, other = (
        sample_episodes(env, gaussian_policy(), seed=s, **options).transitions[0]["observation"].item()
        for s in (0, 0, 1)
    )
    assert first == again != other


def test_the_return_of_an_episode_that_diverged_is_that_up_to_there():
    class Diverging(WalkEnv):
        def _step(self, tensordict):
            out = super()._step(tensordict)
            nan = out.apply(lambda entry: entry * torch.nan if entry.is_floating_point() else entry)
            return out if self.steps < 4 else nan

    push = TensorDictModule(lambda s: 0 * s + 0.5, in_keys=["observation"], out_keys=["action"])
    options = {"num_episodes": 1, "max_steps": 10, "gamma": 0.5, "deterministic": True}
    with pytest.warns(RuntimeWarning, match="non-finite"):
        found = sample_episodes(make_env(Diverging()), push, **options)
    # rewards 0.5, 0.5, 0.5 and none
    torch.testing.assert_close(found.returns[0], torch.tensor([0.875, 0.75, 0.5, 0.0]))
