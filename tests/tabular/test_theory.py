"""What the paper proves of the value-distributional Bellman operator, and what it observes where the proofs end."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eqr_torchrl.functional import quantile_projection, wasserstein_distance
from eqr_torchrl.tabular import (
    ConjugatePosterior,
    DirichletPosterior,
    MarkovRewardProcess,
    NormalPosterior,
    policy_values,
    process_values,
    sample_toy_parameter,
    sample_values,
    toy_mdp,
    value_distribution_backup,
    value_distribution_iteration,
    value_distribution_samples,
)

GAMMA = 0.9
NO_CHOICE = torch.zeros(4, dtype=torch.long)
POSTERIORS = ("gaussian", "bimodal", "heavy_tailed")


def layered_posterior(seed: int, *, layers: int, width: int) -> ConjugatePosterior:
    """A random acyclic posterior: each state leads to the next layer by a Dirichlet row, and the last layer ends."""
    generator = torch.Generator().manual_seed(seed)
    states = layers * width + 1
    concentration = torch.zeros(states, 1, states, dtype=torch.float64)
    for layer in range(layers):
        here = slice(layer * width, (layer + 1) * width)
        there = slice((layer + 1) * width, (layer + 2) * width) if layer + 1 < layers else slice(states - 1, states)
        block = concentration[here, :, there]
        block.copy_(0.2 + 2 * torch.rand(block.shape, generator=generator, dtype=torch.float64))
    concentration[-1, :, -1] = 1.0
    rewards = torch.randn(states, 1, generator=generator, dtype=torch.float64)
    rewards[-1] = 0.0
    known = NormalPosterior(rewards, torch.full_like(rewards, torch.inf))
    return ConjugatePosterior(DirichletPosterior(concentration), known, GAMMA, (states - 1,))


@settings(max_examples=30, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**31), layers=st.integers(1, 4), width=st.integers(1, 3), p=st.sampled_from([1.0, 2.0]))
def test_operator_is_a_contraction(seed, layers, width, p):
    posterior = layered_posterior(seed, layers=layers, width=width)
    generator = torch.Generator().manual_seed(seed)
    policy = torch.zeros(posterior.num_states, dtype=torch.long)
    processes = posterior.sample_process(policy, (7,), generator=generator)
    one, two = (3 * torch.randn(2, posterior.num_states, 5, generator=generator, dtype=torch.float64)).sort(-1).values
    before = wasserstein_distance(one, two, p=p).max()
    after = wasserstein_distance(
        value_distribution_backup(one, processes), value_distribution_backup(two, processes), p=p
    ).max()
    assert float(after) <= GAMMA * float(before) + 1e-12


@pytest.mark.parametrize("p", [1.0, 2.0])
def test_contraction_factor_is_attained_by_a_deterministic_step(p, generator):
    one_step = MarkovRewardProcess(torch.eye(2, dtype=torch.float64).flip(0)[None], torch.ones(1, 2).double(), GAMMA)
    one, two = torch.randn(2, 1, 6, generator=generator, dtype=torch.float64).sort(-1).values.expand(2, 2, 6)
    after = wasserstein_distance(
        value_distribution_backup(one, one_step), value_distribution_backup(two, one_step), p=p
    )
    torch.testing.assert_close(after, GAMMA * wasserstein_distance(one, two, p=p))


@pytest.mark.parametrize("seed", range(3))
def test_fixed_point_is_the_posterior_of_values_without_cycles(seed, generator):
    posterior = layered_posterior(seed, layers=3, width=3)
    policy = torch.zeros(posterior.num_states, dtype=torch.long)
    truth, again = (sample_values(posterior, policy, 20_000, generator=generator) for _ in range(2))
    processes = posterior.sample_process(policy, (20_000,), generator=generator)
    fixed_point = value_distribution_samples(processes, num_iterations=3, generator=generator)
    chance = wasserstein_distance(truth.T, again.T)
    assert bool((wasserstein_distance(fixed_point.T, truth.T) <= 3 * chance + 0.01 * truth.std(0)).all())
    # nothing moves any more: three layers are through after three applications
    further = value_distribution_samples(processes, num_iterations=5, initial_values=fixed_point, generator=generator)
    assert bool((wasserstein_distance(further.T, truth.T) <= 3 * chance + 0.01 * truth.std(0)).all())


@pytest.mark.parametrize("seed", range(3))
def test_mean_of_values_is_the_value_of_the_mean_mdp_without_cycles(seed, generator):
    posterior = layered_posterior(seed, layers=4, width=2)
    policy = torch.zeros(posterior.num_states, dtype=torch.long)
    values = sample_values(posterior, policy, 20_000, generator=generator)
    error = (values.mean(0) - policy_values(posterior.mean(), policy)).abs()
    assert bool((error <= 4 * values.std(0) / 20_000**0.5 + 1e-12).all())


def test_neither_coupling_of_next_states_is_exact_for_every_acyclic_mdp(generator):
    """Marginal laws do not determine the next one; the values of two next states matter together."""
    count = 40_000
    y, z = torch.rand(2, count, generator=generator, dtype=torch.float64)

    def spread(p, r, coupling):
        processes = MarkovRewardProcess(p, r, 1 - 1e-9, (3,))
        values = value_distribution_samples(processes, num_iterations=4, coupling=coupling, generator=generator)
        return float(values[:, 0].std() / process_values(processes)[:, 0].std())

    # siblings: s0 -> s1 or s2, whose rewards are independent; ranks tied together overstate the spread by sqrt(2)
    p = torch.zeros(count, 4, 4, dtype=torch.float64)
    p[:, 0, 1] = p[:, 0, 2] = 0.5
    p[:, 1:, 3] = 1.0
    r = torch.stack([0 * y, y, z, 0 * y], -1)
    assert spread(p, r, "joint") == pytest.approx(1.0, abs=0.02)
    assert spread(p, r, "comonotone") == pytest.approx(2**0.5, abs=0.03)
    # a short cut: s0 -> s1 -> s2 or s0 -> s2 directly, the same uncertain reward either way; fresh draws understate it
    p = torch.zeros(count, 4, 4, dtype=torch.float64)
    p[:, 0, 1] = p[:, 0, 2] = 0.5
    p[:, 1, 2] = p[:, 2, 3] = p[:, 3, 3] = 1.0
    r = torch.stack([0 * y, 0 * y, y, 0 * y], -1)
    assert spread(p, r, "joint") == pytest.approx(0.5**0.5, abs=0.02)
    assert spread(p, r, "comonotone") == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("name", POSTERIORS)
def test_toy_fixed_point_is_the_quantile_projection_without_the_cycle(name, generator):
    x = sample_toy_parameter(name, 2000, generator=generator)
    processes = toy_mdp(0.0, x).under(NO_CHOICE)
    truth = quantile_projection(process_values(processes)[:, 0], 10)
    torch.testing.assert_close(value_distribution_iteration(processes, num_quantiles=10)[0], truth)


@pytest.mark.parametrize("name", POSTERIORS)
def test_error_of_the_fixed_point_grows_with_the_cycle(name, generator):
    x = quantile_projection(sample_toy_parameter(name, 5000, generator=generator), 400)
    beta = torch.linspace(0, 1, 6)
    processes = toy_mdp(beta, x.unsqueeze(-1)).under(NO_CHOICE)  # [Q, beta]
    truth = quantile_projection(process_values(processes)[..., 0].T, 10)
    error = wasserstein_distance(value_distribution_iteration(processes, num_quantiles=10)[:, 0], truth)
    assert bool((error.diff() > 0).all())
    assert float(error[0]) < 1e-6


@pytest.mark.parametrize("name", POSTERIORS)
@pytest.mark.parametrize("beta", [0.5, 1.0])
def test_bias_of_the_mean_with_a_cycle_has_the_predicted_sign_and_size(name, beta, generator):
    # V = g (1 - 2X) + g^2 beta X V, hence E V - E V_op = g^2 beta Cov(X, V) / (1 - g^2 beta E X),
    # where V_op solves the same equation with X and V on the right-hand side independent
    x = quantile_projection(sample_toy_parameter(name, 5000, generator=generator), 200)
    processes = toy_mdp(beta, x).under(NO_CHOICE)
    values = process_values(processes)[:, 0]
    covariance = (x * values).mean() - x.mean() * values.mean()
    predicted = 0.99**2 * beta * covariance / (1 - 0.99**2 * beta * x.mean())
    learnt = value_distribution_iteration(processes, num_quantiles=200, tolerance=1e-5)[0].mean()
    assert float(predicted) < 0
    assert float(values.mean() - learnt) == pytest.approx(float(predicted), abs=0.05 * abs(float(predicted)) + 1e-3)


def test_quantile_projection_minimises_the_wasserstein_distance(generator):
    samples = torch.randn(60, generator=generator, dtype=torch.float64).exp()
    projection = quantile_projection(samples, 4)

    def distance(atoms):
        return wasserstein_distance(atoms.repeat_interleave(15, -1), samples)

    best = distance(projection)
    others = projection + 0.3 * torch.randn(5000, 4, generator=generator, dtype=torch.float64)
    assert float(distance(others).min()) >= float(best)
