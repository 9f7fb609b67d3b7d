"""Small environments of a user, each with one peculiarity."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box


class Drift(gymnasium.Env):
    """Moves by the action; terminates beyond 5. All numbers float64, asymmetric action bounds, one array for ever."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float64)
    action_space = Box(np.array([-0.1, -0.3]), np.array([0.1, 0.7]), dtype=np.float64)

    def __init__(self, start: float = 0.0) -> None:
        self.start, self.state, self.actions = start, np.zeros(2), []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.state[:] = self.start + 0.01 * self.np_random.standard_normal(2)
        return self.state, {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.actions.append(action.copy())
        self.state += action
        action *= 0.0  # a rude environment: it spoils its argument
        return self.state, float(self.state.sum()), bool(self.state[1] > 5.0), False, {}


class Unseeded(Drift):
    """Takes its randomness from elsewhere."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.state[:] = np.random.standard_normal(2)  # noqa: NPY002
        return self.state, {}


class Diverging(Drift):
    """Its third step gives NaN."""

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        out = super().step(action)
        return (np.full(2, np.nan), *out[1:]) if len(self.actions) % 3 == 0 else out


class Spaces(gymnasium.Env):
    """Never runs: only its spaces matter."""

    def __init__(self, observation_space: Any = None, action_space: Any = None) -> None:
        self.observation_space = observation_space or Box(-1.0, 1.0, (3,))
        self.action_space = action_space or Box(-1.0, 1.0, (2,))


def drift_terminates(next_observation: Any, action: Any) -> Any:
    return next_observation[..., 1:2] > 5.0


class Counter(gymnasium.Env):
    """Observes (t, x, last action), pays 1 a step; without an end unless ``limit`` is given.

    ``answer`` maps what a step returns, ``first`` what a reset returns as observation; ``spaces`` replace its own.
    """

    observation_space = Box(-np.inf, np.inf, (3,))
    action_space = Box(-1.0, 1.0, (1,))

    def __init__(self, limit: float = np.inf, *, answer: Any = None, first: Any = None, **spaces: Box) -> None:
        self.limit, self.answer, self.first = limit, answer or (lambda t, step: step), first or (lambda seen: seen)
        self.times_closed = 0
        vars(self).update(spaces)

    def close(self) -> None:
        self.times_closed += 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = np.array([0.0, self.np_random.uniform(), 0.0], dtype=np.float32)
        return self.first(self.state.copy()), {}

    def step(self, action: np.ndarray) -> Any:
        self.state[0] += 1
        self.state[1:] = self.state[1] + 0.1 * float(action[0]), float(action[0])
        t = int(self.state[0])
        return self.answer(t, (self.state.copy(), 1.0, False, t >= self.limit, {}))


def answering(position: int, value: Any = None, *, only_at: int | None = None) -> Counter:
    """A counter of ten steps an episode, which have ``value`` at ``position``, in all steps or in one."""

    def answer(t: int, step: tuple) -> tuple:
        return step if only_at not in (None, t) else (*step[:position], value, *step[position + 1 :])

    return Counter(10, answer=answer)


ENV = Counter(10)


def shared() -> Counter:
    """A factory that gives everybody the same simulator."""
    return ENV
