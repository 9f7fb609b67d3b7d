from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from eqr_torchrl.tabular import (
    ConjugatePosterior,
    DirichletPosterior,
    EmpiricalPosterior,
    NormalPosterior,
    TransitionStatistics,
    nroom_prior,
    toy_mdp,
)


def statistics(rewards: list[float], *, states: int = 1) -> TransitionStatistics:
    """All ``rewards`` seen at the first state and action, always moving to the last state."""
    counts = torch.zeros(states, 1, states, dtype=torch.float64)
    counts[0, 0, -1] = len(rewards)
    sums = torch.zeros(states, 1, dtype=torch.float64)
    sums[0] = sum(rewards)
    return TransitionStatistics(counts, sums)


def test_dirichlet_moments(generator):
    table = torch.tensor([[0.3, 0.0, 2.0], [1.0, 4.0, 0.5], [0.1, 0.1, 0.1]], dtype=torch.float64).unsqueeze(1)
    posterior = DirichletPosterior(torch.stack([table, table + 3.0 * (table > 0)]))
    draws = posterior.sample((20_000,), generator=generator)
    assert draws.shape == (20_000, 2, 3, 1, 3)
    torch.testing.assert_close(draws.sum(-1), torch.ones_like(draws[..., 0]))
    assert not draws[:, :, 0, 0, 1].any()  # impossible successor
    total = posterior.concentration.sum(-1, keepdim=True)
    mean = posterior.concentration / total
    torch.testing.assert_close(draws.mean(0), mean, atol=0.01, rtol=0)
    torch.testing.assert_close(draws.var(0), mean * (1 - mean) / (total + 1), atol=0.005, rtol=0)
    torch.testing.assert_close(posterior.mean(), mean)


def test_tiny_concentrations_do_not_underflow(generator):
    # Dirichlet(e, e) tends to a fair coin between the corners
    draws = DirichletPosterior(torch.full((2, 1, 2), 1e-4, dtype=torch.float64)).sample((4000,), generator=generator)
    assert bool(draws.isfinite().all())
    assert float((draws.amax(-1) > 0.999).double().mean()) > 0.99
    assert float(draws[..., 0].mean()) == pytest.approx(0.5, abs=0.03)


def test_policy_selects_the_rows_that_are_drawn(generator):
    table = torch.zeros(2, 2, 2, dtype=torch.float64)
    table[:, 0, 0] = table[:, 1, 1] = 1.0  # action a always leads to state a
    draws = DirichletPosterior(table).sample((3,), policy=torch.tensor([1, 0]), generator=generator)
    assert draws.tolist() == [[[0.0, 1.0], [1.0, 0.0]]] * 3


def test_dirichlet_update_adds_counts_and_refuses_impossible_ones():
    prior = DirichletPosterior.prior(2, 1, concentration=0.5, terminal_states=(1,))
    assert prior.update(statistics([0.0, 0.0], states=2)).concentration[0, 0].tolist() == [0.5, 2.5]
    impossible = TransitionStatistics(
        torch.tensor([[[0.0, 0.0]], [[1.0, 0.0]]], dtype=torch.float64), torch.zeros(2, 1, dtype=torch.float64)
    )
    with pytest.raises(ValueError, match="impossible"):
        prior.update(impossible)


def test_normal_update_matches_bayes_on_a_grid():
    prior = NormalPosterior.prior(1, 1, mean=0.5, precision=2.0, observation_precision=4.0)
    posterior = prior.update(statistics([1.0, 3.0]))
    grid = torch.linspace(-5, 5, 20_001, dtype=torch.float64)
    log_density = -1.0 * (grid - 0.5) ** 2 - 2.0 * (grid - 1) ** 2 - 2.0 * (grid - 3) ** 2
    weight = log_density.softmax(0)
    mean = (weight * grid).sum()
    torch.testing.assert_close(posterior.mean[0, 0], mean)
    torch.testing.assert_close(1 / posterior.precision[0, 0], (weight * (grid - mean) ** 2).sum())


def test_updates_in_two_steps_equal_one():
    one = NormalPosterior.prior(1, 1).update(statistics([1.0, 2.0, 4.0]))
    two = NormalPosterior.prior(1, 1).update(statistics([1.0])).update(statistics([2.0, 4.0]))
    for name in vars(one):
        torch.testing.assert_close(getattr(one, name), getattr(two, name))


def test_reward_draws_have_the_right_moments(generator):
    normal = NormalPosterior.prior(1, 1, mean=2.0, precision=4.0)
    draws = normal.sample((50_000,), generator=generator)
    assert float(draws.mean()) == pytest.approx(2.0, abs=0.01)
    assert float(draws.std()) == pytest.approx(0.5, abs=0.01)


def test_terminal_rewards_are_pinned(generator):
    prior = NormalPosterior.prior(2, 1, terminal_states=(1,))
    counts = torch.zeros(2, 1, 2, dtype=torch.float64)
    counts[:, 0, 1] = 1.0
    seen = TransitionStatistics(counts, torch.ones(2, 1, dtype=torch.float64))
    draws = prior.update(seen).sample((10,), generator=generator)
    assert not draws[:, 1].any()
    assert bool(draws.isfinite().all())


def test_conjugate_posterior_keeps_the_terminal_state_and_concentrates(generator):
    prior = nroom_prior(room_size=1)  # a corridor of five cells and the end
    for mdp in (prior.sample((4,), generator=generator), prior.mean()):
        assert mdp.terminal_states == (5,) and bool((mdp.transitions[..., 5, :, 5] == 1).all())
    counts = torch.zeros(6, 4, 6, dtype=torch.float64)
    counts[2, 1, 3] = 1e6
    seen = TransitionStatistics(counts, 0.01 * counts.sum(-1))
    process = prior.update(seen).sample_process(torch.ones(6, dtype=torch.long), (100,), generator=generator)
    assert float(process.transitions[:, 2, 3].min()) > 0.999
    torch.testing.assert_close(process.rewards[:, 2], torch.full((100,), 0.01).double(), atol=1e-4, rtol=0)


