"""Linear layers with the paper's initialisation, and the MLPs made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from eqr_torchrl.functional.products import Precision, mkl_uses_avx512, uses_bf16


class OrthogonalLinear(nn.Linear):
    """A linear layer whose weight starts orthogonal with gain 1 and whose bias starts at zero.

    Being the layer's own ``reset_parameters``, the initialisation survives whatever re-initialises modules.

    Examples:
        >>> layer = OrthogonalLinear(3, 2)
        >>> torch.allclose(layer.weight @ layer.weight.T, torch.eye(2), atol=1e-6)
        True
    """

    def reset_parameters(self) -> None:
        nn.init.orthogonal_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Tanh(nn.Module):
    r"""Hyperbolic tangent; on most CPUs as :math:`2 \sigma(2x) - 1`, which is several times faster in PyTorch.

    The absolute error of that form is at most 1.2e-7 in float32, which is noticeable relative to values below 1e-5.
    Where MKL uses AVX-512, on processors of Intel, :func:`torch.tanh` is faster still, and is called instead.

    Examples:
        >>> Tanh()(torch.tensor([0.5]))
        tensor([0.4621])
    """

    def forward(self, value: Tensor) -> Tensor:
        """The hyperbolic tangent of each entry."""
        if value.device.type != "cpu" or _torch_tanh_is_fast():
            return torch.tanh(value)
        return torch.sigmoid(2 * value) * 2 - 1


class MLP(nn.Sequential):
    """Layers in sequence, with a faster evaluation of many rows without gradient on a CPU.

    That evaluation takes the rows in pieces that stay in the cache, and computes the products between hidden layers in
    bfloat16 where ``precision`` says so. The first and the last layer stay in float32, so that inputs and outputs keep
    their resolution.

    Args:
        *layers: modules that are applied one after the other.
        precision: format of the hidden products for more than 128 rows without gradient on a CPU: ``"fp32"``,
            ``"bf16"``, or ``"auto"`` (default), which is bfloat16 where the CPU has instructions for it.

    Raises:
        ValueError: if ``precision`` is none of these.

    Examples:
        >>> net = MLP(nn.Linear(3, 8), Tanh(), nn.Linear(8, 2))
        >>> net(torch.zeros(5, 4, 3)).shape
        torch.Size([5, 4, 2])
    """

    chunk_size = 1024  # rows; 256 float32 cells of a hidden layer then take 1 MiB

    def __init__(self, *layers: nn.Module, precision: Precision = "auto") -> None:
        super().__init__(*layers)
        self.uses_bf16 = uses_bf16(precision)

    def forward(self, value: Tensor) -> Tensor:
        """Output ``[..., out_features]`` of the last layer for inputs ``[..., in_features]``."""
        if torch.is_grad_enabled() or value.device.type != "cpu" or value.numel() <= 128 * value.shape[-1]:
            return super().forward(value)
        steps = self._steps()
        chunks = value.reshape(-1, value.shape[-1]).split(self.chunk_size)
        out = torch.cat([reduce(lambda rows, step: step(rows), steps, chunk) for chunk in chunks])
        return out.view(*value.shape[:-1], out.shape[-1])

    def _steps(self) -> list[Callable[[Tensor], Tensor]]:
        """The layers as functions, with their weights converted once for all pieces.

        Where torch's tanh is slow, half a tanh is enough between linear layers, as the sigmoid of twice its argument
        minus one half: the factors two move into the weights on both sides, which does not round them.
        """
        layers = list(self)
        linear = [i for i, layer in enumerate(layers) if type(layer).forward is nn.Linear.forward]
        tanh = [i + 1 for i in linear if i + 2 in linear and isinstance(layers[i + 1], Tanh)]
        activation, factor = (torch.tanh_, 1) if _torch_tanh_is_fast() else (_half_tanh, 2)
        steps: list[Callable[[Tensor], Tensor]] = []
        for i, layer in enumerate(layers):
            if i in tanh:
                steps.append(activation)
            elif i in linear:
                before, after = factor if i - 1 in tanh else 1, factor if i + 1 in tanh else 1
                weight, bias = cast(nn.Linear, layer).weight * (before * after), cast(nn.Linear, layer).bias
                bias = None if bias is None else bias * after
                if self.uses_bf16 and weight.dtype == torch.float32 and linear[0] < i < linear[-1]:
                    weight, bias = weight.bfloat16(), None if bias is None else bias.bfloat16()
                steps.append(partial(_linear, weight=weight, bias=bias))
            else:
                steps.append(layer)
        return steps


def _linear(value: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    out = nn.functional.linear(value.to(weight.dtype), weight, bias)
    return value.copy_(out) if out.dtype != value.dtype and out.shape == value.shape else out.to(value.dtype)


def _torch_tanh_is_fast() -> bool:
    return not torch.compiler.is_compiling() and mkl_uses_avx512()  # compiled code does not call MKL for it


def _half_tanh(value: Tensor) -> Tensor:
    """Half the tanh of half the value, which is overwritten."""
    return value.sigmoid_().sub_(0.5)


def layer_norm_mlp(
    in_features: int, num_cells: Sequence[int], out_features: int, *, precision: Precision = "auto"
) -> MLP:
    """Multilayer perceptron of (linear, layer normalisation, ReLU), with PyTorch's own initialisation.

    Examples:
        >>> layer_norm_mlp(3, (8, 8), 2)(torch.zeros(5, 3)).shape
        torch.Size([5, 2])
    """
    layers: list[nn.Module] = []
    for size_in, size_out in pairwise([in_features, *num_cells]):
        layers += [nn.Linear(size_in, size_out), nn.LayerNorm(size_out), nn.ReLU(inplace=True)]
    return MLP(*layers, nn.Linear(num_cells[-1], out_features), precision=precision)


def mlp(
    in_features: int,
    num_cells: Sequence[int],
    out_features: int,
    *,
    activation_class: Callable[[], nn.Module] = Tanh,
    precision: Precision = "auto",
) -> MLP:
    """Multilayer perceptron of :class:`OrthogonalLinear` layers.

    Args:
        in_features: size of the input.
        num_cells: size of each hidden layer.
        out_features: size of the output, which has no activation.
        activation_class: makes the activation after each hidden layer. Defaults to :class:`Tanh`, as in the paper.
        precision: format of products without gradient, see :class:`MLP`.

    Returns:
        A module from ``[..., in_features]`` to ``[..., out_features]``.

    Raises:
        ValueError: if a size is not positive, or ``precision`` unknown.

    Examples:
        >>> mlp(3, (8, 8), 2)(torch.zeros(5, 3)).shape
        torch.Size([5, 2])
    """
    sizes = [in_features, *num_cells, out_features]
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        raise ValueError(f"num_cells, in_features and out_features must be positive integers, got {sizes}.")
    layers: list[nn.Module] = []
    for size_in, size_out in pairwise(sizes[:-1]):
        layers += [OrthogonalLinear(size_in, size_out), activation_class()]
    return MLP(*layers, OrthogonalLinear(sizes[-2], sizes[-1]), precision=precision)
