"""A gantry crane, from whose logs benchmarks/offline.py learns: a trolley carries a hanging load to a target.

The motor pushes harder than it brakes, sensors are noisy, and a bonus is paid only for standing still at the target.
Too much swing or the end of the rail stops the crane, which ends the episode and costs 20.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from torch import Tensor

TARGET, RAIL, SWING = 3.0, (-0.5, 4.0), 0.5  # m, m, rad
FORCE = (-6.0, 10.0)  # N
NOISE = np.array([0.005, 0.02, 0.003, 0.02])  # standard deviations: m, m/s, rad, rad/s
TROLLEY, LOAD, ROPE, GRAVITY = 2.0, 1.0, 1.0, 9.81  # kg, kg, m, m/s^2
FRICTION, DAMPING = 0.5, 0.1  # of the rail, N s/m; of the swing, 1/s
DT, SUBSTEPS = 0.1, 5  # s
STEPS = 100
DITHER = 3.0  # N, standard deviation of what the operator adds in dithered_pd
_OPERATOR = np.random.default_rng(0)


class Crane(gymnasium.Env):
    """Observations are noisy position and speed of the trolley, angle and angular speed of the load."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = gymnasium.spaces.Box(np.float32(FORCE[0]), np.float32(FORCE[1]), (1,))

    def _observe(self) -> np.ndarray:
        return (self._state + NOISE * self.np_random.standard_normal(4)).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._steps = 0
        self._state = np.array([self.np_random.uniform(0, 0.5), 0.0, self.np_random.uniform(-0.05, 0.05), 0.0])
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        force = float(np.clip(action[0], *FORCE))
        x, v, angle, turn = self._state
        h = DT / SUBSTEPS
        for _ in range(SUBSTEPS):  # the equations of a cart with a hanging pendulum, semi-implicit Euler
            sine, cosine = np.sin(angle), np.cos(angle)
            pull = LOAD * sine * (ROPE * turn**2 + GRAVITY * cosine)
            push = (force - FRICTION * v + pull) / (TROLLEY + LOAD * sine**2)
            v += h * push
            turn += h * (-(push * cosine + GRAVITY * sine) / ROPE - DAMPING * turn)
            x, angle = x + h * v, angle + h * turn
        self._state = np.array([x, v, angle, turn])
        self._steps += 1
        stopped = bool(abs(angle) > SWING or not RAIL[0] < x < RAIL[1])
        at_rest = abs(x - TARGET) < 0.1 and abs(v) < 0.15 and abs(angle) < 0.08
        reward = float(at_rest) - 0.05 * abs(x - TARGET) - 0.0005 * force**2 - 20.0 * stopped
        return self._observe(), float(reward), stopped, self._steps == STEPS and not stopped, {"stopped": stopped}


def crane_stops(next_observation: Tensor, action: Tensor) -> Tensor:
    """The safety rule, of observations: ``termination_fn=crane:crane_stops``."""
    x, angle = next_observation[..., :1], next_observation[..., 2:3]
    return (angle.abs() > SWING) | (x < RAIL[0]) | (x > RAIL[1])


def pd_policy(observation: np.ndarray) -> np.ndarray:
    """The crane's own controller: the distance to the target, cut at 1 m, against speed and swing."""
    x, v, angle, turn = observation
    force = 1.5 * (1.2 * np.clip(TARGET - x, -1, 1) - 2.2 * v + 4.0 * angle + 0.5 * turn)
    return np.clip(np.array([force], np.float32), *FORCE)


def dithered_pd(observation: np.ndarray) -> np.ndarray:
    """The same while an operator disturbs it, which the log needs: seeded once for a process."""
    return np.clip(pd_policy(observation) + np.float32(DITHER * _OPERATOR.standard_normal()), *FORCE)
