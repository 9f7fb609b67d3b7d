from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from eqr_torchrl.functional import quantile_projection, wasserstein_distance
from eqr_torchrl.tabular import (
    EmpiricalPosterior,
    epistemic_quantile_regression,
    eqr,
    nroom_prior,
    process_values,
    sample_toy_parameter,
    toy_mdp,
    value_distribution_iteration,
)

NO_CHOICE = torch.zeros(4, dtype=torch.long)
POSTERIORS = ("gaussian", "bimodal", "heavy_tailed")


def certain(beta: float, x: float) -> EmpiricalPosterior:
    return EmpiricalPosterior(toy_mdp(beta, torch.tensor([x])))


def regress(posterior, policy=NO_CHOICE, *, step_size: float = 0.1, **options):
    return epistemic_quantile_regression(posterior, policy, step_size=step_size, **options)


@pytest.fixture(params=[0, 100], ids=["by sorting", "all pairs"])
def _both_ways(request, monkeypatch):
    """Both ways to count targets below a quantile, of which their number chooses one."""
    monkeypatch.setattr(eqr, "_MAX_PAIRWISE_TARGETS", request.param)


@pytest.mark.usefixtures("_both_ways")
def test_one_update_matches_hand_computation():
    # gamma 0.99, x = 0.5, beta = 0.  Levels 0.25 and 0.75, quantiles of (s1, s2) as given.
    start = torch.tensor([[-0.1, 0.4], [1.0, 1.2], [-1.5, -0.5], [0.0, 0.0]])
    # targets of s0: 0.99 (0.5 * 1 - 0.5 * 1.5) = -0.2475 and 0.99 (0.5 * 1.2 - 0.5 * 0.5) = 0.3465
    # below -0.1: one of two, below 0.4: both;  steps 0.1 (0.25 - 0.5) and 0.1 (0.75 - 1)
    # s1: targets are 1 twice: none strictly below 1, both below 1.2;  s2: targets -1: none below -1.5, both below -0.5
    expected = [[-0.125, 0.375], [1.025, 1.175], [-1.475, -0.525], [0.0, 0.0]]
    found = regress(certain(0.0, 0.5), num_quantiles=2, num_iterations=1, initial_quantiles=start).quantiles
    torch.testing.assert_close(found, torch.tensor(expected).double())


def naive_update(q, p, r, gamma, levels, step):
    new = q.clone()
    num_states, num_quantiles = q.shape
    for s in range(num_states):
        targets = [r[s] + gamma * sum(p[s, t] * q[t, j] for t in range(num_states)) for j in range(num_quantiles)]
        for i in range(num_quantiles):
            below = sum(1 for target in targets if target < q[s, i])
            new[s, i] = q[s, i] + step * (levels[i] - below / num_quantiles)
    return new


@pytest.mark.usefixtures("_both_ways")
def test_updates_match_loops(generator):
    posterior = certain(0.8, 0.4)
    start = torch.rand(4, 5, generator=generator, dtype=torch.float64)
    start[3] = 0.0
    result = regress(posterior, num_quantiles=5, num_iterations=3, step_size=0.3, initial_quantiles=start)
    mdp, expected = posterior.mean(), start
    for _ in range(3):
        expected = naive_update(expected, mdp.transitions[:, 0], mdp.rewards[:, 0], 0.99, result.levels, 0.3)
        expected[3] = 0.0
    torch.testing.assert_close(result.quantiles, expected)


def test_shapes_of_runs_batches_and_history(generator):
    posterior = EmpiricalPosterior(toy_mdp(torch.tensor([[0.0], [0.5]]), torch.rand(2, 7, generator=generator)))
    made = []
    record = {"record_states": (0, 2), "record_every": 10, "progress": made.append}
    result = regress(posterior, num_quantiles=3, num_iterations=25, run_shape=(4,), generator=generator, **record)
    assert result.quantiles.shape == (4, 2, 4, 3)
    assert result.history.shape == (2, 4, 2, 2, 3)
    assert result.history_iterations.tolist() == [10, 20]
    assert sum(made) == 25
    assert result.quantiles.dtype == torch.float64
    assert not result.quantiles[..., 3, :].any()


