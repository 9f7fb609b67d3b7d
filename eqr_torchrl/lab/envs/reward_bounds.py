"""The range in which the rewards of an environment are known to lie."""

from __future__ import annotations

import functools
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.data import Bounded
from torchrl.envs import EnvBase, TransformedEnv
from torchrl.envs.transforms import Compose, RewardClipping, RewardScaling, Transform

from eqr_torchrl.lab.envs._spaces import stated
from eqr_torchrl.lab.envs.transforms import ActionCost, may_write


def reward_bounds(env: EnvBase) -> tuple[float, float] | None:
    """Smallest and largest reward of a single step, if they are known.

    Known are the rewards of all DeepMind Control tasks made by :func:`~eqr_torchrl.lab.envs.make_env` except
    ``dmc/lqr-...`` (they lie in [0, 1], `Tassa et al. (2018) <https://arxiv.org/abs/1801.00690>`_), and those of an
    environment that states them: a Gymnasium environment with an attribute ``reward_space`` (a ``Box``), or a TorchRL
    environment with a bounded ``reward_spec``. ``reward_scale``, :class:`~eqr_torchrl.lab.envs.ActionCost`,
    ``RewardScaling`` and ``RewardClipping`` are taken into account.

    Args:
        env: an environment; it is neither reset nor stepped.

    Returns:
        Lower and upper bound, in units of the rewards that ``env`` returns. ``None`` if they are unknown, also if any
        other transform writes the reward or does not state what it writes.

    Examples:
        >>> from eqr_torchrl.lab.envs import make_env
        >>> reward_bounds(make_env("dmc/pendulum-swingup", reward_scale=0.5))
        (0.0, 0.5)
        >>> reward_bounds(make_env("Pendulum-v1")) is None
        True
    """
    bounds = _bounds(env)  # [2]
    return (bounds[0].item(), bounds[1].item()) if bounds.isfinite().all() else None


def spec_bounds(env: EnvBase) -> Tensor:
    """What a reward spec states, shape ``[2]``; infinite where it states nothing."""
    spec = env.full_reward_spec["reward"]
    if not isinstance(spec, Bounded):
        return torch.tensor([-torch.inf, torch.inf])
    box: Any = spec.space
    return stated(torch.stack([box.low.min(), box.high.max()]).to("cpu", torch.float32))


def _bounds(env: EnvBase) -> Tensor:
    if not isinstance(env, TransformedEnv):
        return getattr(env, "simulator_reward_bounds", spec_bounds(env))  # the simulator's, where make_env opened one
    return _after(env.transform, _bounds(env.base_env), env.base_env)


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
    return torch.tensor([-torch.inf, torch.inf]) if may_write(transform, "reward") else bounds
