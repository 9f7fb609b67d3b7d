"""Imagined transitions, branched off real states."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor
from torchrl.data import ReplayBuffer
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, set_exploration_type

from eqr_torchrl.functional import rarity_weights
from eqr_torchrl.imagination.horizon import newest_transitions, open_loop_errors, steps_within
from eqr_torchrl.imagination.model_based import ModelBasedEnv, check_model_env
from eqr_torchrl.networks.layers import check_counts
from eqr_torchrl.world_models import WorldModel

_NEXT = tuple(("next", key) for key in ("observation", "reward", "terminated", "done"))
TRANSITION_KEYS = ("observation", "action", *_NEXT)


@torch.no_grad()
def branched_rollout(
    model_env: ModelBasedEnv,
    policy: Callable[[TensorDictBase], TensorDictBase],
    states: Tensor,
    model_buffer: ReplayBuffer,
    *,
    num_starts: int,
    horizon: int,
    keys: Sequence[NestedKey] = TRANSITION_KEYS,
    chunk_size: int = 4096,
    weights: Tensor | None = None,
    stop_fn: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> dict[str, float]:
    r"""Rolls the policy out in every member, from states drawn with replacement, into the model buffer.

    Lines 8 to 10 of Algorithm 2 of `Luis et al. (2024) <https://arxiv.org/abs/2308.06590>`_; branched rollouts are due
    to `Janner et al. (2019) <https://arxiv.org/abs/1906.08253>`_. A rollout ends with the transition that terminates.
    A transition whose prediction is not finite is dropped with the rest of its rollout. Returns the numbers of
    transitions written, ``rows``, and ``dropped`` as not finite, and the mean ``reward`` of the written ones.

    Args:
        model_env: the world model as an environment of ``M`` members.
        policy: writes ``action``; sampled, not its mode.
        states: real states, shape ``[n, S]``.
        model_buffer: where the transitions go.
        num_starts: start states of each member. In ``"resampled"`` mode the total of ``M * num_starts`` counts.
        horizon: steps of each rollout, ``T``.
        keys: what to store; also ``"member"``, int64: the member of the rollout, or ``-1`` in ``"resampled"`` mode.
        chunk_size: rollouts of each member that are simulated at once.
        weights: how often each state is drawn, relative to the others, shape ``[n]``. Defaults to uniformly.
        stop_fn: maps observations ``[M, B, S]`` and actions ``[M, B, A]`` to bool ``[M, B, 1]``: where true, the
            rollout is truncated after the transition.

    Examples:
        >>> model = GaussianEnsemble(3, 1, num_members=5, num_cells=(8,))
        >>> model_env = ModelBasedEnv(model, toy_env(), termination_fn=never_terminates)
        >>> buffer = make_model_buffer(1000)
        >>> branched_rollout(model_env, toy_actor(), torch.zeros(7, 3), buffer, num_starts=10, horizon=3)["rows"]
        150
    """
    check_model_env(model_env)
    check_counts(num_starts=num_starts, horizon=horizon, chunk_size=chunk_size)
    if states.ndim != 2 or not len(states):
        raise ValueError(f"states must be of shape [n, S] with n > 0, got {tuple(states.shape)}.")
    if weights is not None and weights.shape != states.shape[:1]:
        raise ValueError(f"weights must be of shape [n], n = {len(states)}, got {tuple(weights.shape)}.")
    num_members, device = model_env.world_model.num_members, model_env.device
    member = torch.arange(num_members, device=device)[:, None, None]
    if model_env.member == "resampled":
        member = torch.full_like(member, -1)
    rows, dropped, reward_sum = 0, 0, torch.zeros((), device=device, dtype=torch.float64)
    for begin in range(0, num_starts, chunk_size):
        size = (num_members, min(chunk_size, num_starts - begin))
        if weights is None:
            start = torch.randint(len(states), size, device=device)
        else:
            start = weights.to(device).multinomial(math.prod(size), replacement=True).view(size)
        observation = states[start.to(states.device)].to(model_env.world_model.terminal_reward)
        alive = torch.ones(size, dtype=torch.bool, device=device)
        for _ in range(horizon):
            with set_exploration_type(ExplorationType.RANDOM):
                action = policy(TensorDict({"observation": observation}, size)).get("action")
            next_observation, reward, terminated = model_env.step_rows(observation, action)
            values = (observation, action, next_observation, reward, terminated, terminated, member.expand(*size, 1))
            step: Any = TensorDict(dict(zip((*TRANSITION_KEYS, "member"), values, strict=True)), size).select(*keys)
            finite = torch.isfinite(next_observation.sum(-1) + reward.squeeze(-1))  # as each entry is; fewer passes
            stored = alive & finite
            step = step.reshape(-1) if stored.all() else step[stored]
            if len(step):
                model_buffer.extend(step)
            rows, dropped = rows + len(step), dropped + int((alive & ~finite).sum())
            reward_sum += torch.where(stored, reward.squeeze(-1), 0.0).sum()
            alive = stored & ~terminated.squeeze(-1)
            if stop_fn is not None:
                alive = alive & ~stop_fn(observation, action).squeeze(-1)
            if not alive.any():
                break
            # what has ended continues from its last state, so that predictions stay finite
            observation = torch.where(alive.unsqueeze(-1), next_observation, observation)
    return {"rows": rows, "dropped": dropped, "reward": float(reward_sum) / max(rows, 1)}


class BranchedRollouts:
    r"""The imagination of one algorithm: which rollouts fill D_model after each fit of the world model.

    One call is a round: for every rule, :func:`branched_rollout` from real states into the model buffer. A rule maps
    ``member`` to ``"fixed"`` or ``"resampled"`` (see :class:`ModelBasedEnv`) and ``starts`` to ``"per_member"`` (every
    member gets all start states) or ``"shared"`` (they are divided among the members).

    Args:
        world_model: posterior over MDPs.
        env: the real environment, whose specs are taken over. It is never stepped.
        rules: one or more rules.
        horizon: steps of each rollout, ``T``.
        starts_per_step: start states for each environment step between two rounds, ``L``.
        steps_per_round: environment steps between two rounds, ``F``.
        retained_rounds: rounds that D_model keeps.
        horizon_range: fewest and most steps of a rollout, within which :meth:`adapt_horizon` sets their number, or
            ``"auto"``, which is 1 to 25. Longer rollouts start from fewer states. Defaults to ``None``: ``horizon``.
        error_threshold: median error, in standard deviations of the observations, up to which a step counts as
            predicted well; read with a ``horizon_range``.
        rare_threshold: standard deviations of the reward beyond which states are oversampled as starts
            (:func:`~eqr_torchrl.functional.rarity_weights`). Defaults to ``None``: uniform draws.
        keys, chunk_size: see :func:`branched_rollout`.
        **options: further arguments of :class:`~eqr_torchrl.imagination.ModelBasedEnv`: ``termination_fn``, ...

    ``capacity`` is the size of D_model, ``model_env`` the imagined environment of the first rule, ``stop_fn`` that of
    :func:`branched_rollout`, which may change with a fit.

    Examples:
        >>> model = GaussianEnsemble(3, 1, num_members=5, num_cells=(8,))
        >>> sizes = {"horizon": 2, "starts_per_step": 4, "steps_per_round": 10}
        >>> BranchedRollouts(model, toy_env(), **sizes, termination_fn=never_terminates).capacity  # 2 x 5 x 40 x 10
        4000
    """

    def __init__(
        self,
        world_model: WorldModel,
        env: EnvBase,
        *,
        rules: Sequence[Mapping[str, str]] = ({"member": "fixed", "starts": "per_member"},),
        horizon: int = 5,
        starts_per_step: int = 400,
        steps_per_round: int = 250,
        retained_rounds: int = 10,
        horizon_range: Sequence[int] | Literal["auto"] | None = None,
        error_threshold: float = 0.5,
        rare_threshold: float | None = None,
        keys: Sequence[NestedKey] = TRANSITION_KEYS,
        chunk_size: int = 4096,
        **options: Any,
    ) -> None:
        counts = {"horizon": horizon, "starts_per_step": starts_per_step, "steps_per_round": steps_per_round}
        check_counts(**counts, retained_rounds=retained_rounds, chunk_size=chunk_size)
        self.keys = [key if isinstance(key, str) else tuple(key) for key in keys]
        if not rules:
            raise ValueError("rules must hold at least one rule, got none.")
        self.horizon, self.horizon_range = horizon, (1, 25) if horizon_range == "auto" else horizon_range
        if self.horizon_range is not None:
            if len(self.horizon_range) != 2 or not 1 <= self.horizon_range[0] <= self.horizon_range[1]:
                raise ValueError(f'horizon_range must be [fewest, most] steps, "auto" or None, got {horizon_range}.')
            self.horizon = min(max(horizon, self.horizon_range[0]), self.horizon_range[1])
        rare = math.inf if rare_threshold is None else rare_threshold
        for name, threshold in (("error_threshold", error_threshold), ("rare_threshold", rare)):
            if not (threshold or 0) > 0:
                raise ValueError(f"{name} must be positive, got {threshold}.")
        self.error_threshold, self.rare_threshold = error_threshold, rare_threshold
        self.steps_per_round, self.chunk_size = steps_per_round, chunk_size
        self.stop_fn: Callable[[Tensor, Tensor], Tensor] | None = None
        self.rollouts: list[tuple[ModelBasedEnv, int]] = []  # with the transitions of each member in a round
        for rule in rules:
            if set(rule) != {"member", "starts"} or rule["starts"] not in ("per_member", "shared"):
                needed = "{member: fixed|resampled, starts: per_member|shared}"
                raise ValueError(f"rules must be of the form {needed}, got {dict(rule)}.")
            model_env = ModelBasedEnv(world_model, env, member=rule["member"], **options)  # pyright: ignore
            sharing = 1 if rule["starts"] == "per_member" else world_model.num_members
            starts = max(starts_per_step * steps_per_round // sharing, 1)
            longest = self.horizon_range[1] if self.horizon_range else 1
            self.rollouts.append((model_env, max(horizon * starts, longest)))
        self.model_env = self.rollouts[0][0]
        self.capacity = sum(count for _, count in self.rollouts) * world_model.num_members * retained_rounds
        if len({model_env.member for model_env, _ in self.rollouts}) < len(self.rollouts):
            raise ValueError(f"rules must have different members, got {[dict(rule) for rule in rules]}.")
        self.num_envs = max(env.batch_size.numel(), 1)
        one = env.fake_tensordict().reshape(-1)[0].select(*TRANSITION_KEYS)  # of the first of several simulators
        self.transition: TensorDictBase = one.set("member", torch.zeros(1, dtype=torch.int64)).select(*self.keys)

    def adapt_horizon(self, replay: ReplayBuffer) -> int:
        """Sets and returns the steps of the next rollouts: with a ``horizon_range``, those that models predict well.

        Call it before a fit. The models must have been fitted to all of ``replay`` but the last ``steps_per_round``.
        """
        if self.horizon_range is not None:
            fewest, most = self.horizon_range
            scale = replay[:]["observation"].std(0, correction=0)
            newest = newest_transitions(replay, self.steps_per_round, num_envs=self.num_envs)
            errors = open_loop_errors(self.model_env.world_model, newest, longest=most, scale=scale)
            self.horizon = max(steps_within(errors, self.error_threshold), fewest)
        return self.horizon

    def __call__(
        self, policy: Callable[[TensorDictBase], TensorDictBase], data: TensorDictBase, model_buffer: ReplayBuffer
    ) -> dict[str, dict[str, float]]:
        """Fills the model buffer with one round of rollouts, from states of real transitions ``data``, size ``[n]``.

        Returns, for each rule under its ``member``, what :func:`branched_rollout` does, and the ``horizon``.
        """
        states, rare, report = data["observation"], self.rare_threshold, {}
        weights = None if rare is None else rarity_weights(data["next", "reward"], rare)
        options = {"keys": self.keys, "chunk_size": self.chunk_size, "weights": weights, "stop_fn": self.stop_fn}
        for env, count in self.rollouts:
            sizes = {"num_starts": max(count // self.horizon, 1), "horizon": self.horizon}
            written = branched_rollout(env, policy, states, model_buffer, **sizes, **options)
            report[env.member] = {**written, "horizon": self.horizon}
        return report
