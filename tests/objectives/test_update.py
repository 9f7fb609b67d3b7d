from __future__ import annotations

import copy

import pytest
import torch
from torchrl.objectives import SoftUpdate

from eqr_torchrl.objectives import EpistemicQuantileLoss, make_optimizer, make_update
from eqr_torchrl.testing import toy_actor, toy_batch, toy_critic


def make_parts(device: str = "cpu"):
    torch.manual_seed(0)
    loss = EpistemicQuantileLoss(toy_actor().to(device), toy_critic().to(device)).make_value_estimator(gamma=0.9)
    return loss, make_optimizer(loss, lr_critic=1e-2), SoftUpdate(loss, tau=0.1)


def test_an_update_is_backward_optimiser_step_and_target_step():
    loss, optimizer, updater = make_parts()
    other, other_optimizer, other_updater = make_parts()
    other.load_state_dict(copy.deepcopy(loss.state_dict()))
    batch = toy_batch(B=4, M=2, K=3)
    torch.manual_seed(1)
    report = make_update(loss, optimizer, updater)(batch.copy())
    torch.manual_seed(1)
    losses = other(batch.copy())
    sum(losses[key] for key in ("loss_actor", "loss_qvalue", "loss_alpha")).backward()
    other_optimizer.step()
    other_updater.step()
    torch.testing.assert_close(report["loss_qvalue"], losses["loss_qvalue"].detach())
    for (name, value), (_, expected) in zip(loss.named_parameters(), other.named_parameters(), strict=True):
        torch.testing.assert_close(value, expected, msg=name)
    assert all(p.grad is None for p in loss.parameters())  # the next update starts from nothing


def test_an_update_that_draws_its_own_batches():
    batches = [toy_batch(B=4, M=2, K=3) for _ in range(2)]
    queue = [batch.copy() for batch in batches]
    draw = make_update(*make_parts(), sample=lambda: queue.pop(0))
    torch.manual_seed(1)
    drawn = [draw()["loss_qvalue"] for _ in batches]
    take = make_update(*make_parts())
    torch.manual_seed(1)
    torch.testing.assert_close(drawn, [take(batch)["loss_qvalue"] for batch in batches])


def test_cuda_graphs_are_refused_where_there_is_no_cuda():
    loss, optimizer, updater = make_parts()
    with pytest.raises(ValueError, match="cuda_graph must be False .* they are on cpu"):
        make_update(loss, optimizer, updater, cuda_graph=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_replayed_update_is_the_eager_one():
    batches = [toy_batch(B=4, M=2, K=1).to("cuda") for _ in range(12)]
    reports = []
    for cuda_graph in (False, True):
        loss, optimizer, updater = make_parts("cuda")
        loss.actor_network_params.data.apply(lambda value: value.zero_(), inplace=True)
        update = make_update(loss, optimizer, updater, cuda_graph=cuda_graph)
        torch.manual_seed(0)
        reports.append([update(batch.copy())["loss_qvalue"].item() for batch in batches])
    # the draws of the policy differ, its distribution does not: the critic's loss falls alike
    torch.testing.assert_close(torch.tensor(reports[0]), torch.tensor(reports[1]), rtol=0.2, atol=0.05)
