from __future__ import annotations

import pytest
import torch

from eqr_torchrl.tabular import MDP, MarkovRewardProcess

P = torch.tensor([[[0.0, 1.0], [0.5, 0.5]], [[0.0, 1.0], [0.0, 1.0]]], dtype=torch.float64)
R = torch.tensor([[1.0, 2.0], [0.0, 0.0]], dtype=torch.float64)


def test_deterministic_policy_picks_its_rows():
    process = MDP(P, R, 0.9, (1,)).under(torch.tensor([1, 0]))
    torch.testing.assert_close(process.transitions, torch.tensor([[0.5, 0.5], [0.0, 1.0]], dtype=torch.float64))
    torch.testing.assert_close(process.rewards, torch.tensor([2.0, 0.0], dtype=torch.float64))


def test_stochastic_policy_mixes_rows_and_rewards():
    # 1/4 of (0, 1) and 3/4 of (1/2, 1/2);  1/4 * 1 + 3/4 * 2
    process = MDP(P, R, 0.9, (1,)).under(torch.tensor([[0.25, 0.75], [1.0, 0.0]]))
    torch.testing.assert_close(process.transitions[0], torch.tensor([0.375, 0.625], dtype=torch.float64))
    assert process.rewards[0] == 1.75


def test_batches_of_mdps_and_policies_broadcast():
    mdp = MDP(P.expand(3, 2, 2, 2), R.expand(3, 2, 2), 0.9)
    assert mdp.under(torch.tensor([0, 1])).batch_shape == (3,)
    single = MDP(P, R, 0.9)
    policies = torch.tensor([[0, 0], [1, 0]])
    assert single.under(policies).rewards.tolist() == [[1.0, 0.0], [2.0, 0.0]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"transitions": P * 0.9}, "must sum to one"),
        ({"transitions": P - torch.tensor([0.5, -0.5])}, "not be negative"),
        ({"transitions": P * torch.nan}, "not be negative or nan"),
        ({"transitions": P[:, :, :1]}, "shape"),
        ({"rewards": R[:1]}, "rewards must be of shape"),
        ({"rewards": R / 0}, "finite"),
        ({"gamma": 1.0}, "gamma"),
        ({"gamma": -0.1}, "gamma"),
        ({"terminal_states": (2,)}, "0..1"),
        ({"terminal_states": (0,)}, "absorbing"),
        ({"initial_state": -1}, "0..1"),
    ],
)
def test_bad_mdp_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        MDP(**{"transitions": P, "rewards": R, "gamma": 0.9, "terminal_states": (1,), **change})


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (torch.tensor([0, 2]), "0..1"),
        (torch.tensor([0]), "one action per state"),
        (torch.tensor([0.0, 1.0]), "probabilities of shape"),
        (torch.tensor([[0.5, 0.6], [1.0, 0.0]]), "sum to one"),
    ],
)
def test_bad_policy_is_refused(policy, message):
    with pytest.raises(ValueError, match=message):
        MDP(P, R, 0.9).under(policy)


def test_bad_reward_process_is_refused():
    with pytest.raises(ValueError, match=r"\[\*B, S, S\]"):
        MarkovRewardProcess(P[0], R, 0.9)
