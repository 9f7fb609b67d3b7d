"""Randomised priors: members agree where there are data, and differ by the stated size where there are none."""

from __future__ import annotations

import copy

import pytest
import torch
from tensordict import TensorDict

from eqr_torchrl.networks import RandomPrior
from eqr_torchrl.testing import toy_env
from eqr_torchrl.world_models import FixedStepsFit, GaussianEnsemble, make_world_model


def transitions(rows: int, *, reward_scale: float = 1.0) -> TensorDict:
    """s' = 0.9 s + 0.1 a with reward s_0 - a, states near the origin, without noise."""
    state, action = 0.5 * torch.randn(rows, 2), torch.rand(rows, 1) * 2 - 1
    successors = {"observation": 0.9 * state + 0.1 * action, "reward": reward_scale * (state[:, :1] - action)}
    return TensorDict({"observation": state, "action": action, "next": successors}, [rows])


def fitted(data: TensorDict, num_steps: int = 600, **kwargs) -> GaussianEnsemble:
    model = GaussianEnsemble(2, 1, num_members=5, num_cells=(64, 64), **kwargs)
    fit = FixedStepsFit(model, num_steps=-(-num_steps // 2), lr=3e-3, batch_size=64)
    for _ in range(2):
        fit(data)
    return model


@torch.no_grad()
def reward_means(model: GaussianEnsemble, state: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    return model(state.expand(5, *state.shape), action.expand(5, *action.shape))[0][..., -1]  # [M, B]


def test_outputs_have_unit_deviation_and_mean_zero_on_normal_inputs():
    values = RandomPrior(3, 4, 2)(torch.randn(3, 20_000, 4))
    torch.testing.assert_close(values.std(1), torch.ones(3, 2), rtol=0, atol=0.05)
    torch.testing.assert_close(values.mean(1), torch.zeros(3, 2), rtol=0, atol=0.05)


def test_networks_of_members_differ_and_hold_no_parameters():
    prior = RandomPrior(3, 4, 2)
    first, second, third = prior(torch.randn(1000, 4).expand(3, -1, -1))[..., 0]
    assert abs(torch.corrcoef(torch.stack([first, second, third]))).triu(1).max() < 0.7
    assert not list(prior.parameters())
    assert len(prior.state_dict()) == 6


def test_prediction_is_network_plus_prior_in_units_of_the_environment():
    data = transitions(200, reward_scale=100.0)
    model = fitted(data, num_steps=5, prior_scale=0.5, reward_prior_scale=30.0, precision="fp32")
    x = model.normalizer(torch.cat([data["observation"], data["action"]], -1)).expand(5, -1, -1)
    targets = torch.cat([data["next", "observation"] - data["observation"], data["next", "reward"]], -1)
    # sigma_y^2 = std^2 + b^2: for the change of state b = 0.5 std, for the reward b = 30
    std = targets.std(0)
    b = torch.tensor([0.5, 0.5, 0.0]) * std + torch.tensor([0.0, 0.0, 30.0])
    scale = (std.square() + b.square()).sqrt()
    torch.testing.assert_close(model.target_scale, scale)
    with torch.no_grad():
        mean, log_var = model.predict(x)
        loc, noise = model(data["observation"].expand(5, -1, -1), data["action"].expand(5, -1, -1))
        expected = targets.mean(0) + scale * mean + b * model.prior(x)
    expected[..., :2] += data["observation"]
    torch.testing.assert_close(loc, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(noise, scale * (0.5 * log_var).exp())


def test_members_agree_on_the_data_and_differ_far_from_them_by_the_stated_size():
    data = transitions(1000)  # rewards of deviation 0.76
    model = fitted(data, reward_prior_scale=5.0)
    truth = data["next", "reward"].squeeze(-1)
    near = reward_means(model, data["observation"], data["action"])
    assert (near - truth).square().mean().sqrt() < 0.4  # 0.08 of the prior
    assert near.std(0).mean() < 0.4
    far = reward_means(model, 5.0 * torch.nn.functional.normalize(torch.randn(500, 2), dim=-1), torch.zeros(500, 1))
    assert 2.5 < far.std(0).mean() < 15.0  # the stated 5, and what the trained parts add to it


def test_a_reward_that_never_varied_is_learnt_beside_a_large_prior():
    data = transitions(1000, reward_scale=0.0)
    model = fitted(data, reward_prior_scale=10.0)
    near = reward_means(model, data["observation"], data["action"])
    assert near.square().mean().sqrt() < 1.0  # a tenth of the prior; the prior itself has 10
    with torch.no_grad():
        x = model.normalizer(torch.cat([data["observation"], data["action"]], -1)).expand(5, -1, -1)
        assert (model.prior(x)[..., -1] * 10).square().mean().sqrt() > 5.0


@pytest.mark.parametrize("kwargs", [{"prior_scale": -1.0}, {"reward_prior_scale": float("nan")}])
def test_scales_must_not_be_negative(kwargs):
    with pytest.raises(ValueError, match=f"{next(iter(kwargs))} must be finite and not negative"):
        GaussianEnsemble(2, 1, **kwargs)


def test_without_a_prior_nothing_is_added():
    assert GaussianEnsemble(2, 1).prior is None
    assert GaussianEnsemble(2, 1, learn_reward=False, reward_prior_scale=3.0).prior is None


@torch.no_grad()
def prior_of(model: GaussianEnsemble, state: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """The priors in units of the environment: what networks of zeros predict, less the mean of the targets."""
    silent = copy.deepcopy(model)
    for parameter in silent.layers.parameters():
        parameter.zero_()
    loc, _ = silent(*(value.expand(model.num_members, *value.shape) for value in (state, action)))
    return loc - torch.nn.functional.pad(state, (0, 1)) - silent.target_mean


def prior_model(**kwargs) -> GaussianEnsemble:
    return GaussianEnsemble(2, 1, **{"num_members": 3, "num_cells": (8,), "prior_scale": 0.5, **kwargs})


def widened(data: TensorDict, factor: float) -> TensorDict:
    wide = data.clone()
    for key in ("observation", ("next", "observation"), ("next", "reward")):
        wide[key] = factor * data[key]
    return wide


@pytest.mark.parametrize("normalize_targets", [True, False])
def test_the_prior_is_one_function_whatever_later_fits_see(normalize_targets):
    model = prior_model(reward_prior_scale=2.0, normalize_targets=normalize_targets)
    fit, data = FixedStepsFit(model, num_steps=2), transitions(300)
    points = 2 * torch.randn(50, 2), torch.rand(50, 1)
    fit(data)
    first = prior_of(model, *points)
    change = (data["next", "observation"] - data["observation"]).std(0)
    assert 0.2 < (first[..., :2] / change).std() < 1.0 and 0.8 < first[..., 2].std() < 4.0  # b = 0.5 std, and 2
    again = prior_model(reward_prior_scale=2.0, normalize_targets=normalize_targets)
    again.load_state_dict(model.state_dict())
    for one in (fit, FixedStepsFit(again, num_steps=2)):  # and what a state was loaded into
        one(widened(data, 3.0))  # three times as wide, as in a policy's first successes
        torch.testing.assert_close(prior_of(one.world_model, *points), first, rtol=1e-3, atol=1e-4)


def test_an_entry_that_changes_only_later_gets_its_prior_then_and_keeps_it():
    model, points = prior_model(), (2 * torch.randn(50, 2), torch.rand(50, 1))
    fit, data = FixedStepsFit(model, num_steps=2), transitions(300)
    still = data.clone()
    still["next", "observation"][:, 1] = still["observation"][:, 1]
    fit(still)
    before = prior_of(model, *points)
    assert before[..., 1].abs().max() < 1e-6
    fit(data)
    then = prior_of(model, *points)
    assert then[..., 1].abs().max() > 0.01
    torch.testing.assert_close(then[..., 0], before[..., 0], rtol=1e-3, atol=1e-4)
    fit(widened(data, 3.0))
    torch.testing.assert_close(prior_of(model, *points), then, rtol=1e-3, atol=1e-4)


def test_a_prior_follows_the_data_until_rewards_differ():
    # a swing-up that hangs still: its states hardly vary, and a prior standardised by them would be constant elsewhere
    model, data = prior_model(reward_prior_scale=lambda rewards: 25.0 if rewards.std() == 0 else 2.0), transitions(300)
    fit, points = FixedStepsFit(model, num_steps=2), (2 * torch.randn(50, 2), torch.rand(50, 1))
    still, moving = widened(data, 0.05), data.clone()
    still["next", "reward"] = torch.zeros(300, 1)
    moving["next", "reward"] = torch.zeros(300, 1)
    change = (data["next", "observation"] - data["observation"]).std(0)
    for rows, factor in ((still, 0.05), (moving, 1.0), (widened(moving, 3.0), 3.0)):
        fit(rows)
        inputs = torch.cat([rows["observation"], rows["action"]], -1)
        torch.testing.assert_close(model.prior_normalizer.mean, inputs.mean(0))
        assert not model.prior_is_fixed and model.prior_size[-1] == 25.0  # the reward's is chosen once
        torch.testing.assert_close(model.prior_size[:2], factor * 0.5 * change)
    fit(data)
    then = prior_of(model, *points)
    assert model.prior_is_fixed and model.prior_size[-1] == 25.0
    torch.testing.assert_close(model.prior_size[:2], 0.5 * change)
    fit(widened(data, 3.0))
    torch.testing.assert_close(prior_of(model, *points), then, rtol=1e-3, atol=1e-4)


def test_where_the_reward_is_known_the_first_fit_fixes_the_prior():
    model, data = prior_model(learn_reward=False), transitions(300)
    FixedStepsFit(model, num_steps=2)(data)
    assert model.prior_is_fixed


def test_what_is_trained_follows_the_standardisation_so_that_data_are_met_after_each_fit():
    # the second fit sees rewards 3 times as large: each member must again predict them, its prior added
    model = prior_model(num_cells=(64, 64), reward_prior_scale=5.0)
    fit, data = FixedStepsFit(model, num_steps=400, lr=3e-3, batch_size=64), transitions(500)
    for rows in (data, widened(data, 3.0)):
        fit(rows)
        with torch.no_grad():
            loc, _ = model(rows["observation"].expand(3, -1, -1), rows["action"].expand(3, -1, -1))
        assert (loc[..., 2:] - rows["next", "reward"]).square().mean().sqrt() < 1.5  # the priors have 5


@pytest.mark.parametrize(("reward", "size"), [(0.0, 25.0), (20.0, 11.55)])  # rare: half of 50; uniform: 40 / sqrt(12)
def test_the_first_rewards_may_choose_the_prior_of_the_reward(reward, size):
    model = make_world_model(toy_env(2), num_cells=(8,), reward_prior_scale=None, reward_bounds=(-10.0, 40.0))
    data = transitions(2000)
    data["next", "reward"] = reward * (2 * torch.rand(2000, 1) - 1)
    fit = FixedStepsFit(model, num_steps=2)
    fit(data)
    assert model.prior_size[-1].item() == pytest.approx(size, rel=0.03)
    data["next", "reward"][:] = torch.randn(2000, 1)
    fit(data)
    assert model.prior_size[-1].item() == pytest.approx(size, rel=0.03)  # for good
