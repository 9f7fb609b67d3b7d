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
def test_every_utility_is_indifferent_to_order(utility):
    q = torch.randn(3, 4, 11, generator=torch.Generator().manual_seed(0))
    value = utility(q)
    assert value.shape == (3, 4)
    torch.testing.assert_close(utility(q[..., torch.randperm(11)]), value)


@pytest.mark.parametrize("utility", UTILITIES, ids=repr)
@pytest.mark.parametrize("num_quantiles", [1, 6])
@pytest.mark.parametrize("constant", [0.0, 5.0, -1e4])
def test_of_equal_quantiles_the_value_is_theirs_and_its_gradient_finite(utility, num_quantiles, constant):
    q = torch.full((2, num_quantiles), constant, requires_grad=True)
    value = utility(q)
    torch.testing.assert_close(value, torch.full((2,), constant))
    value.sum().backward()
    assert torch.isfinite(q.grad).all()
    torch.testing.assert_close(q.grad.sum(-1), torch.ones(2))  # a shift of all quantiles shifts the value


@pytest.mark.parametrize(
    ("level", "count", "index"),
    # midpoints (2i + 1) / 42: .5 is i = 10, .690 is i = 14; .25 and .75 are equally near to .5: the lower one
    [(0.5, 21, 10), (0.7, 21, 14), (0.001, 21, 0), (0.999, 21, 20), (0.5, 2, 0)],
)
def test_quantile_utility_takes_the_nearest_midpoint(level, count, index):
    assert QuantileUtility(level)(torch.arange(float(count))).item() == index


@pytest.mark.parametrize("tail_mass", [0.05, 0.1, 0.33, 0.5, 0.9, 1.0])
def test_cvar_is_the_integral_of_the_quantile_function(tail_mass):
    q = torch.tensor([3.0, -1.0, 0.5, 7.0, 2.0, 2.5, -4.0], dtype=torch.float64)
    grid = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000 * tail_mass
    expected = q.sort().values[(grid * 7).floor().long()].mean()
    torch.testing.assert_close(CVaRUtility(tail_mass)(q), expected, rtol=1e-4, atol=1e-4)


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


@pytest.mark.parametrize(
    ("make", "value", "message"),
    [
        *((QuantileUtility, level, r"level must be a probability in \(0, 1\), got ") for level in (0.0, 1.0, 50, -0.1)),
        (CVaRUtility, 0, r"tail_mass must be a probability in \(0, 1\], got 0"),
        (EntropicUtility, float("nan"), "risk_aversion must be finite, got nan"),
        (OptimisticUtility, float("inf"), "scale must be finite, got inf"),
    ],
)
def test_arguments_out_of_range_are_named(make, value, message):
    with pytest.raises(ValueError, match=message):
        make(value)


def test_the_smallest_tail_is_the_smallest_quantile():
    q = torch.tensor([3.0, -1.0, 0.5])
    for tail_mass in (1e-300, 1e-30, 0.2):  # below one third the tail lies inside the first quantile
        assert CVaRUtility(tail_mass)(q) == -1.0
