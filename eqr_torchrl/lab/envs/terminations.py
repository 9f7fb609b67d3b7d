"""Termination of an episode as a function of predicted states: the world model cannot ask a simulator.

Every function here has the type :data:`~eqr_torchrl.imagination.TerminationFn`; it may get ``None`` as action.
Ranges of heights are in metres, those of angles in radians. A NaN in an entry that a rule reads counts as termination.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torchrl.envs import EnvBase

from eqr_torchrl.imagination.terminations import TerminationFn, never_terminates
from eqr_torchrl.lab.envs._layers import layers, may_change, simulator_env
from eqr_torchrl.lab.envs.lookup import import_by_name

_Range = tuple[float, float]
_INF = float("inf")


def mountain_car_terminates(
    next_observation: Tensor, action: Tensor | None = None, *, goal_position: float = 0.45, goal_velocity: float = 0.0
) -> Tensor:
    r"""MountainCarContinuous-v0: :math:`x \ge 0.45` and :math:`v \ge 0`. The paper's code ignored the velocity.

    Reads position and velocity, shape ``[*B, 2]``.

    Examples:
        >>> mountain_car_terminates(torch.tensor([[0.5, 0.01], [0.5, -0.01], [0.4, 0.01]])).squeeze(-1).tolist()
        [True, False, False]
    """
    position, velocity = next_observation[..., 0:1], next_observation[..., 1:2]
    return ~((position < goal_position) | (velocity < goal_velocity))


def hopper_terminates(
    next_observation: Tensor,
    action: Tensor | None = None,
    *,
    z_range: _Range = (0.7, _INF),
    angle_range: _Range = (-0.2, 0.2),
    state_range: _Range = (-100.0, 100.0),
) -> Tensor:
    """Hopper-v4 and -v5: the torso is too low or tilted, or another state entry is out of range.

    Reads height, torso angle, then the other joints and velocities, shape ``[*B, 11]``. All ranges are exclusive.

    Examples:
        >>> hopper_terminates(torch.tensor([[1.25, 0.1, 50.0], [1.25, 0.3, 50.0]])).squeeze(-1).tolist()
        [False, True]
    """
    in_range = _inside(next_observation[..., 1:], state_range).all(-1, keepdim=True)
    return walker2d_terminates(next_observation, z_range=z_range, angle_range=angle_range) | ~in_range


def walker2d_terminates(
    next_observation: Tensor,
    action: Tensor | None = None,
    *,
    z_range: _Range = (0.8, 2.0),
    angle_range: _Range = (-1.0, 1.0),
) -> Tensor:
    """Walker2d-v4 and -v5: the torso is too low, too high or tilted.

    Reads height and torso angle, the first two of ``[*B, 17]``. Both ranges are exclusive.

    Examples:
        >>> walker2d_terminates(torch.tensor([[1.25, 0.0], [1.25, 1.1]])).squeeze(-1).tolist()
        [False, True]
    """
    return ~(_inside(next_observation[..., 0:1], z_range) & _inside(next_observation[..., 1:2], angle_range))


def humanoid_terminates(
    next_observation: Tensor, action: Tensor | None = None, *, z_range: _Range = (1.0, 2.0)
) -> Tensor:
    """Humanoid-v4 and -v5: the torso is too low or too high.

    Reads the height, the first of ``[*B, S]`` (376 or 348 entries). The range is exclusive.

    Examples:
        >>> humanoid_terminates(torch.tensor([[1.4, 0.0], [0.9, 0.0]])).squeeze(-1).tolist()
        [False, True]
    """
    return ~_inside(next_observation[..., 0:1], z_range)


def ant_terminates(next_observation: Tensor, action: Tensor | None = None, *, z_range: _Range = (0.2, 1.0)) -> Tensor:
    """Ant-v4 and -v5: the torso is too low or too high, or an entry is not finite.

    Reads the height, the first of ``[*B, S]`` (27 or 105 entries). The range is inclusive.

    Examples:
        >>> ant_terminates(torch.tensor([[0.75, 0.0], [0.1, 0.0], [0.75, float("nan")]])).squeeze(-1).tolist()
        [False, True, True]
    """
    z = next_observation[..., 0:1]
    return ~((z >= z_range[0]) & (z <= z_range[1]) & torch.isfinite(next_observation).all(-1, keepdim=True))


def inverted_pendulum_terminates(next_observation: Tensor, action: Tensor | None = None) -> Tensor:
    """InvertedPendulum-v4 and -v5: the pole leans by more than 0.2 rad, or an entry is not finite.

    Reads cart position, pole angle, then velocities, shape ``[*B, 4]``.

    Examples:
        >>> inverted_pendulum_terminates(torch.tensor([[1.0, 0.1, 0.0, 0.0], [1.0, -0.3, 0.0, 0.0]])).flatten().tolist()
        [False, True]
    """
    upright = next_observation[..., 1:2].abs() <= 0.2
    return ~(upright & torch.isfinite(next_observation).all(-1, keepdim=True))


def _inside(value: Tensor, bounds: _Range) -> Tensor:
    return (value > bounds[0]) & (value < bounds[1])


_MUJOCO: dict[str, Any] = {
    "Hopper": hopper_terminates,
    "Walker2d": walker2d_terminates,
    "Humanoid": humanoid_terminates,
    "Ant": ant_terminates,
    "InvertedPendulum": inverted_pendulum_terminates,
    **dict.fromkeys(("HalfCheetah", "Swimmer", "Reacher", "Pusher", "HumanoidStandup"), never_terminates),
}
_RULES: dict[str, Any] = {f"{task}-{version}": rule for task, rule in _MUJOCO.items() for version in ("v4", "v5")}
_RULES |= {"Pendulum-v1": never_terminates, "MountainCarContinuous-v0": mountain_car_terminates}


def termination_for(env: str | EnvBase, own_rule: TerminationFn | str | None = None) -> TerminationFn:
    """Finds the termination function of a known environment, or the one that is named; never guesses one.

    Known are all tasks named ``dmc/...`` (they never terminate), Pendulum-v1, MountainCarContinuous-v0, and the MuJoCo
    tasks of Gymnasium, v4 and v5, except InvertedDoublePendulum (its flag lags behind the observation). Given an
    environment instead of a name, healthy ranges and goals set by the user are read from it.

    Args:
        env: a name as :func:`~eqr_torchrl.lab.envs.make_env` takes it, or an environment made by it.
        own_rule: a rule of the user, or its name ``"module:function"``. Defaults to ``None``: that of ``env``.

    Raises:
        ValueError: if no rule is known, or the observation may not be the environment's own: a wrapper or transform may
            change it, or positions were added to it.

    Examples:
        >>> termination_for("dmc/cheetah-run").__name__
        'never_terminates'
        >>> termination_for("MyRobot-v0")
        Traceback (most recent call last):
        ValueError: no termination rule is known for 'MyRobot-v0': pass your own termination_fn, a function from \
