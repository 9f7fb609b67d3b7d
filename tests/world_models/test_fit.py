"""Fitting the ensemble: what it learns, when members stop, and what it leaves behind."""

from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

from eqr_torchrl.world_models import EarlyStoppingFit, GaussianEnsemble
from eqr_torchrl.world_models import fit as fits

STATE, PUSH = torch.tensor([[0.9, 0.1], [0.0, 0.8]]), torch.tensor([[0.0, 0.5]])
STATE_NOISE, REWARD_NOISE = 0.1, 0.3


def linear_system(rows: int, seed: int = 0, reward_scale: float = 1.0) -> TensorDict:
    """Transitions of s' = s STATE + a PUSH + noise with reward s_0 - a + noise."""
    generator = torch.Generator().manual_seed(seed)
    state = torch.randn(rows, 2, generator=generator)
    action = torch.rand(rows, 1, generator=generator) * 2 - 1
    next_state = state @ STATE + action @ PUSH + STATE_NOISE * torch.randn(rows, 2, generator=generator)
    reward = state[:, :1] - action + REWARD_NOISE * torch.randn(rows, 1, generator=generator)
    successors = {"observation": next_state, "reward": reward * reward_scale}
    return TensorDict({"observation": state, "action": action, "next": successors}, [rows])


def make(num_members: int = 3, num_cells=(16,), seed: int = 0, **kwargs) -> GaussianEnsemble:
    torch.manual_seed(seed)
    return GaussianEnsemble(2, 1, num_members=num_members, num_cells=num_cells, **kwargs)


def fit(model, data, *, lr: float = 1e-2, **settings):
    return EarlyStoppingFit(model, lr=lr, **settings)(data)


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_recovers_mean_and_noise_of_a_linear_system():
    model = make(num_members=3, num_cells=(32,))
    # squared error settles before the variance does: go on until it rises
    settings = {"patience": 15, "min_improvement": 0.0}
    metrics = fit(model, linear_system(4000), **settings)
    fresh = linear_system(500, seed=1)
    state, action = fresh["observation"], fresh["action"]
    with torch.no_grad():
        loc, scale = model(state.expand(3, 500, 2), action.expand(3, 500, 1))
    truth = torch.cat([state @ STATE + action @ PUSH, state[:, :1] - action], -1)
    assert (loc - truth).square().mean((0, 1)).sqrt().max() < 0.06
    noise = torch.tensor([STATE_NOISE, STATE_NOISE, REWARD_NOISE])
    assert (scale.log().mean((0, 1)) - noise.log()).abs().max() < 0.15
    # held-out squared error: the noise's own variance, (0.01 + 0.01 + 0.09) / 3 = 0.0367, and little more
    assert all(0.030 < mse < 0.045 for mse in metrics["validation_mse"])
    # twice the negative log-likelihood of the truth without its constant: 1 + mean log variance
    expected = 1 + noise.square().log().mean().item()
    assert all(nll == pytest.approx(expected, abs=0.25) for nll in metrics["validation_nll"])


