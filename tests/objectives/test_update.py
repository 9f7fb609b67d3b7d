from __future__ import annotations

import pytest
import torch
from loss_parts import seeded, total
from torch.nn.utils import clip_grad_norm_
from torchrl.objectives import SoftUpdate

from eqr_torchrl.objectives import EpistemicQuantileLoss, make_optimizer, make_update
from eqr_torchrl.testing import toy_actor, toy_batch, toy_critic


def make_parts(device: str = "cpu"):
    torch.manual_seed(0)
    loss = EpistemicQuantileLoss(toy_actor().to(device), toy_critic().to(device)).make_value_estimator(gamma=0.9)
    return loss, make_optimizer(loss, lr_critic=1e-2), SoftUpdate(loss, tau=0.1)


def test_an_update_steps_down_the_gradient_of_the_three_losses_and_then_moves_the_target():
    lr, tau = 0.05, 0.1
    loss, _, updater = make_parts()
    update = make_update(loss, torch.optim.SGD(loss.parameters(), lr=lr), updater)
    for seed in (1, 2):  # the second starts from no gradient
        batch = toy_batch(B=4, M=2, K=3)
        parameters = dict(loss.named_parameters())
        before = {name: value.detach().clone() for name, value in parameters.items()}
        target = loss.target_qvalue_network_params.clone().detach()
        losses = seeded(loss, batch.copy(), seed=seed)
        gradients = torch.autograd.grad(total(losses), list(parameters.values()))
        report = seeded(update, batch.copy(), seed=seed)
        assert not any(value.requires_grad for value in report.values())
        torch.testing.assert_close(report["loss_qvalue"], losses["loss_qvalue"].detach())
        for (name, value), gradient in zip(parameters.items(), gradients, strict=True):
            assert gradient.any()
            torch.testing.assert_close(value.detach(), before[name] - lr * gradient, msg=name)
        for key, moved in loss.target_qvalue_network_params.items(True, True):
            torch.testing.assert_close(moved, torch.lerp(target[key], loss.qvalue_network_params[key].detach(), tau))


def test_each_part_learns_at_its_own_rate():
    # Adam's first step is the learning rate, whatever the size of the gradient
    rates = {"actor_network_params": 1e-2, "qvalue_network_params": 1e-3, "log_alpha": 1e-1}
    loss, _, updater = make_parts()
    optimizer = make_optimizer(loss, lr_actor=1e-2, lr_critic=1e-3, lr_alpha=1e-1)
    before = {name: value.detach().clone() for name, value in loss.named_parameters()}
    make_update(loss, optimizer, updater)(toy_batch(B=6, M=2, K=3))
    for name, value in loss.named_parameters():
        step = (value.detach() - before[name]).abs().max()
        torch.testing.assert_close(step, torch.tensor(rates[name.split(".")[0]]), rtol=0.01, atol=0.0)


def test_an_update_that_draws_its_own_batches():
    batches = [toy_batch(B=4, M=2, K=3) for _ in range(2)]
    queue = [batch.copy() for batch in batches]
    draw = make_update(*make_parts(), sample=lambda: queue.pop(0))
    torch.manual_seed(1)
    drawn = [draw()["loss_qvalue"] for _ in batches]
    take = make_update(*make_parts())
    torch.manual_seed(1)
    torch.testing.assert_close(drawn, [take(batch)["loss_qvalue"] for batch in batches])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_replayed_update_is_the_eager_one():
    batch = toy_batch(B=4, M=2, K=1).to("cuda")
    batch["next", "terminated"].fill_(True)  # the critic's targets are the rewards, whatever actions are drawn
    reports = []
    for cuda_graph in (False, True):
        loss, optimizer, updater = make_parts("cuda")
        update = make_update(loss, optimizer, updater, sample=lambda: batch.copy(), cuda_graph=cuda_graph)
        reports.append(torch.stack([update()["loss_qvalue"].clone() for _ in range(12)]))
    assert (reports[0].diff() < 0).all()  # each update learns
    torch.testing.assert_close(*reports, rtol=1e-4, atol=1e-6)


def test_gradients_can_be_clipped_before_the_step_and_a_scheduler_steps_after_it():
    loss, _, updater = make_parts()
    optimizer = torch.optim.SGD(loss.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    before = [p.detach().clone() for p in loss.parameters()]
    steps = {"before_step": lambda: clip_grad_norm_(loss.parameters(), 1e-2), "after_step": scheduler.step}
    make_update(loss, optimizer, updater, **steps)(toy_batch(B=4, M=2, K=3))
    step = sum((p.detach() - old).square().sum() for p, old in zip(loss.parameters(), before, strict=True)).sqrt()
    torch.testing.assert_close(step, torch.tensor(1e-2), rtol=1e-3, atol=0.0)  # SGD at rate 1: the clipped norm
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_a_cuda_graph_needs_a_gpu():
    with pytest.raises(ValueError, match="cuda_graph must be False .* got cpu"):
        make_update(*make_parts(), cuda_graph=True)


def test_a_fixed_policy_is_evaluated_by_updates_of_its_critic():
    actor = toy_actor().requires_grad_(False)
    loss = EpistemicQuantileLoss(actor, toy_critic(), fixed_alpha=True).make_value_estimator(gamma=0.9)
    before = loss.qvalue_network_params.clone().detach()
    make_update(loss, make_optimizer(loss), SoftUpdate(loss, tau=0.1))(toy_batch(B=4))
    assert (before != loss.qvalue_network_params.detach()).any()


def test_targets_of_parameters_that_are_trained_only_later_follow_them():
    critic = toy_critic()
    first = next(critic.parameters()).requires_grad_(False)
    loss = EpistemicQuantileLoss(toy_actor(), critic).make_value_estimator(gamma=0.9)
    optimizer, updater = torch.optim.SGD(loss.parameters(), lr=0.0), SoftUpdate(loss, tau=0.5)
    batch, target = toy_batch(B=4), loss.target_qvalue_network_params.clone()
    update = make_update(loss, optimizer, updater)
    first.requires_grad_(True)
    with torch.no_grad():
        for parameter in loss.qvalue_network_params.parameters():
            parameter += 1.0
    update(batch)
    moved = loss.target_qvalue_network_params - target  # half of 1, as by SoftUpdate.step
    keys = [key for key, value in loss.qvalue_network_params.items(True, True) if isinstance(value, torch.nn.Parameter)]
    assert len(keys) == 6 and all((moved[key] - 0.5).abs().max() < 1e-5 for key in keys)


def test_what_comes_after_a_step_comes_once_in_each():
    count = []
    update = make_update(*make_parts(), after_step=lambda: count.append(1))
    for _ in range(3):
        update(toy_batch(B=4))
    assert len(count) == 3
