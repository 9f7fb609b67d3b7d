"""Opens simulators, by name or as given, as TorchRL environments."""

from __future__ import annotations

import copy
import difflib
import inspect
import sys
import warnings
import weakref
from collections.abc import Callable
from typing import Any

from torchrl.envs import DMControlWrapper, EnvBase, GymWrapper, ParallelEnv, SerialEnv, TransformedEnv

from eqr_torchrl.imagination.terminations import name_of
from eqr_torchrl.lab.envs._layers import simulator_env
from eqr_torchrl.lab.envs._readers import DMControlReader, GymnasiumReader
from eqr_torchrl.lab.envs._spaces import check_gym_spaces
from eqr_torchrl.lab.envs.lookup import import_by_name

PAPER_DMC_TASKS: tuple[str, ...] = (
    "dmc/acrobot-swingup", "dmc/ball_in_cup-catch", "dmc/cartpole-balance_sparse", "dmc/cartpole-swingup_sparse",
    "dmc/cheetah-run", "dmc/finger-spin", "dmc/finger-turn_easy", "dmc/fish-swim", "dmc/fish-upright",
    "dmc/pendulum-swingup", "dmc/quadruped-escape", "dmc/quadruped-run", "dmc/quadruped-walk", "dmc/reacher-easy",
    "dmc/reacher-hard", "dmc/walker-run",
)  # fmt: skip
"""The 16 DeepMind Control tasks of the paper's score table, as names for :func:`~eqr_torchrl.lab.envs.make_env`."""

_OPENED: weakref.WeakValueDictionary[str, EnvBase] = weakref.WeakValueDictionary()  # the last of each class


def open_simulator(env: Any, max_episode_steps: int | None, arguments: dict[str, Any]) -> tuple[EnvBase, str]:
    """Returns the environment and its name.

    What comes from a name, a Gymnasium environment or a function has the time limit; a TorchRL environment does not.
    """
    if isinstance(env, str):
        if env.startswith("dmc/"):
            return _open_dmc(env, max_episode_steps, arguments), env
        name = env.removeprefix("gym/")
        env = import_by_name(name, None) if ":" in name else None  # "package.module:MyEnv"
        if env is None:  # an id, perhaps one that "package.module:" registers
            return _open_gym(name, max_episode_steps, arguments), name
        if isinstance(env, EnvBase) or not callable(env):
            raise ValueError(
                f"{name!r} must name a class or a function that builds an environment, since training and evaluation "
                f"need one each: it names an object of type {type(env).__name__}."
            )
    if callable(env) and not isinstance(env, EnvBase):
        env, arguments = _build(env, arguments), {}
    gymnasium: Any = sys.modules.get("gymnasium")  # imported already if env comes from it
    is_gym = gymnasium and isinstance(env, gymnasium.Env)
    if not is_gym and not isinstance(env, EnvBase):
        raise ValueError(f"name must be a name, a gymnasium.Env, a TorchRL environment, or return one: got {env!r}.")
    if arguments:
        raise ValueError(f"an environment that is already built takes no arguments: got {', '.join(arguments)}.")
    if isinstance(env, EnvBase):
        _check_limit(env, max_episode_steps)
        return env, _name_of(env)
    name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
    if max_episode_steps is not None:
        env = gymnasium.wrappers.TimeLimit(_without_time_limit(env), max_episode_steps)
    return _read(env, name), name


