"""The default fit: how often rows are drawn, what its seed fixes, and that later calls go on."""

from __future__ import annotations

import copy

import pytest
import torch
from tensordict import TensorDict

from eqr_torchrl.world_models import EarlyStoppingFit, FixedStepsFit, GaussianEnsemble
from eqr_torchrl.world_models.rows import Rows


def transitions(rows: int) -> TensorDict:
    """s' = 0.9 s + 0.1 a + noise of 0.05, reward s_0 with as much noise."""
    state, action = torch.randn(rows, 2), torch.rand(rows, 1) * 2 - 1
    after = 0.9 * state + 0.1 * action + 0.05 * torch.randn(rows, 2)
    successors = {"observation": after, "reward": state[:, :1] + 0.05 * torch.randn(rows, 1)}
    return TensorDict({"observation": state, "action": action, "next": successors}, [rows])


def make(num_members: int = 3, **kwargs) -> GaussianEnsemble:
    return GaussianEnsemble(2, 1, num_members=num_members, num_cells=(16,), **kwargs)


def drawn_rows(monkeypatch, fit: FixedStepsFit, data: TensorDict) -> torch.Tensor:
    """Rows of each member in all steps of a fit, ``[M, num_steps * B]``."""
    index = []
    monkeypatch.setattr(fit, "_step", lambda rows, rows_of_step, *_: index.append(rows_of_step))
    fit(data)
    return torch.cat(index, 1)


def test_each_member_draws_from_a_bootstrap_sample_of_its_own(monkeypatch):
    fit = FixedStepsFit(make(), num_steps=400, batch_size=100, rare_threshold=None)
    counts = torch.stack([rows.bincount(minlength=100) for rows in drawn_rows(monkeypatch, fit, transitions(100))])
    # a row is left out of a sample of 100 with probability 0.99^100 = 0.366, and then never drawn
    left_out = (counts == 0).float().mean(1)
    assert ((left_out - 0.366).abs() < 5 * (0.366 * 0.634 / 100) ** 0.5).all()
    copies = (counts / 400).round()  # 400 draws for each copy in the sample
    assert copies.sum(1).tolist() == pytest.approx([100] * 3, abs=8)
    assert not torch.equal(counts[0] == 0, counts[1] == 0)


def test_rows_with_a_rare_target_are_drawn_as_often_as_they_exceed_the_threshold(monkeypatch):
    # 400 rewards of 0 and one of 1: sqrt(400) = 20 deviations, 10 times a threshold of 2: 10 of 410 draws
    data = transitions(401)
    data["next", "reward"] = torch.zeros(401, 1)
    data["next", "reward"][5] = 1.0
    data["next", "observation"] = data["observation"]  # nothing else varies
    fit = FixedStepsFit(make(), num_steps=100, batch_size=401, rare_threshold=2.0)
    rows = drawn_rows(monkeypatch, fit, data)
    share = (rows == 5).float().mean(1)
    assert ((share - 10 / 410).abs() < 5 * (10 / 410 / rows.shape[1]) ** 0.5 + 2e-3).all()


def test_the_seed_fixes_the_draws(monkeypatch):
    data, draws = transitions(50), []
    for seed in (0, 0, 1):
        fit = FixedStepsFit(make(), num_steps=3)
        torch.manual_seed(seed)
        draws.append(drawn_rows(monkeypatch, fit, data))
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])


def test_members_with_equal_weights_part():
    model = make(num_members=2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter[1] = parameter[0]
    FixedStepsFit(model, num_steps=20, lr=1e-2)(transitions(40))
    assert all((p[0] - p[1]).abs().max() > 1e-4 for p in model.parameters())


def test_each_call_takes_num_steps_more_with_the_optimiser_of_the_last():
    model = make()
    fit, again = FixedStepsFit(model, num_steps=7), FixedStepsFit(model, num_steps=5)
    fit(transitions(30))
    assert fit.optimizer.state[model.layers[0].weight]["step"] == 7
    again.load_state_dict(fit.state_dict())
    metrics = again(transitions(40))
    state = again.optimizer.state[model.layers[0].weight]
    assert state["step"] == 12 and state["exp_avg"].shape == model.layers[0].weight.shape
    assert metrics["train_rows"] == 40 and len(metrics["train_mse"]) == len(metrics["train_nll"]) == 3


def test_two_fits_learn_mean_and_noise_of_data_that_widen():
    model, data = GaussianEnsemble(2, 1, num_members=3, num_cells=(32,)), transitions(1500)
    fit = FixedStepsFit(model, num_steps=400, lr=5e-3, batch_size=64)
    fit(data[data["observation"].abs().amax(-1) < 0.7])
    fit(data)
    fresh = transitions(300)
    with torch.no_grad():
        loc, scale = model(*(fresh[key].expand(3, -1, -1) for key in ("observation", "action")))
    state, action = fresh["observation"], fresh["action"]
    truth = torch.cat([0.9 * state + 0.1 * action, state[:, :1]], -1)
    assert (loc - truth).square().mean().sqrt() < 0.06
    torch.testing.assert_close(scale.log().mean((0, 1)).exp(), torch.full((3,), 0.05), rtol=0.5, atol=0)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_steps": 0}, "num_steps must be a positive integer, got 0"),
        ({"variance_weight": -0.1}, "variance_weight must be in .0, 1., got -0.1"),
        ({"rare_threshold": 0.0}, "rare_threshold must be positive or None, got 0.0"),
    ],
)
def test_bad_settings_are_named(kwargs, message):
    with pytest.raises(ValueError, match=message):
        FixedStepsFit(make(), **kwargs)


@pytest.mark.parametrize("fit_class", [FixedStepsFit, EarlyStoppingFit])
@pytest.mark.parametrize("variance_weight", [0.0, 0.5, 1.0])
def test_the_loss_that_is_descended_has_the_variance_weight_of_the_fit(fit_class, variance_weight):
    same = {"observation": torch.full((8, 2), 0.4), "reward": torch.ones(8, 1)}
    data = TensorDict({"observation": torch.full((8, 2), 0.1), "action": torch.zeros(8, 1), "next": same}, [8])
    model = GaussianEnsemble(2, 1, num_members=2, num_cells=(8,), normalize_targets=False)
    start = copy.deepcopy(model)
    steps = {"num_steps": 1} if fit_class is FixedStepsFit else {"max_epochs": 1}  # equal rows: any batch is the same
    fit = fit_class(model, variance_weight=variance_weight, weight_decay=0.0, **steps)
    fit(data)
    batch = Rows(start, data).take(torch.zeros(2, 8, dtype=torch.long))
    loss = start.loss(*batch, variance_weight=variance_weight).sum() / 2
    (gradient,) = torch.autograd.grad(loss, start.layers[-1].bias)
    assert gradient.abs().min() > 1e-3
    # Adam's mean of gradients after one step: 1 - 0.9 of the first
    torch.testing.assert_close(fit.optimizer.state[model.layers[-1].bias]["exp_avg"], 0.1 * gradient)
