from __future__ import annotations

import pytest
import torch

from eqr_torchrl.tabular import MDP, UnrolledMDP, nroom_mdp, policy_values, toy_mdp, unroll, unrolled_values


def random_mdp(generator, *batch) -> MDP:
    p = torch.rand(*batch, 3, 2, 3, generator=generator, dtype=torch.float64)
    r = torch.randn(*batch, 3, 2, generator=generator, dtype=torch.float64)
    return MDP(p / p.sum(-1, keepdim=True), r, 0.9, initial_state=1)


@pytest.mark.parametrize("horizon", [1, 2, 5])
def test_values_match_the_dense_mdp(horizon, generator):
    mdp = random_mdp(generator, 2)
    policy = torch.tensor([1, 0, 1])
    unrolled = unroll(mdp, horizon)
    dense = unrolled.to_mdp()
    assert dense.num_states == unrolled.num_states == 3 * horizon + 1
    repeated = torch.cat([policy.repeat(horizon), torch.zeros(1, dtype=torch.long)])
    torch.testing.assert_close(unrolled.values(policy), policy_values(dense, repeated))


def test_no_state_is_visited_twice(generator):
    dense = unroll(random_mdp(generator), 4).to_mdp()
    powers = dense.under(torch.zeros(13, dtype=torch.long)).transitions
    power = torch.eye(13, dtype=torch.float64)
    for _ in range(6):
        power = power @ powers
        assert not power.diagonal()[:-1].any()
    torch.testing.assert_close(power[:, -1], torch.ones(13, dtype=torch.float64))  # all end


def test_sparse_transitions_and_successors_match_the_dense_ones(generator):
    unrolled = unroll(random_mdp(generator), 4)
    policy = torch.tensor([1, 0, 1])
    repeated = torch.cat([policy.repeat(4), torch.zeros(1, dtype=torch.long)])
    dense = unrolled.to_mdp()
    torch.testing.assert_close(unrolled.sparse_transitions(policy).to_dense(), dense.under(repeated).transitions)
    for index in range(unrolled.num_states):
        row = torch.zeros(unrolled.num_states, dtype=torch.float64)
        states, probabilities = unrolled.successors(index, 1)
        row[states] = probabilities
        torch.testing.assert_close(row, dense.transitions[index, 1])
        assert unrolled.reward(index, 1) == dense.rewards[index, 1]


def test_index_and_its_inverse(generator):
    unrolled = unroll(random_mdp(generator), 4)
    assert [unrolled.index(*unrolled.state_and_step(i)) for i in range(13)] == list(range(13))
    assert unrolled.index(2, 4) == unrolled.terminal_state


def test_error_falls_as_the_discount_does():
    mdp = toy_mdp(0.9, 0.4)
    policy = torch.zeros(4, dtype=torch.long)
    truth = policy_values(mdp, policy)
    values = unrolled_values(mdp.under(policy), 200)
    error = (values - truth).abs().amax(-1)
    # rewards are at most 1 in size
    assert bool((error <= 0.99 ** torch.arange(201) / 0.01).all())
    assert float(error[-1]) < 1e-12  # the cycle is left for good sooner or later


def test_fifty_steps_of_the_grid_world_are_no_problem():
    unrolled = unroll(nroom_mdp(), 50)
    policy = torch.ones(78, dtype=torch.long)
    values = unrolled.values(policy)
    assert values.shape == (3901,)
    assert float(values[unrolled.index(38, 0)]) == pytest.approx(0.01 + 0.99**6)
    assert float(values[unrolled.index(38, 44)]) == pytest.approx(0.01)  # six steps left: the prize is missed
    transitions = unrolled.sparse_transitions(policy)
    assert transitions._nnz() <= 50 * 78 + 1
    residual = values - 0.99 * (transitions @ values)
    torch.testing.assert_close(residual[:-1].reshape(50, 78)[0], nroom_mdp().rewards[:, 1], atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda u: UnrolledMDP(u.mdp, 0), "horizon"),
        (lambda u: unrolled_values(u.mdp.under(torch.ones(78, dtype=torch.long)), -1), "horizon"),
        (lambda u: u.index(78, 0), "state"),
        (lambda u: u.state_and_step(3901), "index"),
        (lambda u: u.to_mdp(), "use values"),
        (lambda u: unroll(toy_mdp(0.5, torch.rand(2)), 3).sparse_transitions(torch.zeros(4).long()), "single MDP"),
    ],
)
def test_errors_name_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call(unroll(nroom_mdp(), 50))
