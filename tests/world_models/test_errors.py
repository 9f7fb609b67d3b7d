"""One meaning of errors, in a fit and on held-out data."""

from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict
from torch.distributions import Normal

from eqr_torchrl.lab.diagnostics import held_out_errors
from eqr_torchrl.world_models import EarlyStoppingFit, FixedStepsFit, GaussianEnsemble
from eqr_torchrl.world_models.rows import prediction_errors


def sparse(rows: int, reward: float = 0.0) -> TensorDict:
    """s' = 0.9 s + noise, a second entry that never changes, and one reward for all rows."""
    state = torch.cat([torch.randn(rows, 1), torch.full((rows, 1), 3.0)], -1)
    after = torch.cat([0.9 * state[:, :1] + 0.1 * torch.randn(rows, 1), state[:, 1:]], -1)
    successors = {"observation": after, "reward": torch.full((rows, 1), reward)}
    return TensorDict({"observation": state, "action": torch.rand(rows, 1), "next": successors}, [rows])


def test_entries_are_those_of_torch_distributions_where_there_is_noise():
    mean, scale, target = torch.randn(7, 2), torch.rand(7, 2) + 0.1, torch.randn(7, 2)
    squared, standardised, nll = prediction_errors(mean, scale, target)
    expected = -Normal(mean, scale).log_prob(target)
    torch.testing.assert_close(nll, 2 * expected - math.log(2 * math.pi))
    torch.testing.assert_close(squared, (mean - target) ** 2)
    torch.testing.assert_close(standardised, ((mean - target) / scale) ** 2)


def test_without_noise_what_was_predicted_counts_nothing_and_anything_else_is_infinitely_unlikely():
    target = torch.tensor([1e4, 1e4 * (1 + 1e-7), 1e4 + 1, 0.0])
    squared, standardised, nll = prediction_errors(torch.tensor([1e4, 1e4, 1e4, 0.0]), torch.zeros(4), target)
    assert nll.tolist() == standardised.tolist() == [0.0, 0.0, math.inf, 0.0]
    assert squared[2] == 1.0


@pytest.mark.parametrize("reward", [0.0, -1.5])
@pytest.mark.parametrize("fit_class", [FixedStepsFit, EarlyStoppingFit])
def test_entries_that_never_changed_leave_held_out_errors_finite(fit_class, reward):
    model = GaussianEnsemble(2, 1, num_members=2, num_cells=(8,))
    steps = {"num_steps": 5} if fit_class is FixedStepsFit else {"max_epochs": 1}
    fit_class(model, **steps)(sparse(60, reward))
    errors = held_out_errors(model, sparse(40, reward))
    assert errors.nll.isfinite().all() and errors.standardised.isfinite().all() and errors.mse.isfinite().all()
    assert errors.standardised[:, 1:].abs().max() == 0


def test_a_reward_that_appears_later_is_infinitely_unlikely():
    model = GaussianEnsemble(2, 1, num_members=2, num_cells=(8,))
    FixedStepsFit(model, num_steps=5)(sparse(60))
    data = sparse(40)
    data["next", "reward"][7] = 1.0
    errors = held_out_errors(model, data)
    assert (errors.nll == math.inf).all() and (errors.standardised[:, 2] == math.inf).all()
    assert errors.standardised[:, :2].isfinite().all() and errors.mse.isfinite().all()


def test_a_fit_and_held_out_errors_say_the_same_of_the_same_data():
    # one entry of three changes: nll in nats a transition = (twice nats of an entry + log 2 pi) / 2
    data = sparse(60)
    model = GaussianEnsemble(2, 1, num_members=2, num_cells=(8,))
    metrics = FixedStepsFit(model, num_steps=5)(data)
    errors = held_out_errors(model, data)
    torch.testing.assert_close(torch.tensor(metrics["train_nll"]), 2 * errors.nll - math.log(2 * math.pi))
    torch.testing.assert_close(torch.tensor(metrics["train_mse"]), errors.mse.mean(-1))
