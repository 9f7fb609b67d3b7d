"""Calls what a user passes, a function or a world model, and reports in one sentence what is wrong with its answer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from eqr_torchrl.world_models import WorldModel

_Function = Callable[..., Any]


def name_of(function: Any) -> str:
    """The name in the user's code; of a :func:`functools.partial` or compiled function, that of the function inside."""
    inner = getattr(function, "func", function)
    return getattr(inner, "__name__", None) or type(inner).__name__


def checked(role: Literal["termination_fn", "reward_fn"], function: _Function, *arguments: Tensor) -> Tensor:
    """Terminations (bool) or rewards (floating point) ``[*B, 1]`` for arguments ``[*B, .]``; ValueError if not."""
    shape = (*arguments[0].shape[:-1], 1)
    terminates = role == "termination_fn"
    needed = f"{role} must return a {'bool' if terminates else 'float'} tensor of shape {shape}"
    result = _call(needed, function, arguments)
    right = isinstance(result, Tensor) and result.shape == shape
    if not right or not (result.dtype == torch.bool if terminates else result.is_floating_point()):
        raise ValueError(f"{needed}{_for(arguments)}: {name_of(function)} returned {_kind_of(result)}.")
    return result


def try_on_zeros(
    world_model: WorldModel, termination_fn: _Function, reward_fn: _Function | None, zeros: Tensor
) -> None:
    """Calls each once on ``zeros``, ``[M, B, A]``; raises a ValueError if it fails or its answer does not fit."""
    try:
        model = copy.deepcopy(world_model)  # so that running statistics and counters stay as they are
    except RuntimeError:  # it holds a tensor with a graph, which torch does not copy
        model = world_model
    observation = zeros.new_zeros(*zeros.shape[:2], world_model.observation_dim)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        checked("termination_fn", termination_fn, observation, zeros)
        if reward_fn is not None:
            checked("reward_fn", reward_fn, observation, zeros, observation)
        shape = (*zeros.shape[:2], world_model.noise_dim)
        needed = f"world_model must return the tuple (mean, standard deviation), each of shape {shape}"
        result = _call(needed, model, (observation, zeros))
    parts = result if isinstance(result, tuple) else [result]
    if len(parts) != 2 or any(not isinstance(part, Tensor) or part.shape != shape for part in parts):
        got = ", ".join(map(_kind_of, parts))
        raise ValueError(f"{needed}{_for((observation, zeros))}: {name_of(world_model)} returned {got}.")


def _call(needed: str, function: _Function, arguments: tuple[Tensor, ...]) -> Any:
    try:
        return function(*arguments)
    except Exception as error:  # whatever the user's code raises is the answer
        line = next(iter(str(error).splitlines()), "")
        raise ValueError(
            f"{needed}{_for(arguments)}: {name_of(function)} raised {type(error).__name__}: {line}"
        ) from error


def _for(arguments: tuple[Tensor, ...]) -> str:
    return f" for observations {tuple(arguments[0].shape)} and actions {tuple(arguments[1].shape)}"


def _kind_of(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
    return "None" if value is None else f"a {type(value).__module__}.{type(value).__name__}".replace("builtins.", "")
