"""Calls of a loss's networks by tensors instead of TensorDicts where that is the same: fewer calls of Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase, TensorDictParams
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from tensordict.utils import NestedKey
from torch import Tensor, nn
from torchrl.modules import ProbabilisticActor, SafeProbabilisticModule

from eqr_torchrl.networks.fast import has_hooks

_POLICIES = ProbabilisticActor, ProbabilisticTensorDictSequential
_LAST_STEPS = ProbabilisticTensorDictModule, SafeProbabilisticModule


@contextmanager
def bound(params: TensorDictParams, network: nn.Module, *, detach: bool = False) -> Iterator[None]:
    """Context in which ``network`` runs with ``params``, which ``detach`` cuts off from gradients.

    The same as ``params.to_module(network)``, which takes some 500 Python calls for a small network.
    """
    slots: list[tuple[dict[str, Any], str, Tensor]] = []
    if torch.compiler.is_compiling() or not _find_slots(params, network, slots):
        with (params.detach() if detach else params).to_module(network, preserve_module_state=False):
            yield
        return
    previous = [place[name] for place, name, _ in slots]
    for place, name, value in slots:
        place[name] = value.detach() if detach else value
    try:
        yield
    finally:
        for (place, name, _), value in zip(slots, previous, strict=True):
            place[name] = value


def _find_slots(params: Any, module: nn.Module, slots: list[tuple[dict[str, Any], str, Tensor]]) -> bool:
    """Appends dictionary, name and value of each parameter and buffer; False if a plain assignment would not do."""
    if type(params) not in (TensorDict, TensorDictParams) or type(module).__setattr__ is not nn.Module.__setattr__:
        return False
    for name, value in params.items():
        if isinstance(value, Tensor):
            place: Any = module._parameters if name in module._parameters else module._buffers
            if name not in place:
                return False
            slots.append((place, name, value))
        elif module._modules.get(name) is None or not _find_slots(value, module._modules[name], slots):  # pyright: ignore
            return False
    return True


def takes_tensors(module: nn.Module) -> bool:
    """Whether a call with a TensorDict is one of ``module.module`` with the tensors under ``in_keys``, and no more."""
    if type(module) is not TensorDictModule or module.method is not None or module.method_kwargs:
        return False
    return module._kwargs is None and not has_hooks(module)  # else names of arguments: told nowhere else


def _outputs(module: Any, entries: Mapping[NestedKey, Tensor]) -> dict[NestedKey, Any]:
    values = module.module(*[entries[key] for key in module.in_keys])
    if isinstance(values, dict | TensorDictBase):
        return {key: values[key] for key in module.out_keys}
    return dict(zip(module.out_keys, values if isinstance(values, tuple) else (values,), strict=True))


class StackedCritics(nn.Module):
    """Runs critics side by side and stacks their values before the last dimension: ``[..., C, N]``.

    They may differ in build. Running each in turn keeps dropout, normalisation and initialisation as they are.
    """

    critics: nn.ModuleList

    def __init__(self, critics: list[TensorDictModule], value_key: NestedKey) -> None:
        super().__init__()
        self.critics, self.value_key = nn.ModuleList(critics), value_key
        self.in_keys: list[NestedKey] = list(dict.fromkeys(key for critic in critics for key in critic.in_keys))

    def forward(self, entries: Any, size: torch.Size | None = None, *, own_rows: bool = False) -> Any:
        """Values ``[*B, C, N]``: of all critics on the same rows ``[*B]``, or of each on its own of ``[*B, C]``.

        Entries are tensors by key. A TensorDict without a ``size`` gets the values under ``value_key``, as of any
        network of a loss.
        """
        if size is None:
            return entries.set(self.value_key, self(entries, entries.batch_size))
        values, by_row = [], len(size) - 1
        for i, critic in enumerate(self.critics):
            keys: Any = critic.in_keys
            rows = {key: entries[key].select(by_row, i) if own_rows else entries[key] for key in keys}
            plain = takes_tensors(critic)
            out: Any = _outputs(critic, rows) if plain else critic(TensorDict(rows, size[:-1] if own_rows else size))
            if (value := out.get(self.value_key)) is None:
                raise RuntimeError(f"qvalue_network must write {self.value_key!r}, got out_keys {critic.out_keys}.")
            values.append(value)
        return torch.stack(values, -2) if len(values) > 1 else values[0].unsqueeze(-2)

    def reset_parameters_recursive(self) -> None:
        """Draws new initial weights for each critic, by the ``reset_parameters`` of its layers."""
        for critic in self.critics:
            critic.reset_parameters_recursive()  # pyright: ignore[reportCallIssue]


def policy_distribution(actor: Any, entries: Mapping[NestedKey, Tensor], size: torch.Size) -> Any:
    """What ``actor.get_dist`` returns."""
    modules: Any = actor.module if isinstance(actor.module, nn.ModuleList) else [actor.module]
    *steps, last = modules
    known = type(actor) in _POLICIES and not actor.return_composite and type(last) in _LAST_STEPS
    if not known or has_hooks(last) or not all(map(takes_tensors, steps)):
        return actor.get_dist(TensorDict(dict(entries), size))
    entries = dict(entries)
    for step in steps:
        entries.update(_outputs(step, entries))
    return last.get_dist(entries)
