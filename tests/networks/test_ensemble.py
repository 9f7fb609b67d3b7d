"""Batched linear layers against one ordinary layer after the other."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from eqr_torchrl.networks.ensemble import EnsembleLinear


def test_values_and_gradients_are_those_of_separate_linear_layers():
    layer, x = EnsembleLinear(3, 4, 2), torch.randn(3, 7, 4)
    torch.nn.init.normal_(layer.bias)
    out = layer(x)
    out.square().sum().backward()
    for m in range(3):
        weight, bias = (p[m].detach().clone().requires_grad_() for p in (layer.weight, layer.bias))
        expected = functional.linear(x[m], weight.T, bias[0])
        torch.testing.assert_close(out[m], expected)
        expected.square().sum().backward()
        torch.testing.assert_close(layer.weight.grad[m], weight.grad)
        torch.testing.assert_close(layer.bias.grad[m], bias.grad)


def test_weights_start_truncated_normal_and_biases_zero():
    layer = EnsembleLinear(5, 100, 400)
    sigma = 1 / math.sqrt(100)
    # variance of a standard normal distribution truncated at +-2: 1 - 2 * 2 * phi(2) / (2 * Phi(2) - 1) = 0.7737
    phi, mass = math.exp(-2) / math.sqrt(2 * math.pi), math.erf(2 / math.sqrt(2))
    expected = sigma * math.sqrt(1 - 4 * phi / mass)
    weight = layer.weight.detach()
    assert weight.abs().max() <= 2 * sigma + 1e-7 and not torch.equal(weight[0], weight[1])
    assert weight.mean().abs() < 5 * expected / math.sqrt(weight.numel())
    assert weight.std().item() == pytest.approx(expected, rel=0.01)
    assert (layer.bias == 0).all()


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, 0, 1), (1, 1, -1), (1.5, 1, 1)])
def test_sizes_must_be_positive(sizes):
    with pytest.raises(ValueError, match="must be a positive integer, got"):
        EnsembleLinear(*sizes)


def test_a_rounded_layer_is_the_product_of_rounded_factors():
    layer = EnsembleLinear(3, 4, 2)
    torch.nn.init.normal_(layer.bias)
    x = torch.randn(3, 7, 4)
    x_rounded, weight, bias = (value.detach().bfloat16().double() for value in (x, layer.weight, layer.bias))
    rounded = layer.rounded()(x)
    # 8 bits of the result, and float32 sums
    torch.testing.assert_close(rounded.double(), x_rounded @ weight + bias, rtol=2**-8, atol=2**-8)
    assert rounded.dtype == torch.bfloat16  # activations between such layers stay in it


def test_gradients_of_a_rounded_layer_are_those_of_the_product():
    layer, x, up = EnsembleLinear(3, 4, 2), torch.randn(3, 70, 4, requires_grad=True), torch.randn(3, 70, 2)
    got = torch.autograd.grad(layer.rounded()(x), (x, layer.weight, layer.bias), up.bfloat16())
    exact = up @ layer.weight.mT, x.mT @ up, up.sum(1, keepdim=True)
    for gradient, expected in zip(got, exact, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=2**-6, atol=2**-6 * expected.abs().max().item())
        assert gradient.dtype == torch.float32
