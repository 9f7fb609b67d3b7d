from __future__ import annotations

import pytest
import torch

from eqr_torchrl.functional import rarity_weights


def test_rare_rows_count_as_often_as_they_exceed_the_threshold():
    # 100 zeros and one 1: mean 1 / 101, deviation sqrt(100) / 101, so it lies 10 deviations out, the zeros 0.1: 10 / 3
    values = torch.zeros(101, 4)
    values[7, 3] = 1.0
    expected = torch.ones(101)
    expected[7] = 10 / 3
    torch.testing.assert_close(rarity_weights(values, 3.0), expected)
    torch.testing.assert_close(rarity_weights(5 - 1000 * values, 3.0), expected)  # whatever the units and the sign


def test_common_rows_count_like_all_others():
    values = torch.tensor([[0.0], [1.0]]).repeat(50, 1)  # one deviation from the mean, all of them
    assert (rarity_weights(values, 1.0) == 1).all()


@pytest.mark.parametrize("values", [torch.full((9, 2), 3.0), torch.full((1, 2), 3.0), 1e4 + torch.zeros(9, 1)])
def test_columns_that_never_vary_are_ignored(values):
    assert (rarity_weights(values, 1.0) == 1).all()
