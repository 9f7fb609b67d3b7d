from __future__ import annotations

import pytest
import torch

from eqr_torchrl.tabular import MDP, UnrolledMDP, nroom_mdp, policy_values, toy_mdp, unroll, unrolled_values


def random_mdp(generator, *batch) -> MDP:
    p = torch.rand(*batch, 3, 2, 3, generator=generator, dtype=torch.float64)
    r = torch.randn(*batch, 3, 2, generator=generator, dtype=torch.float64)
    return MDP(p / p.sum(-1, keepdim=True), r, 0.9, initial_state=1)


def dense(mdp: MDP, horizon: int) -> MDP:
    """The unrolled MDP written out: state s at step k is row k * S + s, and the last row is the end."""
    S, A = mdp.num_states, mdp.num_actions
    size = horizon * S + 1
    transitions = torch.zeros(*mdp.batch_shape, size, A, size, dtype=torch.float64)
    rewards = torch.zeros(*mdp.batch_shape, size, A, dtype=torch.float64)
    for k in range(horizon):
        here, there = slice(k * S, (k + 1) * S), slice((k + 1) * S, (k + 2) * S)
        rewards[..., here, :] = mdp.rewards
        if k + 1 < horizon:
            transitions[..., here, :, there] = mdp.transitions
        else:
            transitions[..., here, :, -1] = 1.0
    transitions[..., -1, :, -1] = 1.0
    return MDP(transitions, rewards, mdp.gamma, (size - 1,))


@pytest.mark.parametrize("horizon", [1, 2, 5])
def test_values_match_the_dense_mdp(horizon, generator):
    mdp = random_mdp(generator, 2)
    policy = torch.tensor([1, 0, 1])
    unrolled = unroll(mdp, horizon)
    assert unrolled.num_states == 3 * horizon + 1
    repeated = torch.cat([policy.repeat(horizon), torch.zeros(1, dtype=torch.long)])
    torch.testing.assert_close(unrolled.values(policy), policy_values(dense(mdp, horizon), repeated))


def test_successors_and_rewards_match_the_dense_mdp(generator):
    mdp = random_mdp(generator)
    unrolled, written_out = unroll(mdp, 4), dense(mdp, 4)
    for index in range(unrolled.num_states):
        row = torch.zeros(unrolled.num_states, dtype=torch.float64)
        states, probabilities = unrolled.successors(index, 1)
        row[states] = probabilities
        torch.testing.assert_close(row, written_out.transitions[index, 1])
        assert unrolled.reward(index, 1) == written_out.rewards[index, 1]


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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda u: UnrolledMDP(u.mdp, 0), "horizon"),
        (lambda u: unrolled_values(u.mdp.under(torch.ones(78, dtype=torch.long)), -1), "horizon"),
        (lambda u: u.index(78, 0), "state"),
        (lambda u: u.state_and_step(3901), "index"),
    ],
)
def test_errors_name_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call(unroll(nroom_mdp(), 50))
