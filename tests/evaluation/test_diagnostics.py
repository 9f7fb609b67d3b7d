from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch.distributions import Independent, Normal
from torchrl.modules import ProbabilisticActor, TanhNormal
from toy_env import WalkEnv

from eqr_torchrl.envs import ModelBasedEnv
from eqr_torchrl.evaluation import (
    held_out_errors,
    member_values,
    rollout_drift,
    sample_episodes,
    trajectory_windows,
    value_map,
    value_quantiles,
    variance_parts,
)
from eqr_torchrl.world_models import WorldModel

GAINS = (0.5, 1.0, 0.8)


class LinearModel(WorldModel):
    """``s' = g_m s + a + noise``, reward ``s``: everything about it is known in closed form."""

    def __init__(self, gains=GAINS, noise: float = 0.0) -> None:
        super().__init__(1, num_members=len(gains))
        self.gains, self.noise = torch.tensor(gains).view(-1, 1, 1), noise

    def forward(self, observation, action):
        loc = torch.cat([self.gains * observation + action, observation], -1)
        return loc, torch.tensor([self.noise, 0.0]).clamp_min(1e-12).expand_as(loc)


def never(next_observation, action):
    return torch.zeros_like(next_observation[..., :1], dtype=torch.bool)


def model_env(gains=GAINS, noise=0.0, termination_fn=never) -> ModelBasedEnv:
    return ModelBasedEnv(LinearModel(gains, noise), WalkEnv(), termination_fn=termination_fn)


def gaussian_policy(mean: float = 0.0, std: float = 1.0) -> ProbabilisticActor:
    parameters = TensorDictModule(
        lambda s: (0 * s + mean, 0 * s + std), in_keys=["observation"], out_keys=["loc", "scale"]
    )
    return ProbabilisticActor(
        parameters,
        in_keys=["loc", "scale"],
        distribution_class=lambda loc, scale: Independent(Normal(loc, scale), 1),
    )


# World model


def transitions(n: int = 50) -> TensorDict:
    s, a = torch.randn(n, 1), torch.randn(n, 1)
    outcome = TensorDict({"observation": 0.9 * s + a, "reward": s + 0.1}, [n])
    return TensorDict({"observation": s, "action": a, "next": outcome}, [n])


def test_held_out_errors_by_hand():
    data = transitions()
    errors = held_out_errors(LinearModel(noise=0.2), data, chunk_size=7)
    s, a = data["observation"], data["action"]
    for member, gain in enumerate(GAINS):
        residual = (0.9 - gain) * s
        assert errors.mse[member].tolist() == pytest.approx([residual.square().mean().item(), 0.01], rel=1e-4)
        assert errors.standardised[member, 0].item() == pytest.approx(
            residual.square().mean().sqrt().item() / 0.2, rel=1e-4
        )
        change = -0.1 * s + a
        explained = 1 - residual.square().mean() / change.var(correction=0)
        assert errors.explained[member, 0].item() == pytest.approx(explained.item(), rel=1e-4)


def test_explained_variance_of_a_constant_is_undefined():
    data = transitions()
    data["next", "reward"] = torch.ones(50, 1)
    explained = held_out_errors(LinearModel(), data).explained
    assert torch.isnan(explained[:, 1]).all()
    assert torch.isfinite(explained[:, 0]).all()


def test_negative_log_likelihood_matches_torch():
    class Unit(LinearModel):
        def forward(self, observation, action):
            loc, scale = super().forward(observation, action)
            return loc, torch.full_like(scale, 0.7)

    data = transitions()
    target = torch.cat([data["next", "observation"], data["next", "reward"]], -1)
    for member, gain in enumerate(GAINS):
        loc = torch.cat([gain * data["observation"] + data["action"], data["observation"]], -1)
        expected = -Normal(loc, 0.7).log_prob(target).sum(-1).mean()
        assert held_out_errors(Unit(), data).nll[member].item() == pytest.approx(expected.item(), rel=1e-5)


def test_variance_parts_by_hand():
    parts = variance_parts(LinearModel(noise=0.3), torch.tensor([[2.0]]), torch.tensor([[0.0]]))
    # predictions 1, 2, 1.6: variance over members of equal weight 0.1689; the reward is the same for all
    assert parts.epistemic[0].tolist() == pytest.approx([(1 + 4 + 2.56) / 3 - (4.6 / 3) ** 2, 0.0], rel=1e-5)
    assert parts.aleatoric[0, 0].item() == pytest.approx(0.09, rel=1e-5)


