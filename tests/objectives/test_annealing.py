"""Step sizes and optimism fall by their stated shares, and follow from the share of training alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from eqr_torchrl.objectives import Annealing
from eqr_torchrl.utility import CVaRUtility, MeanUtility, OptimisticUtility


def optimizer(*rates: float) -> torch.optim.Adam:
    return torch.optim.Adam([{"params": [nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates])


@pytest.mark.parametrize(
    ("share", "rate", "scale"),
    # from 0.4 on: 1 - 0.9 (share - 0.4) / 0.6 of the step size, 1 - (share - 0.4) / 0.3 of the optimism
    [(0.0, 1.0, 1.0), (0.4, 1.0, 1.0), (0.55, 0.775, 0.5), (0.7, 0.55, 0.0), (1.0, 0.1, 0.0), (1.5, 0.1, 0.0)],
)
def test_both_fall_linearly_from_the_start(share, rate, scale):
    adam, utility = optimizer(1e-3, 3e-4), OptimisticUtility(2.0)
    anneal = Annealing(adam, utility, start=0.4, mean_from=0.7, final_rate=0.1)
    anneal(0.9)  # what it sets does not depend on what it set before
    anneal(share)
    assert [group["lr"] for group in adam.param_groups] == pytest.approx([1e-3 * rate, 3e-4 * rate])
    assert utility.scale == pytest.approx(2.0 * scale)
    values = torch.tensor([1.0, 3.0])  # mean 2, deviation sqrt(2)
    assert utility(values).item() == pytest.approx(2 + 2.0 * scale * 2**0.5)


def test_a_start_at_the_end_lowers_nothing():
    adam, utility = optimizer(1e-3), OptimisticUtility()
    Annealing(adam, utility, start=1.0, mean_from=2.0, final_rate=0.1)(1.0)
    assert (adam.param_groups[0]["lr"], utility.scale) == (1e-3, 1.0)


@pytest.mark.parametrize("utility", [MeanUtility(), CVaRUtility(0.5), OptimisticUtility(-1.0), None])
def test_caution_and_other_utilities_stay(utility):
    before = repr(utility)
    Annealing(optimizer(1e-3), utility)(1.0)
    assert repr(utility) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": 0.7, "mean_from": 0.7}, "start must be at least 0 and below mean_from, got 0.7 and 0.7"),
        ({"start": 1.1, "mean_from": 2.0}, "start must be at most 1 and final_rate in .*, got 1.1 and 0.1"),
        ({"final_rate": 0.0}, "start must be at most 1 and final_rate in .*, got 0.4 and 0.0"),
    ],
)
def test_shares_are_refused_in_one_line(options, message):
    with pytest.raises(ValueError, match=message):
        Annealing(optimizer(1e-3), None, **options)


def test_a_scale_of_another_utility_stays():
    utility = nn.Linear(1, 1)
    utility.scale = nn.Parameter(torch.ones(1))
    Annealing(optimizer(1e-3), utility)(0.6)
    assert utility.scale == 1
