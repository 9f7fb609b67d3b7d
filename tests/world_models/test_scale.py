"""A world model on its own scale: rewards of any size, constant entries, rare rows."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from eqr_torchrl.world_models import EarlyStoppingFit, FixedStepsFit, GaussianEnsemble


def transitions(rows: int, *, reward_scale: float = 1.0) -> TensorDict:
    """s' = 0.9 s + 0.1 a and a third entry that never changes; reward sin(2 s_0) - a^2, without noise."""
    state = torch.cat([torch.randn(rows, 2), torch.full((rows, 1), 3.0)], -1)
    action = torch.rand(rows, 1) * 2 - 1
    after = torch.cat([0.9 * state[:, :2] + 0.1 * action, state[:, 2:]], -1)
    reward = reward_scale * ((2 * state[:, :1]).sin() - action.square())
    return TensorDict(
        {"observation": state, "action": action, "next": {"observation": after, "reward": reward}}, [rows]
    )


@torch.no_grad()
def predict(model: GaussianEnsemble, data: TensorDict) -> tuple[torch.Tensor, torch.Tensor]:
    return model(*(data[key].expand(model.num_members, -1, -1) for key in ("observation", "action")))


@pytest.mark.parametrize("reward_scale", [0.001, 10_000.0])
def test_rewards_of_any_size_are_learnt_alike(reward_scale):
    model = GaussianEnsemble(3, 1, num_members=2, num_cells=(64, 64, 64))
    FixedStepsFit(model, num_steps=1000, lr=3e-3, batch_size=64)(transitions(2000, reward_scale=reward_scale))
    fresh = transitions(1000, reward_scale=reward_scale)
    reward = fresh["next", "reward"].squeeze(-1)
    error = (predict(model, fresh)[0][..., -1] - reward).square().mean().sqrt() / reward.std()
    assert error < 0.15


def test_an_entry_that_never_changes_is_predicted_as_it_is_without_noise():
    model = GaussianEnsemble(3, 1, num_members=2, num_cells=(8,))
    FixedStepsFit(model, num_steps=5)(transitions(50, reward_scale=0.0))
    far = TensorDict({"observation": 10 * torch.randn(7, 3), "action": torch.zeros(7, 1)}, [7])
    loc, scale = predict(model, far)
    torch.testing.assert_close(loc[..., 2], far["observation"][:, 2].expand(2, -1), rtol=0, atol=0)
    assert loc[..., 3].abs().max() == 0 and scale[..., 2:].abs().max() == 0
    assert (scale[..., :2] > 0).all()


def test_metrics_are_in_units_of_the_environment():
    # the same data with states and rewards a hundred times larger: squared errors 1e4 times, 2 log 100 = 9.21 nats more
    small, large = transitions(300), transitions(300)
    large.update(small)
    for key in ("observation", ("next", "observation"), ("next", "reward")):
        large[key] = small[key] * 100
    metrics = []
    for data in (small, large):
        torch.manual_seed(0)
        model = GaussianEnsemble(3, 1, num_members=2, num_cells=(8,))
        metrics.append(EarlyStoppingFit(model, max_epochs=3)(data))
    ratio = torch.tensor(metrics[1]["validation_mse"]) / torch.tensor(metrics[0]["validation_mse"])
    torch.testing.assert_close(ratio, torch.full((2,), 1e4), rtol=1e-2, atol=0)
    difference = torch.tensor(metrics[1]["validation_nll"]) - torch.tensor(metrics[0]["validation_nll"])
    torch.testing.assert_close(difference, torch.full((2,), 9.2103), rtol=0, atol=2e-2)


def test_published_form_leaves_targets_in_units_of_the_environment():
    data = transitions(50, reward_scale=10.0)
    model = GaussianEnsemble(3, 1, num_members=2, num_cells=(8,), normalize_targets=False)
    FixedStepsFit(model, num_steps=5)(data)
    assert (model.target_scale == 1).all() and (model.target_mean == 0).all()


def goal() -> TensorDict:
    """One transition far out whose reward is 50 where all others are between -1 and 1."""
    row = transitions(1)
    row["observation"], row["action"] = torch.tensor([[3.0, 3.0, 3.0]]), torch.zeros(1, 1)
    row["next"]["observation"] = torch.tensor([[2.7, 2.7, 3.0]])
    row["next"]["reward"] = torch.tensor([[50.0]])
    return row


def test_a_goal_seen_once_is_learned_and_kept_and_costs_the_rest_little():
    elsewhere = transitions(1000)
    elsewhere = elsewhere[elsewhere["observation"][:, :2].amax(-1) < 1.0]  # not beside the goal
    target = torch.cat([elsewhere["next", "observation"], elsewhere["next", "reward"]], -1)
    errors = {}
    for threshold in (None, 3.0):
        torch.manual_seed(1)
        model = GaussianEnsemble(3, 1, num_members=3, num_cells=(100, 100))
        fit, data = FixedStepsFit(model, lr=2e-3, rare_threshold=threshold), torch.cat([transitions(3999), goal()])
        for later in range(11):
            if later:
                data = torch.cat([data, transitions(100)])
            fit(data)
            reward = predict(model, goal())[0][..., -1]
            if threshold is not None and later in (0, 10):
                assert (reward > 25.0).all() and (reward < 75.0).all()
        errors[threshold] = (predict(model, elsewhere)[0] - target).square().mean().sqrt()
    assert errors[3.0] < 1.2 * errors[None]


def test_rewards_that_the_published_form_cannot_learn_are_named():
    fit = FixedStepsFit(GaussianEnsemble(3, 1, num_members=2, num_cells=(8,), normalize_targets=False), num_steps=1)
    data = transitions(50, reward_scale=10_000.0)
    with pytest.warns(UserWarning, match=r"standard deviations near 1 .* got more than 100: set"):
        fit(data)
