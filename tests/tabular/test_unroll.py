from __future__ import annotations

import pytest
import torch

from eqr_torchrl.tabular import MDP, nroom_mdp, policy_values, toy_mdp, unroll, unrolled_values


def random_mdp(generator, *batch) -> MDP:
    p = torch.rand(*batch, 3, 2, 3, generator=generator, dtype=torch.float64)
    r = torch.randn(*batch, 3, 2, generator=generator, dtype=torch.float64)
    return MDP(p / p.sum(-1, keepdim=True), r, 0.9, initial_state=1)


def test_each_step_has_states_of_its_own(generator):
    mdp = random_mdp(generator)
    unrolled = unroll(mdp, 4)
    assert (unrolled.num_states, unrolled.initial_state, unrolled.terminal_states) == (13, 1, (12,))
    for index in range(12):
        step, state = divmod(index, 3)
        row = torch.zeros(2, 13, dtype=torch.float64)
        if step < 3:
            row[:, 3 * (step + 1) : 3 * (step + 2)] = mdp.transitions[state]
        else:
            row[:, 12] = 1.0
        assert torch.equal(unrolled.transitions[index], row)
        assert torch.equal(unrolled.rewards[index], mdp.rewards[state])


@pytest.mark.parametrize("horizon", [1, 2, 5])
def test_values_are_those_of_the_remaining_steps(horizon, generator):
    mdp = random_mdp(generator, 2)
    policy = torch.tensor([1, 0, 1])
    repeated = torch.cat([policy.repeat(horizon), torch.zeros(1, dtype=torch.long)])
    values = policy_values(unroll(mdp, horizon), repeated)
    steps_left = unrolled_values(mdp.under(policy), horizon).flip(0)  # [H + 1, 2, 3]; step 0 has all steps left
    torch.testing.assert_close(values[:, :-1], steps_left[:-1].movedim(0, 1).flatten(1))
    assert not values[:, -1].any()


def test_error_falls_as_the_discount_does():
    mdp = toy_mdp(0.9, 0.4)
    policy = torch.zeros(4, dtype=torch.long)
    truth = policy_values(mdp, policy)
    values = unrolled_values(mdp.under(policy), 200)
    error = (values - truth).abs().amax(-1)
    # rewards are at most 1 in size
    assert bool((error <= 0.99 ** torch.arange(201) / 0.01).all())
    assert float(error[-1]) < 1e-12  # the cycle is left for good sooner or later


def test_the_prize_of_the_grid_world_needs_seven_steps():
    values = unrolled_values(nroom_mdp().under(torch.ones(78, dtype=torch.long)), 50)[:, 38]
    assert float(values[50]) == pytest.approx(0.01 + 0.99**6)
    assert float(values[6]) == pytest.approx(0.01)


def test_errors_name_the_argument():
    mdp = toy_mdp(0.9, 0.4)
    with pytest.raises(ValueError, match="horizon must be positive, got 0"):
        unroll(mdp, 0)
    with pytest.raises(ValueError, match="horizon must not be negative, got -1"):
        unrolled_values(mdp.under(torch.zeros(4, dtype=torch.long)), -1)
