"""Reports in one sentence per topic whether a log can be learned from, and what to change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from tensordict import TensorDictBase
from torch import Tensor

from eqr_torchrl.lab.envs.check_env import Finding, finding, indices, lengths_of, numbers, observed, span
from eqr_torchrl.lab.logs.episodes import action_bounds, episode_ends, episodes_of, follows, returns_to_go
from eqr_torchrl.lab.logs.reading import Columns, named_entries

_FEW_EPISODES = 45  # a fifth of them is nine, the fewest for an interval of 90 %
_LARGE = 100.0  # reward of a step


def check_transitions(
    data: TensorDictBase,
    *,
    action_low: float | Sequence[float] | None = None,
    action_high: float | Sequence[float] | None = None,
    columns: Columns | None = None,
) -> list[Finding]:
    """Looks at a log, topic by topic, as :func:`~eqr_torchrl.lab.envs.check_env` looks at an environment.

    Args:
        data: transitions in the order of the log, from :func:`~eqr_torchrl.lab.logs.read_transitions`.
        action_low: smallest possible action, where known.
        action_high: largest possible action.
        columns: those of :func:`~eqr_torchrl.lab.logs.read_transitions`, to name entries that are not finite.

    Returns:
        One finding per topic, those without fault included. Rows are counted from 0, as they were read: ends that
        were left out are not among them. If some are not finite, the findings that follow are about the others.

    Examples:
        >>> for finding in check_transitions(toy_env(max_steps=8).rollout(400, break_when_any_done=False)):
        ...     print(finding)
        ok      values       400 transitions of 3 observation entries and 1 actions, all finite.
        ok      order        each next observation is the following row's observation, within 50 episodes (...).
        ok      termination  0 of 50 episodes terminated.
        ok      episode      50 episodes of 8 steps, return -... on average, from -... to -....
        ok      observation  size 3, seen from -... to ...
        ok      action       from -... to ..., evenly spread.
        ok      reward       per step from -... to ..., mean -....
        ok      duplicates   no transition is there twice.
    """
    values = finding("values", _values, data, columns or {})
    data = cast(TensorDictBase, data[_finite(data)])
    if not len(data):
        return [values]
    return [
        values,
        finding("order", _order, data, bool((columns or {}).get("time"))),
        finding("termination", _termination, data),
        finding("episode", _episodes, data),
        finding("observation", observed, data),
        finding("action", _action, data, action_low, action_high),
        finding("reward", _reward, data),
        finding("duplicates", _duplicates, data),
    ]


def _finite(data: TensorDictBase) -> Tensor:
    """Which rows hold numbers alone, bool ``[n]``."""
    entries = [data["observation"], data["action"], data["next", "observation"], data["next", "reward"]]
    return torch.cat(entries, -1).isfinite().all(-1)


def _values(data: TensorDictBase, columns: Columns) -> list[str]:
    entries = {
        "observation": data["observation"],
        "action": data["action"],
        "reward": data["next", "reward"],
        "next_observation": data["next", "observation"],
    }
    found = [
        f"{key.replace('_', ' ')} {name} in {int(bad.sum())} rows, first {int(bad.int().argmax())}"
        for key, value in entries.items()
        for name, bad in zip(
            named_entries(columns, key.removeprefix("next_"), value.shape[-1]), ~value.isfinite().T, strict=True
        )
        if bad.any()
    ]
    if found:
        raise ValueError(
            f"not finite: {'; '.join(found)} (rows as read, from 0, without ends that were left out). Leave these rows "
            "out, and end the episode before them; what follows is about the others."
        )
    sizes = f"{data['observation'].shape[-1]} observation entries and {data['action'].shape[-1]} actions"
    return [f"{len(data)} transitions of {sizes}, all finite"]


def _order(data: TensorDictBase, timed: bool) -> list[str]:
    inside = ~data["next", "done"].flatten()[:-1]
    fits = follows(data)
    gaps, rows = int((inside & ~fits).sum()), int(inside.sum())
    still = (data["next", "observation"] == data["observation"]).all(-1)
    if still.float().mean() > 0.9:
        raise ValueError(
            f"next observations equal observations in {int(still.sum())} of {len(data)} rows; shift them by a row."
        )
    if gaps > 0.2 * max(rows, 1):
        raise ValueError(
            f"{gaps} of {rows} next observations are not the following row's observation: rows are shuffled, or "
            "columns are exchanged; write the log in the order of time."
        )
    # a log that shifts observations by a row goes on into the next episode
    over = int((fits & ~inside).sum())
    if over and 2 * over > int((~inside).sum()):
        raise ValueError(
            f"{over} episodes end with a next observation that is the first of the next episode: a model would learn "
            "the reset; log the last observation, or leave next observations out."
        )
    if gaps:
        first = int((inside & ~fits).int().argmax())
        advice = "they count as ends of episodes: mark them as truncated, or give the episode's number"
        return [f"{gaps} gaps, the first after row {first}, where the next row starts elsewhere", advice]
    count = int(episode_ends(data).sum())
    found = f"each next observation is the following row's observation, within {count} episodes"
    if not timed and torch.equal(data["next", "observation"][:-1][inside], data["observation"][1:][inside]):
        found += " (if taken from there, this checks nothing: name a column of time, in which gaps are found)"
    return [found]


def _termination(data: TensorDictBase) -> list[str]:
    ends, terminated = episode_ends(data), data["next", "terminated"].flatten()
    lengths = lengths_of(ends)[terminated[ends]]
    found = [f"{len(lengths)} of {int(ends.sum())} episodes terminated"]
    if len(lengths) > 2 and lengths.max() > 1 and (lengths == lengths.max()).float().mean() > 0.9:
        raise ValueError(
            f"{found[0]}, after {int(lengths.max())} steps each: this looks like a time limit, which must be recorded "
            "as truncated; move the flag."
        )
    if 0 < len(lengths) < 10:
        found.append("few to learn the rule from: pass termination_fn if it is known")
    reward, steps = data["next", "reward"].flatten(), int(lengths_of(ends).max())
    rest = steps * reward[~terminated].mean()  # of an episode that goes on
    if len(lengths) and reward.max() <= 0 and reward[terminated].mean() > rest:
        pays = "no reward is positive and an end stops them, so that an early end pays"
        found.append(f"{pays}: give ends a penalty as large as what is lost, {rest:.3g} in {steps} steps")
    return found


def _episodes(data: TensorDictBase) -> list[str]:
    episodes = episodes_of(data)
    returns = torch.stack([returns_to_go(episode)[0] for episode in episodes])
    lengths = torch.tensor([len(episode) for episode in episodes])
    seen = f"from {returns.min():.4g} to {returns.max():.4g}"
    found = [f"{len(episodes)} episodes of {span(lengths)} steps, return {returns.mean():.4g} on average, {seen}"]
    if len(episodes) < 2:
        raise ValueError(f"{found[0]}: nothing can be held out; log several episodes, or split this one.")
    if len(episodes) < _FEW_EPISODES:
        found.append(f"fewer than {_FEW_EPISODES}: with a fifth held out, an interval holds less than 90 % of returns")
    return found


def _action(data: TensorDictBase, low: Any, high: Any) -> list[str]:
    action = data["action"]
    smallest, largest = action.amin(0), action.amax(0)
    low, high = action_bounds(action, low, high)
    margin = 1e-4 * (high - low).abs()
    outside = ((action < low - margin) | (action > high + margin)).any(-1)
    if outside.any():
        raise ValueError(
            f"{int(outside.sum())} of {len(action)} actions lie outside {numbers(low)} to {numbers(high)}: what was "
            "applied must be logged, after clipping, in the units of the bounds."
        )
    if (smallest == largest).any():
        constant = indices(smallest == largest)
        raise ValueError(f"action entries {constant} never vary: their effect cannot be learned; leave them out.")
    tenths = ((action - low) / (high - low) * 10).long().clamp(0, 9)  # [n, A]
    covered = torch.stack([torch.bincount(entry, minlength=10) > 0 for entry in tenths.T]).float().mean(1)
    at_bounds = ((action <= low + margin) | (action >= high - margin)).float().mean(0)
    found = [f"from {numbers(smallest)} to {numbers(largest)}"]
    if (covered < 0.5).any():
        share = f"entries {indices(covered < 0.5)} cover {covered.min():.0%} of their range"
        found.append(f"{share}: a policy should stay inside; omit the bounds, or log wider actions")
    if (at_bounds > 0.5).any():
        found.append(f"entries {indices(at_bounds > 0.5)} are at a bound in {at_bounds.max():.0%} of the rows")
    return found if len(found) > 1 else [f"{found[0]}, evenly spread"]


def _reward(data: TensorDictBase) -> list[str]:
    reward = data["next", "reward"]
    low, high = reward.min().item(), reward.max().item()
    found = [f"per step from {low:.3g} to {high:.3g}, mean {reward.mean().item():.3g}"]
    size = max(abs(low), abs(high))
    if low == high:
        raise ValueError(f"{found[0]}: the same in every row, so that there is nothing to improve; log the reward.")
    if size > _LARGE or size < 1 / _LARGE:
        found.append(f"{'large' if size > _LARGE else 'small'}: multiply it by {1 / size:.0e}")
    return found


def _duplicates(data: TensorDictBase) -> list[str]:
    entries = [data["observation"], data["action"], data["next", "reward"], data["next", "observation"]]
    rows = torch.cat(entries, -1)
    twice = len(rows) - len(torch.unique(rows, dim=0))
    found = ["no transition is there twice" if not twice else f"{twice} of {len(rows)} transitions are there twice"]
    if twice > 0.01 * len(rows):
        found.append("errors on held-out episodes will look too small")
    logged = rows[:, : -entries[-1].shape[-1]]
    same = (logged[1:] == logged[:-1]).all(-1)
    if same.any() and not same.all():
        first = int(same.int().argmax()) + 1
        found.append(
            f"{int(same.sum())} rows equal the row before them in observation, action and reward, the first is row "
            f"{first}: leave out those that were written twice"
        )
    return found
