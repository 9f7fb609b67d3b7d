"""Targets with hidden products in bfloat16 against the same ones in float32."""

from __future__ import annotations

import torch
from tensordict import TensorDict

from eqr_torchrl.modules import MLP, make_actor, make_critic
from eqr_torchrl.objectives import EpistemicQuantileLoss
from eqr_torchrl.testing import toy_env

S, A, B, M, K = 8, 2, 32, 5, 4


def batch(state: torch.Tensor) -> TensorDict:
    """Next states that members and draws spread by 0.1 around each of ``state``, whose entries are of order one."""
    successors = {
        "observation": state[:, None, None] + 0.1 * torch.randn(B, M, K, S),
        "reward": torch.zeros(B, M, K, 1),
        "terminated": torch.zeros(B, M, K, 1, dtype=torch.bool),
    }
    action = torch.zeros(B, A)
    return TensorDict({"observation": state, "action": action, "next": TensorDict(successors, (B, M, K))}, [B])


def test_bf16_moves_target_quantiles_by_less_than_a_tenth_of_their_own_noise():
    torch.manual_seed(0)
    env = toy_env(S, A)
    loss = EpistemicQuantileLoss(make_actor(env), make_critic(env), delay_qvalue=False)
    networks = [
        module
        for network in (loss.actor_network, loss.qvalue_network)
        for module in network.modules()
        if isinstance(module, MLP)
    ]
    assert len(networks) == 2
    last = loss.qvalue_network_params.data.get(("critics", "0", "module", "network", "4"))
    last["weight"] *= 20  # returns of order a hundred, which vary with the state
    last["bias"] += 100
    state = torch.randn(B, S)

    def target(seed: int, *, bf16: bool) -> torch.Tensor:
        torch.manual_seed(seed)
        for network in networks:
            network.uses_bf16 = bf16
        return loss.compute_target(batch(state))

    draws = torch.stack([target(seed, bf16=False) for seed in range(20)])
    change = torch.stack([target(seed, bf16=True) for seed in range(20)]) - draws
    noise = draws.std(0).square().mean().sqrt()
    assert 0 < change.square().mean().sqrt() < 0.1 * noise
