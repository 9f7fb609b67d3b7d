"""The loss behaves as TorchRL's own: keys, reductions, dispatch, weights, masks, what comes back."""

from __future__ import annotations

import inspect

import pytest
import torch
from loss_parts import LOSSES, make_loss, narrow_actor, seeded
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.modules import ProbabilisticActor, TanhNormal
from torchrl.objectives import SACLoss, SoftUpdate, ValueEstimators
from torchrl.objectives.utils import hold_out_net

from eqr_torchrl.functional import quantile_huber_loss, quantile_midpoints
from eqr_torchrl.objectives import EpistemicQuantileLoss, MemberwiseSACLoss, make_optimizer
from eqr_torchrl.testing import toy_actor, toy_batch, toy_critic, toy_env
from eqr_torchrl.utility import MeanUtility


def test_forward_returns_losses_with_and_scalars_without_gradient():
    out = make_loss()(toy_batch(B=6, M=2, K=3))
    assert out.batch_size == torch.Size([])
    assert all(out[key].requires_grad and out[key].shape == () for key in LOSSES)
    assert [key for key, _ in out.items() if key.startswith("loss")] == list(LOSSES)  # a trainer sums them
    report = {"alpha", "entropy", "epistemic_std", "target_value"}
    assert set(out.keys()) == {*LOSSES, *report}
    assert not any(out[key].requires_grad for key in report)


def test_forward_leaves_the_batch_as_it_was_but_for_the_td_error():
    batch = toy_batch(B=6, M=2, K=3)
    before = batch.clone()
    loss = make_loss(critic=toy_critic(num_quantiles=5))
    loss(batch)
    assert batch["td_error"].shape == (6,) and not batch["td_error"].requires_grad and (batch["td_error"] >= 0).all()
    assert (batch.exclude("td_error") == before).all()


@pytest.mark.parametrize("size", [(1,), (6,), (6, 2, 3)])
def test_td_error_and_critic_loss_of_a_row_follow_from_its_prediction_and_target(size):
    critic, batch = toy_critic(num_quantiles=5), toy_batch(*size)
    loss = make_loss(critic=critic, reduction="none", kappa=0.5)
    target = seeded(loss.compute_target, batch)
    losses = seeded(loss, batch)
    prediction = critic(batch.select("observation", "action"))["state_action_value"]
    torch.testing.assert_close(batch["td_error"], (prediction.mean(-1) - target.mean(-1)).abs())
    expected = quantile_huber_loss(prediction, target, quantile_midpoints(5), kappa=0.5)
    torch.testing.assert_close(losses["loss_qvalue"], expected)


@pytest.mark.parametrize("size", [(), (2, 3)])
def test_reductions_are_those_of_the_rows(size):
    actor, critic, batch = toy_actor(), toy_critic(), toy_batch(6, *size)
    rows, mean, total = (
        seeded(make_loss(actor, critic, alpha_init=0.5, reduction=reduction), batch)
        for reduction in ("none", "mean", "sum")
    )
    assert rows.batch_size == (6,)
    for key in LOSSES:
        assert rows[key].shape == (6,)
        torch.testing.assert_close(rows[key].mean(), mean[key])
        torch.testing.assert_close(rows[key].sum(), total[key])


@pytest.mark.parametrize("size", [(), (2, 3)])
def test_a_batch_of_two_dimensions_is_the_flattened_batch(size):
    flat = toy_batch(20, *size)
    folded = flat.select("observation", "action").reshape(4, 5).set("next", flat["next"].reshape(4, 5, *size))
    loss = make_loss(reduction="none")
    rows, flat_rows = seeded(loss, folded), seeded(loss, flat)
    assert rows.batch_size == (4, 5) and folded["td_error"].shape == (4, 5)
    loss.reduction = "mean"
    means = seeded(loss, folded)
    for key in LOSSES:
        torch.testing.assert_close(rows[key].flatten(), flat_rows[key])
        torch.testing.assert_close(means[key], flat_rows[key].mean())