def test_a_history_of_fewer_iterations_than_its_interval_is_empty():
    result = regress(certain(0.5, 0.3), num_quantiles=3, num_iterations=4, record_states=(0,), record_every=5)
    assert result.history.shape == (0, 1, 3) and not len(result.history_iterations)


def test_history_is_what_the_quantiles_were():
    posterior, common = certain(0.5, 0.3), {"num_quantiles": 3, "initial_quantiles": torch.zeros(4, 3)}
    history = regress(posterior, num_iterations=6, record_states=range(4), **common).history
    torch.testing.assert_close(history[3], regress(posterior, num_iterations=4, **common).quantiles)


def test_same_seed_same_quantiles_and_different_runs_differ():
    def run(seed):
        sizes = {"num_quantiles": 4, "num_iterations": 5, "run_shape": (2,)}
        policy, generator = torch.zeros(6, dtype=torch.long), torch.Generator().manual_seed(seed)
        return regress(nroom_prior(room_size=1), policy, **sizes, generator=generator).quantiles

    assert torch.equal(run(0), run(0))
    assert not torch.equal(run(0), run(1))
    assert not torch.equal(run(0)[0], run(0)[1])


def toy_columns(beta: float, generator):
    x = torch.stack([sample_toy_parameter(name, 2000, generator=generator) for name in POSTERIORS])
    mdps = toy_mdp(beta, x)
    return mdps, quantile_projection(process_values(mdps.under(NO_CHOICE))[..., 0], 10)


def test_converges_to_the_quantile_projection_without_the_cycle(generator):
    mdps, truth = toy_columns(0.0, generator)
    options = {"num_quantiles": 10, "num_iterations": 5000, "step_size": 0.05, "final_step_size": 1e-3}
    learnt = regress(EmpiricalPosterior(mdps), **options, generator=generator).quantiles[:, 0]
    assert float(wasserstein_distance(learnt, truth).max()) < 0.02


def test_converges_to_the_fixed_point_of_the_operator_with_the_cycle(generator):
    mdps, truth = toy_columns(1.0, generator)
    few = quantile_projection(mdps.transitions[:, :, 0, 0, 2], 300)
    limit = value_distribution_iteration(toy_mdp(1.0, few.T).under(NO_CHOICE), num_quantiles=10)[:, 0]
    options = {"num_quantiles": 10, "num_iterations": 5000, "step_size": 0.05, "final_step_size": 2e-3}
    learnt = regress(EmpiricalPosterior(mdps), **options, generator=generator).quantiles[:, 0]
    assert float(wasserstein_distance(learnt, limit).max()) < 0.04  # noise
    assert float(wasserstein_distance(learnt, truth).min()) > 0.1  # bias


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_quantiles": 0}, "num_quantiles"),
        ({"num_iterations": 0}, "num_iterations"),
        ({"record_every": 0}, "record_every"),
        ({"step_size": 0.0}, "step_size"),
        ({"final_step_size": -1.0}, "step_size"),
        ({"record_states": (4,)}, "record_states"),
        ({"policy": torch.zeros(3, dtype=torch.long)}, "policy"),
        ({"policy": torch.ones(4, dtype=torch.long)}, "policy"),
        ({"policy": torch.zeros(3, 4, dtype=torch.long)}, "policy must be one, or one for each of a batch"),
        ({"initial_quantiles": torch.zeros(3, 2)}, "initial_quantiles"),
    ],
)
def test_errors_name_the_argument(change, message):
    with pytest.raises(ValueError, match=message):
        regress(certain(0.5, 0.3), **{"num_quantiles": 2, "num_iterations": 5, **change})


def test_an_mdp_in_float32_and_a_policy_of_small_integers():
    mdp = toy_mdp(beta=0.0, x=torch.linspace(0.2, 0.4, 5))
    small = replace(mdp, transitions=mdp.transitions.float(), rewards=mdp.rewards.float())
    policy = torch.zeros(4, dtype=torch.int32)
    options = {"num_quantiles": 3, "num_iterations": 20, "step_size": 0.1}
    found = []
    for one in (mdp, small):
        generator = torch.Generator().manual_seed(0)
        found.append(epistemic_quantile_regression(EmpiricalPosterior(one), policy, generator=generator, **options))
    torch.testing.assert_close(found[0].quantiles, found[1].quantiles, atol=1e-5, rtol=0)
