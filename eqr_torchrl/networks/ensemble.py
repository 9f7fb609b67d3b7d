"""Several networks side by side: their linear layers, and fixed random ones as priors of members."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from eqr_torchrl.networks.layers import Tanh, check_counts


class EnsembleLinear(nn.Module):
    r"""``M`` independent linear layers as one batched matmul, :math:`y_m = x_m W_m + b_m`.

    Weights start from a normal distribution of mean 0 and standard deviation :math:`1 / \sqrt{\text{in\_features}}`,
    truncated at two standard deviations; biases start at zero.
    """

    def __init__(self, num_members: int, in_features: int, out_features: int) -> None:
        super().__init__()
        check_counts(num_members=num_members, in_features=in_features, out_features=out_features)
        self.weight = nn.Parameter(torch.empty(num_members, in_features, out_features))
        self.bias = nn.Parameter(torch.zeros(num_members, 1, out_features))
        std = 1 / math.sqrt(in_features)
        nn.init.trunc_normal_(self.weight, std=std, a=-2 * std, b=2 * std)

    def forward(self, inputs: Tensor) -> Tensor:
        """Maps ``[M, B, in_features]`` to ``[M, B, out_features]``, member by member."""
        return torch.baddbmm(self.bias, inputs, self.weight)

    def rounded(self) -> Callable[[Tensor], Tensor]:
        """This layer in bfloat16 as a function of inputs of any type; its weights are converted once."""
        weight, bias = self.weight.bfloat16(), self.bias.bfloat16()
        return lambda inputs: torch.baddbmm(bias, inputs.bfloat16(), weight)

    def extra_repr(self) -> str:
        return "num_members={}, in_features={}, out_features={}".format(*self.weight.shape)


class RandomPrior(nn.Module):
    r"""``M`` fixed random networks :math:`p_m`: outputs of mean 0 and standard deviation 1 on standard normal inputs.

    A member predicts :math:`f_m(x) + b\, p_m(x)`, of which only :math:`f_m` is trained: near the data the two cancel,
    away from the data members disagree by about :math:`b`. Randomised prior functions of `Osband et al. (2018)
    <https://arxiv.org/abs/1806.03335>`_. The networks hold no parameters, so that no optimiser moves them.

    Args:
        num_members: number of networks, ``M``.
        in_features, out_features: sizes of an input and of an output, ``D``.
        num_cells: sizes of the hidden layers, each followed by a tanh.

    Examples:
        >>> RandomPrior(5, 3, 2)(torch.randn(5, 1000, 3)).shape
        torch.Size([5, 1000, 2])
    """

    def __init__(
        self, num_members: int, in_features: int, out_features: int, *, num_cells: Sequence[int] = (64, 64)
    ) -> None:
        super().__init__()
        sizes = [in_features, *num_cells, out_features]
        self.num_layers = len(sizes) - 1
        for i, (size_in, size_out) in enumerate(pairwise(sizes)):
            layer = EnsembleLinear(num_members, size_in, size_out)
            self.register_buffer(f"weight_{i}", layer.weight.detach())
            self.register_buffer(f"bias_{i}", torch.randn(num_members, 1, size_out))
        values = self(torch.randn(num_members, 4096, in_features))
        last = self.num_layers - 1
        self.get_buffer(f"weight_{last}").div_(values.std(1, keepdim=True))
        self.get_buffer(f"bias_{last}").sub_(values.mean(1, keepdim=True)).div_(values.std(1, keepdim=True))

    @torch.no_grad()
    def forward(self, inputs: Tensor) -> Tensor:
        """Values ``[M, B, D]`` at ``inputs``, shape ``[M, B, in_features]``, without gradient."""
        hidden, tanh = inputs, Tanh()
        for i in range(self.num_layers):
            hidden = torch.baddbmm(self.get_buffer(f"bias_{i}"), hidden, self.get_buffer(f"weight_{i}"))
            hidden = tanh(hidden) if i < self.num_layers - 1 else hidden
        return hidden
