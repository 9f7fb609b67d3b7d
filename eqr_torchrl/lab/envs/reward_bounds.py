"""The range in which the rewards of an environment are known to lie."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.data import Bounded
from torchrl.envs import DMControlWrapper, EnvBase, GymWrapper, TransformedEnv
from torchrl.envs.transforms import Compose, RewardClipping, RewardScaling, Transform

from eqr_torchrl.lab.envs._layers import layers, may_change, simulator_env
from eqr_torchrl.lab.envs._spaces import stated
from eqr_torchrl.lab.envs.transforms import ActionCost


def _pendulum(simulator: Any) -> tuple[float, float]:
    # angle^2 + 0.1 velocity^2 + 0.001 torque^2, with the angle in [-pi, pi] and the others clipped
    worst = math.pi**2 + 0.1 * simulator.max_speed**2 + 0.001 * simulator.max_torque**2
    return -worst, 0.0


_FACTS: dict[str, Callable[[Any], tuple[float, float]]] = {  # by Gymnasium id
    "Pendulum-v1": _pendulum,
    "MountainCarContinuous-v0": lambda simulator: (-0.1, 100.0),  # fuel 0.1 a^2 with |a| <= 1; 100 at the goal
    **dict.fromkeys(("InvertedPendulum-v4", "InvertedPendulum-v5"), lambda simulator: (0.0, 1.0)),
}


def reward_bounds(env: EnvBase) -> tuple[float, float] | None:
    """Smallest and largest reward of a single step, if they are known.

    Known are the rewards of all tasks of the DeepMind Control suite except ``lqr`` (they lie in [0, 1], `Tassa et al.
    (2018) <https://arxiv.org/abs/1801.00690>`_), of Pendulum-v1, MountainCarContinuous-v0 and InvertedPendulum, and
    those of an environment that states them: a Gymnasium environment with an attribute ``reward_space`` (a ``Box``), or
    a TorchRL environment with a bounded ``reward_spec``. ``reward_scale``, :class:`~eqr_torchrl.lab.envs.ActionCost`,
    ``RewardScaling``, ``RewardClipping`` and TorchRL's ``frame_skip``, which adds rewards up, are taken into account.

    Args:
        env: an environment; it is neither reset nor stepped.

    Returns:
        Lower and upper bound, in units of the rewards that ``env`` returns. ``None`` if they are unknown, or if any
        other transform writes the reward or does not state what it writes.

    Examples:
        >>> from eqr_torchrl.lab.envs import make_env
        >>> reward_bounds(make_env("dmc/pendulum-swingup", reward_scale=0.5))
        (0.0, 0.5)
        >>> reward_bounds(make_env("MountainCarContinuous-v0", reward_scale=0.01, action_cost=0.1))
        (-0.002..., 1.0)
        >>> reward_bounds(make_env("Hopper-v5")) is None
        True
    """
    bounds = _bounds(env)  # [2]
    return (bounds[0].item(), bounds[1].item()) if bounds.isfinite().all() else None


def _bounds(env: EnvBase) -> Tensor:
    if isinstance(env, TransformedEnv):
        return _after(env.transform, _bounds(env.base_env), env.base_env)
    simulator: Any = simulator_env(env)  # one of several identical ones
    if simulator is not env:
        return _bounds(vars(env)["template"])
    low, high = _of_one_step(env)
    most = getattr(env, "frame_skip", 1)  # steps whose rewards are added up; an end leaves fewer
    return torch.stack([torch.minimum(low, most * low), torch.maximum(high, most * high)])


def _of_one_step(env: Any) -> Tensor:
    """Bounds of one step of the simulator, without ``frame_skip``."""
    if isinstance(env, DMControlWrapper):
        task = type(getattr(env._env, "task", None)).__module__
        if task.startswith("dm_control.suite.") and not task.endswith(".lqr"):
            return torch.tensor([0.0, 1.0])
    if isinstance(env, GymWrapper) and not any(may_change(layer, "reward") for layer in layers(env)):
        fact = _FACTS.get(getattr(env._env.spec, "id", ""))
        if fact is not None:
            return torch.tensor(fact(env._env.unwrapped))
    spec = env.full_reward_spec["reward"]
    if not isinstance(spec, Bounded):
        return torch.tensor([-torch.inf, torch.inf])
    box: Any = spec.space
    return stated(torch.stack([box.low.min(), box.high.max()]).to("cpu", torch.float32))


def _after(transform: Transform, bounds: Tensor, base: EnvBase) -> Tensor:
    if isinstance(transform, Compose):
        return functools.reduce(lambda bounds, part: _after(part, bounds, base), transform, bounds)
    if isinstance(transform, ActionCost):
        box: Any = base.full_action_spec["action"].space
        ends = torch.stack([box.low, box.high]).to("cpu", torch.float32)  # [2, *B, A]
        least = torch.where(ends.prod(0) > 0, ends.square().amin(0), 0.0).sum(-1).min()
        return bounds - transform.cost * torch.stack([ends.square().amax(0).sum(-1).max(), least])
    if isinstance(transform, (RewardScaling, RewardClipping)):
        device = next(transform.buffers()).device
        return transform(TensorDict({"reward": bounds.to(device)}))["reward"].cpu()
    return torch.tensor([-torch.inf, torch.inf]) if may_change(transform, "reward") else bounds
