from __future__ import annotations

import pytest
import torch

from eqr_torchrl.tabular import MDPEnv, nroom_mdp, nroom_prior, policy_values, psrl


def test_psrl_finds_the_prize_of_a_corridor(generator):
    # with gamma = 0.9 the prize, 0.01 + 0.9^2, is worth more than bumping into a wall at the start for ever, 0.1
    env = MDPEnv(nroom_mdp(room_size=1, left_prize_ends_episode=True, gamma=0.9), batch_size=(4,))
    env.set_seed(0)
    made, prior, sizes = [], nroom_prior(room_size=1, gamma=0.9), {"num_episodes": 60, "horizon": 15}
    result = psrl(env, prior, **sizes, true_mdp=env.mdp, progress=made.append, generator=generator)
    assert sum(made) == 60
    assert result.regret is not None
    assert result.regret.shape == result.episode_returns.shape == (60, 4)
    assert bool((result.regret > -1e-9).all())
    assert float(result.regret[:5].mean()) > 0.1
    assert float(result.regret[-10:].max()) < 1e-6
    values = policy_values(env.mdp, result.policy)[:, env.mdp.initial_state]
    torch.testing.assert_close(values, torch.full((4,), 0.01 + 0.9**2, dtype=torch.float64))
    assert float(result.episode_returns[-1].min()) == pytest.approx(1.01)


def test_runs_of_a_batch_are_independent(generator):
    env = MDPEnv(nroom_mdp(), batch_size=(3,))
    result = psrl(env, nroom_prior(), num_episodes=2, horizon=10, generator=generator)
    assert result.regret is None
    assert not torch.equal(result.policy[0], result.policy[1])
    assert result.posterior.batch_shape == (3,)
    visits = result.posterior.transitions.concentration - nroom_prior().transitions.concentration
    assert float(visits.sum()) <= 3 * 2 * 10


def test_single_run_counts_every_step_once(generator):
    result = psrl(MDPEnv(nroom_mdp()), nroom_prior(), num_episodes=1, horizon=7, generator=generator)
    added = result.posterior.transitions.concentration - nroom_prior().transitions.concentration
    assert float(added.sum()) == pytest.approx(7)


@pytest.mark.parametrize("name", ["num_episodes", "horizon"])
def test_errors_name_the_argument(name):
    with pytest.raises(ValueError, match=name):
        psrl(MDPEnv(nroom_mdp()), nroom_prior(), **{"num_episodes": 1, "horizon": 1, name: 0})