def _build(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    name = name_of(function)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # compiled code need not state one
        return function(**arguments)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        words = "pass them to make_env, to eqr-check as KEY=..., or to a script as +env.KEY=..."
        raise ValueError(f"{name}: {error}; it takes {signature}: {words}.") from error
    try:
        return function(**arguments)
    except Exception as error:
        if _OPENED.get(name) is None or _OPENED[name].is_closed:
            raise
        line = next(iter(str(error).splitlines()), "")
        raise RuntimeError(
            f"a second {name} could not be opened ({type(error).__name__}: {line}) while one is open: evaluations need "
            "one of their own (on a command line, eval_every=null trains without)."
        ) from error


def _read(env: Any, name: str) -> GymnasiumReader:
    check_gym_spaces(env, name)
    signature = inspect.signature(env.unwrapped.reset)
    try:
        signature.bind(seed=0, options=None)
    except TypeError:
        needed = "reset must take (seed=None, options=None) by keyword, as in Gymnasium"
        raise ValueError(f"{name}: {needed}: got reset{signature}.") from None
    reader = GymnasiumReader(env)
    _OPENED[type(env.unwrapped).__name__] = reader
    # TorchRL keeps the error of its failed import of the old gym: without this, every frame that led here as well
    error = getattr(sys.modules.get("torchrl.envs.libs.utils"), "IMPORT_ERROR", None)
    if error is not None:
        error.__traceback__ = None
    return reader


def _without_time_limit(env: Any) -> Any:
    """Wrappers around a limit are copied: the caller's object keeps its own limit."""
    import gymnasium

    if isinstance(env, gymnasium.wrappers.TimeLimit):
        return _without_time_limit(env.env)
    if isinstance(env, gymnasium.Wrapper):
        inner = _without_time_limit(env.env)
        if inner is not env.env:
            env = copy.copy(env)
            env.env = inner
    return env


def _check_limit(env: EnvBase, max_episode_steps: int | None) -> None:
    """A TorchRL environment keeps its own time limit, so a higher one would have no effect."""
    env, own = simulator_env(env), None
    if isinstance(env, GymWrapper):
        own = getattr(env._env.spec, "max_episode_steps", None)
    elif isinstance(env, DMControlWrapper):
        own = getattr(env._env, "_step_limit", None)  # dm_control publishes neither it nor the time limit
    if own is not None and max_episode_steps is not None and max_episode_steps > own:
        raise ValueError(
            f"max_episode_steps must be at most {own:.0f}, the limit of the TorchRL environment: got "
            f"{max_episode_steps}; the name of an environment or its simulator takes a longer one."
        )


def _name_of(env: EnvBase) -> str:
    while isinstance(env, TransformedEnv):
        if "env_name" in vars(env):  # set by make_env
            return str(vars(env)["env_name"])
        env = env.base_env
    if isinstance(env, (SerialEnv, ParallelEnv)):  # asking these for an attribute would start them
        return type(env).__name__
    name, task = getattr(env, "env_name", None), getattr(env, "task_name", None)
    return f"dmc/{name}-{task}" if name and task else str(name or type(env).__name__)


def _close(name: str, valid: list[str]) -> str:
    close = difflib.get_close_matches(name, valid, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"valid are, for example, {', '.join(valid[:3])}."


def _open_gym(name: str, max_episode_steps: int | None, arguments: dict[str, Any]) -> EnvBase:
    try:
        import gymnasium
    except ImportError as error:
        raise ImportError(f"{name} needs Gymnasium: pip install 'eqr_torchrl[gym]'.") from error
    module, _, wanted = name.rpartition(":")
    if not module and name not in gymnasium.registry:
        raise ValueError(f"unknown environment {name!r}: {_close(name, [*gymnasium.registry, *PAPER_DMC_TASKS])}")
    if max_episode_steps is not None:
        arguments = {**arguments, "max_episode_steps": max_episode_steps}
    try:
        env = gymnasium.make(name, disable_env_checker=True, **arguments)
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        extra = "MuJoCo tasks need pip install 'eqr_torchrl[gym-mujoco]'"
        raise ImportError(f"{name} cannot be opened here: {error} ({extra}).") from error
    except gymnasium.error.UnregisteredEnv as error:
        valid = [key for key, value in vars(sys.modules[module]).items() if callable(value) and not key.startswith("_")]
        needed = f"{module} neither has nor registers an environment {wanted!r}"
        raise ValueError(f"{needed}: {_close(wanted, valid)}") from error
    except TypeError as error:
        raise ValueError(f"{name} cannot be built with arguments ({', '.join(arguments)}): {error}.") from error
    return _read(env, name)


def _open_dmc(name: str, max_episode_steps: int | None, arguments: dict[str, Any]) -> EnvBase:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # without a display the suite's import warns about GLFW
            from dm_control import suite
    except ImportError as error:
        raise ImportError(f"{name} needs the DeepMind Control suite: pip install 'eqr_torchrl[dmc]'.") from error
    domain, _, task = name.removeprefix("dmc/").partition("-")
    if (domain, task) not in suite.ALL_TASKS:
        raise ValueError(f"unknown task {name!r}: {_close(name, [f'dmc/{d}-{t}' for d, t in suite.ALL_TASKS])}")
    try:
        raw = suite.load(domain, task, task_kwargs=dict(arguments))
        if max_episode_steps is not None:
            # the suite counts seconds; half a step less than the limit is safe from rounding
            seconds = (max_episode_steps - 0.5) * raw.control_timestep()
            raw = suite.load(domain, task, task_kwargs={**arguments, "time_limit": seconds})
    except TypeError as error:
        raise ValueError(f"{name} does not take {', '.join(arguments)}: {error}.") from error
    if (domain, task) == ("quadruped", "escape"):
        _render_only_on_request(raw)
    return DMControlReader(raw)


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
