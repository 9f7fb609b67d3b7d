"""Supported spaces: vectors of numbers, and finite boxes of actions. Others are reported in one sentence."""

from __future__ import annotations

import textwrap
from typing import Any

import torch
from torch import Tensor
from torchrl.data import TensorSpec
from torchrl.envs import EnvBase


def check_gym_spaces(env: Any, name: str) -> None:
    """Rejects spaces before any wrapper allocates for them: images, dictionaries, discrete actions."""
    from gymnasium.spaces import Box

    seen, act = env.observation_space, env.action_space
    if not isinstance(seen, Box) or len(seen.shape) > 1:
        found = f"shape {seen.shape} of {seen.dtype}" if isinstance(seen, Box) else textwrap.shorten(str(seen), 300)
        advice = "images are not supported, other spaces may fit in gymnasium.wrappers.FlattenObservation"
        raise ValueError(f"{name}: observation must be a vector (Box): got {found}; {advice}.")
    if not isinstance(act, Box) or act.dtype.kind != "f":
        raise ValueError(f"{name}: action must be a Box of floats: got {act}; discrete actions are not supported.")


def check_specs(env: EnvBase, name: str) -> None:
    """Checks a TorchRL environment; raises ValueError with one sentence."""
    vector = len(env.batch_size) + 1  # dimensions
    for key, spec in observation_leaves(env).items():
        # a matrix of floats is an observation of several bodies, as in the manipulation tasks of DeepMind Control
        if not vector <= len(spec.shape) <= vector + spec.dtype.is_floating_point or not spec.shape[-1]:
            got = f"got shape {tuple(spec.shape)} of {spec.dtype}; images are not supported"
            raise ValueError(f"{name}: observation entry {key!r} must be a vector: {got}.")
    if env.action_keys != ["action"] or env.reward_keys != ["reward"]:
        got = f"got {env.action_keys} and {env.reward_keys}; rename them with TorchRL's RenameTransform"
        raise ValueError(f"{name}: needs one entry named 'action' and one named 'reward': {got}.")
    action: Any = env.full_action_spec["action"]
    if len(action.shape) != vector or not action.dtype.is_floating_point:
        got = f"got shape {tuple(action.shape)} of {action.dtype}; discrete actions are not supported"
        raise ValueError(f"{name}: action must be a vector of floats: {got}.")
    low, high = stated(action.space.low), stated(action.space.high)
    if not (low.isfinite() & high.isfinite() & (low < high)).all():
        got = f"got low={low.tolist()}, high={high.tolist()}"
        raise ValueError(f"{name}: action bounds must be finite, with low < high in every entry: {got}.")


def observation_leaves(env: EnvBase) -> dict[Any, TensorSpec]:
    """The entry ``observation`` if there is one, otherwise all entries."""
    leaves: dict[Any, Any] = dict(env.observation_spec.items(True, True))
    return {"observation": leaves["observation"]} if "observation" in leaves else leaves


def stated(bounds: Tensor) -> Tensor:
    """Bounds of a spec, infinite where they are the limits of the data type, as of unbounded ones."""
    return torch.where(bounds.abs() < torch.finfo(bounds.dtype).max, bounds, bounds.sign() * torch.inf)
