"""Real environments by name, or the user's own, in the one form the library works on."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torchrl.envs import EnvBase, TransformedEnv
from torchrl.envs.transforms import RewardScaling, StepCounter

from eqr_torchrl.envs.transforms import ActionCost, VectorObservation

if TYPE_CHECKING:
    import gymnasium

PAPER_DMC_TASKS: tuple[str, ...] = (
    "dmc/acrobot-swingup",
    "dmc/ball_in_cup-catch",
    "dmc/cartpole-balance_sparse",
    "dmc/cartpole-swingup_sparse",
    "dmc/cheetah-run",
    "dmc/finger-spin",
    "dmc/finger-turn_easy",
    "dmc/fish-swim",
    "dmc/fish-upright",
    "dmc/pendulum-swingup",
    "dmc/quadruped-escape",
    "dmc/quadruped-run",
    "dmc/quadruped-walk",
    "dmc/reacher-easy",
    "dmc/reacher-hard",
    "dmc/walker-run",
)
"""The 16 DeepMind Control tasks of the paper's score table, as names for :func:`make_env`."""


def make_env(
    env: str | EnvBase | gymnasium.Env | Callable[[], Any],
    *,
    seed: int | None = None,
    reward_scale: float = 1.0,
    action_cost: float = 0.0,
    max_episode_steps: int | None = None,
    device: torch.device | str | None = None,
    **kwargs: Any,
) -> TransformedEnv:
    r"""Builds a real environment with a float32 observation vector, action and reward.

    The reward of each step is :math:`c\,(r - \rho \sum_i a_i^2)` with :math:`c` = ``reward_scale`` and :math:`\rho` =
    ``action_cost``, both from the studies of Luis et al. (2024), `arXiv:2308.06590
    <https://arxiv.org/abs/2308.06590>`_. The end of the time limit is ``truncated``, never ``terminated``.

    Args:
        env: ``"dmc/cheetah-run"`` (DeepMind Control, any task of the suite), a Gymnasium id such as ``"Pendulum-v1"``
            or ``"gym/Pendulum-v1"``, a :class:`gymnasium.Env` with Box spaces, a TorchRL environment, or a callable
            that returns one of these.
        seed: seed of the environment; ``None`` leaves it unseeded.
        reward_scale: factor on every reward.
        action_cost: :math:`\rho \ge 0`, in units of the environment's own reward.
        max_episode_steps: time limit in environment steps, in place of the environment's own.
        device: where observations, actions and rewards live; ``None`` leaves them on the CPU.
        **kwargs: passed on to the simulator: task arguments for ``dmc/``, :func:`gymnasium.make` arguments for ids.

    Returns:
        An environment with ``observation`` ``[S]``, ``action`` ``[A]`` in environment units and ``reward`` ``[1]``, all
        float32, and the attribute ``env_name``.

    Raises:
        ValueError: if the name is unknown, the spaces do not fit (vectors of floats, finite action bounds), or a number
            is out of range.
        ImportError: if the simulator is not installed; the message names the extra.

    Examples:
        >>> env = make_env("Pendulum-v1", seed=0)
        >>> env.rollout(3)["observation"].shape
        torch.Size([3, 3])
    """
    if not 0.0 < reward_scale < float("inf"):
        raise ValueError(f"reward_scale must be a finite number above 0: got {reward_scale}.")
    if max_episode_steps is not None and max_episode_steps < 1:
        raise ValueError(f"max_episode_steps must be at least 1: got {max_episode_steps}.")
    base, name, limit = _build(env, max_episode_steps, kwargs)
    if device is not None:
        base = base.to(device)
    out = TransformedEnv(base, VectorObservation(list(base.observation_spec.keys(True, True))))
    if action_cost:
        out.append_transform(ActionCost(action_cost))
    if reward_scale != 1.0:
        out.append_transform(RewardScaling(loc=0.0, scale=reward_scale))
    if limit is not None:
        out.append_transform(StepCounter(limit))
    out.env_name = name
    if seed is not None:
        out.set_seed(seed)
    return out


def _build(env: Any, limit: int | None, kwargs: dict[str, Any]) -> tuple[EnvBase, str, int | None]:
    import gymnasium
    from torchrl.envs import GymWrapper

    if isinstance(env, str):
        if env.startswith("dmc/"):
            return _load_dmc(env, limit, kwargs), env, None
        name = env.removeprefix("gym/")
        if limit is not None:
            kwargs = {**kwargs, "max_episode_steps": limit}
        return GymWrapper(gymnasium.make(name, disable_env_checker=True, **kwargs)), name, None
    if isinstance(env, EnvBase):
        return env, type(env).__name__, limit
    if isinstance(env, gymnasium.Env):
        if limit is not None:
            env = gymnasium.wrappers.TimeLimit(env, limit)
        return GymWrapper(env), type(env.unwrapped).__name__, None
    return _build(env(**kwargs), limit, {})


def _load_dmc(name: str, limit: int | None, kwargs: dict[str, Any]) -> EnvBase:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # without a display the suite's import warns about GLFW
            from dm_control import suite
    except ImportError as error:
        raise ImportError(f"{name} needs the DeepMind Control suite: pip install 'eqr_torchrl[dmc]'.") from error
    from torchrl.envs import DMControlWrapper

    domain, _, task = name.removeprefix("dmc/").partition("-")
    if (domain, task) not in suite.ALL_TASKS:
        valid = [f"dmc/{d}-{t}" for d, t in suite.ALL_TASKS]
        close = difflib.get_close_matches(name, valid, n=3, cutoff=0.4)
        raise ValueError(f"{name!r} is not a DeepMind Control task; close matches: {', '.join(close) or 'none'}.")
    raw = suite.load(domain, task, task_kwargs=kwargs or None)
    if (domain, task) == ("quadruped", "escape"):
        _render_only_on_request(raw)
    if limit is not None:
        raw._step_limit = limit
    return DMControlWrapper(raw)


def _render_only_on_request(raw: Any) -> None:
    """Keeps resets from opening an OpenGL context, which quadruped-escape does and a machine without display cannot."""
    task, initialize = raw.task, raw.task.initialize_episode

    def initialize_episode(physics: Any) -> None:
        physics._make_rendering_contexts = lambda: None
        try:
            initialize(physics)
        finally:
            del physics._make_rendering_contexts

    task.initialize_episode = initialize_episode
