"""A real environment that goes on from a checkpoint in the middle of an episode."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torchrl.checkpoint import GlobalRNGState
from torchrl.envs import TransformedEnv
from torchrl.envs.transforms import Compose, Transform

from eqr_torchrl.envs._numpy_rng import numpy_generator_state, set_numpy_generator_state

_FIRST_CAPACITY = 1024  # actions; doubled whenever an episode is longer
_GENERATORS = (np.random.Generator, np.random.RandomState, torch.Generator)


class ResumableEpisode(Transform):
    """Makes an environment resumable bit for bit, whatever its simulator, if the simulator is deterministic.

    Simulators do not give their whole state away (contacts, warm starts, wrappers with counters), so none is asked for.
    Noted instead are, before each reset, the random number generators that a reset may draw from (Gymnasium's
    ``np_random``, dm_control's ``task.random``, generators that are attributes of a TorchRL environment, and the global
    ones of Python, NumPy and torch), and the actions of the episode. Putting the generators back, resetting, and taking
    the same actions again leads to the same place, and to the same resets from there on. It takes as many environment
    steps as the episode has had.

    Append it after all other transforms and before a collector is built. To resume, call :meth:`restore` and build the
    collector: its first reset returns to the interrupted episode. The global generators are left as they were, so put
    those of the run back after that.

    Not resumable in this way are environments that draw from the *global* generators in their steps, and episodes begun
    by ``env.reset(seed=...)``. Whether the episode ended where it was is checked.

    Raises:
        RuntimeError: in a reset, if other transforms follow this one, or if the environment is batched.

    Examples:
        >>> from eqr_torchrl.envs import make_env
        >>> def make():
        ...     env = make_env("Pendulum-v1", seed=0)
        ...     env.append_transform(episode := ResumableEpisode())
        ...     return env, episode
        >>> env, episode = make()
        >>> interrupted = env.rollout(20)["next", "observation"][-1]
        >>> state = episode.episode_state()
        >>> env, episode = make()
        >>> episode.restore(state)
        >>> torch.equal(env.reset()["observation"], interrupted)
        True
    """

    def __init__(self) -> None:
        super().__init__()
        self._action_keys: list[Any] = []
        self._pending: list[torch.Tensor] = []  # actions of the step that is under way
        self._actions: list[torch.Tensor] = []  # [capacity, A] for each action entry
        self._num_steps = 0
        self._rng: dict[str, Any] = {}  # as it was before the last reset
        self._last: TensorDictBase | None = None
        self._to_restore: dict[str, Any] | None = None

    def episode_state(self) -> dict[str, Any]:
        """Where the current episode is, for a checkpoint.

        Returns:
            The generators before its reset, its actions (``[T, A]`` for each action entry) and its last observations:
            tensors and plain values only.

        Raises:
            RuntimeError: if no episode has begun.
        """
        if self._last is None:
            raise RuntimeError("episode_state needs an episode: reset the environment (or build its collector) first.")
        actions = [stored[: self._num_steps].clone() for stored in self._actions]
        observations = [self._last.get(key).clone() for key in self._env().observation_keys]
        return {"rng": self._rng, "actions": actions, "num_steps": self._num_steps, "observations": observations}

    def restore(self, state: dict[str, Any]) -> None:
        """Lets the next reset of the environment return to where the episode of ``state`` was.

        Args:
            state: from :meth:`episode_state`, of an environment built in the same way.

        Warns:
            UserWarning: in that reset, if the episode does not end where it was: the simulator is not deterministic.
        """
        self._to_restore = state

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        # last transform, first inverse: this is the action as the policy gave it
        self._pending = [tensordict.get(key) for key in self._action_keys]
        return tensordict

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        if not self._actions:
            self._actions = [action.new_empty(_FIRST_CAPACITY, *action.shape) for action in self._pending]
        elif self._num_steps == len(self._actions[0]):
            self._actions = [torch.cat([stored, torch.empty_like(stored)]) for stored in self._actions]
        for stored, action in zip(self._actions, self._pending, strict=True):
            stored[self._num_steps] = action
        self._num_steps += 1
        self._last = next_tensordict
        return next_tensordict

    def _reset_env_preprocess(self, tensordict: TensorDictBase | None) -> TensorDictBase | None:  # pyright: ignore
        base = self._env().base_env
        if self._to_restore is None:
            self._rng = _generator_states(base)
        else:
            self._rng = self._to_restore["rng"]
            self._to_restore = {"global_now": GlobalRNGState().state_dict()} | self._to_restore
            _set_generators(base, self._rng)
        return tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        env = self._env()
        self._action_keys, self._num_steps, self._last = list(env.action_keys), 0, tensordict_reset
        if self._to_restore is None:
            return tensordict_reset
        state, self._to_restore = self._to_restore, None
        try:
            return self._replay(env, state, tensordict_reset)
        finally:
            GlobalRNGState().load_state_dict(state["global_now"])

    def _replay(self, env: TransformedEnv, state: dict[str, Any], tensordict: TensorDictBase) -> TensorDictBase:
        # through the whole environment: counters in earlier transforms go on too, and this one notes the actions again
        reset_keys = list(tensordict.keys(include_nested=True, leaves_only=True))
        for t in range(state["num_steps"]):
            for key, actions in zip(self._action_keys, state["actions"], strict=True):
                tensordict.set(key, actions[t].to(tensordict.device or actions.device))
            tensordict = env.step_mdp(env.step(tensordict))
        found = [tensordict.get(key) for key in env.observation_keys]
        pairs = list(zip(found, state["observations"], strict=True))
        if not all(torch.equal(new.cpu().nan_to_num(), old.cpu().nan_to_num()) for new, old in pairs):
            error = max((new.cpu() - old.cpu()).abs().max().item() for new, old in pairs)
            warnings.warn(
                f"the simulator did not repeat its episode: after {state['num_steps']} steps an observation is off by "
                f"{error:.1e}; the run goes on, but not bit for bit.",
                stacklevel=2,
            )
        return tensordict.select(*reset_keys)  # without the action: a collector would not see that its policy writes it

    def _env(self) -> TransformedEnv:
        env = self.container
        if not isinstance(env, TransformedEnv):
            raise RuntimeError("ResumableEpisode must be a transform of a TransformedEnv: append it to one.")
        last = env.transform[-1] if isinstance(env.transform, Compose) else env.transform
        if last is not self:
            raise RuntimeError(f"ResumableEpisode must be the last transform: {type(last).__name__} follows it.")
        if env.batch_size:
            raise RuntimeError(
                f"ResumableEpisode needs an unbatched environment: got batch size {tuple(env.batch_size)}."
            )
        return env


def _generators(env: Any) -> dict[str, Any]:
    """The generators that belong to an environment, by owner and attribute."""
    simulator = getattr(getattr(env, "_env", None), "unwrapped", getattr(env, "_env", None))
    getattr(simulator, "np_random", None)  # Gymnasium makes its generator when it is first asked for it
    owners = {"env": env, "simulator": simulator, "task": getattr(simulator, "task", None)}
    found = {f"{owner}.{name}": value for owner in owners for name, value in _attributes(owners[owner])}
    return {name: value for name, value in found.items() if isinstance(value, _GENERATORS)}


def _attributes(owner: Any) -> list[tuple[str, Any]]:
    return sorted(getattr(owner, "__dict__", {}).items())


def _generator_states(env: Any) -> dict[str, Any]:
    own = {
        name: generator.get_state() if isinstance(generator, torch.Generator) else numpy_generator_state(generator)
        for name, generator in _generators(env).items()
    }
    return {"own": own, "global": GlobalRNGState().state_dict()}


def _set_generators(env: Any, state: dict[str, Any]) -> None:
    GlobalRNGState().load_state_dict(state["global"])
    generators = _generators(env)
    if generators.keys() != state["own"].keys():
        raise RuntimeError(
            f"the environment must have the random generators of the saved one, {sorted(state['own'])}: "
            f"it has {sorted(generators)}."
        )
    for name, generator in generators.items():
        if isinstance(generator, torch.Generator):
            generator.set_state(state["own"][name])
        else:
            set_numpy_generator_state(generator, state["own"][name])
