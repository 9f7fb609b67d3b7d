"""Layers with the paper's initialisation, the MLPs made of them, and the normalisation of their inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from eqr_torchrl.networks._cpu import mkl_uses_avx512

_CLIP = 20.0  # largest magnitude of a normalised entry
_SMALLEST_STD = 1e-5  # in units of the input, below which an entry is only centred


def check_counts(**counts: int) -> None:
    """Raises a ValueError that names the first argument that is not a positive integer."""
    for name, value in counts.items():
        if type(value) is not int or value < 1:
            raise ValueError(f"{name} must be a positive integer, got {value!r}.")


class OrthogonalLinear(nn.Linear):
    """A linear layer whose weight starts orthogonal with gain 1 and whose bias starts at zero.

    Examples:
        >>> layer = OrthogonalLinear(3, 2)
        >>> torch.allclose(layer.weight @ layer.weight.T, torch.eye(2), atol=1e-6)
        True
    """

    def reset_parameters(self) -> None:  # a method of the layer: it survives whatever re-initialises modules
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
        # compiled code does not call MKL for tanh
        if value.device.type != "cpu" or (not torch.compiler.is_compiling() and mkl_uses_avx512()):
            return torch.tanh(value)
        return torch.sigmoid(2 * value) * 2 - 1


class Normalizer(nn.Module):
    r"""Shifts and scales each entry by fixed statistics: :math:`\mathrm{clip}((x - \mu) / \sigma, \pm c)`.

    The statistics of ``num_features`` entries, ``F``, change only in :meth:`update`, so evaluating a model never alters
    it. Entries of a standard deviation below 1e-5 count as constant and are only centred; :math:`c` is 20.

    Examples:
        >>> normalizer = Normalizer(2)
        >>> normalizer.update(torch.tensor([[0.0, 7.0], [1.0, 7.0], [2.0, 7.0]]))
        >>> normalizer(torch.tensor([[3.0, 8.0], [1e9, 7.0]]))
        tensor([[ 2.,  1.],
                [20.,  0.]])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, num_features: int) -> None:
        super().__init__()
        check_counts(num_features=num_features)
        self.register_buffer("mean", torch.zeros(num_features))
        self.register_buffer("std", torch.ones(num_features))

    @torch.no_grad()
    def update(self, data: Tensor) -> None:
        """Replaces the statistics by those of samples ``[n, F]``; standard deviations of a single one are 1."""
        if data.ndim != 2 or data.shape[1] != self.mean.numel() or not len(data):
            raise ValueError(f"data must be [n, {self.mean.numel()}] with n > 0, got {tuple(data.shape)}.")
        # float64: float32 sums lose an entry's small spread around a large mean
        std, mean = torch.std_mean(data.double(), 0, correction=min(1, len(data) - 1))
        self.mean.copy_(mean)
        self.std.copy_(torch.where(std < _SMALLEST_STD, 1.0, std))

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalises ``[..., F]``."""
        return ((inputs - self.mean) / self.std).clamp(-_CLIP, _CLIP)


def mlp(
    in_features: int,
    num_cells: Sequence[int],
    out_features: int,
    *,
    activation_class: Callable[[], nn.Module] = Tanh,
    layer_norm: bool = False,
) -> nn.Sequential:
    """Multilayer perceptron, of :class:`OrthogonalLinear` layers unless it has layer normalisation.

    Args:
        in_features: size of the input.
        num_cells: sizes of the hidden layers.
        out_features: size of the output, which has no activation.
        activation_class: makes the activation after each hidden layer. Defaults to :class:`Tanh`, as in the paper.
        layer_norm: whether each hidden layer is normalised before its activation (`Ba et al. (2016)
            <https://arxiv.org/abs/1607.06450>`_); weights then start as PyTorch's do. Defaults to ``False``.

    Examples:
        >>> mlp(3, (8, 8), 2)(torch.zeros(5, 3)).shape
        torch.Size([5, 2])
    """
    sizes = [in_features, *num_cells, out_features]
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        raise ValueError(f"num_cells, in_features and out_features must be positive integers, got {sizes}.")
    layers: list[nn.Module] = []
    linear = nn.Linear if layer_norm else OrthogonalLinear
    for size_in, size_out in pairwise(sizes[:-1]):
        layers += [linear(size_in, size_out), *([nn.LayerNorm(size_out)] if layer_norm else []), activation_class()]
    return nn.Sequential(*layers, linear(sizes[-2], sizes[-1]))
