"""The batched ensemble against its members one by one, and its likelihood against torch.distributions."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from eqr_torchrl.testing import toy_env
from eqr_torchrl.world_models import GaussianEnsemble, make_world_model


def toy_ensemble(**kwargs) -> GaussianEnsemble:
    model = GaussianEnsemble(3, 2, **{"num_members": 4, "num_cells": (16, 8), "precision": "fp32", **kwargs})
    model.normalizer.update(torch.randn(50, 5) * 2 + 1)
    for layer in model.layers:
        nn.init.normal_(layer.bias)
    return model


def one_member(model: GaussianEnsemble, m: int, observation, action):
    """Member m of the ensemble as an ordinary network: mean of s' and r, and their log-variance."""
    hidden = (torch.cat([observation, action], -1) - model.normalizer.mean) / model.normalizer.std
    *inner, last = model.layers
    for layer in inner:
        hidden = functional.linear(hidden, layer.weight[m].T, layer.bias[m, 0])
        hidden = hidden * torch.sigmoid(hidden)
    mean, log_var = functional.linear(hidden, last.weight[m].T, last.bias[m, 0]).split(4, -1)
    log_var = 0.5 - functional.softplus(0.5 - log_var)
    log_var = -10 + functional.softplus(log_var + 10)
    return mean + functional.pad(observation, (0, 1)), log_var


@pytest.mark.parametrize("rows", [1, 256, 600])  # the last one passes through in chunks
@pytest.mark.parametrize("grad", [True, False])
def test_forward_is_that_of_each_member_alone(rows, grad):
    model, observation, action = toy_ensemble(), torch.randn(4, rows, 3), torch.randn(4, rows, 2)
    inputs = observation.clone(), action.clone()
    with torch.set_grad_enabled(grad):
        loc, scale = model(observation, action)
    assert torch.equal(inputs[0], observation)
    assert torch.equal(inputs[1], action)
    for m in range(4):
        mean, log_var = one_member(model, m, observation[m], action[m])
        torch.testing.assert_close(loc[m], mean)
        torch.testing.assert_close(scale[m], log_var.exp().sqrt())


def test_expanded_inputs_are_accepted():
    model, observation, action = toy_ensemble(), torch.randn(300, 3), torch.randn(300, 2)  # in two chunks
    with torch.no_grad():
        expanded = model(observation.expand(4, -1, -1), action.expand(4, -1, -1))
        torch.testing.assert_close(expanded, model(observation.repeat(4, 1, 1), action.repeat(4, 1, 1)))


def test_loss_and_gradients_are_those_of_twice_the_negative_log_likelihood_up_to_its_constant():
    model, inputs, targets = toy_ensemble(), torch.randn(4, 9, 5), torch.randn(4, 9, 4)
    mean, log_var = model.predict(inputs)
    nll = -torch.distributions.Normal(mean, (0.5 * log_var).exp()).log_prob(targets)
    ours, expected = model.loss(inputs, targets), (2 * nll - math.log(2 * math.pi)).mean((1, 2))
    torch.testing.assert_close(ours, expected)
    parameters = list(model.parameters())
    torch.testing.assert_close(*(torch.autograd.grad(loss.sum(), parameters) for loss in (ours, expected)))


def test_with_a_variance_weight_squared_errors_weigh_alike_whatever_the_noise():
    # beta = 1, for each of four entries: w ((m - y)^2 e^-l + l) / 4 at a fixed w = e^l, so that the gradient is
    # 2 (m - y) / 4 in m and (e^l - (m - y)^2) / 4 in l
    model, inputs, targets = toy_ensemble(), torch.randn(4, 1, 5), torch.randn(4, 1, 4)
    mean, log_var = model.predict(inputs)
    expected = ((mean - targets).square() + log_var.exp() * log_var).mean((1, 2))
    ours = model.loss(inputs, targets, variance_weight=1.0)
    torch.testing.assert_close(ours, expected)
    slopes = 2 * (mean - targets) / 4, (log_var.exp() - (mean - targets).square()) / 4
    bias = model.layers[-1].bias
    expected = torch.autograd.grad((mean, log_var), bias, slopes, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(ours.sum(), bias), expected)


def test_an_entry_that_never_changed_trains_nothing():
    model = toy_ensemble()
    model.target_scale[3] = 0.0
    loss = model.loss(torch.randn(4, 10, 5), torch.randn(4, 10, 4)).sum()
    gradient = torch.autograd.grad(loss, model.layers[-1].bias)[0].flatten(0, -2)  # of four means, four log-variances
    assert not gradient[:, [3, 7]].any() and gradient[:, [0, 1, 2, 4, 5, 6]].all()


def test_a_members_loss_has_no_gradient_in_other_members():
    model = toy_ensemble()
    model.loss(torch.randn(4, 9, 5), torch.randn(4, 9, 4))[2].backward()
    for parameter in model.parameters():
        assert parameter.grad[[0, 1, 3]].abs().max() == 0
        assert parameter.grad[2].abs().max() > 0


