"""Trains some members of an ensemble while the others have stopped."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class ActiveMembers:
    """Keeps the best weights of each member, and takes members out of a model and its optimiser.

    Every parameter has the members as first dimension. A member that stops is cut out of the parameters and of the
    optimiser's state, so that it costs neither products nor optimiser work; :meth:`restore` puts everything back into
    the original tensors, at the same addresses.

    Args:
        module: module all of whose parameters have the members as first dimension.
        optimizer: optimiser of these parameters.
        num_members: number of members, ``M``.
    """

    def __init__(self, module: nn.Module, optimizer: Optimizer, num_members: int) -> None:
        self.optimizer = optimizer
        self.active = list(range(num_members))
        self.parameters = list(module.parameters())
        self._full = [p.data for p in self.parameters]
        self._best = [p.detach().clone() for p in self.parameters]
        # optimiser state in full size, made when the first member stops; entries as large as their parameter
        self._full_state: list[dict[str, Tensor]] = []
        self._stop_step: dict[int, list[Tensor]] = {}

    @torch.no_grad()
    def keep_best(self, positions: Sequence[int]) -> None:
        """Stores the weights of the active members at ``positions`` as their best ones."""
        for position in positions:
            for best, parameter in zip(self._best, self.parameters, strict=True):
                best[self.active[position]] = parameter[position]

    @torch.no_grad()
    def keep_only(self, positions: Sequence[int]) -> None:
        """Stops the active members, except those at ``positions``."""
        if not self._full_state:
            self._full_state = [self._sized_state(p) for p in self.parameters]
        self._store_state()
        for position in set(range(len(self.active))) - set(positions):
            steps = [self.optimizer.state.get(p, {}).get("step", torch.zeros(())) for p in self.parameters]
            self._stop_step[self.active[position]] = [torch.as_tensor(step).clone() for step in steps]
        index = torch.tensor(list(positions), device=self._full[0].device, dtype=torch.long)
        for parameter in self.parameters:
            sized = self._sized_state(parameter)
            parameter.grad = None
            parameter.data = parameter.data.index_select(0, index)
            self.optimizer.state[parameter].update({k: v.index_select(0, index) for k, v in sized.items()})
        self.active = [self.active[position] for position in positions]

    @torch.no_grad()
    def restore(self) -> None:
        """Gives every member its best weights, in a model and an optimiser of the original size."""
        if self._full_state:
            self._store_state()
            self._align_moments()
            for parameter, full_state in zip(self.parameters, self._full_state, strict=True):
                self.optimizer.state[parameter].update(full_state)
        for parameter, full, best in zip(self.parameters, self._full, self._best, strict=True):
            parameter.grad = None
            parameter.data = full.copy_(best)

    def _sized_state(self, parameter: Tensor) -> dict[str, Tensor]:
        state = self.optimizer.state.get(parameter, {})
        return {k: v for k, v in state.items() if isinstance(v, Tensor) and v.shape == parameter.shape}

    def _store_state(self) -> None:
        for parameter, full_state in zip(self.parameters, self._full_state, strict=True):
            for name, value in self._sized_state(parameter).items():
                if value is not full_state[name]:
                    full_state[name][self.active] = value

    def _align_moments(self) -> None:
        """Corrects for Adam counting steps once for all members.

        Its moments are divided by 1 - beta^step. A member that had stopped while others took steps gets moments that
        yield the same quotient at the step count of the end.
        """
        groups = {p: group for group in self.optimizer.param_groups for p in group["params"]}
        for member, steps in self._stop_step.items():
            for parameter, full_state, step in zip(self.parameters, self._full_state, steps, strict=True):
                betas = groups[parameter].get("betas", (0.0, 0.0))
                end = torch.as_tensor(self.optimizer.state[parameter].get("step", 0.0))
                for name, beta in zip(("exp_avg", "exp_avg_sq", "max_exp_avg_sq"), (*betas, betas[-1]), strict=True):
                    if name in full_state:
                        full_state[name][member] *= ((1 - beta**end) / (1 - beta**step)).to(full_state[name])