def test_every_key_can_be_renamed():
    actor = toy_actor()
    critic = toy_critic()
    batch = toy_batch(B=6, M=2, K=3).set("priority_weight", torch.rand(6))
    expected = seeded(make_loss(actor, critic), batch)

    renamed_actor = ProbabilisticActor(
        TensorDictModule(actor.module[0].module, ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        out_keys=["push"],
        distribution_class=TanhNormal,
    )
    renamed_critic = TensorDictModule(critic.module, ["observation", "push"], ["atoms"])
    loss = make_loss(renamed_actor, renamed_critic, action_spec=actor.spec["action"])
    loss.set_keys(
        action="push", state_action_value="atoms", log_prob="push_log_prob", priority="surprise",
        priority_weight="importance", reward="gain", done="over", terminated="dead",
    )  # fmt: skip
    renamed = batch.exclude("td_error")
    for old, new in (("action", "push"), ("priority_weight", "importance")):
        renamed.rename_key_(old, new)
    for old, new in (("reward", "gain"), ("done", "over"), ("terminated", "dead")):
        renamed.rename_key_(("next", old), ("next", new))
    out = seeded(loss, renamed)
    for key, value in expected.items():
        torch.testing.assert_close(out[key], value)
    torch.testing.assert_close(renamed["surprise"], batch["td_error"])
    assert loss.in_keys == ["observation", "push", ("next", "observation"), ("next", "gain"), ("next", "dead")]
    assert {("next", "over"), "importance"} <= set(loss.optional_in_keys)


def test_keys_may_be_nested_and_unknown_ones_are_refused():
    loss = make_loss()
    loss.set_keys(reward=("agent", "reward"))
    batch = toy_batch(B=6, M=2, K=3)
    batch.rename_key_(("next", "reward"), ("next", "agent", "reward"))
    assert ("next", "agent", "reward") in loss.in_keys
    loss(batch)
    loss.set_keys(reward=None)  # back to the default
    loss(toy_batch())
    with pytest.raises(ValueError, match="rewards is not an accepted tensordict key"):
        loss.set_keys(rewards="reward")


def test_dispatch_takes_keyword_arguments_and_returns_the_out_keys():
    actor, critic, batch = toy_actor(), toy_critic(), toy_batch(B=6)
    loss = make_loss(actor, critic)
    assert loss.in_keys == ["observation", "action"] + [("next", k) for k in ("observation", "reward", "terminated")]
    expected = seeded(loss, batch)
    named = {"_".join(key) if isinstance(key, tuple) else key: batch.get(key) for key in loss.in_keys}
    for selected in ([], ["loss_actor", "loss_qvalue"], ["loss_qvalue", "epistemic_std", "target_value"]):
        loss = make_loss(actor, critic)
        if selected:
            loss.select_out_keys(*selected)
        assert set(loss.out_keys) == set(selected or expected.keys())
        torch.manual_seed(1)
        for key, value in zip(loss.out_keys, loss(**named), strict=True):
            torch.testing.assert_close(value, expected[key])
    rows = make_loss(reduction="none")  # without the scalars
    assert set(rows(batch).keys()) == set(rows.out_keys) == set(LOSSES) and len(rows(**named)) == 3


def optional_entries(batch):
    """Fills what a loss reads where a batch holds it, so that each entry changes the losses."""
    size = batch.batch_size
    batch["steps_to_next_obs"] = torch.randint(1, 4, (*size, 1))
    batch["priority_weight"] = torch.rand(size)
    batch["collector", "mask"] = torch.arange(size[0]) % 3 > 0
    batch["next", "done"].bernoulli_(0.5)
    del batch["next", "terminated"]  # done takes its place
    return batch


@pytest.mark.parametrize("size", [(), (2, 3)])
def test_a_batch_of_the_keys_it_says_it_reads_gives_the_same_losses(size):
    loss, batch = make_loss(), optional_entries(toy_batch(6, *size))
    expected = seeded(loss, batch.clone())
    for key, value in seeded(loss, batch.select(*loss.in_keys, *loss.optional_in_keys, strict=False)).items():
        torch.testing.assert_close(value, expected[key], rtol=0, atol=0)
    for key in ("steps_to_next_obs", "priority_weight", "collector", ("next", "done")):
        without = batch.exclude(key)
        if key == ("next", "done"):
            without["next", "terminated"] = torch.zeros_like(batch["next", "done"])
        assert seeded(loss, without)["loss_qvalue"] != expected["loss_qvalue"], key


@pytest.mark.parametrize(
    ("key", "weight"),
    [("priority_weight", torch.rand(6)), (("collector", "mask"), torch.tensor([True, False, True, True, False, True]))],
)
def test_priority_weights_weigh_the_rows_of_every_loss_and_a_mask_leaves_rows_out(key, weight):
    actor, critic, batch = toy_actor(), toy_critic(), toy_batch(B=6, M=2, K=3)
    rows = seeded(make_loss(actor, critic, alpha_init=0.5, reduction="none"), batch)
    out = seeded(make_loss(actor, critic, alpha_init=0.5), batch.set(key, weight))
    for name in LOSSES:
        torch.testing.assert_close(out[name], (weight / weight.sum() * rows[name]).sum())


def test_the_policy_ascends_the_mean_or_any_other_function_and_the_critic_does_not_depend_on_it():
    actor, critic, batch = toy_actor(), toy_critic(), toy_batch()
    mean, best = (seeded(make_loss(actor, critic, utility=u), batch) for u in (None, lambda q: q.amax(-1)))
    assert isinstance(make_loss().utility, MeanUtility) and best["loss_actor"] < mean["loss_actor"]
    assert best["loss_qvalue"] == mean["loss_qvalue"]


def test_make_value_estimator_sets_the_discount_alone():
    loss = EpistemicQuantileLoss(toy_actor(), toy_critic())
    assert loss.gamma == pytest.approx(0.99)
    assert make_loss(gamma=0.5).value_estimator is None  # reading it sets nothing
    assert loss.make_value_estimator(gamma=0.5) is loss and loss.gamma == 0.5
    assert loss.make_value_estimator(ValueEstimators.TD0, gamma=torch.tensor(0.25)).gamma == 0.25
    with pytest.raises(NotImplementedError, match="value_type must be ValueEstimators.TD0"):
        loss.make_value_estimator(ValueEstimators.TDLambda)
    with pytest.raises(ValueError, match=r"gamma must be in \[0, 1\], got 1.5"):
        loss.make_value_estimator(gamma=1.5)
    with pytest.raises(TypeError, match="lmbda"):
        loss.make_value_estimator(lmbda=0.9)
    assert loss.make_value_estimator(gamma=0.75, device="cpu", differentiable=True).gamma == 0.75


def test_without_an_updater_the_user_is_warned():
    with pytest.warns(UserWarning, match="No target network updater"):
        EpistemicQuantileLoss(toy_actor(), toy_critic())(toy_batch())


def test_temperature_and_policy_losses_are_those_of_sac():
    actor, critic = toy_actor(3, 2), toy_critic(3, 2, num_quantiles=1)
    batch, own = toy_batch(B=6, action_dim=2), make_loss(actor, critic, alpha_init=0.3)
    sac = SACLoss(actor, [critic], num_qvalue_nets=1, alpha_init=0.3)
    sac.make_value_estimator(gamma=0.9)
    SoftUpdate(sac, tau=0.1)
    (ours, report), (theirs, expected) = (seeded(loss.actor_loss, batch.clone()) for loss in (own, sac))
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(report["log_prob"], expected["log_prob"])
    torch.testing.assert_close(own.alpha_loss(report["log_prob"]), sac._alpha_loss(report["log_prob"]))
    assert own(batch)["alpha"] == pytest.approx(0.3)


@pytest.mark.parametrize(("bound", "direction"), [({"max_alpha": 1.0}, 1), ({"min_alpha": 1.0}, -1)])
def test_a_temperature_at_its_bound_comes_back_at_once_when_the_entropy_does(bound, direction):
    # entropy on one side of the target for 20 steps of 0.1 in log alpha, then on the other: one step from the bound
    loss = make_loss(**bound)
    optimizer = torch.optim.SGD([loss.log_alpha], lr=0.1)
    for step in range(21):
        loss(toy_batch(B=2))
        sign = direction if step < 20 else -direction
        loss.alpha_loss(loss.target_entropy.neg() + sign).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert loss.log_alpha.item() == pytest.approx(-0.1 * direction, abs=1e-6)


def test_temperature_bounds_and_fixed_temperature():
    loss = make_loss(alpha_init=1.0, min_alpha=0.1, max_alpha=0.5)
    assert loss(toy_batch())["alpha"] == pytest.approx(0.5)
    loss.log_alpha.data.fill_(-9.0)
    assert loss(toy_batch())["alpha"] == pytest.approx(0.1)
    fixed = make_loss(fixed_alpha=True, alpha_init=0.2)
    out = fixed(toy_batch())
    assert out["loss_alpha"] == 0 and out["alpha"] == pytest.approx(0.2)
    assert "log_alpha" not in dict(fixed.named_parameters())


def test_reported_epistemic_std_is_that_of_the_prediction():
    batch, critic = toy_batch(B=6, M=2, K=3), toy_critic(num_quantiles=5)
    prediction = critic(batch.select("observation", "action"))["state_action_value"]
    torch.testing.assert_close(make_loss(critic=critic)(batch)["epistemic_std"], prediction.std(-1).mean().detach())
    assert make_loss(critic=toy_critic(num_quantiles=1))(batch)["epistemic_std"] == 0


def test_networks_can_be_held_out_as_in_torchrl():
    loss = make_loss()
    with hold_out_net(loss.qvalue_network_params):
        loss(toy_batch())["loss_actor"].backward()
    assert all(p.grad is None for p in loss.qvalue_network_params.values(True, True))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_qvalue_nets": 0}, "num_qvalue_nets must be positive"),
        ({"num_next_actions": 0}, "num_next_actions must be a positive integer, got 0"),
        ({"action_sampling": "grid"}, 'action_sampling must be "stratified" or "iid", got \'grid\''),
        ({"kappa": -1.0}, "kappa must be finite and not negative, got -1.0"),
        ({"kappa": float("nan")}, "kappa must be finite and not negative, got nan"),
        ({"kappa": float("inf")}, "kappa must be finite and not negative, got inf"),
        ({"alpha_init": 0.0}, "alpha_init must be positive and finite, got 0.0"),
        ({"alpha_init": float("nan")}, "alpha_init must be positive and finite, got nan"),
        ({"min_alpha": 0.0}, "min_alpha must be positive and finite, got 0.0"),
        ({"max_alpha": float("inf")}, "max_alpha must be positive and finite, got inf"),
        ({"min_alpha": 1.0, "max_alpha": 0.1}, "min_alpha must not exceed max_alpha, got 1.0 and 0.1"),
        ({"target_entropy": float("nan")}, 'target_entropy must be finite or "auto", got nan'),
        ({"reduction": "average"}, 'reduction must be "mean", "sum" or "none", got \'average\''),
        ({"utility": 0.9}, "utility must be a module that maps values .*, got 0.9"),
    ],
)
def test_arguments_out_of_range_are_named_in_one_line(kwargs, message):
    with pytest.raises(ValueError, match=message) as error:
        EpistemicQuantileLoss(toy_actor(), toy_critic(), **kwargs)
    assert "\n" not in str(error.value)


