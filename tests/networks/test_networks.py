from __future__ import annotations

import pytest
import torch
from torch import nn
from torchrl.data import Bounded, OneHot, Unbounded
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import TanhNormal

from eqr_torchrl.networks import GaussianHead, OrthogonalLinear, Tanh, layers, make_actor, make_critic, mlp
from eqr_torchrl.testing import toy_env

# --- layers


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4)])
def test_weights_start_orthogonal_and_biases_zero(shape):
    layer = OrthogonalLinear(*shape)
    weight, small = layer.weight.detach(), min(shape)
    product = weight @ weight.T if weight.shape[0] == small else weight.T @ weight
    torch.testing.assert_close(product, torch.eye(small), atol=1e-5, rtol=0)
    assert (layer.bias == 0).all() and OrthogonalLinear(2, 2, bias=False).bias is None


@pytest.fixture(params=[False, True], ids=["sigmoid", "tanh"])
def either_tanh(request, monkeypatch):
    """Both ways to compute the activation, of which the CPU chooses one."""
    monkeypatch.setattr(layers, "mkl_uses_avx512", lambda: request.param)


@pytest.mark.usefixtures("either_tanh")
def test_tanh_is_the_hyperbolic_tangent_with_its_gradient():
    x = torch.linspace(-12, 12, 1001, requires_grad=True)
    torch.testing.assert_close(Tanh()(x), torch.tanh(x), atol=3e-7, rtol=0)
    (gradient,) = torch.autograd.grad(Tanh()(x).sum(), x)
    torch.testing.assert_close(gradient, 1 - torch.tanh(x) ** 2, atol=1e-6, rtol=0)


def test_an_mlp_is_its_layers_one_after_the_other():
    net = mlp(3, (8, 6), 2)
    assert [type(layer).__name__ for layer in net] == [
        "OrthogonalLinear", "Tanh", "OrthogonalLinear", "Tanh", "OrthogonalLinear"
    ]  # fmt: skip
    assert [layer.weight.shape for layer in net[::2]] == [(8, 3), (6, 8), (2, 6)]
    x = torch.randn(5, 3)
    expected = net[4](torch.tanh(net[2](torch.tanh(net[0](x)))))
    torch.testing.assert_close(net(x), expected, atol=1e-6, rtol=1e-5)
    assert [type(layer) for layer in mlp(3, (), 2)] == [OrthogonalLinear]


def test_layer_normalisation_comes_before_each_activation():
    net = mlp(3, (8, 6), 2, activation_class=nn.ReLU, layer_norm=True)
    kinds = ["Linear", "LayerNorm", "ReLU", "Linear", "LayerNorm", "ReLU", "Linear"]
    assert [type(layer).__name__ for layer in net] == kinds
    hidden = net[0](torch.randn(5, 3))
    # LayerNorm by its definition: mean 0 and (biased) deviation 1 over the cells of a row
    expected = (hidden - hidden.mean(-1, keepdim=True)) / (hidden.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(net[1](hidden), expected)


@pytest.mark.parametrize("sizes", [(0, (8,), 2), (3, (0,), 2), (3, (8,), 0), (3, "abc", 2)])
def test_sizes_of_an_mlp_must_be_positive(sizes):
    with pytest.raises(ValueError, match="num_cells, in_features and out_features must be positive integers, got"):
        mlp(*sizes)


# --- actor


def test_actions_lie_within_bounds_that_differ_between_entries():
    env, low, high = toy_env(3, 2), torch.tensor([-2.0, 0.0]), torch.tensor([2.0, 9.0])
    env.action_spec = Bounded(low, high, (2,))
    out = make_actor(env, num_cells=(8,))(env.reset().expand(500).clone())
    assert out["action"].shape == out["loc"].shape == out["scale"].shape == (500, 2)
    assert (out["action"] >= low).all() and (out["action"] <= high).all() and out["action"][:, 1].max() > 1
    assert isinstance(make_actor(env).get_dist(env.reset()), TanhNormal)


def test_it_draws_unless_the_mode_is_asked_for():
    env = toy_env()
    actor, state = make_actor(env), env.reset()
    assert not torch.equal(actor(state.clone())["action"], actor(state.clone())["action"])
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        first, second = actor(state.clone()), actor(state.clone())
    assert torch.equal(first["action"], second["action"])
    torch.testing.assert_close(first["action"], torch.tanh(first["loc"]))


def test_the_log_standard_deviation_is_clamped_and_the_mean_is_not():
    loc, scale = GaussianHead(nn.Identity(), (-20.0, 2.0))(torch.tensor([[1e6, -30.0], [0.0, 30.0], [3.0, 0.5]]))
    assert loc.flatten().tolist() == [1e6, 0.0, 3.0]
    torch.testing.assert_close(scale, torch.tensor([[-20.0], [2.0], [0.5]]).exp())


def test_the_papers_sizes_are_the_defaults():
    # 2 x 128 to two numbers for each action; 2 x 256 to 51 quantiles
    env = toy_env(4, 2)
    sizes = {m.weight.shape for m in make_actor(env).modules() if isinstance(m, nn.Linear)}
    assert sizes == {(128, 4), (128, 128), (4, 128)}
    sizes = {m.weight.shape for m in make_critic(env).modules() if isinstance(m, nn.Linear)}
    assert sizes == {(256, 6), (256, 256), (51, 256)}


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        (Unbounded((1,)), "-3.4"),
        (Bounded(-1.0, float("inf"), (1,)), r"\[-1.0\] to \[inf\]"),
        (Bounded(torch.tensor([-1.0, 2.0]), torch.tensor([1.0, 2.0]), (2,)), r"\[-1.0, 2.0\] to \[1.0, 2.0\]"),
        (OneHot(3), "OneHot"),
    ],
)
def test_an_action_without_a_finite_range_is_refused_in_one_line(spec, found):
    env = toy_env()
    env.action_spec = spec
    with pytest.raises(
        ValueError, match="env must have a continuous action with finite bounds.*got .*" + found
    ) as error:
        make_actor(env)
    assert "\n" not in str(error.value)


def test_arguments_out_of_range_are_named():
    with pytest.raises(ValueError, match=r"log_std_bounds must increase, got \(2.0, -20.0\)"):
        GaussianHead(nn.Identity(), (2.0, -20.0))
    with pytest.raises(ValueError, match="network must have two outputs for each entry of an action: got 3"):
        GaussianHead(nn.Linear(3, 3))(torch.zeros(5, 3))
    with pytest.raises(ValueError, match="num_quantiles must be a positive integer, got 0"):
        make_critic(toy_env(), num_quantiles=0)


def test_an_actor_is_made_on_the_default_device():
    env = toy_env()
    with torch.device("meta"):
        actor = make_actor(env)
    bounds = actor.module[-1].distribution_kwargs
    assert {bounds["low"].device.type, bounds["high"].device.type, next(actor.parameters()).device.type} == {"meta"}
