"""Reads simulators as TorchRL environments of float32 vectors; answers that do not fit are reported in one sentence."""

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

from eqr_torchrl.lab.envs._spaces import observation_leaves
from eqr_torchrl.lab.envs.transforms import VectorObservation

# id of a simulator: the environment that reset it last. Two that share one would mix their episodes without a sign.
_LAST_RESET_BY: weakref.WeakValueDictionary[int, EnvBase] = weakref.WeakValueDictionary()


class InvalidSimulatorOutput(RuntimeError):
    """A simulator returned what does not fit; ``topic`` is that of the :class:`~eqr_torchrl.lab.envs.Finding`."""

    def __init__(self, topic: str, message: str) -> None:
        super().__init__(message)
        self.topic = topic


class VectorReader(GymLikeEnv):
    """Copies in both directions: a simulator may reuse its observation array, and write into its argument.

    The general way, TorchRL's encoders and a transform after them, takes about a quarter longer for a step.
    """

    def _make_specs(self, env: Any, *args: Any) -> None:
        super()._make_specs(env, *args)  # pyright: ignore[reportAbstractUsage]
        vector = VectorObservation(list(observation_leaves(self)))
        self._entries = vector.in_keys
        self.observation_spec = vector.transform_observation_spec(self.observation_spec)
        self.full_action_spec = vector.transform_action_spec(self.full_action_spec)
        self.full_reward_spec = self.full_reward_spec.to(torch.float32)  # its bounds are stated ones

    def read_obs(self, observations: Any) -> dict[str, Any]:
        if isinstance(observations, Mapping):
            observations = np.concatenate([np.ravel(observations[key]) for key in self._entries])
        try:
            if observations is None:
                raise TypeError
            vector = torch.from_numpy(np.ravel(observations).astype(np.float32))
        except (TypeError, ValueError):
            message = f"the observation must be an array of numbers: got {_short(observations)}."
            raise InvalidSimulatorOutput("observation", message) from None
        size = self.observation_spec["observation"].shape
        if vector.shape != size:
            message = f"the observation must have {size[0]} entries, as its space has: got {len(vector)}."
            raise InvalidSimulatorOutput("observation", message)
        return {"observation": vector}

    def _after(self, observation: Any, reward: float, terminated: bool, truncated: bool) -> TensorDictBase:
        entries = self.read_obs(observation)
        entries["reward"] = torch.tensor([reward], dtype=torch.float32)
        flags = {"terminated": terminated, "truncated": truncated, "done": terminated or truncated}
        return TensorDict({**entries, **{key: torch.tensor([flag]) for key, flag in flags.items()}})


class GymnasiumReader(VectorReader, GymWrapper):
    def close(self, *, raise_if_closed: bool = True) -> None:
        if not self.is_closed:  # TorchRL would close the simulator again
            super().close(raise_if_closed=raise_if_closed)

    def _set_seed(self, seed: int | None) -> None:
        self.reset(seed=seed)

    def _reset(self, *args: Any, **kwargs: Any) -> TensorDictBase:
        _LAST_RESET_BY[id(self._env.unwrapped)] = self
        return super()._reset(*args, **kwargs)

    def _reset_output_transform(self, reset_data: Any) -> tuple[Any, ...]:
        return _parts("reset", reset_data, "observation, info")

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        if _LAST_RESET_BY.get(id(self._env.unwrapped), self) is not self:
            raise RuntimeError(
                "the simulator was reset by another environment in the middle of this episode: build one simulator for "
                "each environment (training, evaluation)."
            )
        space, action = self._env.action_space, tensordict.get("action")
        answer = self._env.step(_copied(action, space.dtype).reshape(space.shape))
        names = "observation, reward, terminated, truncated, info"
        observation, reward, terminated, truncated, _ = _parts("step", answer, names)
        reward = _scalar("reward", reward, float)
        terminated, truncated = _scalar("terminated", terminated, bool), _scalar("truncated", truncated, bool)
        return self._after(observation, reward, terminated, truncated)


class DMControlReader(VectorReader, DMControlWrapper):
    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        from dm_control.rl.control import PhysicsError

        try:
            answer = self._env.step(_copied(tensordict.get("action"), np.float64))
        except PhysicsError:  # diverged: NonFiniteGuard sees the NaNs and truncates the episode
            size = self.observation_spec["observation"].shape
            return self._after(np.full(size, math.nan), 0.0, terminated=False, truncated=True)
        ended = answer.last()
        truncated = ended and answer.discount == 1.0  # what follows the time limit counts
        return self._after(answer.observation, answer.reward, ended and not truncated, truncated)


def _copied(action: Tensor, dtype: Any) -> np.ndarray:
    return action.detach().cpu().numpy().astype(dtype)


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
        raise InvalidSimulatorOutput(topic, f"{name} must be a single {kind.__name__}: step returned {_short(value)}.")
    return kind(array.item())


def _short(value: Any) -> str:
    return "None" if value is None else textwrap.shorten(f"{type(value).__name__} {value!r}", 80, placeholder="...")