def test_stochastic_policy_mixes_drawn_rows(generator):
    prior = nroom_prior(room_size=1)
    process = prior.sample_process(torch.full((6, 4), 0.25), (2, 3), generator=generator)
    assert process.transitions.shape == (2, 3, 6, 6)
    torch.testing.assert_close(process.transitions.sum(-1), torch.ones(2, 3, 6, dtype=torch.float64))


def test_known_rewards_are_not_drawn(generator):
    rewards = torch.tensor([[1.0, 2.0], [0.0, 0.0]], dtype=torch.float64)
    known = NormalPosterior(rewards, torch.full_like(rewards, torch.inf))
    posterior = ConjugatePosterior(DirichletPosterior.prior(2, 2, terminal_states=(1,)), known, 0.9, (1,))
    process = posterior.sample_process(torch.tensor([1, 0]), (3,), generator=generator)
    assert process.rewards.tolist() == [[2.0, 0.0]] * 3


def test_each_element_of_a_batch_draws_rewards_of_its_own(generator):
    table = torch.ones(2, 3, 1, 3, dtype=torch.float64)  # two posteriors over transitions, one over rewards
    posterior = ConjugatePosterior(DirichletPosterior(table), NormalPosterior.prior(3, 1), 0.9)
    rewards = posterior.sample((5,), generator=generator).rewards
    assert rewards.shape == (5, 2, 3, 1)
    assert not torch.equal(rewards[:, 0], rewards[:, 1])


def test_empirical_posterior_draws_within_each_element_of_the_batch(generator):
    x = torch.tensor([[0.1, 0.2], [0.8, 0.9]], dtype=torch.float64)
    posterior = EmpiricalPosterior(toy_mdp(0.0, x))
    draws = posterior.sample((200,), generator=generator).transitions[:, :, 0, 0, 2]
    assert draws.shape == (200, 2)
    assert set(draws[:, 0].tolist()) == {0.1, 0.2}
    assert set(draws[:, 1].tolist()) == {0.8, 0.9}
    torch.testing.assert_close(posterior.mean().transitions[:, 0, 0, 2], x.mean(-1))


def test_rewards_of_an_empirical_posterior_belong_to_their_transitions(generator):
    x = torch.tensor([0.1, 0.2, 0.9], dtype=torch.float64)
    mdps = toy_mdp(0.0, x)
    rewards = mdps.rewards.clone()
    rewards[..., 0, 0] = x  # the same parameter decides both
    posterior = EmpiricalPosterior(replace(mdps, rewards=rewards))
    for drawn in (posterior.sample((50,), generator=generator), posterior.mean()):
        torch.testing.assert_close(drawn.rewards[..., 0, 0], drawn.transitions[..., 0, 0, 2])
    assert posterior.mean().rewards[0, 0].item() == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DirichletPosterior(torch.ones(2, 1, 3)), "shape"),
        (lambda: DirichletPosterior(torch.zeros(2, 1, 2)), "positive entry"),
        (lambda: DirichletPosterior(-torch.ones(2, 1, 2)), "not negative"),
        (lambda: NormalPosterior(torch.zeros(2, 1), torch.zeros(2, 1)), "positive"),
        (lambda: NormalPosterior(torch.zeros(2, 1), torch.ones(1, 2)), "precision must be of shape"),
        (lambda: NormalPosterior.prior(2, 1, observation_precision=float("inf")), "positive and finite, got inf"),
        (
            lambda: ConjugatePosterior(DirichletPosterior.prior(2, 1), NormalPosterior.prior(3, 1), 0.9),
            "rewards must be of shape",
        ),
        (lambda: EmpiricalPosterior(toy_mdp(0.0, 0.5)), "batch"),
        (lambda: TransitionStatistics(torch.ones(2, 1, 3), torch.ones(2, 1)), "counts"),
        (lambda: TransitionStatistics(-torch.ones(2, 1, 2), torch.ones(2, 1)), "negative"),
    ],
)
def test_errors_name_the_argument(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("batch", [(), (7,)])
def test_a_policy_is_one_for_all_or_one_for_each_posterior(batch):
    mdps = toy_mdp(0.5, torch.rand(*batch, 5))
    conjugate = ConjugatePosterior(
        DirichletPosterior(torch.ones(*batch, 4, 1, 4)), NormalPosterior.prior(4, 1), gamma=0.9
    )
    for posterior in (conjugate, EmpiricalPosterior(mdps)):
        fitting = [(), (1,) * len(batch), batch]
        for shape in (*fitting, (3,), (*batch, 1), (3, *batch)):
            for policy in (torch.zeros(*shape, 4, dtype=torch.long), torch.ones(*shape, 4, 1)):
                if shape in fitting:
                    assert posterior.sample_process(policy, (3,)).batch_shape == (3, *batch)
                else:
                    with pytest.raises(ValueError, match=r"policy must be one, or one for each of a batch"):
                        posterior.sample_process(policy, (3,))


def test_rewards_of_terminal_states_are_known():
    transitions = DirichletPosterior.prior(3, 2, terminal_states=(2,))
    with pytest.raises(ValueError, match="rewards must be known, of infinite precision, in terminal_states"):
        ConjugatePosterior(transitions, NormalPosterior.prior(3, 2), 0.9, (2,))


def test_float32_rows_with_one_successor_are_probabilities():
    draws = DirichletPosterior(torch.ones(1, 1, 1)).sample((2**22,))
    assert (draws == 1).all()
