from __future__ import annotations

import math

import pytest
import torch
from linear_models import GAINS, LinearModel, model_env
from tensordict import TensorDict
from torch.distributions import Normal
from toy_env import WalkEnv

from eqr_torchrl.lab.diagnostics import held_out_errors, rollout_drift, trajectory_windows, trusted_horizon


def transitions(n: int = 50) -> TensorDict:
    s, a = torch.randn(n, 1), torch.randn(n, 1)
    outcome = TensorDict({"observation": 0.9 * s + a, "reward": s + 0.1}, [n])
    return TensorDict({"observation": s, "action": a, "next": outcome}, [n])


def test_held_out_errors_by_hand(monkeypatch):
    monkeypatch.setattr("eqr_torchrl.lab.diagnostics.model_errors._CHUNK", 7)
    data = transitions()
    errors = held_out_errors(LinearModel(noise=0.2), data)
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


def test_members_are_trusted_until_their_error_reaches_the_spread_of_the_states():
    # states 0 and 4 stay where they are, standard deviation 2; from s, g = 2 imagines 2 s: off by s
    trajectories = real_trajectories(gain=1.0, starts=(0.0, 4.0), length=4)
    drift = rollout_drift(model_env(gains=(2.0, 2.0)), trajectories)
    # root mean square of s is sqrt(8): sqrt(8) / 2 > 1 already
    assert drift.error[0].tolist() == pytest.approx([2**0.5] * 2)
    assert trusted_horizon(drift) == 0
    slower = rollout_drift(model_env(gains=(1.3, 1.3)), trajectories)
    # (1.3^t - 1) sqrt(2): 0.42, 0.98, 1.69
    assert trusted_horizon(slower) == 2
    assert trusted_horizon(rollout_drift(model_env(gains=(1.0,)), trajectories)) == 4


def test_one_member_that_is_far_off_ends_the_trust_in_all():
    # errors 0 and 1.9: root mean square 1.34
    drift = rollout_drift(model_env(gains=(1.0, 1.0 + 1.9 / 2**0.5)), real_trajectories(1.0, (0.0, 4.0), 1))
    assert trusted_horizon(drift) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: held_out_errors(LinearModel(), transitions(4).reshape(2, 2)), r"data must have batch size \[n\]"),
        (lambda: rollout_drift(model_env(), transitions(4)), r"trajectories must have batch size \[B, T\], got \[4\]"),
        (lambda: rollout_drift(model_env(), real_trajectories(), num_particles=1), "num_particles must be at least 2"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_disagreement_is_left_when_particle_noise_is_subtracted():
    start = torch.ones(4000, 1, 1)
    outcome = {"observation": 0.8 * start, "done": torch.zeros(4000, 1, 1, dtype=torch.bool)}
    data = TensorDict({"observation": start, "action": 0 * start, "next": TensorDict(outcome, [4000, 1])}, [4000, 1])
    drift = rollout_drift(model_env(noise=0.5), data, num_particles=2)
    # from 1 the members' means are their gains, deviation 0.2055; noise of variance 0.25 / 2 in each mean, of which
    # 2 / 3 is in the variance over three members: more than that, and little of 0.2055^2 = 0.0422 would be left
    assert drift.epistemic.item() == pytest.approx(torch.tensor(GAINS).std(correction=0).item(), rel=0.1)