def real_trajectories(gain: float = 0.8, starts=(1.0, -3.0), length: int = 6) -> TensorDict:
    states = torch.tensor(starts).view(-1, 1, 1) * gain ** torch.arange(length + 1.0).view(1, -1, 1)
    size = [len(starts), length]
    outcome = TensorDict({"observation": states[:, 1:], "done": torch.zeros(*size, 1, dtype=torch.bool)}, size)
    return TensorDict({"observation": states[:, :-1], "action": torch.zeros(*size, 1), "next": outcome}, size)


def test_drift_follows_the_closed_form():
    sigma, steps = 0.2, torch.arange(1, 7.0)
    trajectories = real_trajectories()
    drift = rollout_drift(model_env(noise=sigma), trajectories, num_particles=20_000)
    scale = trajectories["observation"].std(correction=0)
    torch.testing.assert_close(drift.scale, scale.view(1))
    rms_start = math.sqrt((1 + 9) / 2)
    means = torch.stack([g**steps for g in GAINS], 1)  # [T, M]
    error = (means - 0.8 ** steps[:, None]).abs() * rms_start / scale
    torch.testing.assert_close(drift.error, error, atol=0.01, rtol=0)
    aleatoric = [math.sqrt(sum(sigma**2 * sum(g ** (2 * i) for i in range(t)) for g in GAINS) / 3) for t in range(1, 7)]
    torch.testing.assert_close(drift.aleatoric * scale, torch.tensor(aleatoric), atol=0, rtol=0.02)
    epistemic = means.std(1, correction=0) * rms_start
    torch.testing.assert_close(drift.epistemic * scale, epistemic, atol=0, rtol=0.02)


def test_particle_noise_is_not_mistaken_for_disagreement():
    drift = rollout_drift(
        model_env(gains=(0.8, 0.8, 0.8), noise=0.5), real_trajectories(starts=(1.0,) * 400), num_particles=2
    )
    # without the correction it would be sigma / sqrt(2) * sqrt(2 / 3), half of the aleatoric part
    assert (drift.epistemic < 0.2 * drift.aleatoric).all()


def test_perfect_model_does_not_drift():
    drift = rollout_drift(model_env(gains=(0.8,)), real_trajectories())
    torch.testing.assert_close(drift.error, torch.zeros(6, 1), atol=1e-6, rtol=0)
    torch.testing.assert_close(drift.epistemic, torch.zeros(6), atol=1e-6, rtol=0)


def test_windows_do_not_cross_the_end_of_an_episode():
    rollout = WalkEnv(time_limit=5).rollout(10, break_when_any_done=False)
    # windows of 2: (0 1) (2 3) (4 5) (6 7) (8 9); the episodes end at 4 and 9
    windows = trajectory_windows(rollout, 2)
    assert windows.batch_size == (4, 2)
    assert not windows["next", "done"][:, 0].any()
    with pytest.raises(ValueError, match="length must leave at least one window"):
        trajectory_windows(rollout, 10)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: held_out_errors(LinearModel(), transitions(4).reshape(2, 2)), r"data must have batch size \[n\]"),
        (lambda: rollout_drift(model_env(), transitions(4)), r"trajectories must have batch size \[B, T\]: got \[4\]"),
        (lambda: rollout_drift(model_env(), real_trajectories(), num_particles=1), "num_particles must be at least 2"),
        (lambda: member_values(model_env(), gaussian_policy(), torch.zeros(1), horizon=1, gamma=0.9), r"\[R, S\]"),
        (
            lambda: member_values(model_env(), gaussian_policy(), torch.zeros(1, 1), horizon=1, gamma=1.5),
            "gamma must lie",
        ),
        (lambda: value_quantiles(critic(), gaussian_policy(), torch.zeros(1), num_actions=0), "num_actions must be"),
        (
            lambda: sample_episodes(WalkEnv(), gaussian_policy(), num_episodes=0, max_steps=1, gamma=0.9),
            "num_episodes must be positive: got 0",
        ),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# Values


def critic() -> TensorDictModule:
    """Three quantiles ``s + 2 a + (-1, 0, 1)``."""
    offsets = torch.tensor([-1.0, 0.0, 1.0])
    return TensorDictModule(
        lambda s, a: s[..., :1] + 2 * a + offsets, in_keys=["observation", "action"], out_keys=["state_action_value"]
    )


def test_value_quantiles_use_the_squashed_action():
    parameters = TensorDictModule(
        lambda s: (0 * s + 3.0, 0 * s + 1.0), in_keys=["observation"], out_keys=["loc", "scale"]
    )
    policy = ProbabilisticActor(parameters, in_keys=["loc", "scale"], distribution_class=TanhNormal)
    quantiles = value_quantiles(critic(), policy, torch.tensor([[5.0]]))
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
