"""Episodes in a log: where they end, which are held out, what they return, and what a policy needs to know."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.envs import EnvBase
from torchrl.objectives.value.functional import reward2go

from eqr_torchrl.lab.envs.check_env import lengths_of
from eqr_torchrl.lab.runs import SpaceOnly


def follows(data: TensorDictBase) -> Tensor:
    """Whether each next observation is the following row's observation, up to rounding, bool ``[n - 1]``."""
    reached, following = data["next", "observation"][:-1], data["observation"][1:]
    return ((reached - following).abs() <= 1e-5 * (1 + following.abs())).all(-1)


def episode_ends(data: TensorDictBase) -> Tensor:
    """Whether an episode ends with each row of a log, bool ``[n]``.

    It does where the log says so, and where the next row does not begin at its next observation.

    Examples:
        >>> data = toy_env(max_steps=3).rollout(6, break_when_any_done=False)
        >>> data["next", "truncated"] &= False
        >>> data["next", "done"] &= False
        >>> episode_ends(data).tolist()
        [False, False, True, False, False, True]
    """
    ends = data["next", "done"].flatten().clone()
    ends[:-1] |= ~follows(data)
    ends[-1] = True
    return ends


def split_episodes(data: TensorDictBase, held_out: float = 0.2, *, seed: int = 0) -> tuple[TensorDict, TensorDict]:
    """Splits a log into training and held-out episodes, whole ones, sampled at random.

    Args:
        data: transitions in the order of the log, batch size ``[n]``.
        held_out: share of the episodes that are held out, at least one, and at most all but one.
        seed: of the draw.

    Returns:
        Training and held-out transitions, in the order of the log; each end of an episode is ``done``.

    Raises:
        ValueError: if the log has fewer than two episodes, or ``held_out`` is not between 0 and 1.

    Examples:
        >>> data = toy_env(max_steps=10).rollout(50, break_when_any_done=False)
        >>> [len(part) for part in split_episodes(data)]
        [40, 10]
    """
    ends = episode_ends(data)
    count = int(ends.sum())
    if not 0 < held_out < 1 or count < 2:
        raise ValueError(f"held_out must be between 0 and 1, of at least 2 episodes: got {held_out} of {count}.")
    data = cast(TensorDict, data.clone())
    data["next", "truncated"] |= ends[:, None] & ~data["next", "terminated"]
    data["next", "done"] |= ends[:, None]
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    chosen = torch.zeros(count, dtype=torch.bool)
    chosen[order[: min(max(round(held_out * count), 1), count - 1)]] = True
    number = ends.cumsum(0) - ends.long()  # of the episode that each row belongs to
    return cast(TensorDict, data[~chosen[number]]), cast(TensorDict, data[chosen[number]])


def episodes_of(data: TensorDictBase) -> list[TensorDict]:
    """The episodes of a log, each of batch size ``[T]``."""
    return [cast(TensorDict, part) for part in data.split(lengths_of(episode_ends(data)).tolist())]


def returns_to_go(episode: TensorDictBase, gamma: float = 1.0) -> Tensor:
    """Rewards from each step to the end of the episode, discounted, in units of reward, shape ``[T]``."""
    reward = episode["next", "reward"].view(-1, 1).double()
    done = torch.arange(len(reward)).view(-1, 1) == len(reward) - 1
    return reward2go(reward, done, gamma).flatten().float()


def spread_of_returns(data: TensorDictBase, gamma: float) -> float:
    """Standard deviation of the discounted returns to go from all steps of a log, in units of reward.

    Examples:
        >>> spread_of_returns(toy_env(max_steps=10).rollout(50, break_when_any_done=False), 0.99) > 0
        True
    """
    return float(torch.cat([returns_to_go(episode, gamma) for episode in episodes_of(data)]).std(correction=0))


def action_bounds(action: Tensor, action_low: Any, action_high: Any) -> tuple[Tensor, Tensor]:
    """The bounds that are given, else the smallest and the largest of actions ``[n, A]``, each ``[A]``."""
    bounds = []
    for name, bound, seen in (("action_low", action_low, action.amin(0)), ("action_high", action_high, action.amax(0))):
        try:
            bounds.append(seen if bound is None else torch.as_tensor(bound, dtype=torch.float32).expand_as(seen))
        except (TypeError, ValueError, RuntimeError) as error:
            needed = f"a number, or one for each of {len(seen)} entries"
            raise ValueError(f"{name} must be {needed}, got {bound!r}.") from error
    return bounds[0], bounds[1]


def check_log_fits(
    data: TensorDictBase, env: EnvBase, reward_bounds: Sequence[float] | None = None, *, capacity: float = math.inf
) -> None:
    """Raises a ValueError for a log of other sizes than an environment, with rewards outside its bounds, or too long.

    Args:
        data: transitions, batch size ``[n]``.
        env: what the log is of.
        reward_bounds: smallest and largest reward of the environment, where known.
        capacity: rows of the replay buffer that is to hold the log.

    Examples:
        >>> check_log_fits(toy_env(2).rollout(5), toy_env(3))
        Traceback (most recent call last):
        ValueError: data must have the sizes of toy, observation 3: got 2.
    """
    if len(data) > capacity:
        raise ValueError(f"replay_capacity must be at least {len(data)}, the rows of the log: got {capacity}.")
    specs = {"observation": env.observation_spec["observation"], "action": env.action_spec_unbatched}
    for name, spec in specs.items():
        if (found := data[name].shape[-1]) != (size := spec.shape[-1]):
            title = getattr(env, "env_name", type(env).__name__)
            raise ValueError(f"data must have the sizes of {title}, {name} {size}: got {found}.")
    low, high = (bound.item() for bound in data["next", "reward"].aminmax())
    slack = 1e-4 * max(abs(low), abs(high))
    if reward_bounds is not None and not reward_bounds[0] - slack <= low <= high <= reward_bounds[1] + slack:
        stated = f"{reward_bounds[0]:.4g} to {reward_bounds[1]:.4g}"
        why = "reward_scale and action_cost of the environment do not change a log"
        raise ValueError(f"data must have rewards within reward_bounds, {stated}: got {low:.4g} to {high:.4g} ({why}).")


def specs_of(
    data: TensorDictBase,
    *,
    action_low: float | Sequence[float] | None = None,
    action_high: float | Sequence[float] | None = None,
    name: str = "log",
) -> SpaceOnly:
    """The specs that networks, models and rollouts need of an environment, taken from a log instead of a simulator.

    Args:
        data: transitions, batch size ``[n]``.
        action_low: smallest action, in units of the log, one number or one for each entry. Defaults to the smallest in
            the log, so that the policy stays inside what was tried.
        action_high: largest action; defaults to the largest in the log.
        name: what the run is called.

    Raises:
        ValueError: if the bounds do not increase.

    Examples:
        >>> specs_of(toy_env().rollout(5), action_high=2.0).action_spec.space.high
        tensor([2.])
    """
    low, high = action_bounds(data["action"], action_low, action_high)
    if not (low < high).all():
        raise ValueError(f"action_low must lie below action_high, got {low.tolist()} and {high.tolist()}.")
    sizes = {"observation_size": data["observation"].shape[-1]}
    return SpaceOnly({"env": name, **sizes, "action_low": low.tolist(), "action_high": high.tolist()})
