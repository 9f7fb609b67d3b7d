"""Ends of episodes, learned from data."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, silu

from eqr_torchrl.networks.ensemble import EnsembleLinear


class TerminationNetwork(nn.Module):
    r"""``M`` networks for the probability that an episode ends, given the next observation and the action.

    Ends are rare, so the networks are trained on as many ends as other transitions. Predictions subtract the constant
    by which the log-odds :math:`\ell` are then too large (`King and Zeng (2001)
    <https://doi.org/10.1093/oxfordjournals.pan.a004868>`_).

    .. math:: p_m(x) = \mathrm{sigmoid}\big(\ell_m(x) - \log (n_\text{others} / n_\text{ends})\big)
    """

    log_imbalance: Tensor

    def __init__(self, num_members: int, num_inputs: int, num_cells: Sequence[int] = (64, 64)) -> None:
        super().__init__()
        sizes = [num_inputs, *num_cells, 1]
        self.layers = nn.ModuleList(EnsembleLinear(num_members, a, b) for a, b in pairwise(sizes))
        self.register_buffer("log_imbalance", torch.tensor(torch.inf))  # no end was seen yet

    def balanced_logits(self, inputs: Tensor) -> Tensor:
        """Log-odds ``[M, B, 1]`` where ends are as frequent as others, at normalised inputs ``[M, B, S + A]``."""
        for layer in self.layers[:-1]:
            inputs = silu(layer(inputs))
        return self.layers[-1](inputs)

    def forward(self, inputs: Tensor) -> Tensor:
        """Probabilities ``[M, B, 1]`` of an end, at normalised inputs ``[M, B, S + A]``."""
        return (self.balanced_logits(inputs) - self.log_imbalance).sigmoid()


class EndBatches:
    """Batches of as many ends as other transitions; each member draws from bootstrap samples of both.

    Takes normalised next observations and actions, ``[n, S + A]``, and whether the episode ``ended``, bool ``[n]``;
    sets the ``log_imbalance`` of the network.
    """

    def __init__(self, network: TerminationNetwork, inputs: Tensor, ended: Tensor) -> None:
        self.network, self.inputs = network, inputs
        groups = ended.nonzero().squeeze(-1), (~ended).nonzero().squeeze(-1)
        self.num_ends, num_members = len(groups[0]), len(next(network.parameters()))
        network.log_imbalance.fill_(len(groups[1])).div_(self.num_ends).log_()  # without ends infinite
        self.groups: list[Tensor] = []
        if all(map(len, groups)):
            self.groups = [g[torch.randint(len(g), (num_members, len(g)), device=g.device)] for g in groups]

    def loss(self, batch_size: int) -> Tensor | float:
        """Cross-entropy of each member on a new batch, shape ``[M]``; 0 where nothing, or everything, ended."""
        if not self.groups:
            return 0.0
        size = (len(self.groups[0]), max(batch_size // 2, 1))
        draws = [g.gather(1, torch.randint(g.shape[1], size, device=g.device)) for g in self.groups]
        rows = torch.cat(draws, 1)  # [M, B]
        logits = self.network.balanced_logits(self.inputs[rows]).squeeze(-1)
        ended = (torch.arange(rows.shape[1], device=rows.device) < size[1]).to(logits).expand_as(logits)
        return binary_cross_entropy_with_logits(logits, ended, reduction="none").mean(-1)
