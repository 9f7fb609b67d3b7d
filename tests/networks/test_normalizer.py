"""Rules of the input normaliser."""

from __future__ import annotations

import pytest
import torch

from eqr_torchrl.networks import Normalizer


def test_statistics_by_hand():
    # 1, 2, 6: mean 3, unbiased variance (4 + 1 + 9) / 2 = 7
    normalizer = Normalizer(1)
    normalizer.update(torch.tensor([[1.0], [2.0], [6.0]]))
    torch.testing.assert_close(normalizer.mean, torch.tensor([3.0]))
    torch.testing.assert_close(normalizer.std, torch.tensor([7.0]).sqrt())
    torch.testing.assert_close(normalizer(torch.tensor([6.0])), torch.tensor([3.0]) / torch.tensor([7.0]).sqrt())


@pytest.mark.parametrize(("spread", "expected"), [(0.0, 1.0), (1e-7, 1.0), (9e-6, 1.0), (1.1e-5, 1.1e-5), (3.0, 3.0)])
def test_tiny_standard_deviations_count_as_constant(spread, expected):
    normalizer = Normalizer(1)
    normalizer.update(torch.tensor([[-spread], [0.0], [spread]]))  # unbiased std of (-s, 0, s) is s
    assert normalizer.std.item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("spread", [1e-7, 2e-5])
def test_entry_that_was_almost_constant_stays_within_the_clip(spread):
    normalizer = Normalizer(1)
    normalizer.update(torch.randn(100, 1) * spread)
    assert normalizer(torch.tensor([[1.0], [-1.0], [1e30], [float("inf")]])).abs().max() <= 20.0


def test_small_spread_around_a_large_mean_survives():
    data = 1e4 + 0.1 * torch.randn(10000, 1, dtype=torch.float64)
    normalizer = Normalizer(1)
    normalizer.update(data)
    assert normalizer.std.item() == pytest.approx(data.std().item(), rel=1e-5)


def test_one_row_is_enough():
    normalizer = Normalizer(2)
    normalizer.update(torch.tensor([[3.0, -4.0]]))
    torch.testing.assert_close(normalizer(torch.tensor([3.0, -3.0])), torch.tensor([0.0, 1.0]))


def test_use_never_changes_the_statistics():
    normalizer = Normalizer(2)
    before = {name: value.clone() for name, value in normalizer.state_dict().items()}
    normalizer(torch.randn(100, 2) * 50)
    torch.testing.assert_close(normalizer.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(0, 2), (3, 1), (2,)])
def test_update_names_the_shape_it_needs(shape):
    with pytest.raises(ValueError, match=r"data must be \[n, 2\] with n > 0, got"):
        Normalizer(2).update(torch.zeros(shape))