(next_observation [*B, S], action [*B, A]) to bool [*B, 1], or never_terminates if only a time limit ends an episode \
(on a command line, termination_fn=module:function).
    """
    if own_rule is not None:
        return import_by_name(own_rule) if isinstance(own_rule, str) else own_rule
    name = env if isinstance(env, str) else str(getattr(env, "env_name", type(env).__name__))
    name = name.removeprefix("gym/")
    if name.startswith("dmc/"):
        return never_terminates
    if name not in _RULES:
        raise ValueError(
            f"no termination rule is known for {name!r}: pass your own termination_fn, a function from "
            "(next_observation [*B, S], action [*B, A]) to bool [*B, 1], or never_terminates if only a time limit ends "
            "an episode (on a command line, termination_fn=module:function)."
        )
    rule = _RULES[name]
    if isinstance(env, str) or rule is never_terminates:
        return rule
    if (simulator := getattr(simulator_env(env), "unwrapped", None)) is None:
        return rule
    if not getattr(simulator, "_terminate_when_unhealthy", True):
        return never_terminates
    needs = "the environment's own observation, which {} may change"
    needs = next((needs.format(type(layer).__name__) for layer in layers(env) if may_change(layer, "observation")), "")
    if not getattr(simulator, "_exclude_current_positions_from_observation", True):
        needs = "exclude_current_positions_from_observation=True (the default)"
    if needs:
        raise ValueError(f"the rule of {name!r} needs {needs}: pass your own termination_fn.")
    settings = {}
    for keyword, default in (rule.__kwdefaults__ or {}).items():
        setting = getattr(simulator, keyword if hasattr(simulator, keyword) else f"_healthy_{keyword}")
        if setting != default:
            settings[keyword] = setting
    return functools.partial(rule, **settings) if settings else rule
