"""D_model in one buffer for each member: rows go where they belong, and batches hold what the memberwise loss reads."""

from __future__ import annotations

import pytest
import torch

from eqr_torchrl.imagination import ModelBasedEnv, branched_rollout, make_member_buffers, never_terminates
from eqr_torchrl.lab.runs import capture_state, load_checkpoint, restore_state, save_checkpoint
from eqr_torchrl.objectives import MemberwiseSACLoss
from eqr_torchrl.testing import toy_actor, toy_batch, toy_critic, toy_env
from eqr_torchrl.world_models import GaussianEnsemble

KEYS = ("observation", "action", ("next", "observation"), ("next", "reward"), ("next", "terminated"), "member")


def rows(members: list[int]):
    """One row for each entry, whose reward names its member."""
    batch = toy_batch(B=len(members)).set("member", torch.tensor(members).unsqueeze(-1))
    batch["next", "reward"] = batch["member"].float()
    return batch


def full_buffers(num_members: int = 3, **kwargs):
    buffers = make_member_buffers(400, num_members=num_members, **{"batch_size": 8, **kwargs})
    buffers.extend(rows([*range(-1, num_members)] * 20))
    return buffers


def test_rows_go_to_the_buffer_of_their_member_in_their_order():
    buffers = make_member_buffers(40, num_members=3, batch_size=2)
    batch = rows([1, -1, 0, 1, 2, 1, -1])
    buffers.extend(batch)
    assert [len(buffer) for buffer in buffers.members] == [1, 3, 1] and len(buffers.states) == 2
    torch.testing.assert_close(buffers.members[1][:]["observation"], batch["observation"][[0, 3, 5]])
    torch.testing.assert_close(buffers.states[:]["observation"], batch["observation"][[1, 6]])
    # nothing is stored that the loss does not read
    assert set(buffers.members[0][:].keys()) == {"observation", "action", "next"}
    assert set(buffers.states[:].keys()) == {"observation"}


def test_capacity_is_shared_evenly_and_the_oldest_rows_go_first():
    buffers = make_member_buffers(12, num_members=2, batch_size=2)  # 4 rows each
    first, second = rows([0] * 3), rows([0] * 3)
    buffers.extend(first)
    buffers.extend(second)
    assert [len(buffer) for buffer in buffers.state_parts.values()] == [4, 0, 0]
    kept = {tuple(row) for row in buffers.members[0][:]["observation"].tolist()}
    assert kept == {tuple(row) for row in torch.cat([first[2:], second])["observation"].tolist()}


def test_a_batch_holds_own_rows_for_every_member_and_states_of_none():
    buffers = full_buffers(dtype="float16")
    batch = buffers.sample()
    assert buffers.members[0].storage[:]["observation"].dtype == torch.float16
    assert batch["members", "observation"].dtype == torch.float32
    assert batch.batch_size == (8,) and batch["members"].batch_size == (8, 3)
    torch.testing.assert_close(batch["members", "next", "reward"][..., 0], torch.arange(3.0).expand(8, 3))
    known = {tuple(row) for row in buffers.states[:]["observation"].float().tolist()}
    assert {tuple(row) for row in batch["observation"].tolist()} <= known


def imagined(buffers, member: str, num_starts: int):
    model = GaussianEnsemble(3, 1, num_members=3, num_cells=(8,))
    env = ModelBasedEnv(model, toy_env(), termination_fn=never_terminates, member=member)
    return branched_rollout(
        env, toy_actor(), torch.zeros(4, 3), buffers, num_starts=num_starts, horizon=2, keys=KEYS, chunk_size=3
    )


def test_rollouts_in_fixed_members_fill_their_buffers_and_resampled_ones_the_states():
    buffers = make_member_buffers(400, num_members=3, batch_size=4)
    assert imagined(buffers, "fixed", 7)["rows"] == 3 * 7 * 2
    assert [len(buffer) for buffer in buffers.state_parts.values()] == [14, 14, 14, 0]
    imagined(buffers, "resampled", 2)
    assert [len(buffer) for buffer in buffers.state_parts.values()] == [14, 14, 14, 12]
    loss = MemberwiseSACLoss(toy_actor(), [toy_critic(num_quantiles=1) for _ in range(3)], delay_qvalue=False)
    assert loss(buffers.sample())["loss_qvalue"].isfinite()  # it reads what is sampled


def test_a_checkpoint_brings_the_same_batches_back(tmp_path):
    buffers, again = full_buffers(), make_member_buffers(400, num_members=3, batch_size=8)
    path = save_checkpoint(tmp_path / "step_1.pt", capture_state(model_buffer=buffers))
    expected = [buffers.sample() for _ in range(2)]
    restore_state(load_checkpoint(path), model_buffer=again)
    for batch in expected:
        torch.testing.assert_close(again.sample(), batch)
    new = rows([0, 1, 2, -1] * 90)  # the cursors came back too: the same rows are overwritten
    buffers.extend(new)
    again.extend(new)
    for mine, theirs in zip(buffers.state_parts.values(), again.state_parts.values(), strict=True):
        torch.testing.assert_close(mine[:], theirs[:])


def test_a_checkpoint_of_fewer_members_is_refused():
    state = capture_state(model_buffer=full_buffers(2))
    with pytest.raises(ValueError, match="model_buffer does not fit the checkpoint: member_2 must be there"):
        restore_state(state, model_buffer=make_member_buffers(400, num_members=3))


def test_what_does_not_fit_is_named():
    with pytest.raises(ValueError, match="capacity must be a positive integer, got 0"):
        make_member_buffers(5, num_members=5)
    with pytest.raises(ValueError, match="num_members must be a positive integer, got 0"):
        make_member_buffers(5, num_members=0)
    buffers = make_member_buffers(40, num_members=2, batch_size=2)
    with pytest.raises(KeyError, match='key "member" not found'):
        buffers.extend(toy_batch(B=3))
    for wrong in (2, -2):
        with pytest.raises((RuntimeError, ValueError)):
            buffers.extend(rows([0, wrong]))
    buffers.extend(rows([0, -1]))
    with pytest.raises(RuntimeError, match="empty"):
        buffers.sample()


def test_a_member_that_does_not_exist_is_named_and_nothing_is_written():
    buffers = make_member_buffers(400, num_members=2, batch_size=8)
    with pytest.raises(ValueError, match='"member" must be -1 or one of 2 members from 0 on, got 0 to 2'):
        buffers.extend(rows([0, 1, 2]))
    assert not len(buffers.members[0])
