"""Some rows of a batch are real: their outcome is the observed one, in every member and draw."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from eqr_torchrl.imagination import (
    EnsembleSuccessors,
    ModelBasedEnv,
    RealSuccessors,
    make_replay_buffer,
    never_terminates,
)
from eqr_torchrl.objectives import MemberwiseSACLoss
from eqr_torchrl.testing import toy_actor, toy_batch, toy_critic, toy_env
from eqr_torchrl.world_models import GaussianEnsemble

M, K = 5, 2


def real_rows(count: int = 20) -> TensorDict:
    """Rows that say who they are: s = i, a = -i / 100, s' = i + 0.5, r = 10 i."""
    i = torch.arange(1.0, count + 1).unsqueeze(-1)
    flag = torch.zeros(count, 1, dtype=torch.bool)
    successors = {"observation": (i + 0.5).expand(-1, 3), "reward": 10 * i, "terminated": i > 10, "done": flag}
    return TensorDict({"observation": i.expand(-1, 3), "action": -i / 100, "next": successors}, [count])


@pytest.fixture
def replay():
    buffer = make_replay_buffer(100)
    buffer.extend(real_rows())
    return buffer


def imagined():
    model = GaussianEnsemble(3, 1, num_members=M, num_cells=(8,))
    return EnsembleSuccessors(ModelBasedEnv(model, toy_env(), termination_fn=never_terminates), num_next_states=K)


def test_real_rows_come_first_and_hold_what_was_observed(replay):
    given = toy_batch(B=8).select("observation", "action")
    batch = RealSuccessors(imagined(), replay, share=0.25)(given.clone())
    assert batch.batch_size == (8,) and batch["next"].batch_size == (8, M, K)
    i = batch["observation"][:2, :1]  # two of eight
    assert ((i >= 1) & (i == i.round())).all()
    torch.testing.assert_close(batch["action"][:2], -i / 100)
    for key, outcome, entries in (("observation", i + 0.5, 3), ("reward", 10 * i, 1), ("terminated", i > 10, 1)):
        torch.testing.assert_close(batch["next", key][:2], outcome.view(2, 1, 1, 1).expand(2, M, K, entries))
    torch.testing.assert_close(batch["observation"][2:], given["observation"][2:])
    assert batch["next", "reward"][2:].flatten(1).std(1).min() > 0  # members differ


def test_real_rows_are_drawn_from_all_of_the_buffer(replay):
    draw = RealSuccessors(nn.Identity(), replay, share=0.5)
    rows = [draw(toy_batch(B=8).set(("next", "done"), torch.zeros(8, 1)))["observation"][:4, 0] for _ in range(100)]
    counts = torch.cat(rows).long().bincount(minlength=21)[1:]  # 400 draws of 20 rows: 20 each, deviation 4.4
    assert counts.min() > 3 and counts.max() < 45


def test_successors_are_predicted_for_imagined_rows_alone(replay, known_model):
    model = known_model([0.0] * M, [0.0] * M)
    successors = EnsembleSuccessors(ModelBasedEnv(model, toy_env(), termination_fn=never_terminates))
    RealSuccessors(successors, replay, share=0.25)(toy_batch(B=8))
    assert model.rows == [6]  # of each member: two of eight rows are real


def test_a_batch_with_one_successor_each_takes_real_ones_too(replay):
    given = toy_batch(B=8)
    given["next", "done"] = given["next", "terminated"] = torch.zeros(8, 1, dtype=torch.bool)
    batch = RealSuccessors(nn.Identity(), replay, share=0.5)(given)
    torch.testing.assert_close(batch["next", "reward"][:4], 10 * batch["observation"][:4, :1])


def test_without_a_share_the_batch_is_the_imagined_one(replay):
    torch.manual_seed(0)
    successors = imagined()
    torch.manual_seed(1)
    plain = successors(toy_batch(B=8))
    torch.manual_seed(1)
    mixed = RealSuccessors(successors, replay, share=0.0)(toy_batch(B=8))
    assert all(torch.equal(mixed[key], plain[key]) for key in plain.keys(True, True))


def test_members_learn_one_value_of_what_was_seen(replay):
    # all members have the same target on real rows, r + gamma q_m(s', a'), if their critics agree
    critic = toy_critic(num_quantiles=M)
    loss = MemberwiseSACLoss(toy_actor(), critic, alpha_init=1e-9, delay_qvalue=False)
    loss.make_value_estimator(gamma=0.0)
    batch = RealSuccessors(imagined(), replay, share=0.5)(toy_batch(B=8))
    target = loss.compute_target(batch)
    torch.testing.assert_close(target[:4], 10 * batch["observation"][:4, :1].expand(4, M))


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_a_share_that_leaves_nothing_imagined_is_refused(replay, share):
    with pytest.raises(ValueError, match=rf"share must be in \[0, 1\), got {share}"):
        RealSuccessors(imagined(), replay, share=share)


def test_batches_of_each_member_take_no_real_rows(replay):
    rows = toy_batch(B=8).select("observation")  # those of the policy; the members' own are under another key
    with pytest.raises(ValueError, match='share must be 0 for batches without "next", of members\' buffers: got 0.5'):
        RealSuccessors(lambda batch: batch, replay, share=0.5)(rows)


def test_real_transitions_are_of_one_step():
    replay = make_replay_buffer(100)
    replay.extend(real_rows().set("steps_to_next_obs", torch.full((20, 1), 3)))
    with pytest.raises(ValueError, match="replay must hold transitions of one step, got steps_to_next_obs"):
        RealSuccessors(imagined(), replay)(toy_batch(B=4))