def test_members_with_equal_weights_part_because_their_bootstrap_samples_differ():
    model = make(num_members=2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter[1] = parameter[0]
    fit(model, linear_system(60), max_epochs=20)
    for parameter in model.parameters():
        assert not torch.allclose(parameter[0], parameter[1], atol=1e-4)


def test_without_improvement_the_initial_weights_stay():
    model = make()
    before = weights(model)
    metrics = fit(model, linear_system(100), lr=1e3, patience=2)
    assert metrics["member_epochs"] == [2, 2, 2]
    torch.testing.assert_close(weights(model), before, rtol=0, atol=0)


def test_likelihood_lets_members_learn_their_noise_where_the_mean_is_right_from_the_start():
    # states that stay but for noise of 0.05: a mean change of zero is the truth, and a network of zeros states it
    data, draw = linear_system(2000), torch.Generator().manual_seed(5)
    data["next"]["observation"] = data["observation"] + 0.05 * torch.randn(2000, 2, generator=draw)
    data["next"]["reward"] = 0.05 * torch.randn(2000, 1, generator=draw)
    stated = {}
    for counted in (None, 0.01):
        model = make(normalize_targets=False)  # normalised, the untrained scale is that of the data
        for parameter in model.layers[-1].parameters():
            nn.init.zeros_(parameter)
        fit(model, data, min_likelihood_improvement=counted)
        with torch.no_grad():
            scale = model(*(data[key].expand(3, -1, -1) for key in ("observation", "action")))[1]
        stated[counted] = scale.log().mean((0, 1)).exp()
    assert stated[None].min() > 0.5  # squared error alone gives the untrained scales back, or almost
    torch.testing.assert_close(stated[0.01], torch.full((3,), 0.05), atol=0, rtol=0.2)


def record_errors(monkeypatch, call=None) -> list[torch.Tensor]:
    """Errors ``[2, M]`` of the held-out data: before the fit, after each epoch, and in the end of the kept weights."""
    errors, measure = [], fits.mean_errors

    def recorded(*args, **kwargs):
        if len(errors) == call:
            raise KeyboardInterrupt
        errors.append(measure(*args, **kwargs))
        return errors[-1]

    monkeypatch.setattr(fits, "mean_errors", recorded)
    return errors


def test_each_member_stops_alone_and_keeps_its_best_weights(monkeypatch):
    model = make(num_members=5, normalize_targets=False)  # the networks' scale is that of the environment
    errors = record_errors(monkeypatch)
    metrics = fit(model, linear_system(200), patience=3)
    epochs = metrics["member_epochs"]
    assert len(set(epochs)) > 1 and metrics["epochs"] == max(epochs) == len(errors) - 2
    for member, last in enumerate(epochs):
        history = torch.stack(errors)[: last + 1, 0, member]
        # the best error is that of the weights that were kept
        assert metrics["validation_mse"][member] == pytest.approx(history.min().item(), rel=1e-4)
        # three epochs without a fall of 1 % below the last that counted
        reference, since_fall, epoch = history[0], 0, 0
        while since_fall < 3:
            epoch += 1
            fell = history[epoch] < reference * (1 - 0.01)
            reference, since_fall = (history[epoch], 0) if fell else (reference, since_fall + 1)
        assert epoch == last


def test_what_a_member_learns_does_not_depend_on_the_others():
    results = []
    for hopeless in (False, True):
        model = make(num_members=3)
        if hopeless:  # no step improves member 1, so it stops at another time
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter[1] *= 1e6
        torch.manual_seed(0)
        metrics = fit(model, linear_system(150), max_epochs=40)
        results.append((metrics["member_epochs"], [p[[0, 2]] for p in weights(model)]))
    assert results[0][0][1] != results[1][0][1]
    assert results[0][0][::2] == results[1][0][::2]
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-3, atol=1e-4)


def test_second_call_continues_with_weights_and_optimiser_state():
    model = make()
    data, settings = linear_system(100), {"lr": 1e-2, "batch_size": 60}
    look = EarlyStoppingFit(model, max_epochs=0)
    first_fit = EarlyStoppingFit(model, max_epochs=3, **settings)
    first_fit(data)
    parameter = model.layers[0].weight
    assert first_fit.optimizer.state[parameter]["step"] == 3 * 2  # 80 training rows: batches of 60 and 20
    torch.manual_seed(1)
    first = look(data)["validation_mse"]
    second_fit = EarlyStoppingFit(model, max_epochs=2, **settings)
    second_fit.load_state_dict(first_fit.state_dict())
    second_fit(data)
    assert second_fit.optimizer.state[parameter]["step"] == 5 * 2
    assert second_fit.optimizer.state[parameter]["exp_avg"].shape == parameter.shape
    torch.manual_seed(1)  # the same hold-out
    after = look(data)["validation_mse"]
    assert all(b <= a for a, b in zip(first, after, strict=True))


def test_the_seed_fixes_the_result():
    results = []
    for seed in (0, 0, 1):
        model = make()
        torch.manual_seed(seed)
        metrics = EarlyStoppingFit(model, max_epochs=4)(linear_system(50))
        results.append((metrics["validation_mse"], weights(model)))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)
    assert results[0][0] != results[2][0]


def test_normaliser_holds_the_statistics_of_all_data():
    model = make()
    data = linear_system(40)
    fit(model, data, max_epochs=0)
    inputs = torch.cat([data["observation"], data["action"]], -1)
    torch.testing.assert_close(model.normalizer.mean, inputs.mean(0))
    torch.testing.assert_close(model.normalizer.std, inputs.std(0))


@pytest.mark.parametrize("rows", [2, 3, 7])
def test_tiny_data_sets_train(rows):
    model = make()
    before = weights(model)
    metrics = fit(model, linear_system(rows), batch_size=256, max_epochs=20)
    assert metrics["validation_rows"] == max(1, rows // 5)
    assert metrics["train_rows"] == rows - metrics["validation_rows"]
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    assert not torch.equal(before[0], weights(model)[0])


def test_huge_rewards_leave_everything_finite_and_metrics_are_plain_numbers():
    model = make()
    metrics = fit(model, linear_system(200, reward_scale=1e6), max_epochs=10)
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    flat = [item for value in metrics.values() for item in (value if isinstance(value, list) else [value])]
    assert {type(item) for item in flat} <= {int, float} and all(map(math.isfinite, flat))
    assert metrics["seconds"] > 0


def buffer_of(data: TensorDict) -> TensorDictReplayBuffer:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100))
    buffer.extend(data)
    return buffer


