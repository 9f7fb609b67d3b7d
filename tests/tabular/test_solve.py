from __future__ import annotations

import itertools

import pytest
import torch

from eqr_torchrl.tabular import (
    MDP,
    EmpiricalPosterior,
    nroom_mdp,
    policy_iteration,
    policy_values,
    sample_values,
    toy_mdp,
)


def random_mdp(generator, *batch, states=4, actions=3) -> MDP:
    p = torch.rand(*batch, states, actions, states, generator=generator, dtype=torch.float64)
    r = torch.randn(*batch, states, actions, generator=generator, dtype=torch.float64)
    return MDP(p / p.sum(-1, keepdim=True), r, 0.9)


def test_toy_value_matches_closed_form():
    # V(s0) = gamma (1 - 2x) / (1 - gamma^2 beta x)
    beta, x = torch.tensor([0.0, 0.5, 1.0]), torch.tensor([0.2, 0.5, 0.7])
    values = policy_values(toy_mdp(beta, x), torch.zeros(4, dtype=torch.long))
    beta, x = beta.double(), x.double()
    torch.testing.assert_close(values[:, 0], 0.99 * (1 - 2 * x) / (1 - 0.99**2 * beta * x))
    torch.testing.assert_close(values[:, 3], torch.zeros(3, dtype=torch.float64))


def test_values_solve_the_bellman_equation(generator):
    mdp = random_mdp(generator, 2, 3)
    policy = torch.randint(3, (2, 3, 4), generator=generator)
    values = policy_values(mdp, policy)
    look_ahead = mdp.rewards + mdp.gamma * (mdp.transitions * values[..., None, None, :]).sum(-1)  # [*B, S, A]
    backed_up = look_ahead.gather(-1, policy.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(values, backed_up)


def test_policy_iteration_beats_every_policy(generator):
    mdp = random_mdp(generator)
    policy, values = policy_iteration(mdp)
    every = torch.tensor(list(itertools.product(range(3), repeat=4)))
    torch.testing.assert_close(values, policy_values(mdp, every).amax(0))
    torch.testing.assert_close(policy_values(mdp, policy), values)


def test_policy_iteration_of_a_batch_is_that_of_its_elements(generator):
    mdp = random_mdp(generator, 5)
    policy, _ = policy_iteration(mdp)
    for i in range(5):
        assert torch.equal(policy[i], policy_iteration(MDP(mdp.transitions[i], mdp.rewards[i], 0.9))[0])


def test_ties_take_the_lowest_action():
    p = torch.zeros(2, 3, 2, dtype=torch.float64)
    p[..., 1] = 1.0
    mdp = MDP(p, torch.tensor([[0.0, 1.0, 1.0], [0.0, 0.0, 0.0]], dtype=torch.float64), 0.9, (1,))
    assert policy_iteration(mdp)[0].tolist() == [1, 0]


def test_grid_world_optimum_is_six_steps_and_the_prize():
    # 0.01 on leaving the start, six moves, then 1 on leaving the prize
    mdp = nroom_mdp(left_prize_ends_episode=True)
    policy, values = policy_iteration(mdp)
    assert float(values[38]) == pytest.approx(0.01 + 0.99**6, abs=1e-12)
    assert policy[38:44].tolist() == [1] * 6
    # without that end, walking over the small prize for ever is worth more
    assert float(policy_iteration(nroom_mdp())[1][38]) == pytest.approx(0.01 + 0.99**6 * 0.1 / (1 - 0.99**2), abs=1e-9)


def test_policy_iteration_errors(generator):
    with pytest.raises(ValueError, match="max_iterations"):
        policy_iteration(random_mdp(generator), max_iterations=0)
    with pytest.raises(RuntimeError, match="still improves"):
        policy_iteration(nroom_mdp(), max_iterations=1)


def test_sample_values_draws_solved_mdps(generator, monkeypatch):
    monkeypatch.setattr("eqr_torchrl.tabular.solve._SAMPLE_BYTES", 4000)  # several chunks
    posterior = EmpiricalPosterior(toy_mdp(0.5, torch.tensor([0.2, 0.6], dtype=torch.float64)))
    values = sample_values(posterior, torch.zeros(4, dtype=torch.long), 400, generator=generator)
    assert values.shape == (400, 4)
    both = torch.tensor([0.99 * 0.6 / (1 - 0.99**2 * 0.1), 0.99 * -0.2 / (1 - 0.99**2 * 0.3)], dtype=torch.float64)
    gaps = (values[:, :1] - both).abs()
    assert float(gaps.amin(-1).max()) < 1e-12
    assert 0.4 < float((gaps[:, 0] < gaps[:, 1]).double().mean()) < 0.6
    with pytest.raises(ValueError, match="num_samples"):
        sample_values(posterior, torch.zeros(4, dtype=torch.long), 0)
