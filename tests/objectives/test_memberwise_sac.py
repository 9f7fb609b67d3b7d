"""QU-SAC's loss: closed forms, and who learns from whose rows; and TorchRL's SACLoss on our critics, as in MBPO."""

from __future__ import annotations

import math

import pytest
import torch
from loss_parts import (
    LOSSES,
    linear_critic,
    make_memberwise,
    member_batch,
    scalar_critics,
    seeded,
    total,
    uniform_actor,
)
from tensordict import TensorDict
from torchrl.objectives import SACLoss, SoftUpdate

from eqr_torchrl.objectives import MemberwiseSACLoss
from eqr_torchrl.testing import toy_actor, toy_batch, toy_critic

LOG_4 = math.log(4.0)  # entropy of a uniform distribution on [-2, 2]: its -log pi


def known_loss(*slopes: float, gamma: float = 0.5, target_entropy: float = -1.0, **kwargs):
    """``Q_i = slope_i s`` and a uniform policy: the action does not matter, so the targets are known."""
    critics = [linear_critic([slope], [0.0], [0.0]) for slope in slopes]
    return make_memberwise(critics, uniform_actor(2.0), gamma=gamma, target_entropy=target_entropy, **kwargs)


def fill(members, i: int, *, state: float, reward: float, terminated: bool, next_state: float) -> None:
    members["observation"][:, i] = state
    members["next", "observation"][:, i] = next_state
    members["next", "reward"][:, i] = reward
    members["next", "terminated"][:, i] = terminated


def test_critic_loss_is_the_sum_over_members_of_squared_errors_averaged_over_the_batch():
    # member 0: Q = 1 * 3 = 3,  y = 1 + 0.5 (1 * 4 + 2 log 4);  member 1: Q = 10 * 2 = 20,  y = 7, terminated
    loss = known_loss(1.0, 10.0, alpha_init=2.0)
    batch = member_batch(B=4, M=2, observation_dim=1)
    fill(batch["members"], 0, state=3.0, reward=1.0, terminated=False, next_state=4.0)
    fill(batch["members"], 1, state=2.0, reward=7.0, terminated=True, next_state=float("nan"))
    errors = torch.tensor([3 - (1 + 0.5 * (4 + 2 * LOG_4)), 20 - 7.0])
    out = loss(batch)
    torch.testing.assert_close(out["loss_qvalue"], errors.square().sum())
    torch.testing.assert_close(batch["td_error"], errors.abs().max().expand(4))
    torch.testing.assert_close(out["target_value"], (3 + LOG_4 * 1.0 + 7.0) / 2 * torch.ones(()))


def test_policy_ascends_the_members_mean_at_the_states_of_the_batch_and_not_of_the_members():
    # s = 5: mean of 1 * 5, 10 * 5 and -2 * 5 is 15; alpha log pi = -2 log 4
    loss = known_loss(1.0, 10.0, -2.0, alpha_init=2.0)
    batch = member_batch(B=4, M=3, observation_dim=1)
    batch["observation"].fill_(5.0)
    torch.testing.assert_close(loss(batch)["loss_actor"], torch.tensor(-2 * LOG_4 - 15.0))


def test_temperature_loss_and_outputs_are_those_of_sac():
    # log alpha = log 2; entropy log 4 against a target of 1 nat
    out = known_loss(1.0, alpha_init=2.0, target_entropy=1.0)(member_batch(M=1, observation_dim=1))
    torch.testing.assert_close(out["loss_alpha"], torch.tensor(math.log(2) * (LOG_4 - 1)))
    torch.testing.assert_close(out["alpha"], torch.tensor(2.0))
    torch.testing.assert_close(out["entropy"], torch.tensor(LOG_4))


@pytest.mark.parametrize("changed", range(3))
def test_a_critic_learns_from_the_rows_of_its_own_member_alone(changed):
    loss = make_memberwise(scalar_critics())
    batch = member_batch()

    def gradients():
        loss.zero_grad()
        seeded(loss.qvalue_v2_loss, batch)[0].backward()
        critics = loss.qvalue_network.critics
        return [torch.cat([p.grad.flatten() for p in critic.parameters()]) for critic in critics]

    before = gradients()
    for key in ("observation", ("next", "observation"), ("next", "reward")):
        batch["members"][key][:, changed] += 1.0
    after = gradients()
    assert [torch.equal(a, b) for a, b in zip(before, after, strict=True)] == [i != changed for i in range(3)]


def test_gradients_go_where_they_should():
    loss = make_memberwise(scalar_critics())
    actor, critics = (list(p.parameters()) for p in (loss.actor_network_params, loss.qvalue_network_params))
    out = loss(member_batch())
    for name, trained in (("loss_actor", actor), ("loss_qvalue", critics), ("loss_alpha", [loss.log_alpha])):
        gradients = torch.autograd.grad(out[name], [*actor, *critics, loss.log_alpha], allow_unused=True)
        reached = [p for p, g in zip([*actor, *critics, loss.log_alpha], gradients, strict=True) if g is not None]
        assert {id(p) for p in reached} == {id(p) for p in trained}


def test_targets_come_from_the_target_networks_which_move_by_tau():
    loss = known_loss(1.0, 1.0, alpha_init=1e-12, gamma=1.0)
    batch = member_batch(B=1, M=2, observation_dim=1)
    for i in range(2):
        fill(batch["members"], i, state=0.0, reward=0.0, terminated=False, next_state=1.0)
    loss.qvalue_network_params["critics", "1", "module", "w"].data.fill_(11.0)
    torch.testing.assert_close(loss.compute_target(batch), torch.tensor([[1.0, 1.0]]))
    loss.updater.step()  # 0.9 * 1 + 0.1 * 11
    torch.testing.assert_close(loss.compute_target(batch), torch.tensor([[1.0, 2.0]]))


