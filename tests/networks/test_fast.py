"""The faster evaluation is the network's own: in values, in what it leaves alone, and in when it steps aside."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torchrl.envs.utils import ExplorationType, set_exploration_type

from eqr_torchrl.networks import Tanh, fast, fast_inference, mlp
from eqr_torchrl.testing import _with_biases as biased
from eqr_torchrl.testing import toy_actor, toy_batch, toy_critic


@pytest.fixture(params=[False, True], ids=["sigmoid", "tanh"], autouse=True)
def _both_activations(request, monkeypatch):
    """Both ways to compute the activation, of which the CPU chooses one."""
    monkeypatch.setattr(fast, "mkl_uses_avx512", lambda: request.param)


@pytest.mark.parametrize("activation_class", [Tanh, nn.Tanh, nn.SiLU, nn.ReLU])
@pytest.mark.parametrize("size", [(), (1,), (129,), (1024,), (1025,), (7, 500), (2, 3, 400), (0,)])
def test_in_chunks_it_gives_the_same_and_leaves_the_input(activation_class, size):
    net = biased(mlp(3, (8, 6), 2, activation_class=activation_class))
    x = torch.randn(*size, 3)
    before = x.clone()
    with torch.no_grad():
        chunked, whole = fast_inference(net, precision="fp32")(x), net(x)
    torch.testing.assert_close(chunked, whole, atol=1e-6, rtol=1e-5)
    assert torch.equal(x, before) and chunked.shape == (*size, 2)


def test_bf16_rounds_the_hidden_matmuls_alone_and_keeps_the_type():
    net, x = biased(mlp(3, (32, 32), 4)), torch.randn(300, 3)
    hidden = torch.tanh(net[0](x)) / 2  # the factor is in the weights, where it does not round
    rounded = nn.functional.linear(hidden.bfloat16(), (4 * net[2].weight).bfloat16(), (2 * net[2].bias).bfloat16())
    expected = net[4](torch.tanh(rounded.float() / 2)).detach()
    view = fast_inference(net, precision="bf16")
    with torch.no_grad():
        out = view(x)
        # one step of bfloat16 in a few entries of the hidden layer, where summation order decides the rounding
        torch.testing.assert_close(out, expected, atol=2e-2, rtol=0)
        assert out.dtype == torch.float32 and (out - net(x)).abs().max() > 1e-4
        assert torch.equal(view(x[:128]), net(x[:128]))  # few rows
    assert torch.equal(view(x), net(x))  # with gradient


def test_networks_of_one_or_two_layers_are_never_rounded():
    for cells in ((), (8,)):
        net, x = biased(mlp(3, cells, 2)), torch.randn(300, 3)
        with torch.no_grad():
            torch.testing.assert_close(fast_inference(net, precision="bf16")(x), net(x), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_are_left_to_the_network_and_the_input_is_not_overwritten(dtype):
    net, x = biased(mlp(4, (4, 4), 4)).to(dtype), torch.randn(300, 4, dtype=dtype)  # square layers
    before = x.clone()
    with torch.no_grad():
        assert torch.equal(fast_inference(net, precision="bf16")(x), net(x))
    assert torch.equal(x, before)
    with torch.no_grad(), pytest.raises(RuntimeError, match="dtype"):  # also with many rows, as the network itself
        fast_inference(net.float())(x)


def test_hooks_run_and_what_they_return_counts():
    net, x, seen = biased(mlp(3, (8, 8), 2)), torch.randn(300, 3), []
    net[2].register_forward_hook(lambda module, inputs, out: seen.append(out.shape) or 3 * out)
    with torch.no_grad():
        assert torch.equal(fast_inference(net)(x), net(x))
    assert seen == [(300, 8)] * 2


@pytest.mark.parametrize("pruned", [False, True])
def test_the_view_follows_training_and_shares_its_parameters(pruned):
    net, x = biased(mlp(3, (8, 8), 2)), torch.randn(300, 3)
    view = fast_inference(net, precision="fp32")
    if pruned:  # writes the weight in a hook before each call: a view without hooks would see the last one
        prune.l1_unstructured(net[2], "weight", 0.5)
    assert {id(p) for p in view.parameters()} == {id(p) for p in net.parameters()}
    for parameter in net.parameters():
        parameter.data.mul_(1.5)
    with torch.no_grad():
        found = view(x)
        torch.testing.assert_close(found, net(x), atol=1e-6, rtol=1e-5)


def test_layers_that_mix_rows_are_left_alone():
    net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    assert fast_inference(net) is net


def test_networks_inside_policies_and_critics_are_found():
    actor, critic, batch = toy_actor(), toy_critic(), toy_batch(B=300)
    fast_actor, fast_critic = fast_inference(actor, precision="bf16"), fast_inference(critic, precision="bf16")
    with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
        pairs = [(one(batch.copy()), two(batch.copy())) for one, two in ((actor, fast_actor), (critic, fast_critic))]
    for (plain, quick), keys in zip(pairs, (("loc", "scale", "action"), ("state_action_value",)), strict=True):
        for key in keys:
            assert 0 < (plain[key] - quick[key]).abs().max() < 0.02  # rounded, so the view was used
    assert fast_actor.spec is actor.spec and copy.deepcopy(fast_actor) is not fast_actor


def test_it_works_under_vmap():
    nets, x = [biased(mlp(3, (8, 8), 2)) for _ in range(2)], torch.randn(300, 3)
    params, buffers = torch.func.stack_module_state(nets)
    view = fast_inference(nets[0], precision="fp32")

    def call(params, buffers):
        return torch.func.functional_call(view, {f"network.{name}": value for name, value in params.items()}, (x,))

    with torch.no_grad():
        found = torch.func.vmap(call)(params, buffers)
        torch.testing.assert_close(found, torch.stack([net(x) for net in nets]), atol=1e-6, rtol=1e-5)


def test_an_unknown_precision_is_named():
    with pytest.raises(ValueError, match='precision must be "auto", "fp32" or "bf16", got \'half\''):
        fast_inference(mlp(3, (8,), 2), precision="half")  # pyright: ignore[reportArgumentType]


def test_a_view_is_a_sequence_still():
    class Looped(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = mlp(3, (8,), 2)

        def forward(self, value):
            for layer in self.layers:
                value = layer(value)
            return value

    net, x = Looped(), torch.randn(500, 3)
    torch.testing.assert_close(fast_inference(net)(x), net(x))


def test_a_norm_over_two_dimensions_is_no_layer_of_rows():
    net, x = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm((3, 4))), torch.randn(500, 3, 4)
    with torch.no_grad():
        torch.testing.assert_close(fast_inference(net)(x), net(x))
