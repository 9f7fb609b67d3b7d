"""Members that rest: their weights, their optimiser state, and what they cost."""

from __future__ import annotations

import pytest
import torch

from eqr_torchrl.networks.ensemble import EnsembleLinear
from eqr_torchrl.world_models._active_members import ActiveMembers


def make(num_members=3, **kwargs):
    layer = EnsembleLinear(num_members, 2, 2)
    return layer, torch.optim.Adam(layer.parameters(), **{"lr": 0.1, **kwargs})


def steps(layer, optimizer, count):
    for _ in range(count):
        optimizer.zero_grad()
        layer(torch.ones(layer.weight.shape[0], 1, 2)).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("fused", [False, True])
def test_resting_members_are_cut_out_and_come_back_at_the_same_address(fused):
    layer, optimizer = make(fused=fused)
    address = layer.weight.data_ptr()
    steps(layer, optimizer, 1)
    moment_address = optimizer.state[layer.weight]["exp_avg"].data_ptr()
    members = ActiveMembers(layer, optimizer, 3)
    members.keep_only([0, 2])
    assert members.active == [0, 2]
    assert layer.weight.shape == optimizer.state[layer.weight]["exp_avg"].shape == (2, 2, 2)
    members.keep_only([1])
    assert members.active == [2]
    steps(layer, optimizer, 1)
    members.restore()
    assert layer.weight.shape == optimizer.state[layer.weight]["exp_avg_sq"].shape == (3, 2, 2)
    assert layer.weight.data_ptr() == address
    assert optimizer.state[layer.weight]["exp_avg"].data_ptr() == moment_address


def test_restore_gives_each_member_its_own_best_weights():
    layer, optimizer = make()
    start = layer.weight.detach().clone()
    members = ActiveMembers(layer, optimizer, 3)
    steps(layer, optimizer, 1)
    members.keep_best([1])
    first = layer.weight.detach().clone()
    members.keep_only([1, 2])
    steps(layer, optimizer, 1)
    members.keep_best([1])  # position 1 is now member 2
    second = layer.weight.detach().clone()
    steps(layer, optimizer, 1)
    members.restore()
    torch.testing.assert_close(layer.weight.detach(), torch.stack([start[0], first[1], second[1]]), rtol=0, atol=0)


def test_moments_of_a_resting_member_mean_the_same_at_the_common_step_count():
    # the gradient is 1 for every weight and step: bias-corrected moments are 1 whatever the number of steps
    layer, optimizer = make()
    members = ActiveMembers(layer, optimizer, 3)
    steps(layer, optimizer, 2)
    members.keep_only([0, 2])
    steps(layer, optimizer, 5)
    members.restore()
    state = optimizer.state[layer.weight]
    assert state["step"] == 7
    torch.testing.assert_close(state["exp_avg"] / (1 - 0.9**7), torch.ones(3, 2, 2))
    torch.testing.assert_close(state["exp_avg_sq"] / (1 - 0.999**7), torch.ones(3, 2, 2), rtol=1e-4, atol=0)


def test_optimisers_without_state_work_too():
    layer = EnsembleLinear(3, 2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    start = layer.weight.detach().clone()
    members = ActiveMembers(layer, optimizer, 3)
    members.keep_only([1])
    steps(layer, optimizer, 1)
    members.keep_best([0])
    members.restore()
    torch.testing.assert_close(
        start - layer.weight.detach(), torch.tensor([0.0, 0.1, 0.0])[:, None, None].expand(3, 2, 2)
    )