def test_one_critic_twice_is_not_two():
    critic = toy_critic()
    with pytest.raises(ValueError, match="qvalue_network must hold different critics: got a list of 2 that"):
        EpistemicQuantileLoss(toy_actor(), [critic, critic])


def test_the_critics_can_be_called_with_a_tensordict_as_the_networks_of_other_losses():
    loss, batch = EpistemicQuantileLoss(toy_actor(), toy_critic(num_quantiles=7), num_qvalue_nets=2), toy_batch(B=4)
    with loss.qvalue_network_params.to_module(loss.qvalue_network):
        values = loss.qvalue_network(batch.copy())["state_action_value"]
    assert values.shape == (4, 2, 7)
    again = loss.get_stateful_net("qvalue_network")(batch.copy())["state_action_value"]
    torch.testing.assert_close(again, values)
    assert (values[:, 0] != values[:, 1]).all()


def test_the_initial_temperature_cannot_be_scheduled():
    loss = EpistemicQuantileLoss(toy_actor(), toy_critic())
    with pytest.raises(TypeError, match="alpha_init"):
        loss.alpha_init = 0.5  # the temperature began already


def test_a_network_without_keys_is_no_critic():
    network = torch.nn.Sequential(torch.nn.Linear(4, 5))
    with pytest.raises(ValueError, match="qvalue_network must be a TensorDictModule .*, got Sequential"):
        make_loss(critic=[toy_critic(), network])


