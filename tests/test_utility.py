from __future__ import annotations

import math

import pytest
import torch

from eqr_torchrl.utility import CVaRUtility, EntropicUtility, MeanUtility, OptimisticUtility, QuantileUtility

UTILITIES = [
    MeanUtility(),
    OptimisticUtility(),
    OptimisticUtility(-0.5),
    QuantileUtility(0.7),
    CVaRUtility(0.3),
    EntropicUtility(0.5),
    EntropicUtility(-0.5),
]


@pytest.mark.parametrize("utility", UTILITIES, ids=repr)
def test_every_utility_is_indifferent_to_order_and_of_a_constant_is_the_constant(utility):
    q = torch.randn(3, 4, 11, generator=torch.Generator().manual_seed(0))
    value = utility(q)
    assert value.shape == (3, 4)
    torch.testing.assert_close(utility(q[..., torch.randperm(11)]), value)
    for constant in (0.0, 3.0, -1e4):
        torch.testing.assert_close(utility(torch.full((2, 5), constant)), torch.full((2,), constant))


@pytest.mark.parametrize("utility", UTILITIES, ids=repr)
@pytest.mark.parametrize("num_quantiles", [1, 6])
def test_value_and_gradient_are_finite_where_all_quantiles_are_equal(utility, num_quantiles):
    q = torch.full((2, num_quantiles), 5.0, requires_grad=True)
    value = utility(q).sum()
    value.backward()
    assert value.item() == pytest.approx(10)
    assert torch.isfinite(q.grad).all()
    torch.testing.assert_close(q.grad.sum(-1), torch.ones(2))  # a shift of all quantiles shifts the value


def test_optimism_uses_the_unbiased_deviation():
    # mean 2, squared deviations 1 + 1 + 4 = 6 over N - 1 = 2
    assert OptimisticUtility(2.0)(torch.tensor([1.0, 1.0, 4.0])).item() == pytest.approx(2 + 2 * math.sqrt(3))


@pytest.mark.parametrize(("level", "index"), [(0.5, 10), (0.7, 14), (0.9, 18), (0.001, 0), (0.999, 20)])
def test_quantile_utility_takes_the_nearest_midpoint(level, index):
    # midpoints (2i + 1) / 42: .5 is i = 10, .690 is i = 14, .881 is i = 18
    assert QuantileUtility(level)(torch.arange(21.0)).item() == index


def test_quantile_utility_takes_the_lower_atom_on_ties():
    assert QuantileUtility(0.5)(torch.tensor([0.0, 1.0])).item() == 0  # midpoints .25 and .75 are equally near


@pytest.mark.parametrize("level", [0.0, 1.0, 50, -0.1])
def test_a_level_outside_the_unit_interval_is_refused(level):
    with pytest.raises(ValueError, match=r"level must be a probability in \(0, 1\)"):
        QuantileUtility(level)


@pytest.mark.parametrize("tail_mass", [0.05, 0.1, 0.33, 0.5, 0.9, 1.0])
def test_cvar_is_the_integral_of_the_quantile_function(tail_mass):
    q = torch.tensor([3.0, -1.0, 0.5, 7.0, 2.0, 2.5, -4.0], dtype=torch.float64)
    grid = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000 * tail_mass
    expected = q.sort().values[(grid * 7).floor().long()].mean()
    torch.testing.assert_close(CVaRUtility(tail_mass)(q), expected, rtol=1e-4, atol=1e-4)


def test_cvar_with_the_whole_mass_is_the_mean():
    q = torch.randn(4, 9)
    torch.testing.assert_close(CVaRUtility(1.0)(q), q.mean(-1))
    with pytest.raises(ValueError, match=r"tail_mass must be a probability in \(0, 1\], got 0"):
        CVaRUtility(0)


def test_entropic_value_by_hand():
    # -(1/c) log((e^{-0} + e^{-2c}) / 2)
    q = torch.tensor([0.0, 2.0], dtype=torch.float64)
    for c in (1.0, -1.0, 0.1):
        assert EntropicUtility(c)(q).item() == pytest.approx(-math.log((1 + math.exp(-2 * c)) / 2) / c)


@pytest.mark.parametrize("c", [1e-6, -1e-6, 1e-3, 1.0, -1.0, 50.0, -50.0])
def test_entropic_value_is_stable_and_ordered(c):
    q = torch.tensor([1e4, 1e4 + 3.0, 1e4 - 2.0])
    value = EntropicUtility(c)(q)
    assert torch.isfinite(value)
    assert q.min() <= value <= q.max()
    if abs(c) <= 1e-6:
        assert value.item() == pytest.approx(q.mean().item(), abs=1e-2)
    elif abs(c) >= 1:
        assert (value < q.mean()) == (c > 0)  # averse below the mean, seeking above


def test_entropic_value_to_second_order_is_mean_minus_half_c_variance():
    q = torch.randn(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    c = 1e-4
    expected = q.mean() - 0.5 * c * q.var(correction=0)
    assert EntropicUtility(c)(q).item() == pytest.approx(expected.item(), abs=1e-8)


def test_bad_coefficients_are_refused():
    with pytest.raises(ValueError, match="risk_aversion must be finite"):
        EntropicUtility(float("nan"))
    with pytest.raises(ValueError, match="scale must be finite"):
        OptimisticUtility(float("inf"))


def test_the_smallest_tail_is_the_smallest_quantile():
    q = torch.tensor([3.0, -1.0, 0.5])
    for tail_mass in (1e-300, 1e-30, 0.2):  # below one third the tail lies inside the first quantile
        assert CVaRUtility(tail_mass)(q) == -1.0