@pytest.mark.parametrize(
    ("form", "learn_reward"),
    [(buffer_of, True), (TensorDict.double, True), (lambda data: data.exclude(("next", "reward")), False)],
    ids=["replay buffer", "float64", "a reward that is known"],
)
def test_data_may_come_in_other_forms(form, learn_reward):
    model = make(learn_reward=learn_reward)
    assert fit(model, form(linear_system(30)), max_epochs=1)["train_rows"] == 24
    assert {value.dtype for value in (*model.parameters(), model.normalizer.mean)} == {torch.float32}


def test_model_is_whole_after_an_interruption(monkeypatch):
    model = make(num_members=5)
    fitting = EarlyStoppingFit(model, lr=1e-2, patience=3)
    with monkeypatch.context() as patch:
        record_errors(patch, call=9)  # after eight epochs and the steps of a ninth
        torch.manual_seed(0)
        with pytest.raises(KeyboardInterrupt):
            fitting(linear_system(200))
    # each member has the weights that were its best ones by then, as if the fit had been told to end there
    stopped = make(num_members=5)
    torch.manual_seed(0)
    fit(stopped, linear_system(200), patience=3, max_epochs=8)
    torch.testing.assert_close(weights(model), weights(stopped), rtol=0, atol=0)
    assert fitting(linear_system(200))["epochs"] > 0


@pytest.mark.parametrize("key", ["observation", "action", ("next", "observation"), ("next", "reward")])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_data_that_are_not_finite_are_named_and_nothing_changes(key, value):
    model = make()
    before, data = weights(model), linear_system(10)
    data[key][3, 0] = value
    with pytest.raises(
        ValueError, match=f"{key if isinstance(key, str) else key[-1]}.* must be finite, got NaN or infinity in 1 of 10"
    ) as info:
        fit(model, data)
    assert "\n" not in str(info.value)
    torch.testing.assert_close(weights(model), before, rtol=0, atol=0)
    assert (model.normalizer.std == 1).all()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (linear_system(1), "at least two transitions, got 1"),
        (linear_system(9).exclude("action"), 'key "action" not found'),
        (linear_system(9).exclude(("next", "reward")), 'key "reward" not found'),
        (linear_system(9).unsqueeze(0), r"data\['observation'\] must be of shape \[n, 2\], got \(1, 9, 2\)"),
    ],
)
def test_unusable_data_are_named(data, message):
    with pytest.raises((ValueError, KeyError), match=message):
        fit(make(), data)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"batch_size": 0}, "batch_size must be a positive integer, got 0"),
        ({"patience": 0}, "patience must be a positive integer, got 0"),
        ({"validation_fraction": 0.0}, "validation_fraction must be a fraction"),
        ({"validation_fraction": 1.0}, "validation_fraction must be a fraction"),
        ({"min_improvement": -0.1}, "min_improvement must be a fraction"),
        ({"min_likelihood_improvement": -0.1}, "min_likelihood_improvement must not be negative"),
        ({"variance_weight": 1.5}, "variance_weight must be in .0, 1., got 1.5"),
        ({"max_epochs": -1}, "max_epochs must not be negative, got -1"),
    ],
)
def test_bad_settings_are_named(kwargs, message):
    with pytest.raises(ValueError, match=message):
        EarlyStoppingFit(make(), **kwargs)


def test_only_the_ensemble_is_fitted():
    with pytest.raises(ValueError, match="world_model must be a GaussianEnsemble, got Linear"):
        EarlyStoppingFit(nn.Linear(1, 1))


def test_held_out_rows_are_never_trained_on(monkeypatch):
    fitting, held, drawn, measure = EarlyStoppingFit(make(), max_epochs=2), [], [], fits.mean_errors

    def recorded(model, rows, index, **options):
        held.append(index)
        return measure(model, rows, index, **options)

    monkeypatch.setattr(fits, "mean_errors", recorded)
    monkeypatch.setattr(fitting, "_step", lambda rows, index, *_: drawn.append(index))
    fitting(linear_system(50))
    held_out = set(torch.cat(held).tolist())
    assert len(held_out) == 10 and held_out.isdisjoint(torch.cat(drawn, 1).flatten().tolist())
