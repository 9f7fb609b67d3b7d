from __future__ import annotations

import pytest
import torch

from eqr_torchrl.functional import quantile_projection
from eqr_torchrl.tabular import (
    MarkovRewardProcess,
    bellman_targets,
    nroom_mdp,
    toy_mdp,
    unrolled_values,
    value_distribution_backup,
    value_distribution_iteration,
    value_distribution_samples,
)

NO_CHOICE = torch.zeros(4, dtype=torch.long)


def test_targets_match_hand_computation():
    # s0: 1 + 0.5 (0.25 * 4 + 0.75 * 8) = 4.5;  the terminal state stays at zero whatever its atoms are
    process = MarkovRewardProcess(torch.tensor([[0.25, 0.75, 0.0]] * 2 + [[0.0, 0.0, 1.0]]), torch.ones(3), 0.5, (2,))
    targets = bellman_targets(torch.tensor([[4.0], [8.0], [7.0]]), process)
    assert targets.flatten().tolist() == [4.5, 4.5, 0.0]


def test_backup_combines_every_process_with_every_atom():
    processes = MarkovRewardProcess(torch.ones(2, 1, 1), torch.tensor([[1.0], [2.0]]), 0.5)
    assert value_distribution_backup(torch.tensor([[10.0, 20.0]]), processes).tolist() == [[6.0, 11.0, 7.0, 12.0]]


def test_samples_without_uncertainty_are_the_finite_horizon_values(generator):
    process = toy_mdp(0.7, torch.full((5,), 0.3)).under(NO_CHOICE)
    samples = value_distribution_samples(process, num_iterations=6, generator=generator)
    torch.testing.assert_close(samples, unrolled_values(process, 6)[-1])


def test_unrolled_values_are_sums_of_discounted_rewards(generator):
    process = toy_mdp(0.9, torch.rand(3, generator=generator)).under(NO_CHOICE)
    # sum over t < k of gamma^t P^t r
    terms = [0.99**t * process.transitions.matrix_power(t) @ process.rewards.unsqueeze(-1) for t in range(7)]
    expected = torch.stack([torch.zeros_like(process.rewards)] + [t.squeeze(-1) for t in terms]).cumsum(0)
    torch.testing.assert_close(unrolled_values(process, 7), expected)
    # in the grid world the prize needs seven steps
    values = unrolled_values(nroom_mdp().under(torch.ones(78, dtype=torch.long)), 7)[:, 38]
    assert values[6:].tolist() == pytest.approx([0.01, 0.01 + 0.99**6])


def test_iteration_stops_at_a_fixed_point(generator):
    process = toy_mdp(0.9, torch.rand(50, generator=generator)).under(NO_CHOICE)
    coarse, fine = (value_distribution_iteration(process, num_quantiles=5, tolerance=t) for t in (1e-2, 1e-10))
    assert float((coarse - fine).abs().max()) < 1e-1
    again = value_distribution_backup(fine, process)
    torch.testing.assert_close(quantile_projection(again, 5), fine, atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: value_distribution_iteration(p, num_quantiles=5, tolerance=0.0), "tolerance"),
        (lambda p: value_distribution_iteration(p[0], num_quantiles=5), "batch"),
        (lambda p: value_distribution_backup(torch.zeros(4, 1), p[0]), "batch"),
        (lambda p: value_distribution_samples(p, num_iterations=-1), "num_iterations"),
        (lambda p: value_distribution_samples(p, num_iterations=1, coupling="own"), "coupling"),
        (lambda p: value_distribution_samples(p[0], num_iterations=1), "batch"),
        (lambda p: unrolled_values(p, -1), "horizon must not be negative, got -1"),
    ],
)
def test_errors_name_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call(toy_mdp(0.5, torch.tensor([0.2, 0.4])).under(NO_CHOICE))


def test_too_few_iterations_are_reported():
    with pytest.raises(RuntimeError, match="max_iterations=2"):
        value_distribution_iteration(
            toy_mdp(0.5, torch.tensor([0.2, 0.4])).under(NO_CHOICE), num_quantiles=5, max_iterations=2
        )


def test_no_iterations_is_an_error_that_says_so():
    processes = toy_mdp(beta=0.0, x=torch.linspace(0.2, 0.4, 5)).under(torch.zeros(4, dtype=torch.long))
    with pytest.raises(ValueError, match="max_iterations must be positive, got 0"):
        value_distribution_iteration(processes, num_quantiles=2, max_iterations=0)
