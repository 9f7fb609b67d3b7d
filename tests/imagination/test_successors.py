from __future__ import annotations

import pytest
import torch
from torchrl.envs import RewardScaling, TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type

from eqr_torchrl.imagination import EnsembleSuccessors, ModelBasedEnv, make_replay_buffer, never_terminates
from eqr_torchrl.testing import toy_batch, toy_env
from eqr_torchrl.world_models import GaussianEnsemble

DRIFT, REWARD = [1.0, 10.0, 100.0, 1000.0], [0.5, 1.5, 2.5, 3.5]


@pytest.fixture
def successors_of(known_model):
    def make(*, scale=0.0, termination_fn=never_terminates, member="fixed", **kwargs):
        model = known_model(DRIFT, REWARD, scale=scale)
        env = ModelBasedEnv(model, toy_env(), termination_fn=termination_fn, member=member)
        return EnsembleSuccessors(env, **kwargs)

    return make


def at_origin(rows: int):
    batch = toy_batch(B=rows)
    batch["observation"].zero_()
    return batch


@pytest.mark.parametrize("member", ["fixed", "resampled"])
@pytest.mark.parametrize("sampling", ["stratified", "iid"])
def test_next_holds_every_members_successors(successors_of, sampling, member):
    batch = toy_batch(B=6).select("observation", "action")
    out = successors_of(sampling=sampling, num_next_states=3, member=member)(batch)
    assert out["next"].batch_size == (6, 4, 3) and out.batch_size == (6,)
    expected = batch["observation"][:, None, None] + torch.tensor(DRIFT)[:, None, None]
    torch.testing.assert_close(out["next", "observation"], expected.expand(6, 4, 3, 3))
    torch.testing.assert_close(out["next", "reward"], torch.tensor(REWARD)[:, None, None].expand(6, 4, 3, 1))
    assert not out["next", "terminated"].any() and not out["next", "done"].any()


def test_terminations_are_those_of_the_predicted_states(successors_of):
    over = successors_of(termination_fn=lambda s, a: (s > 50).any(-1, keepdim=True))(toy_batch(B=6))["next"]
    assert over["terminated"].float().mean((0, 2, 3)).tolist() == [0, 0, 1, 1]
    assert torch.equal(over["terminated"], over["done"])


@pytest.mark.parametrize("sampling", ["stratified", "iid"])
def test_every_draw_alone_is_the_members_gaussian(successors_of, sampling):
    noise = successors_of(scale=2.0, sampling=sampling, num_next_states=3)(at_origin(20_000))["next", "observation"]
    noise = (noise - torch.tensor(DRIFT)[:, None, None]) / 2
    levels = torch.tensor([0.1, 0.5, 0.9])
    for draws in noise.flatten(1).T:
        assert draws.mean().abs() < 5 / 20_000**0.5 and abs(draws.std() - 1) < 0.03
        torch.testing.assert_close(draws.quantile(levels), torch.special.ndtri(levels), atol=0.06, rtol=0)
    correlation = torch.corrcoef(noise[:, :, 0].flatten(1).T)  # between members and entries
    assert (correlation - torch.eye(12)).abs().max() < 0.05


def test_stratified_draws_fall_one_into_each_bin_and_their_mean_varies_less(successors_of):
    means = {}
    for sampling in ("stratified", "iid"):
        out = successors_of(scale=1.0, sampling=sampling, num_next_states=4)(at_origin(5000))["next"]
        noise = out["observation"][:, 0] - DRIFT[0]  # [5000, K, 3]
        means[sampling] = noise.mean(1).var(0)
        if sampling == "stratified":
            bins = (torch.special.ndtr(noise) * 4).floor().sort(1).values
            assert (bins == torch.arange(4.0)[:, None]).all()
            torch.testing.assert_close(out["reward"][..., 0].mean((0, 2)), torch.tensor(REWARD))
            assert (out["reward"].std((0, 2)) < 1e-6).all()  # the mean of each member, without noise
        else:
            torch.testing.assert_close(out["reward"].std((0, 2)), torch.ones(4, 1), atol=0.03, rtol=0)
    # independent draws: 1 / 4. Quartiles of a normal have means -+1.271 and -+0.325: what is left inside them is
    # 1 - (1.271^2 + 0.325^2) / 2 = 0.139, so the mean of one draw of each varies by 0.139 / 4
    torch.testing.assert_close(means["iid"], torch.full((3,), 0.25), atol=0.03, rtol=0)
    torch.testing.assert_close(means["stratified"], torch.full((3,), 0.139 / 4), atol=0.005, rtol=0)


