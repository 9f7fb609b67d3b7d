"""Reads simulators as TorchRL environments of float32 vectors, and reports answers that do not fit."""

from __future__ import annotations

import math
import textwrap
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.envs import DMControlWrapper, EnvBase, GymLikeEnv, GymWrapper

from eqr_torchrl.lab.envs.reward_bounds import spec_bounds
from eqr_torchrl.lab.envs.transforms import VectorObservation

# id of a simulator: the environment that reset it last
_LAST_RESET_BY: weakref.WeakValueDictionary[int, EnvBase] = weakref.WeakValueDictionary()


class WrongAnswer(RuntimeError):
    """A simulator returned what does not fit; ``topic`` is that of the :class:`~eqr_torchrl.lab.envs.Finding`."""

    def __init__(self, topic: str, message: str) -> None:
        super().__init__(message)
        self.topic = topic


class VectorReader(GymLikeEnv):
    """Reads a simulator straight into float32 vectors: saves a quarter of a step against transforming afterwards.

    Both directions copy. A simulator may reuse its observation array, and may clip or scale its argument in place,
    without rewriting what the replay buffer holds.
    """

    _action_dtype: Any = np.float64

    def _make_specs(self, env: Any, *args: Any) -> None:
        super()._make_specs(env, *args)  # pyright: ignore[reportAbstractUsage]
        self.simulator_reward_bounds = spec_bounds(self)
        vector = VectorObservation(list(self.observation_spec.keys(True, True)))
        self._entries = vector.in_keys
        self.observation_spec = vector.transform_observation_spec(self.observation_spec)
        self.full_reward_spec = vector.transform_reward_spec(self.full_reward_spec)
        self.full_action_spec = vector.transform_action_spec(self.full_action_spec)

    def read_action(self, action: Tensor) -> np.ndarray:
        return action.detach().cpu().numpy().astype(self._action_dtype)

    def read_obs(self, observations: Any) -> dict[str, Any]:
        if isinstance(observations, Mapping):
            observations = np.concatenate([np.ravel(observations[key]) for key in self._entries])
        try:
            if observations is None:
                raise TypeError
            vector = torch.from_numpy(np.ravel(observations).astype(np.float32))
        except (TypeError, ValueError):
            message = f"the observation must be an array of numbers: got {_short(observations)}."
            raise WrongAnswer("observation", message) from None
        size = self.observation_spec["observation"].shape
        if vector.shape != size:
            message = f"the observation must have {size[0]} entries, as its space has: got {len(vector)}."
            raise WrongAnswer("observation", message)
        return {"observation": vector}

    def read_reward(self, reward: Any) -> Tensor:
        return torch.as_tensor(reward, dtype=torch.float32).reshape(1)


class GymnasiumReader(VectorReader, GymWrapper):
    def _make_specs(self, env: Any, *args: Any) -> None:
        super()._make_specs(env, *args)
        self._action_dtype = env.action_space.dtype

    def _set_seed(self, seed: int | None) -> None:
        self.reset(seed=seed)

    def _reset(self, *args: Any, **kwargs: Any) -> TensorDictBase:
        _LAST_RESET_BY[id(self._env.unwrapped)] = self
        return super()._reset(*args, **kwargs)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        if _LAST_RESET_BY.get(id(self._env.unwrapped), self) is not self:
            raise RuntimeError(
                "the simulator was reset by another environment in the middle of this episode: build one simulator for "
                "each environment (training, evaluation)."
            )
        return super()._step(tensordict)

    def read_action(self, action: Tensor) -> np.ndarray:
        return super().read_action(action).reshape(self._env.action_space.shape)

    def _reset_output_transform(self, reset_data: Any) -> tuple[Any, ...]:
        return _parts("reset", reset_data, "observation, info")

    def _output_transform(self, step_outputs_tuple: Any) -> tuple[Any, ...]:
        names = "observation, reward, terminated, truncated, info"
        observation, reward, terminated, truncated, info = _parts("step", step_outputs_tuple, names)
        reward = _scalar("reward", reward, float)
        terminated, truncated = _scalar("terminated", terminated, bool), _scalar("truncated", truncated, bool)
        return observation, reward, terminated, truncated, terminated or truncated, info


class DMControlReader(VectorReader, DMControlWrapper):
    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        from dm_control.rl.control import PhysicsError

        try:
            return super()._step(tensordict)
        except PhysicsError:  # diverged: NonFiniteGuard sees the NaNs and cuts the episode
            observation, yes = torch.full(self.observation_spec["observation"].shape, math.nan), torch.ones(1).bool()
            cut = {"done": yes, "truncated": yes.clone(), "terminated": ~yes}
            return TensorDict({"observation": observation, "reward": torch.zeros(1), **cut}, [])


def _parts(method: str, value: Any, names: str) -> tuple[Any, ...]:
    if isinstance(value, tuple) and len(value) == names.count(",") + 1:
        return value
    got = f"{len(value)} values" if isinstance(value, tuple) else f"one {type(value).__name__}"
    raise RuntimeError(f"{method} must return ({names}), as in Gymnasium: got {got}.")


def _scalar(name: str, value: Any, kind: type[float] | type[bool]) -> Any:
    if type(value) is kind:  # the usual case is the fast one
        return value
    array = None if isinstance(value, (list, tuple)) else np.asarray(value)
    if array is None or array.size != 1 or array.dtype.kind not in ("biu" if kind is bool else "biuf"):
        topic = "termination" if kind is bool else name
        raise WrongAnswer(topic, f"{name} must be a single {kind.__name__}: step returned {_short(value)}.")
    return kind(array.item())


def _short(value: Any) -> str:
    return "None" if value is None else textwrap.shorten(f"{type(value).__name__} {value!r}", 80, placeholder="...")