@pytest.mark.parametrize("wrap", [lambda critic: critic, TensorDictSequential])
def test_a_critic_that_writes_another_key_is_named_with_what_it_writes(wrap):
    critic = TensorDictModule(toy_critic().module, in_keys=["observation", "action"], out_keys=["q"])
    with pytest.raises(RuntimeError, match=r"^qvalue_network must write 'state_action_value', got out_keys \['q'\]\.$"):
        make_loss(critic=wrap(critic))(toy_batch())
    loss = make_loss(critic=wrap(critic))
    loss.set_keys(state_action_value="q")
    assert loss(toy_batch())["loss_qvalue"].isfinite()


def test_an_automatic_target_entropy_needs_the_size_of_the_action():
    with pytest.raises(ValueError, match="needs the size of the action: give action_spec or a number"):
        make_loss(narrow_actor(0.0))
    assert make_loss(narrow_actor(0.0), action_spec=toy_env().action_spec).target_entropy == -1


@pytest.mark.parametrize("loss_class", [EpistemicQuantileLoss, MemberwiseSACLoss])
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("num_qvalue_net", "."),
        ("loss_function", ": the loss of the critic is part of the class."),  # the rest are in TorchRL's recipe of SAC
        ("delay_actor", ": targets always use the present policy."),
        ("gamma", r": call make_value_estimator\(gamma=...\)."),
        ("priority_key", r": call set_keys\(priority=...\)."),
    ],
)
def test_unknown_arguments_are_named_with_the_class_that_was_called(loss_class, name, reason):
    with pytest.raises(TypeError, match=f"^{loss_class.__name__} takes no argument '{name}'{reason}$"):
        loss_class(toy_actor(), toy_critic(), **{name: 1})


