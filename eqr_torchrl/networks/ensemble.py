"""Linear layers of several networks side by side."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from eqr_torchrl.networks.layers import check_counts


class EnsembleLinear(nn.Module):
    r"""``M`` independent linear layers as one batched matmul, :math:`y_m = x_m W_m + b_m`.

    Weights start from a normal distribution of mean 0 and standard deviation :math:`1 / \sqrt{\text{in\_features}}`,
    truncated at two standard deviations; biases start at zero.

    Args:
        num_members: number of layers, ``M``.
        in_features, out_features: sizes of a row of inputs and of outputs.

    Examples:
        >>> EnsembleLinear(5, 3, 2)(torch.randn(5, 7, 3)).shape
        torch.Size([5, 7, 2])
    """

    def __init__(self, num_members: int, in_features: int, out_features: int) -> None:
        super().__init__()
        check_counts(num_members=num_members, in_features=in_features, out_features=out_features)
        self.weight = nn.Parameter(torch.empty(num_members, in_features, out_features))
        self.bias = nn.Parameter(torch.empty(num_members, 1, out_features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new weights for every member and sets the biases to zero."""
        std = 1 / math.sqrt(self.weight.shape[1])
        nn.init.trunc_normal_(self.weight, std=std, a=-2 * std, b=2 * std)
        nn.init.zeros_(self.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Maps ``[M, B, in_features]`` to ``[M, B, out_features]``, member by member."""
        return torch.baddbmm(self.bias, inputs, self.weight)

    def rounded(self) -> Callable[[Tensor], Tensor]:
        """This layer in bfloat16, outputs included, as a function of inputs of any type; weights are converted once.

        Gradients of inputs, weights and biases are in their own types.
        """
        weight, bias = self.weight.bfloat16(), self.bias.bfloat16()
        return lambda inputs: torch.baddbmm(bias, inputs.bfloat16(), weight)

    def extra_repr(self) -> str:
        """Sizes shown when the module is printed."""
        members, size_in, size_out = self.weight.shape
        return f"num_members={members}, in_features={size_in}, out_features={size_out}"
