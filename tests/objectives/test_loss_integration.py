"""The loss inside what TorchRL and PyTorch build around losses: Trainer, checkpoints, update functions."""

from __future__ import annotations

import pytest
import torch
from loss_parts import make_loss, scalar_critics, seeded
from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer, TensorDictReplayBuffer
from torchrl.envs import Compose, InitTracker, RewardSum, TransformedEnv
from torchrl.objectives import SACLoss, SoftUpdate, group_optimizers

from eqr_torchrl.objectives import EpistemicQuantileLoss, make_optimizer, make_update
from eqr_torchrl.testing import toy_actor, toy_batch, toy_critic, toy_env


def test_make_update_serves_torchrls_sac_and_a_fixed_temperature():
    batch = toy_batch(B=6)
    sac = SACLoss(toy_actor(), scalar_critics(2), num_qvalue_nets=2)
    sac.make_value_estimator(gamma=0.9)
    fixed = EpistemicQuantileLoss(toy_actor(), toy_critic(), fixed_alpha=True)
    for loss in (sac, fixed):
        losses = make_update(loss, make_optimizer(loss), SoftUpdate(loss, tau=0.1))(batch)
        assert torch.isfinite(losses["loss_qvalue"])
    assert len(make_optimizer(fixed).param_groups) == 2


def test_separate_optimisers_can_be_grouped_as_in_torchrls_scripts():
    loss = make_loss()
    optimizer = group_optimizers(
        torch.optim.Adam(list(loss.actor_network_params.flatten_keys().values()), lr=1e-3),
        torch.optim.Adam(list(loss.qvalue_network_params.flatten_keys().values()), lr=1e-3),
        torch.optim.Adam([loss.log_alpha], lr=1e-3),
    )
    make_update(loss, optimizer, loss.updater)(toy_batch(B=6))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_torchrls_trainer_trains_it():
    from torchrl.collectors import Collector  # warns while it is imported
    from torchrl.trainers import DefaultOptimizationStepper, ReplayBufferTrainer, TargetNetUpdaterHook, Trainer

    transforms = Compose(InitTracker(), RewardSum(in_keys=["reward"], out_keys=["reward_sum"]))
    env = TransformedEnv(toy_env(), transforms)
    actor, critic = toy_actor(), toy_critic()
    loss = EpistemicQuantileLoss(actor, critic)
    loss.make_value_estimator(gamma=0.9)
    loss.set_keys(reward="reward", done="done", terminated="terminated", action="action")
    before = [p.detach().clone() for p in loss.parameters()]
    collector = Collector(env, actor, frames_per_batch=20, total_frames=60, auto_register_policy_transforms=False)
    trainer = Trainer(
        collector=collector,
        total_frames=60,
        frame_skip=1,
        optim_steps_per_batch=2,
        loss_module=loss,
        optimizer=torch.optim.Adam(loss.parameters(), lr=1e-3),
        optimization_stepper=DefaultOptimizationStepper(),
        progress_bar=False,
    )
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100), batch_size=8)
    ReplayBufferTrainer(buffer, batch_size=8, flatten_tensordicts=True).register(trainer)
    TargetNetUpdaterHook(SoftUpdate(loss, tau=0.1)).register(trainer, "target_net_updater")
    trainer.train()
    assert all(not torch.equal(old, new) for old, new in zip(before, loss.parameters(), strict=True))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchrls_checkpoint_brings_it_back(tmp_path):
    from torchrl.checkpoint import Checkpoint

    batch = toy_batch(B=6, M=2, K=3)
    loss, fresh = make_loss(), make_loss()
    optimizer, other = make_optimizer(loss), make_optimizer(fresh)
    make_update(loss, optimizer, loss.updater)(batch)
    Checkpoint(loss=loss, optimizer=optimizer, updater=loss.updater).save(tmp_path / "checkpoint")
    Checkpoint(loss=fresh, optimizer=other, updater=fresh.updater).load(tmp_path / "checkpoint")
    for one, opt in ((loss, optimizer), (fresh, other)):
        seeded(make_update(one, opt, one.updater), batch)
    for a, b in zip(loss.state_dict().values(), fresh.state_dict().values(), strict=True):
        assert not isinstance(a, torch.Tensor) or torch.equal(a, b)


def prioritized_buffer(**kwargs) -> TensorDictPrioritizedReplayBuffer:
    try:
        buffer = TensorDictPrioritizedReplayBuffer(alpha=1.0, beta=1.0, priority_key="td_error", **kwargs)
        buffer.extend(toy_batch(B=1))
    except RuntimeError as error:
        if "SegmentTree" not in str(error):
            raise
        pytest.skip(f"TorchRL's extension does not load with torch {torch.__version__}: {error}")
    buffer.empty()
    return buffer


def test_prioritised_replay_draws_rows_by_their_td_error_and_weighs_them_by_its_inverse():
    buffer = prioritized_buffer(storage=LazyTensorStorage(8), batch_size=20_000)
    rows = toy_batch(B=8)
    rows["next", "reward"] = torch.arange(1.0, 9.0).unsqueeze(-1) ** 2
    rows["next", "terminated"].fill_(True)  # the target is the reward, so that errors are known
    critic = toy_critic()
    error = (critic(rows.clone())["state_action_value"].mean(-1) - rows["next", "reward"].squeeze(-1)).abs().detach()
    buffer.extend(rows)
    loss = make_loss(toy_actor(), critic)
    for _ in range(2):  # priorities out
        batch = buffer.sample()
        loss(batch)
        torch.testing.assert_close(batch["td_error"], error[batch["index"]])
        buffer.update_tensordict_priority(batch)
    batch = buffer.sample()
    share = batch["index"].bincount(minlength=8) / 20_000
    torch.testing.assert_close(share, error / error.sum(), atol=0.02, rtol=0.0)
    torch.testing.assert_close(batch["priority_weight"].float(), (error.min() / error)[batch["index"]])  # beta = 1
    # weights in: rows drawn by their error and weighed by its inverse give the mean over the buffer
    unweighted = make_loss(toy_actor(), critic)(rows.clone())["loss_qvalue"]
    torch.testing.assert_close(loss(batch)["loss_qvalue"].float(), unweighted, rtol=0.05, atol=0.0)