def test_it_is_a_transform_of_a_replay_buffer(successors_of):
    buffer = make_replay_buffer(100, batch_size=6)
    buffer.append_transform(successors_of(num_next_states=3))
    buffer.extend(toy_batch(B=20).select("observation", "action"))
    assert buffer._storage._storage.get("next", None) is None  # nothing but what came is stored
    assert buffer.sample()["next"].batch_size == (6, 4, 3)


def test_the_models_parameters_stay_with_the_model_and_as_they_are():
    model = GaussianEnsemble(3, 1, num_members=2, num_cells=(8,))
    first, *rest = model.parameters()
    first.requires_grad_(False)
    successors = EnsembleSuccessors(ModelBasedEnv(model, toy_env(), termination_fn=never_terminates))
    assert not list(successors.parameters()) and not successors.state_dict()
    buffer = make_replay_buffer(100, batch_size=6)
    buffer.append_transform(successors)
    assert not any(isinstance(v, torch.Tensor) and v.numel() == 8 for v in buffer.state_dict()["_transforms"].values())
    assert not successors(toy_batch(B=4))["next", "observation"].requires_grad
    assert not first.requires_grad and all(p.requires_grad for p in rest)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_next_states": 0}, "num_next_states must be a positive integer, got 0"),
        ({"sampling": "sobol"}, 'sampling must be "stratified" or "iid", got \'sobol\''),
    ],
)
def test_arguments_out_of_range_are_named(successors_of, kwargs, message):
    with pytest.raises(ValueError, match=message):
        successors_of(**kwargs)


@pytest.mark.parametrize("size", [(), (6,), (2, 3), (1, 2, 3)])
def test_a_batch_of_any_shape_is_the_flattened_batch(successors_of, size):
    flat = toy_batch(B=max(1, torch.Size(size).numel())).select("observation", "action")
    outs = []
    for batch in (flat.clone(), flat.reshape(size)):
        torch.manual_seed(1)  # which fixes the draws
        outs.append(successors_of(scale=1.0)(batch)["next"])
    assert outs[1].batch_size == (*size, 4, 4)
    assert (outs[1].reshape(outs[0].shape) == outs[0]).all()


def test_steps_of_the_replayed_successor_go_with_it(successors_of):
    batch = toy_batch(B=6)
    batch["steps_to_next_obs"] = torch.full((6, 1), 3)
    assert successors_of()(batch).get("steps_to_next_obs", None) is None  # a model's successor is one step away


@pytest.mark.parametrize("key", ["observation", "action"])
def test_a_missing_key_is_named(successors_of, key):
    with pytest.raises(KeyError, match=f'key "{key}" not found'):
        successors_of()(toy_batch(B=4).exclude(key))


@pytest.mark.parametrize("sampling", ["stratified", "iid"])
@pytest.mark.parametrize("exploration", list(ExplorationType))
def test_the_models_noise_does_not_depend_on_how_policies_explore(successors_of, exploration, sampling):
    with set_exploration_type(exploration):
        out = successors_of(scale=2.0, sampling=sampling)(at_origin(2000))["next"]
    torch.testing.assert_close(out["observation"].std((0, 2)), torch.full((4, 3), 2.0), atol=0.1, rtol=0)
    reward = torch.full((4, 1), 0.0 if sampling == "stratified" else 2.0)
    torch.testing.assert_close(out["reward"].std((0, 2)), reward, atol=0.1, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_it_keeps_the_precision_of_the_model(dtype):
    model = GaussianEnsemble(3, 1, num_members=2, num_cells=(8,)).to(dtype)
    env = ModelBasedEnv(model, toy_env(), termination_fn=never_terminates)
    out = EnsembleSuccessors(env)(toy_batch(B=4).select("observation", "action").to(dtype))["next"]
    assert out["observation"].dtype == out["reward"].dtype == dtype and out["terminated"].dtype == torch.bool


def test_with_a_known_reward_every_entry_of_the_state_has_its_noise(known_model):
    def zero(observation, action, next_observation):
        return torch.zeros_like(observation[..., :1])

    env = ModelBasedEnv(known_model(DRIFT, scale=2.0), toy_env(), termination_fn=never_terminates, reward_fn=zero)
    after = EnsembleSuccessors(env)(at_origin(2000))["next", "observation"]
    torch.testing.assert_close(after.std((0, 2)), torch.full((4, 3), 2.0), atol=0.1, rtol=0)


def test_anything_but_the_bare_environment_is_refused(known_model):
    env = ModelBasedEnv(known_model(DRIFT, REWARD), toy_env(), termination_fn=never_terminates)
    with pytest.raises(ValueError, match="model_env must be a ModelBasedEnv, got TransformedEnv: .* bypass transforms"):
        EnsembleSuccessors(TransformedEnv(env, RewardScaling(0.0, 100.0)))
