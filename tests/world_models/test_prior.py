"""Randomised priors: members agree where there are data, and differ by the stated size where there are none."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from eqr_torchrl.networks import RandomPrior
from eqr_torchrl.world_models import FixedStepsFit, GaussianEnsemble


def transitions(rows: int, *, reward_scale: float = 1.0) -> TensorDict:
    """s' = 0.9 s + 0.1 a with reward s_0 - a, states near the origin, without noise."""
    state, action = 0.5 * torch.randn(rows, 2), torch.rand(rows, 1) * 2 - 1
    successors = {"observation": 0.9 * state + 0.1 * action, "reward": reward_scale * (state[:, :1] - action)}
    return TensorDict({"observation": state, "action": action, "next": successors}, [rows])


def fitted(data: TensorDict, num_steps: int = 600, **kwargs) -> GaussianEnsemble:
    model = GaussianEnsemble(2, 1, num_members=5, num_cells=(64, 64), **kwargs)
    FixedStepsFit(model, num_steps=num_steps, lr=3e-3, batch_size=64)(data)
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
    without = fitted(data)
    assert reward_means(without, data["observation"], data["action"]).std(0).mean() < 0.4


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
