"""Supported spaces: vectors of numbers, and finite boxes of actions. Others are reported in one sentence."""

from __future__ import annotations

from typing import Any

import torch
from torchrl.data import Composite, TensorSpec
from torchrl.envs import EnvBase


def check_gym_spaces(env: Any, name: str) -> None:
    """Rejects spaces before any wrapper allocates for them: images, dictionaries, discrete actions."""
    from gymnasium import spaces

    seen, act = env.observation_space, env.action_space
    if isinstance(seen, spaces.Dict):
        entries = ", ".join(f"{key} {value.shape}" for key, value in seen.spaces.items())
        raise ValueError(
            f"{name}: observation must be a vector (Box): got a Dict of {entries}; wrap the environment in "
            "gymnasium.wrappers.FlattenObservation."
        )
    if not isinstance(seen, spaces.Box):
        raise ValueError(f"{name}: observation must be a vector (Box): got {seen}.")
    if len(seen.shape) > 1:
        advice = (
            "images are not supported, use a state vector"
            if len(seen.shape) == 3 or seen.dtype == "uint8"
            else "wrap the environment in gymnasium.wrappers.FlattenObservation"
        )
        raise ValueError(f"{name}: observation must be a vector: got shape {seen.shape} of {seen.dtype}; {advice}.")
    if not isinstance(act, spaces.Box) or act.dtype.kind != "f":
        raise ValueError(f"{name}: action must be a Box of floats: got {act}; discrete actions are not supported.")


def check_specs(env: EnvBase, name: str) -> None:
    """Checks a TorchRL environment; raises ValueError with one sentence."""
    batch_dims = len(env.batch_size)
    for key, spec in observation_leaves(env).items():
        if len(spec.shape) != batch_dims + 1 or not spec.shape[-1]:
            raise ValueError(
                f"{name}: observation entry {key!r} must be a vector: got shape {tuple(spec.shape)} of {spec.dtype}; "
                "images are not supported."
            )
    if set(env.action_keys) != {"action"} or set(env.reward_keys) != {"reward"}:
        raise ValueError(
            f"{name}: needs one entry named 'action' and one named 'reward': got {env.action_keys} and "
            f"{env.reward_keys}; rename them with TorchRL's RenameTransform."
        )
    action = env.full_action_spec["action"]
    if len(action.shape) != batch_dims + 1 or not action.dtype.is_floating_point:
        raise ValueError(
            f"{name}: action must be a vector of floats: got shape {tuple(action.shape)} of {action.dtype}; "
            "discrete actions are not supported."
        )
    box: Any = action.space
    low, high = box.low, box.high
    # An unbounded spec states the limits of its dtype.
    limit = torch.finfo(action.dtype).max
    if not bool(((low > -limit) & (high < limit) & (low < high)).all()):
        infinite = torch.tensor(torch.inf, dtype=low.dtype, device=low.device)
        lows = torch.where(low > -limit, low, -infinite).tolist()
        highs = torch.where(high < limit, high, infinite).tolist()
        raise ValueError(
            f"{name}: action bounds must be finite, with low < high in every entry: got low={lows}, high={highs}."
        )


def observation_leaves(env: EnvBase) -> dict[Any, TensorSpec]:
    """The entry ``observation`` if there is one, otherwise all entries."""
    spec: Composite = env.observation_spec
    leaves: dict[Any, Any] = dict(spec.items(True, True))
    return {"observation": leaves["observation"]} if "observation" in leaves else leaves