@pytest.mark.parametrize("size", [1e6, -1e6, 1e30])
def test_huge_inputs_give_finite_predictions_within_the_bounds(size):
    model = toy_ensemble()
    for layer in model.layers:
        nn.init.normal_(layer.weight, std=100.0)
    observation, action = torch.full((4, 2, 3), size), torch.full((4, 2, 2), -size)
    loc, scale = model(observation, action)
    assert torch.isfinite(loc).all()
    log_var = 2 * scale.log()  # untrained: the scale of the targets is 1
    assert log_var.min() >= -10 - 1e-4
    assert log_var.max() <= 0.5 + 1e-4
    assert torch.isfinite(model.loss(model.normalizer(torch.full((4, 2, 5), size)), torch.zeros(4, 2, 4))).all()


def test_known_reward_leaves_only_the_observation_to_predict():
    model = GaussianEnsemble(3, 2, num_members=4, num_cells=(8,), learn_reward=False)
    loc, scale = model(torch.zeros(4, 6, 3), torch.zeros(4, 6, 2))
    assert (model.noise_dim, model.predicts_reward) == (3, False)
    assert loc.shape == scale.shape == (4, 6, 3)


def test_half_precision_matmuls_leave_full_precision_outputs():
    model, inputs = toy_ensemble(), (torch.randn(4, 6, 3), torch.randn(4, 6, 2))
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        loc, scale = model(*inputs)
    assert loc.dtype == scale.dtype == torch.float32
    exact_loc, exact_scale = model(*inputs)
    assert (loc - exact_loc).abs().max() < 0.1
    assert (scale / exact_scale).log().abs().max() < 0.1


def test_one_graph_without_breaks():
    model, inputs = toy_ensemble(), (torch.randn(4, 3000, 3), torch.randn(4, 3000, 2))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*inputs), model(*inputs))


def test_make_world_model_takes_the_sizes_of_the_environment():
    model = make_world_model(toy_env(4, 2), num_members=3, num_cells=(8,))
    assert (model.observation_dim, model.action_dim, model.num_members) == (4, 2, 3)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"log_var_bounds": (0.5, -10.0)}, "log_var_bounds must increase, got"),
        ({"num_members": 0}, "num_members must be a positive integer, got 0"),
        ({"num_members": 1.5}, r"num_members must be a positive integer, got 1\.5"),
        ({"num_cells": (8, 0)}, "features must be a positive integer, got 0"),
        ({"num_cells": "abc"}, "features must be a positive integer, got 'a'"),
        ({"observation_dim": 0}, "observation_dim must be a positive integer, got 0"),
        ({"action_dim": 0}, "action_dim must be a positive integer, got 0"),
    ],
)
def test_errors_name_the_argument(kwargs, message):
    with pytest.raises(ValueError, match=message):
        GaussianEnsemble(**{"observation_dim": 3, "action_dim": 2, **kwargs})


@pytest.mark.parametrize("rows", [7, 300])  # the second in pieces
def test_parameters_of_many_models_may_be_mapped_over(rows):
    models = [toy_ensemble() for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(models)  # pyright: ignore[reportArgumentType]
    inputs = torch.randn(4, rows, 3), torch.randn(4, rows, 2)
    with torch.no_grad():
        found = torch.func.vmap(lambda p, b: torch.func.functional_call(models[0], (p, b), inputs))(parameters, buffers)
        for i, model in enumerate(models):
            torch.testing.assert_close([part[i] for part in found], list(model(*inputs)))


def test_hidden_matmuls_in_bfloat16_leave_the_last_layer_exact():
    model, rounded = toy_ensemble(), toy_ensemble(precision="bf16")
    rounded.load_state_dict(model.state_dict())
    inputs = torch.randn(4, 100, 3), torch.randn(4, 100, 2)
    with torch.no_grad():
        (loc, scale), (exact_loc, exact_scale) = rounded(*inputs), model(*inputs)
        delta = loc[..., :3] - inputs[0], loc[..., 3:]
    assert not torch.equal(loc, exact_loc)  # 2^-8 of hidden values near 1
    assert (loc - exact_loc).abs().max() < 0.1 and (scale / exact_scale).log().abs().max() < 0.1
    for values in delta:  # a last layer in bfloat16 would give numbers of 8 bits, up to the rounding of the sum
        assert ((values.bfloat16() - values).abs() > 1e-5 * values.abs()).float().mean() > 0.9


def test_an_entry_counts_as_constant_by_its_spread_relative_to_its_mean():
    # rewards of deviation 1e-9 around 0 are learned; a float32 counter near 1e6 changes by rounding alone
    model, inputs = GaussianEnsemble(3, 2, num_cells=(8,)), torch.randn(1000, 5)
    targets = torch.cat([1e6 + 0.1 * torch.rand(1000, 1), torch.randn(1000, 2), 1e-9 * torch.randn(1000, 1)], -1)
    model.update_statistics(inputs, targets)
    assert (model.target_scale > 0).tolist() == [False, True, True, True]
    torch.testing.assert_close(model.target_scale[3:], torch.tensor([1e-9]), rtol=0.1, atol=0)
