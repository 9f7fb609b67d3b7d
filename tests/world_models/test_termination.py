"""Ends of episodes, learned: probabilities of the data in spite of balanced batches."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from eqr_torchrl.imagination import EnsembleSuccessors, ModelBasedEnv
from eqr_torchrl.testing import toy_env
from eqr_torchrl.world_models import EarlyStoppingFit, FixedStepsFit, GaussianEnsemble
from eqr_torchrl.world_models import fit as fits
from eqr_torchrl.world_models.termination import EndBatches


def transitions(rows: int) -> TensorDict:
    """A walk whose episodes end with probability sigmoid(4 s'_0 - 6) after a step to s': one in nine on average."""
    state, action = torch.randn(rows, 2), torch.rand(rows, 1) * 2 - 1
    after = state + 0.1 * torch.randn(rows, 2)
    ended = torch.rand(rows, 1) < (4 * after[:, :1] - 6).sigmoid()
    successors = {"observation": after, "reward": state[:, :1], "terminated": ended}
    return TensorDict({"observation": state, "action": action, "next": successors}, [rows])


def make(**kwargs) -> GaussianEnsemble:
    return GaussianEnsemble(2, 1, num_members=3, num_cells=(8,), learn_termination=True, **kwargs)


@torch.no_grad()
def probability(model: GaussianEnsemble, data: TensorDict) -> torch.Tensor:
    rows = (data[key].expand(3, -1, -1) for key in (("next", "observation"), "action"))
    return model.termination_probability(*rows).squeeze(-1)  # [M, n]


@pytest.mark.parametrize("fit_class", [FixedStepsFit, EarlyStoppingFit])
def test_probabilities_are_those_of_held_out_transitions(fit_class):
    model = make()
    steps = {"num_steps": 300} if fit_class is FixedStepsFit else {"max_epochs": 25, "patience": 25}
    fit = fit_class(model, lr=3e-3, batch_size=64, **steps)
    for rows in (1000, 3000):
        fit(transitions(rows))
    held_out = transitions(4000)
    ended = held_out["next", "terminated"].squeeze(-1).float()
    for stated in probability(model, held_out):
        assert abs(stated.mean() - ended.mean()) < 0.02  # batches hold one half; the data 0.11
        for low, high in ((0.0, 0.05), (0.05, 0.3), (0.3, 0.7), (0.7, 1.0)):
            inside = (stated >= low) & (stated < high)
            noise = 3 * (0.25 / inside.sum()) ** 0.5
            assert abs(stated[inside].mean() - ended[inside].mean()) < 0.06 + min(noise, 0.1)


def test_before_an_end_was_seen_none_is_predicted_and_where_all_end_all_do():
    data = transitions(50)
    for ended in (False, True):
        model = make()
        assert (probability(model, data) == 0).all()  # not fitted
        data["next", "terminated"] = torch.full((50, 1), ended)
        metrics = FixedStepsFit(model, num_steps=2)(data)
        assert (probability(model, data) == float(ended)).all()
        assert metrics["terminated_rows"] == 50 * ended


def test_what_was_learned_is_in_the_state():
    model, again, data = make(), make(), transitions(200)
    FixedStepsFit(model, num_steps=20)(data)
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(probability(again, data), probability(model, data), rtol=0, atol=0)


def test_members_learn_from_samples_of_their_own():
    model = make()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter[1:] = parameter[:1]
    FixedStepsFit(model, num_steps=30, lr=3e-3)(transitions(200))
    first, second, _ = probability(model, transitions(50))
    assert (first - second).abs().max() > 1e-3
    data = transitions(200)
    inputs, ended = torch.cat([data["next", "observation"], data["action"]], -1), data["next", "terminated"].squeeze(-1)
    ends, others = EndBatches(model.termination, inputs, ended).groups  # drawn with replacement, for each member
    for drawn, among in ((ends, ended), (others, ~ended)):
        assert drawn.shape == (3, among.sum()) and among[drawn].all() and not torch.equal(drawn[0], drawn[1])
        assert all(len(member.unique()) < len(member) for member in drawn)


def test_a_member_that_has_stopped_keeps_the_ends_of_its_last_epoch(monkeypatch):
    """Adam's momentum and weight decay would move them on while others learn."""
    model, seen, measure = make(), [], fits.mean_errors

    def recorded(*args, **kwargs):
        seen.append([parameter.detach().clone() for parameter in model.termination.parameters()])
        return measure(*args, **kwargs)

    monkeypatch.setattr(fits, "mean_errors", recorded)
    epochs = EarlyStoppingFit(model, lr=1e-2, patience=2, max_epochs=30)(transitions(300))["member_epochs"]
    assert min(epochs) < max(epochs)
    for member, last in enumerate(epochs):  # measured once before the first epoch
        for kept, now in zip(seen[last], model.termination.parameters(), strict=True):
            assert (kept[member] == now[member]).all()


def test_ends_are_learned_also_where_the_reward_is_known():
    """No entry of a sample is a reward; ends are drawn with the learned probability all the same."""
    model = make(learn_reward=False)
    FixedStepsFit(model, num_steps=200, lr=3e-3)(transitions(2000))
    known = {"termination_fn": None, "reward_fn": lambda observation, action, following: 3.0 * action}
    model_env = ModelBasedEnv(model, toy_env(2, 1), **known)
    rows = transitions(2000)
    batch = EnsembleSuccessors(model_env, num_next_states=2)(rows.clone())
    assert batch["next", "terminated"].shape == (2000, 3, 2, 1)
    share, stated = batch["next", "terminated"].float().mean((0, 2, 3)), probability(model, rows).mean(1)
    torch.testing.assert_close(share, stated, atol=0.03, rtol=0.0)
    torch.testing.assert_close(batch["next", "reward"][:, 0, 0], 3.0 * rows["action"])


def test_the_flags_must_be_in_the_data_and_the_option_on():
    data = transitions(20)
    with pytest.raises(KeyError, match='key "terminated" not found'):
        FixedStepsFit(make(), num_steps=1)(data.exclude(("next", "terminated")))
    with pytest.raises(RuntimeError, match="learn_termination must be True"):
        probability(GaussianEnsemble(2, 1, num_members=3, num_cells=(8,)), data)
