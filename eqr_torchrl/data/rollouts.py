"""Imagined transitions, branched off real states."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor
from torchrl.data import ReplayBuffer
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, set_exploration_type

from eqr_torchrl.data.buffers import check_counts
from eqr_torchrl.envs.lookup import import_by_name
from eqr_torchrl.envs.model_based import ModelBasedEnv, RewardFn
from eqr_torchrl.envs.terminations import TerminationFn, termination_for
from eqr_torchrl.functional import onednn_products
from eqr_torchrl.functional.rarity import check_rare_threshold, rarity_weights
from eqr_torchrl.world_models import WorldModel

TRANSITION_KEYS = (
    "observation",
    "action",
    ("next", "observation"),
    ("next", "reward"),
    ("next", "terminated"),
    ("next", "done"),
)


@torch.no_grad()
@onednn_products()
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
) -> dict[str, float]:
    r"""Rolls the policy out in every member, from states drawn with replacement, into the model buffer.

    Lines 9 to 12 of Algorithm 2 of `Luis et al. (2024) <https://arxiv.org/abs/2308.06590>`_; branched rollouts are due
    to `Janner et al. (2019) <https://arxiv.org/abs/1906.08253>`_. A row ends with the transition that terminates.
    Transitions whose prediction is not finite are dropped with the rest of their row.

    Args:
        model_env: the world model as an environment of ``M`` members.
        policy: writes ``action``; sampled, not its mode.
        states: real states, in environment units, shape ``[n, S]``.
        model_buffer: where the transitions go.
        num_starts: start states of each member. In ``"resampled"`` mode rows do not belong to a member, and the total
            of ``M * num_starts`` rows counts.
        horizon: steps of each rollout, ``T``.
        keys: what to store. A loss that draws its own successors reads ``("observation", "action")`` alone.
            ``"member"``, int64, is available too: the member that a row stays in, or ``-1`` in ``"resampled"`` mode.
        chunk_size: rows of each member that are simulated at once, which bounds the memory.
        weights: how often each state is drawn, relative to the others, shape ``[n]``. Defaults to ``None``: uniformly.

    Returns:
        ``rows`` written, ``dropped`` rows that were not finite, and the mean ``reward`` of the written ones.

    Raises:
        ValueError: if ``states`` is empty, ``weights`` has another length, a number is not positive, or a key is
            unknown.

    Examples:
        >>> from eqr_torchrl import GaussianEnsemble, ModelBasedEnv, make_model_buffer
        >>> from eqr_torchrl.envs import never_terminates
        >>> model = GaussianEnsemble(3, 1, num_members=5, num_cells=(8,))
        >>> model_env = ModelBasedEnv(model, toy_env(), termination_fn=never_terminates)
        >>> buffer = make_model_buffer(1000)
        >>> branched_rollout(model_env, toy_actor(), torch.zeros(7, 3), buffer, num_starts=10, horizon=3)["rows"]
        150
    """
    check_counts(num_starts=num_starts, horizon=horizon, chunk_size=chunk_size)
    if states.ndim != 2 or not len(states):
        raise ValueError(f"states must be of shape [n, S] with n > 0, got {tuple(states.shape)}.")
    if weights is not None and weights.shape != states.shape[:1]:
        raise ValueError(f"weights must be of shape [n], n = {len(states)}, got {tuple(weights.shape)}.")
    _check_keys(keys)
    keys, num_members, device = list(keys), model_env.world_model.num_members, model_env.device
    fixed = model_env.member == "fixed"
    rows, dropped, reward_sum = 0, 0, torch.zeros((), device=device, dtype=torch.float64)
    for begin in range(0, num_starts, chunk_size):
        size = (num_members, min(chunk_size, num_starts - begin))
        if weights is None:
            index = torch.randint(len(states), size, device=states.device, generator=model_env.generator)
        else:
            index = weights.multinomial(math.prod(size), replacement=True, generator=model_env.generator).view(size)
        observation = states[index].to(device)
        member = torch.arange(num_members, device=device) if fixed else torch.full((num_members,), -1, device=device)
        member = member[:, None, None].expand(*size, 1)
        alive = torch.ones(size, dtype=torch.bool, device=device)
        for _ in range(horizon):
            with set_exploration_type(ExplorationType.RANDOM):
                action = policy(TensorDict({"observation": observation}, size)).get("action")
            next_observation, reward, terminated = model_env.advance(observation, action)
            values = (observation, action, next_observation, reward, terminated, terminated, member)
            step: dict[NestedKey, Tensor] = dict(zip((*TRANSITION_KEYS, "member"), values, strict=True))
            finite = torch.isfinite(next_observation.sum(-1) + reward.squeeze(-1))  # as each entry is; fewer passes
            stored = alive & finite
            transitions = TensorDict({}, size)
            for key in keys:
                transitions.set(key, step[key])
            transitions = transitions.reshape(-1) if stored.all() else transitions[stored]
            count = transitions.batch_size.numel()
            if count:
                model_buffer.extend(transitions)  # pyright: ignore[reportArgumentType]
            rows, dropped = rows + count, dropped + int((alive & ~finite).sum())
            reward_sum += torch.where(stored, reward.squeeze(-1), 0.0).sum()
            alive = stored & ~terminated.squeeze(-1)
            if not alive.any():
                break
            # rows that have ended continue from their last state, so that their predictions stay finite
            observation = torch.where(alive.unsqueeze(-1), next_observation, observation)
    return {"rows": rows, "dropped": dropped, "reward": float(reward_sum) / max(rows, 1)}


class BranchedRollouts:
    r"""The imagination of one algorithm: which rollouts fill D_model after each fit of the world model.

    One call is a round: for every rule, :func:`branched_rollout` from real states into the model buffer. A rule is a
    mapping of ``member`` (``"fixed"`` or ``"resampled"``, see :class:`~eqr_torchrl.envs.ModelBasedEnv`) and ``starts``
    (``"per_member"``: every member gets all start states; ``"shared"``: they are divided among the members).

    Args:
        world_model: posterior over MDPs.
        env: the real environment, whose specs are taken over. It is never stepped.
        rules: one or more rules.
        horizon: steps of each rollout, ``T``.
        starts_per_step: start states for each environment step between two rounds, ``L``.
        steps_per_round: environment steps between two rounds, ``F``.
        retained_rounds: rounds that D_model keeps; only :attr:`capacity` depends on it.
        rare_threshold: standard deviations of the reward beyond which rollouts start more often from a state
            (:func:`~eqr_torchrl.functional.rarity_weights`). Defaults to ``None``: draws are uniform, as published.
        stored_keys: what is stored, see :func:`branched_rollout`.
        chunk_size: rows of each member that are simulated at once.
        termination_fn: end of an episode: a function, or its name ``"module:function"``. Defaults to ``None``: the rule
            of ``env``, from :func:`~eqr_torchrl.envs.termination_for`.
        reward_fn: known rewards, a function or its name, for a world model that does not predict them.
        **options: further arguments of :class:`~eqr_torchrl.envs.ModelBasedEnv`.

    Raises:
        ValueError: if an argument is out of its range, a rule or key is unknown, or there is no termination rule.

    Examples:
        >>> from eqr_torchrl.world_models import GaussianEnsemble
        >>> model = GaussianEnsemble(3, 1, num_members=5, num_cells=(8,))
        >>> rule = "eqr_torchrl.envs:never_terminates"
        >>> BranchedRollouts(
        ...     model, toy_env(), horizon=2, starts_per_step=4, steps_per_round=10, termination_fn=rule
        ... ).capacity  # horizon x members x starts x rounds
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
        rare_threshold: float | None = None,
        stored_keys: Sequence[NestedKey] = TRANSITION_KEYS,
        chunk_size: int = 4096,
        termination_fn: TerminationFn | str | None = None,
        reward_fn: RewardFn | str | None = None,
        **options: Any,
    ) -> None:
        check_counts(horizon=horizon, starts_per_step=starts_per_step, steps_per_round=steps_per_round)
        check_counts(retained_rounds=retained_rounds, chunk_size=chunk_size)
        self.stored_keys = [key if isinstance(key, str) else tuple(key) for key in stored_keys]
        _check_keys(self.stored_keys)
        if not rules:
            raise ValueError("rules must hold at least one rule, got none.")
        self.termination_fn = _imported(termination_fn) or termination_for(env)
        self.rare_threshold = check_rare_threshold(rare_threshold)
        self.horizon, self.retained_rounds, self.chunk_size = horizon, retained_rounds, chunk_size
        self.rollouts: list[tuple[ModelBasedEnv, int]] = []
        total = starts_per_step * steps_per_round
        for rule in rules:
            if set(rule) != {"member", "starts"} or rule["starts"] not in ("per_member", "shared"):
                needed = "{member: fixed|resampled, starts: per_member|shared}"
                raise ValueError(f"rules must be of the form {needed}, got {dict(rule)}.")
            functions = {"termination_fn": self.termination_fn, "reward_fn": _imported(reward_fn)}
            model_env = ModelBasedEnv(world_model, env, member=rule["member"], **functions, **options)  # pyright: ignore
            starts = total if rule["starts"] == "per_member" else max(total // world_model.num_members, 1)
            self.rollouts.append((model_env, starts))
        if len({model_env.member for model_env, _ in self.rollouts}) < len(self.rollouts):
            raise ValueError(f"rules must have different members, got {[dict(rule) for rule in rules]}.")
        transition = env.fake_tensordict().select(*(key for key in self.stored_keys if key != "member"))
        if "member" in self.stored_keys:
            transition.set("member", torch.zeros(1, dtype=torch.int64))
        self.transition: TensorDictBase = transition

    @property
    def model_env(self) -> ModelBasedEnv:
        """The imagined environment of the first rule."""
        return self.rollouts[0][0]

    @property
    def capacity(self) -> int:
        """Transitions of the retained rounds: the size of D_model."""
        starts = sum(count for _, count in self.rollouts) * self.model_env.world_model.num_members
        return self.horizon * starts * self.retained_rounds

    def __call__(
        self,
        policy: Callable[[TensorDictBase], TensorDictBase],
        data: TensorDictBase,
        model_buffer: ReplayBuffer,
        *,
        horizon: int | None = None,
    ) -> dict[str, dict[str, float]]:
        """Fills the model buffer with one round of rollouts.

        Args:
            policy: writes ``action``; sampled, not its mode.
            data: real transitions, in environment units, batch size ``[n]``: rollouts start from ``"observation"``, and
                ``("next", "reward")`` is read with a ``rare_threshold``.
            model_buffer: where the transitions go.
            horizon: steps of each rollout of this round, from as many fewer starts; ``None`` is that of all rounds.

        Returns:
            For each rule, under the name of its member, what :func:`branched_rollout` returns.
        """
        horizon = self.horizon if horizon is None else horizon
        options: dict[str, Any] = {"horizon": horizon, "keys": self.stored_keys, "chunk_size": self.chunk_size}
        if self.rare_threshold is not None:
            options["weights"] = rarity_weights(data["next", "reward"], self.rare_threshold)
        return {
            env.member: branched_rollout(
                env,
                policy,
                data["observation"],
                model_buffer,
                num_starts=max(count * self.horizon // horizon, 1),
                **options,
            )
            for env, count in self.rollouts
        }


def _imported(function: Any) -> Any:
    return import_by_name(function) if isinstance(function, str) else function


def _check_keys(keys: Sequence[NestedKey]) -> None:
    unknown = [key for key in keys if key not in (*TRANSITION_KEYS, "member")]
    if unknown:
        raise ValueError(f"keys must be among {(*TRANSITION_KEYS, 'member')}, got {unknown}.")
