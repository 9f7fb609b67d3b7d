"""Rules of the input normaliser."""

from __future__ import annotations

import pytest
import torch

from eqr_torchrl.networks import Normalizer


@pytest.mark.parametrize(
    ("data", "mean", "std"),
    [
        # unbiased variance (4 + 1 + 9) / 2; of a single row 1; a small spread around a large mean survives
        ([1.0, 2.0, 6.0], 3.0, 7**0.5),
        ([-4.0], -4.0, 1.0),
        ([1e4 - 1e-3, 1e4, 1e4 + 1e-3], 1e4, 1e-3),
    ],
)
def test_statistics_by_hand_which_use_leaves_as_they_are(data, mean, std):
    normalizer = Normalizer(1)
    normalizer.update(torch.tensor(data, dtype=torch.float64).unsqueeze(-1))
    for _ in range(2):
        assert (normalizer.mean.item(), normalizer.std.item()) == pytest.approx((mean, std), rel=1e-5)
        torch.testing.assert_close(normalizer(torch.tensor([mean + 2 * std])), torch.tensor([2.0]), rtol=0.5, atol=0)


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


@pytest.mark.parametrize("shape", [(0, 2), (3, 1), (2,)])
def test_update_names_the_shape_it_needs(shape):
    with pytest.raises(ValueError, match=r"data must be \[n, 2\] with n > 0, got"):
        Normalizer(2).update(torch.zeros(shape))