@pytest.mark.parametrize("size", [(4, 5), (4, 5, 3, 2), (3,), ()])
def test_successors_of_any_other_shape_are_refused(size):
    batch = toy_batch(B=4).exclude("next")
    reward, flag = torch.zeros(*size, 1), torch.zeros(*size, 1, dtype=torch.bool)
    next_ = TensorDict({"observation": torch.zeros(*size, 3), "reward": reward, "terminated": flag}, size)
    broken = TensorDict({"observation": batch["observation"], "action": batch["action"], "next": next_}, [])
    with pytest.raises(RuntimeError, match=r'"next" must have batch size \[\*B\] or \[\*B, M, K\]'):
        make_loss()(broken)


@pytest.mark.parametrize("key", ["observation", "action", "next", ("next", "observation"), ("next", "reward")])
@pytest.mark.parametrize("size", [(), (2, 3)])
def test_a_missing_key_is_named(size, key):
    batch = toy_batch(4, *size)
    del batch[key]
    with pytest.raises(KeyError, match=f'key "{key if isinstance(key, str) else key[-1]}" not found'):
        make_loss()(batch)


def test_without_terminated_done_takes_its_place_as_in_sac_loss():
    loss, batch = make_loss(), toy_batch(B=4)
    batch["next", "done"][1] = True
    del batch["next", "terminated"]
    target = loss.compute_target(batch)
    torch.testing.assert_close(target[1], batch["next", "reward"][1].expand(5))
    assert not torch.allclose(target[0], batch["next", "reward"][0].expand(5))
    del batch["next", "done"]
    with pytest.raises(KeyError, match='key "done" not found'):
        loss(batch)


