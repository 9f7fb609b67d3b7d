from __future__ import annotations

import pytest
import torch

from eqr_torchrl import functional as F


def test_target_equals_a_loop_over_members_draws_and_quantiles():
    generator = torch.Generator().manual_seed(0)
    B, M, K, Y, N, gamma, alpha = 2, 3, 4, 2, 5, 0.9, 0.7
    reward = torch.randn(B, M, K, generator=generator)
    terminated = torch.rand(B, M, K * Y, generator=generator) < 0.3
    q = torch.randn(B, M, K * Y, N, generator=generator)
    log_prob = torch.randn(B, M, K * Y, generator=generator)
    target = F.epistemic_quantile_target(reward, terminated, q, log_prob, gamma=gamma, alpha=alpha)
    assert target.shape == (B, M * N)
    for b in range(B):
        for m in range(M):
            for n in range(N):
                bootstrap = [
                    0.0 if terminated[b, m, j] else (q[b, m, j, n] - alpha * log_prob[b, m, j]).item()
                    for j in range(K * Y)
                ]
                expected = sum(reward[b, m].tolist()) / K + gamma * sum(bootstrap) / (K * Y)
                assert target[b, m * N + n].item() == pytest.approx(expected, abs=1e-5)


def test_terminated_rows_ignore_whatever_the_critic_says_there():
    terminated = torch.tensor([[[True, False]]])
    q = torch.tensor([[[[float("nan")], [4.0]]]])
    log_prob = torch.tensor([[[float("nan"), 0.0]]])
    target = F.epistemic_quantile_target(torch.ones(1, 1, 2), terminated, q, log_prob, gamma=0.5, alpha=1.0)
    assert target.tolist() == [[1 + 0.5 * (0 + 4) / 2]]


@pytest.mark.parametrize(("reward", "q"), [((2, 3, 4), (2, 3, 5, 7)), ((2, 4), (2, 3, 4, 7))])
def test_shapes_that_do_not_fit_are_named(reward, q):
    flags, log_prob = torch.zeros(2, 3, 4, dtype=torch.bool), torch.zeros(2, 3, 4)
    with pytest.raises(ValueError, match="must agree"):
        F.epistemic_quantile_target(torch.zeros(reward), flags, torch.zeros(q), log_prob, gamma=1, alpha=1)


def test_a_discount_of_each_transition_is_that_of_transitions_over_several_steps():
    # rewards 1, atoms 10 + 2 entropy: 1 + gamma^n 12 for n = 1, 2, 3 and gamma = 0.5
    reward, flags = torch.ones(3, 2, 4), torch.zeros(3, 2, 4, dtype=torch.bool)
    q, log_prob, gamma = (
        torch.full((3, 2, 4, 1), 10.0),
        torch.full((3, 2, 4), -1.0),
        torch.tensor([[0.5], [0.25], [0.125]]),
    )
    target = F.epistemic_quantile_target(reward, flags, q, log_prob, gamma=gamma, alpha=2.0)
    assert target.tolist() == [[7.0, 7.0], [4.0, 4.0], [2.5, 2.5]]