def test_any_batch_size_and_reduction():
    loss = make_memberwise(scalar_critics(), reduction="none")
    flat = member_batch(B=6)
    expected = seeded(loss, flat)["loss_qvalue"]
    assert expected.shape == (6,)
    torch.testing.assert_close(seeded(loss, flat.view(2, 3))["loss_qvalue"], expected.view(2, 3))


def test_works_with_keyword_arguments():
    loss = make_memberwise(scalar_critics())
    batch = member_batch()  # M = S, so that shapes alone do not tell the batch size
    named = {"_".join(key) if isinstance(key, tuple) else key: batch[key] for key in loss.in_keys}
    assert {"observation", "members_action", "members_next_reward"} <= set(named)
    torch.manual_seed(1)
    losses = dict(zip(loss.out_keys, loss(**named), strict=True))
    expected = seeded(loss, batch)
    assert set(losses) == set(expected.keys()) == {*LOSSES, "alpha", "entropy", "target_value"}
    for key, value in expected.items():
        torch.testing.assert_close(losses[key], value)


def test_transitions_over_n_steps_bootstrap_with_gamma_to_the_n():
    # Q_i = s at s' = 8, gamma 0.5, reward 1, no entropy to speak of: 1 + 8 / 2^n
    loss = known_loss(1.0, 1.0, alpha_init=1e-12)
    batch = member_batch(B=3, M=2, observation_dim=1)
    for i in range(2):
        fill(batch["members"], i, state=0.0, reward=1.0, terminated=False, next_state=8.0)
    batch["members", "steps_to_next_obs"] = torch.tensor([[1, 2], [2, 3], [3, 1]]).unsqueeze(-1)
    expected = torch.tensor([[5.0, 3.0], [3.0, 2.0], [2.0, 5.0]])
    torch.testing.assert_close(loss.compute_target(batch), expected)


@pytest.mark.parametrize(
    "key",
    [
        *(("members",), ("observation",), ("members", "action"), ("members", "next")),
        *(("members", "next", "reward"), ("members", "next", "observation")),
    ],
)
def test_a_missing_key_is_named(key):
    batch = member_batch()
    del batch[key]
    with pytest.raises(KeyError, match=f'key "{key[-1]}" not found'):
        make_memberwise(scalar_critics())(batch)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_another_precision(dtype):
    loss = make_memberwise(scalar_critics()).to(dtype)
    out = loss(member_batch().to(dtype))
    total(out).backward()
    assert out["loss_qvalue"].dtype == dtype
    assert all(torch.isfinite(p.grad).all() and p.grad.dtype == dtype for p in loss.parameters())


def test_a_batch_that_breaks_the_contract_is_named():
    loss = make_memberwise(scalar_critics())
    with pytest.raises(RuntimeError, match=r"one row for each of 3 critics.*got an action of shape \(4, 2, 1\)"):
        loss(member_batch(M=2))
    quantiles = make_memberwise([toy_critic(num_quantiles=5) for _ in range(3)])
    with pytest.raises(RuntimeError, match="critics must be scalar.*got 5 values"):
        quantiles(member_batch())
    with pytest.raises(ValueError, match="num_qvalue_nets"):
        make_memberwise(scalar_critics(), num_qvalue_nets=5)


# MBPO: TorchRL's SACLoss, given a list of our critics


def sac_loss(critics, actor) -> SACLoss:
    loss = SACLoss(actor, critics, num_qvalue_nets=len(critics), loss_function="l2")
    loss.make_value_estimator(gamma=0.5)
    loss.__dict__["updater"] = SoftUpdate(loss, tau=0.1)
    return loss


def test_one_member_is_sac_with_one_critic():
    critic, actor, batch = toy_critic(num_quantiles=1), toy_actor(), toy_batch(B=16)
    members = batch.select("observation").set("members", batch.unsqueeze(1).contiguous())
    out = seeded(make_memberwise([critic], actor, gamma=0.5), members)
    torch.testing.assert_close(out["loss_qvalue"], seeded(sac_loss([critic], actor), batch)["loss_qvalue"])


def test_sac_loss_keeps_the_orthogonal_initialisation_of_a_list_of_critics():
    critics = [toy_critic(num_quantiles=1, num_cells=(16, 16)) for _ in range(2)]
    loss = sac_loss(critics, toy_actor())
    weights = [p for p in loss.qvalue_network_params.values(True, True) if p.shape[-2:] == (16, 16)]
    assert weights
    for weight in weights:
        for one in weight.detach().reshape(-1, 16, 16):
            torch.testing.assert_close(one @ one.T, torch.eye(16), atol=1e-5, rtol=0)


@pytest.mark.parametrize("members", [False, True])
@pytest.mark.parametrize("num_critics", [1, 5])
def test_the_keys_that_it_names_are_all_that_it_reads_of_either_batch(members, num_critics):
    # five scalar critics, or one of as many outputs as there are members; one member alone where rows are its own
    outputs = 1 if members or num_critics > 1 else 5
    count = 1 if members and num_critics == 1 else 5
    critics = [toy_critic(num_quantiles=outputs) for _ in range(num_critics)]
    loss = MemberwiseSACLoss(toy_actor(), critics, delay_qvalue=False)
    batch = toy_batch(4, 5, 3)
    if members:
        rows = toy_batch(4 * count).reshape(4, count)
        batch = TensorDict({"observation": torch.randn(4, 3), "members": rows}, [4])
    chosen = batch.select(*loss.in_keys, *loss.optional_in_keys, strict=False)
    torch.testing.assert_close(seeded(loss, chosen), seeded(loss, batch))
