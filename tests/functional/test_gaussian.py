from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import distributions as D
from torchrl.modules import TanhNormal

from eqr_torchrl import functional as F


def test_gaussian_nll_is_twice_the_negative_log_likelihood_without_its_constant():
    mean, log_var, target = torch.randn(3, 50, dtype=torch.float64)
    likelihood = D.Normal(mean, (0.5 * log_var).exp()).log_prob(target)
    torch.testing.assert_close(F.gaussian_nll(mean, log_var, target), -2 * likelihood - math.log(2 * math.pi))


@pytest.mark.parametrize("num_strata", [2, 6, 7, 25])  # up to 6 from a table of permutations
def test_stratified_draws_put_one_draw_into_each_bin(num_strata):
    noise = F.stratified_normal((50, num_strata, 3), dim=1)
    bins = (torch.special.ndtr(noise.double()) * num_strata).floor().sort(dim=1).values
    expected = torch.arange(num_strata, dtype=torch.float64)[None, :, None].expand(50, -1, 3)
    assert (bins - expected).abs().gt(0).double().mean() < 1e-3  # rounding at the edge of a bin


@pytest.mark.parametrize("num_strata", [1, 4, 8])
def test_each_stratified_draw_alone_is_standard_normal(num_strata):
    noise = F.stratified_normal((4000, num_strata, 2), dim=1)
    for k in range(num_strata):
        assert stats.kstest(noise[:, k].flatten().numpy(), "norm").pvalue > 1e-4
    # dimensions are permuted independently: no correlation between them within a draw
    assert abs(torch.corrcoef(noise[:, 0].T)[0, 1].item()) < 0.06


def test_stratified_means_are_unbiased_and_of_less_variance_than_independent_ones():
    # f(e) = e_0 + sin(2 e_1) + e_0 e_1, with mean 0: two additive terms and an interaction
    iid = torch.randn(20_000, 4, 2)
    stratified = F.stratified_normal((20_000, 4, 2), dim=1)
    means = {}
    for name, e in (("iid", iid), ("stratified", stratified)):
        means[name] = (e[..., 0] + torch.sin(2 * e[..., 1]) + e[..., 0] * e[..., 1]).mean(1)
    standard_error = means["stratified"].std() / math.sqrt(20_000)
    assert abs(means["stratified"].mean()) < 4 * standard_error
    assert means["stratified"].var() < 0.7 * means["iid"].var()
    # with the additive terms alone, four strata leave little: each is a one-dimensional stratified mean
    additive = {n: (e[..., 0] + e[..., 1]).mean(1).var() for n, e in (("iid", iid), ("stratified", stratified))}
    assert additive["stratified"] < 0.2 * additive["iid"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_stratified_draws_of_half_precision_are_rounded_exact_ones(dtype):
    full = F.stratified_normal((4000, 8), dim=1)
    torch.manual_seed(0)
    half = F.stratified_normal((4000, 8), dim=1, dtype=dtype)
    assert half.dtype == dtype
    torch.testing.assert_close(half, full.to(dtype), rtol=0, atol=0)
    assert half.abs().max() > 3.5  # tails, which levels of eight bits would cut at 2.9


def test_half_precision_survives_bounds_of_full_precision():
    loc, noise, bound = torch.zeros(5, 2, dtype=torch.bfloat16), torch.ones(5, 2, dtype=torch.bfloat16), torch.ones(2)
    action, log_prob = F.tanh_normal(loc, torch.ones_like(loc), noise, -bound, bound)
    assert action.dtype == log_prob.dtype == torch.bfloat16
    # log N(1) - log(1 - tanh(1)^2) in each of two entries; neighbours of 4 in bfloat16 are 1 / 32 away
    expected = 2 * (-0.5 - 0.5 * math.log(2 * math.pi) - math.log(1 - math.tanh(1) ** 2))
    assert log_prob.float().tolist() == pytest.approx([expected] * 5, abs=1 / 32)


@pytest.mark.parametrize(("low", "high"), [([-1.0, -1.0], [1.0, 1.1]), ([-50.0, 0.0], [50.0, 100.0])])
def test_tanh_normal_agrees_with_torchrl(low, high):
    loc, scale, noise = torch.randn(3, 200, 2, dtype=torch.float64)
    scale = scale.exp()
    low, high = torch.tensor(low, dtype=torch.float64), torch.tensor(high, dtype=torch.float64)
    action, log_prob = F.tanh_normal(loc, scale, noise, low, high)
    inside = ((action - low) / (high - low) - 0.5).abs().amax(-1) < 0.499  # where inverting tanh is accurate
    expected = TanhNormal(loc, scale, low=low, high=high).log_prob(action)
    assert inside.sum() > 50
    torch.testing.assert_close(log_prob[inside], expected[inside], rtol=1e-6, atol=1e-6)


def test_density_of_actions_integrates_to_one_in_environment_units():
    # substitute a = tanh-squashed u on a grid: the integral of exp(log_prob) da over the bounds
    u = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
    for low, high in ((-50.0, 50.0), (0.0, 100.0)):
        loc, scale = torch.tensor([0.3], dtype=torch.float64), torch.tensor([0.8], dtype=torch.float64)
        noise = ((u - loc) / scale).unsqueeze(-1)
        action, log_prob = F.tanh_normal(loc, scale, noise, torch.tensor([low]).double(), torch.tensor([high]).double())
        assert torch.isfinite(log_prob).all()
        assert torch.trapezoid(log_prob.exp(), action.squeeze(-1)).item() == pytest.approx(1.0, abs=1e-3)


def test_entropy_at_saturated_actions_agrees_with_quadrature():
    # u ~ N(8, 1): tanh is 1 to seven digits; entropy = h(u) + E[log(1 - tanh^2 u)], by quadrature in float64
    u = torch.linspace(-2, 18, 400_001, dtype=torch.float64)
    density = D.Normal(8.0, 1.0).log_prob(u).exp()
    log_slope = torch.log(4 / (torch.exp(u) + torch.exp(-u)) ** 2)
    expected = 0.5 * math.log(2 * math.pi * math.e) + torch.trapezoid(density * log_slope, u).item()
    noise = F.stratified_normal((20_000, 1), dim=0)
    one = torch.ones(1)
    _, log_prob = F.tanh_normal(8 * one, one, noise, -one, one)
    assert -log_prob.mean().item() == pytest.approx(expected, rel=0.01)
