"""TorchRL's readers of simulators, with answers that do not fit reported in one sentence."""

from __future__ import annotations

import math
import textwrap
import weakref
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.envs import DMControlWrapper, EnvBase, GymWrapper

# id of a simulator: the environment that reset it last. Two that share one would mix their episodes without a sign.
_LAST_RESET_BY: weakref.WeakValueDictionary[int, EnvBase] = weakref.WeakValueDictionary()


class WrongAnswer(RuntimeError):
    """A simulator returned what does not fit; ``topic`` is that of the :class:`~eqr_torchrl.lab.envs.Finding`."""

    def __init__(self, topic: str, message: str) -> None:
        super().__init__(message)
        self.topic = topic


class GymnasiumReader(GymWrapper):
    def close(self, *, raise_if_closed: bool = True) -> None:
        if not self.is_closed:  # TorchRL would close the simulator again
            super().close(raise_if_closed=raise_if_closed)

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
        space = self._env.action_space  # a copy: a simulator may clip or scale its argument in place
        return action.detach().cpu().numpy().astype(space.dtype).reshape(space.shape)

    def _reset_output_transform(self, reset_data: Any) -> tuple[Any, ...]:
        observation, info = _parts("reset", reset_data, "observation, info")
        return self._vector(observation), info

    def _output_transform(self, step_outputs_tuple: Any) -> tuple[Any, ...]:
        names = "observation, reward, terminated, truncated, info"
        observation, reward, terminated, truncated, info = _parts("step", step_outputs_tuple, names)
        reward = _scalar("reward", reward, float)
        terminated, truncated = _scalar("terminated", terminated, bool), _scalar("truncated", truncated, bool)
        return self._vector(observation), reward, terminated, truncated, terminated or truncated, info

    def _vector(self, observation: Any) -> np.ndarray:
        try:
            if observation is None:
                raise TypeError
            vector = np.ravel(observation).astype(self._env.observation_space.dtype)
        except (TypeError, ValueError):
            message = f"the observation must be an array of numbers: got {_short(observation)}."
            raise WrongAnswer("observation", message) from None
        size = self.observation_spec["observation"].shape
        if vector.shape != size:
            message = f"the observation must have {size[0]} entries, as its space has: got {len(vector)}."
            raise WrongAnswer("observation", message)
        return vector


class DMControlReader(DMControlWrapper):
    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        from dm_control.rl.control import PhysicsError

        try:
            return super()._step(tensordict)
        except PhysicsError:  # diverged: NonFiniteGuard sees the NaNs and cuts the episode
            out: Any = TensorDict(
                {**self.observation_spec.zero(), **self.full_reward_spec.zero(), **self.full_done_spec.zero()}
            )
            out = out.apply(lambda value: value.fill_(math.nan) if value.is_floating_point() else value)
            return out.update({"done": torch.ones(1, dtype=torch.bool), "truncated": torch.ones(1, dtype=torch.bool)})


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
