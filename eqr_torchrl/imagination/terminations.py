"""Functions of the user, such as when an imagined episode ends, and checks of what they and world models return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

TerminationFn = Callable[[Tensor, Tensor], Tensor]
"""``fn(next_observation [*B, S], action [*B, A]) -> terminated [*B, 1]``, bool, in units of the environment.

Time limits are not terminations."""

RewardFn = Callable[[Tensor, Tensor, Tensor], Tensor]


def never_terminates(next_observation: Tensor, action: Tensor | None = None) -> Tensor:
    """For tasks that only a time limit ends, such as those of DeepMind Control: always ``False``.

    Examples:
        >>> never_terminates(torch.zeros(2, 5)).tolist()
        [[False], [False]]
    """
    return torch.zeros_like(next_observation[..., :1], dtype=torch.bool)


def checked(role: Literal["termination_fn", "reward_fn"], function: Callable[..., Any], *arguments: Tensor) -> Tensor:
    """Terminations (bool) or rewards (floating point) ``[*B, 1]`` for arguments ``[*B, .]``; ValueError if not."""
    kind, shape = "bool" if role == "termination_fn" else "float", (*arguments[0].shape[:-1], 1)
    inputs = f"observations {tuple(arguments[0].shape)} and actions {tuple(arguments[1].shape)}"
    needed = f"{role} must return a {kind} tensor of shape {shape} for {inputs}: {name_of(function)}"
    try:
        result = function(*arguments)
    except Exception as error:  # whatever the user's code raises is the answer
        line = next(iter(str(error).splitlines()), "")
        raise ValueError(f"{needed} raised {type(error).__name__}: {line}") from error
    right = isinstance(result, Tensor) and result.shape == shape
    if not (right and (result.dtype == torch.bool if kind == "bool" else result.is_floating_point())):
        raise ValueError(f"{needed} returned {_kind(result)}.")
    return result


def checked_prediction(world_model: Any, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation ``[M, B, D]`` that a world model predicts; ValueError if it returns anything else."""
    result = world_model(observation, action)
    shape = (*observation.shape[:2], world_model.noise_dim)
    parts = result if isinstance(result, tuple) else (result,)
    if len(parts) != 2 or any(not isinstance(part, Tensor) or part.shape != shape for part in parts):
        needed = f"world_model must return the tuple (mean, standard deviation), each of shape {shape}"
        raise ValueError(f"{needed}: {name_of(world_model)} returned {', '.join(map(_kind, parts))}.")
    return parts


def name_of(function: Any) -> str:
    """The name in the user's code; of a :func:`functools.partial` or compiled function, that of the function inside."""
    inner = getattr(function, "func", function)
    return getattr(inner, "__name__", None) or type(inner).__name__


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
    return "None" if value is None else f"a {type(value).__module__}.{type(value).__name__}".replace("builtins.", "")
