"""A faster evaluation of networks without gradient, for many rows on a CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor, nn

from eqr_torchrl.networks._cpu import Precision, mkl_uses_avx512, onednn_matmul, uses_bf16
from eqr_torchrl.networks.layers import Normalizer, Tanh

_CHUNK_ROWS = 1024  # 256 float32 cells of a hidden layer then take 1 MiB
_FEW_ROWS = 128  # up to here, preparing the weights takes longer than it saves
# layers that treat each row alone, so that rows can be taken in chunks
_ACTIVATIONS = (Tanh, nn.Tanh, nn.ReLU, nn.SiLU, nn.GELU, nn.ELU, nn.Mish, nn.LeakyReLU, nn.Softplus)
_ROWWISE = (*_ACTIVATIONS, nn.LayerNorm, Normalizer)


def fast_inference(network: nn.Module, *, precision: Precision = "auto") -> nn.Module:
    r"""A view of a network that evaluates many rows without gradient faster on a CPU.

    Sequences of linear and row-wise layers (:func:`mlp` makes them) process more than 128 rows in chunks that stay in
    the cache, with matmuls between hidden layers in bfloat16 where ``precision`` says so. The view shares its layers
    with ``network`` and follows their training. In all other cases it calls ``network`` itself: with gradients, for few
    rows, on other devices, in other types than float32, and where a layer has hooks. After a change of the structure,
    make a new view.

    Args:
        network: a module, or a TensorDict module such as a policy; modules inside it are found.
        precision: ``"fp32"``, ``"bf16"``, or ``"auto"``, which is bfloat16 where the CPU has instructions for it.

    Examples:
        >>> with torch.no_grad():
        ...     fast_inference(toy_actor())(toy_batch(B=500))["action"].shape
        torch.Size([500, 1])
    """
    return _view(network, rounds=uses_bf16(precision))


def _view(module: nn.Module, *, rounds: bool) -> nn.Module:
    if type(module).forward is nn.Sequential.forward and _is_rowwise(module):
        return _FastSequential(module, rounds=rounds)  # pyright: ignore[reportArgumentType]
    children = {name: child and _view(child, rounds=rounds) for name, child in module._modules.items()}
    if all(child is module._modules[name] for name, child in children.items()):
        return module
    view = copy.copy(module)
    view.__dict__["_modules"] = children
    for name, value in module.__dict__.items():  # TensorDict keeps the deterministic part of a policy here
        if isinstance(value, nn.Module):
            view.__dict__[name] = _view(value, rounds=rounds)
    return view


def _is_linear(layer: nn.Module) -> bool:
    return type(layer).forward is nn.Linear.forward


def _is_rowwise(layers: nn.Module) -> bool:
    children = list(layers.children())
    rowwise = [_is_linear(one) or (type(one) in _ROWWISE and not _is_wide(one)) for one in children]
    return any(map(_is_linear, children)) and all(rowwise)


def _is_wide(layer: Any) -> bool:
    """Whether a layer normalises more dimensions than the last one."""
    return isinstance(layer, nn.LayerNorm) and len(layer.normalized_shape) > 1


class _FastSequential(nn.Sequential):
    network: Any

    def __init__(self, network: nn.Sequential, *, rounds: bool) -> None:
        super().__init__(*network)
        self.__dict__["network"] = network  # whose hooks count; it is no layer
        self.rounds = rounds

    def forward(self, value: Tensor) -> Tensor:
        if not self._applies(value):
            return self.network(value)
        with onednn_matmul():
            steps = self._steps()
            chunks = value.reshape(-1, value.shape[-1]).split(_CHUNK_ROWS)
            out = torch.cat([reduce(lambda rows, step: step(rows), steps, chunk) for chunk in chunks])
        return out.view(*value.shape[:-1], out.shape[-1])

    def _applies(self, value: Tensor) -> bool:
        if torch.is_grad_enabled() or value.device.type != "cpu" or value.numel() <= _FEW_ROWS * value.shape[-1]:
            return False
        layers = list(self)
        types = {value.dtype, *(layer.weight.dtype for layer in layers if _is_linear(layer))}
        return types == {torch.float32} and not any(map(has_hooks, (self.network, *layers)))

    def _steps(self) -> list[Callable[[Tensor], Tensor]]:
        """The layers as functions, with their weights converted once for all chunks.

        Where torch's tanh is slow, half a tanh is enough between linear layers, as the sigmoid of twice its argument
        minus one half: the factors two move into the weights on both sides, which does not round them.
        """
        layers: list[Any] = list(self)
        linear = [i for i, layer in enumerate(layers) if _is_linear(layer)]
        tanh = [i + 1 for i in linear if i + 2 in linear and type(layers[i + 1]) is Tanh]
        activation, factor = (torch.tanh_, 1) if mkl_uses_avx512() else (_half_tanh, 2)
        steps: list[Callable[[Tensor], Tensor]] = [activation if i in tanh else layer for i, layer in enumerate(layers)]
        for i in linear:
            before, after = factor if i - 1 in tanh else 1, factor if i + 1 in tanh else 1
            weight, bias = layers[i].weight * (before * after), layers[i].bias
            bias = None if bias is None else bias * after
            if self.rounds and linear[0] < i < linear[-1]:
                weight, bias = weight.bfloat16(), None if bias is None else bias.bfloat16()
            steps[i] = partial(_linear, weight=weight, bias=bias)
        return steps


def has_hooks(module: nn.Module) -> bool:
    """Whether a call of the module is more than its ``forward``."""
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)


def _linear(value: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return nn.functional.linear(value.to(weight.dtype), weight, bias).to(value.dtype)


def _half_tanh(value: Tensor) -> Tensor:
    """Half the tanh of half the value, which is overwritten: it is the output of a linear layer."""
    return value.sigmoid_().sub_(0.5)