@pytest.mark.parametrize(("reward", "flag"), [((4, 2), (4, 2)), ((4, 1), (4, 2)), ((4, 1), (4, 1, 1))])
def test_rewards_and_flags_have_one_entry_each(reward, flag):
    batch = toy_batch(B=4)
    batch["next", "reward"], batch["next", "terminated"] = torch.zeros(reward), torch.zeros(flag, dtype=torch.bool)
    with pytest.raises(RuntimeError, match="'reward' and 'terminated' must have one shape") as error:
        make_loss()(batch)
    assert str(tuple(flag)) in str(error.value)


# --- utilities of the wrong shape


@pytest.mark.parametrize(
    ("utility", "message"),
    [
        (
            lambda q: q.mean(-1, keepdim=True),
            r"values \[..., N\] to \[...\], here \(6,\): <lambda> gave shape \(6, 1\)",
        ),
        (lambda q: q.mean(), r"here \(6,\): <lambda> gave shape \(\)"),
        (lambda q: 1.0, r"here \(6,\): <lambda> gave float"),
        (torch.nn.Identity(), r"here \(6,\): Identity gave shape \(6, 5\)"),
        (torch.nn.Linear(5, 1), r"here \(6,\): Linear gave shape \(6, 1\)"),
    ],
)
def test_a_utility_of_the_wrong_shape_is_refused_by_the_first_batch(utility, message):
    with pytest.raises(RuntimeError, match=message) as error:
        make_loss(utility=utility)(toy_batch(B=6))
    assert "\n" not in str(error.value)


class Weighted(torch.nn.Module):
    """A trainable mixture of the quantiles."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(torch.zeros(5))

    def forward(self, quantiles):
        return quantiles @ self.logits.softmax(-1).to(quantiles.dtype)


def test_a_utilitys_parameters_are_the_losss_and_learn_at_the_policys_rate():
    utility = Weighted()
    loss = make_loss(utility=utility)
    assert any(p is utility.logits for p in loss.parameters()) and "utility.logits" in loss.state_dict()
    groups = make_optimizer(loss, lr_actor=0.5, lr_critic=0.25).param_groups
    assert [group["lr"] for group in groups if any(p is utility.logits for p in group["params"])] == [0.5]
    trained = [id(p) for group in groups for p in group["params"]]
    assert sorted(trained) == sorted(id(p) for p in loss.parameters())  # each once
    loss(toy_batch(B=6))["loss_actor"].backward()
    assert utility.logits.grad is not None and utility.logits.grad.any()
    assert loss.double().utility.logits.dtype == torch.float64


# --- resetting


def test_parameters_can_be_drawn_anew():
    loss = make_loss(critic=[toy_critic(), toy_critic()])
    before = {name: value.clone() for name, value in loss.state_dict().items() if isinstance(value, torch.Tensor)}
    loss.reset_parameters_recursive()
    after = loss.state_dict()
    weights = [name for name in before if name.endswith("weight")]
    assert len(weights) == 15  # three layers of the policy, of two critics, and of their targets
    assert not any(torch.equal(before[name], after[name]) for name in weights)
    assert all(p.requires_grad for p in loss.parameters())
    assert torch.isfinite(loss(toy_batch(B=6))["loss_qvalue"])


@pytest.mark.parametrize("loss_class", [EpistemicQuantileLoss, MemberwiseSACLoss])
def test_what_is_named_a_loss_is_a_method_since_torchrl_wraps_it(loss_class):
    named = {
        name: value
        for one in loss_class.__mro__
        if one.__module__.startswith("eqr_torchrl")
        for name, value in vars(one).items()
        if name.endswith("loss") and not name.startswith("_")
    }
    assert {"actor_loss", "alpha_loss", "qvalue_v2_loss"} <= set(named)
    assert all(inspect.isfunction(value) for value in named.values())


def test_the_randomness_of_vmap_can_be_set_as_in_sac_loss():
    loss = make_loss()
    loss.set_vmap_randomness("same")
    assert loss.vmap_randomness == "same"
