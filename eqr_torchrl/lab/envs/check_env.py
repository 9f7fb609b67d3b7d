"""Reports in one sentence per topic whether an environment fits, and what to change."""

from __future__ import annotations

import reprlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.envs import EnvBase

from eqr_torchrl.imagination.terminations import TerminationFn, checked, name_of, never_terminates
from eqr_torchrl.lab.envs.guards import NOISE
from eqr_torchrl.lab.envs.real import make_env
from eqr_torchrl.lab.envs.reward_bounds import reward_bounds
from eqr_torchrl.lab.envs.terminations import termination_for
from eqr_torchrl.lab.evaluation import isolated_rng

if TYPE_CHECKING:
    import gymnasium

    from eqr_torchrl.imagination.terminations import RewardFn

_AGREEMENT = 0.999  # rounding at a threshold may cost a rule one step in a thousand
_LARGE, _SMALL = 100.0, 0.01  # per-step rewards outside this range do not suit a Huber threshold and networks near 1
_TOO_LARGE = 1e4  # for an entry of an observation, and for the width of an action


@dataclass(frozen=True)
class Finding:
    """One sentence about one property of an environment.

    Args:
        level: ``"ok"``, ``"warning"`` (works, but look at it) or ``"error"`` (learning would fail or be wrong).
        topic: ``"environment"``, ``"observation"``, ``"action"``, ``"reward"``, ``"reward_fn"``, ``"termination"``,
            ``"episode"`` or ``"seed"``.
        message: what was found, and what to change.

    Examples:
        >>> print(Finding("ok", "action", "size 1, from -2 to 2."))
        ok      action       size 1, from -2 to 2.
    """

    level: Literal["ok", "warning", "error"]
    topic: str
    message: str

    def __str__(self) -> str:
        return f"{self.level:<7} {self.topic:<12} {self.message}"


def check_env(
    env: str | EnvBase | gymnasium.Env | Callable[..., Any],
    termination_fn: TerminationFn | None = None,
    num_steps: int = 1000,
    *,
    reward_fn: RewardFn | None = None,
    seed: int = 0,
    **kwargs: Any,
) -> list[Finding]:
    r"""Tries an environment with random actions and reports, topic by topic, whether it fits the library.

    Looks at spaces, the size of rewards and whether they keep to the bounds that the environment states, the length of
    episodes, whether a seed reproduces an episode, and whether ``termination_fn`` and ``reward_fn`` give the
    environment's own ``terminated`` flag and reward.

    Args:
        env: an environment, or anything that :func:`~eqr_torchrl.lab.envs.make_env` takes. It is reset and stepped;
            one that is opened here is closed at the end.
        termination_fn: the function that the model environment will use. Defaults to the known rule of the environment,
            see :func:`~eqr_torchrl.lab.envs.termination_for`.
        num_steps: number of random steps, in environment steps.
        reward_fn: the known reward that the model environment will use.
            Defaults to ``None``: the world model learns the reward, and there is nothing to compare.
        seed: seed of the environment and of the random actions; torch's global generator is left as it was.
        **kwargs: passed on to :func:`~eqr_torchrl.lab.envs.make_env`.

    Returns:
        One :class:`Finding` per topic, those without fault included. ``ImportError`` and errors of the environment's
        own code become findings too.

    Examples:
        >>> for finding in check_env("Pendulum-v1", num_steps=400):
        ...     print(finding)
        ok      observation  size 3, seen from -... to ...
        ok      action       size 1, from -2 to 2.
        ok      reward       per step from -... to ...
        ok      termination  never_terminates gives the environment's own flag in 400 of 400 steps (0 terminated).
        ok      episode      2 episodes ended within 400 steps, after 200 steps.
        ok      seed         the same seed gives the same episode.
    """
    if num_steps < 1:
        raise ValueError(f"num_steps must be at least 1: got {num_steps}.")
    real = None
    kwargs |= {"num_envs": 1} if "num_envs" in kwargs else {}  # episodes follow one another
    with isolated_rng():
        try:
            real = make_env(env, **kwargs)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                data = _random_steps(real, num_steps, seed)
                again = _random_steps(real, min(num_steps, 100), seed)
        except Exception as error:  # whatever the user's code raises is the finding
            return [Finding("error", getattr(error, "topic", "environment"), _one_line(error))]
        finally:
            if real is not None and (isinstance(env, str) or (callable(env) and not isinstance(env, EnvBase))):
                real.close()
            elif real is not None and not isinstance(env, EnvBase):
                real.is_closed = True  # or TorchRL closes the caller's own simulator when this wrapper is deleted
    diverged = [str(warning.message) for warning in caught if "non-finite" in str(warning.message)]
    return [
        *(Finding("error", "observation", message) for message in diverged[:1]),
        finding("observation", observed, data),
        finding("action", _action, real),
        finding("reward", _reward, real, data),
        *([finding("reward_fn", _known_reward, data, reward_fn)] if reward_fn is not None else []),
        finding("termination", _termination, real, data, termination_fn, reward_fn),
        finding("episode", _episode, data, kwargs.get("max_episode_steps")),
        finding("seed", _seed, data, again),
    ]


def _random_steps(env: EnvBase, num_steps: int, seed: int) -> TensorDictBase:
    env.set_seed(seed)
    torch.manual_seed(seed)
    return env.rollout(num_steps, break_when_any_done=False).flatten()


def finding(topic: str, find: Callable[..., list[str]], *arguments: Any) -> Finding:
    """``find`` returns what it found and, if that is unusual, advice; it raises a ValueError on a fault."""
    try:
        found = find(*arguments)
    except ValueError as error:
        return Finding("error", topic, _one_line(error))
    return Finding("ok" if len(found) == 1 else "warning", topic, "; ".join(found) + ".")


def observed(data: TensorDictBase) -> list[str]:
    """The range of observations, entries that are too large, and entries that never change."""
    seen = torch.cat([data["observation"], data["next", "observation"]])  # [2 T, S]
    large = seen.abs().amax(0) > _TOO_LARGE
    constant = (seen == seen[0]).all(0) & ~large
    found = [f"size {seen.shape[-1]}, seen from {seen.min().item():.3g} to {seen.max().item():.3g}"]
    if large.any():
        advice = "rescale them or subtract an offset, since float32 keeps seven digits and networks want values near 1"
        found.append(f"entries {indices(large)} reach {seen.abs().max().item():.2g}: {advice}")
    if constant.any():
        found.append(f"entries {indices(constant)} never change: drop them if you can")
    return found


def _action(env: EnvBase) -> list[str]:
    low, high = env.action_spec_unbatched.space.low, env.action_spec_unbatched.space.high  # pyright: ignore
    half_range = (high - low) / 2
    unit = "" if 0.05 <= half_range.min() <= half_range.max() <= 20 else ", which the policy scales from -1 to 1"
    found = [f"size {len(low)}, from {numbers(low)} to {numbers(high)}{unit}"]
    if half_range.max() > _TOO_LARGE / 2:
        found.append("random actions explore little in such a wide range: rescale them, as gymnasium's RescaleAction")
    return found


def _reward(env: EnvBase, data: TensorDictBase) -> list[str]:
    rewards = _finite_steps(data)["next", "reward"]
    if not len(rewards):
        raise ValueError("finite in no step.")
    low, high, size = rewards.min().item(), rewards.max().item(), rewards.abs().max().item()
    found = [f"per step from {low:.3g} to {high:.3g}, mean {rewards.mean().item():.3g}"]
    stated = reward_bounds(env)
    if stated is not None and not stated[0] - 1e-5 * size <= low <= high <= stated[1] + 1e-5 * size:
        advice = "to which imagined rewards would be clipped; correct reward_space (or the reward_spec)"
        raise ValueError(f"{found[0]}: outside the stated {stated[0]:.3g} to {stated[1]:.3g}, {advice}.")
    if size > _LARGE:
        found.append(f"large: pass reward_scale={1 / size:.0e}, so that values stay within reach of the networks")
    elif low == high:
        found.append("the same in every step: fine for a sparse task, but random actions never found another reward")
    elif size < _SMALL:
        found.append(f"small: pass reward_scale={1 / size:.0e}, or lower the Huber threshold kappa of the loss")
    return found


def _known_reward(data: TensorDictBase, reward_fn: RewardFn) -> list[str]:
    rows = _finite_steps(data)
    real = rows["next", "reward"]
    predicted = checked("reward_fn", reward_fn, rows["observation"], rows["action"], rows["next", "observation"])
    # relative to the largest reward: what float32 observations lose is of that order
    tolerance = 1e-3 * max(real.abs().max().item(), 1e-3)
    error = (predicted - real).abs().nan_to_num(torch.inf)
    right, worst = int((error <= tolerance).sum()), int(error.argmax())
    found = f"{name_of(reward_fn)} gives the environment's own reward in {right} of {len(rows)} steps"
    if right < _AGREEMENT * len(rows):
        example = f"it returns {predicted[worst].item():.4g} where the reward is {real[worst].item():.4g}"
        size = f"root mean square error {error.square().mean().sqrt().item():.2g}"
        spread = f"rewards have a standard deviation of {real.std(correction=0).item():.2g}"
        advice = "fix it (reward_scale and action_cost are part of the reward)"
        noise = "where it reads noisy sensors, keep it if the error is small against that, or let the models learn"
        raise ValueError(f"{found}; {example} ({size}; {spread}): {advice}, or, {noise} the reward.")
    return [found]


def _termination(
    env: EnvBase, data: TensorDictBase, rule: TerminationFn | None, reward_fn: RewardFn | None
) -> list[str]:
    terminated, total, limit = data["next", "terminated"], len(data), _like_a_time_limit(data)
    ended = int(terminated.sum())
    try:
        rule = rule or termination_for(env)
    except ValueError as error:
        raise ValueError(f"{ended} of {total} steps terminated{limit}; {error}") from error
    predicted = checked("termination_fn", rule, data["next", "observation"], data["action"])
    missed, early = int((terminated & ~predicted).sum()), int((~terminated & predicted).sum())
    right = total - missed - early
    if right >= _AGREEMENT * total and not (limit and missed):
        found = [f"{name_of(rule)} gives the environment's own flag in {right} of {total} steps ({ended} terminated)"]
        if not ended and rule is not never_terminates:
            advice = "where random actions cannot reach the end, call the rule on states whose answer you know"
            weak = "no termination was observed, so this is weak evidence: raise num_steps"
            found.append(f"{weak}, or, {advice} (docs: termination_functions)")
            rewards = _finite_steps(data)["next", "reward"]
            if reward_fn is None and len(rewards) and rewards.max() <= 0:  # going on then costs, and an end nothing
                free = "rewards are never positive and no end was seen: models would learn that an end is free"
                found.append(f"{free}; make its penalty a part of reward_fn, or let the warm-up reach the limit")
        return found
    counts = f"{name_of(rule)} misses {missed} of {ended} terminations and raises {early} false alarms in {total} steps"
    mostly_right = not limit and max(missed, early) <= ended / 2
    both = missed and early  # a wrong threshold errs on one side alone
    if mostly_right and both:
        return [counts, f"fix it, {NOISE}, since no function of one noisy observation is always right"]
    doubt = f" ({NOISE})" if mostly_right or both else ""
    advice = f"fix it{doubt}: imagined rollouts would continue past the end, or end too early"
    if ended and not missed:
        advice = "on the safe side, since imagined rollouts only end too early: fix it, unless you chose it so"
    if rule is never_terminates:
        advice = "pass the rule of this environment instead"
    raise ValueError(f"{counts}{limit or f'; {advice}'}.")


def _like_a_time_limit(data: TensorDictBase) -> str:
    """A remark if terminations look like a time limit: always truncated too, or always after the same time."""
    terminated = data["next", "terminated"].flatten()
    ends = data["next", "done"].flatten()
    lengths = lengths_of(ends)[terminated[ends]]
    truncated = data["next"].get("truncated", torch.zeros_like(terminated)).flatten()
    both = len(lengths) > 0 and truncated[terminated].all()
    if not both and not (len(lengths) > 2 and (lengths == lengths[0]).all() and lengths[0] > 1):
        return ""
    times = f"after {span(lengths)} steps"
    return f", {times}: this looks like a time limit, which the environment must report as truncated only"


def _episode(data: TensorDictBase, max_episode_steps: int | None) -> list[str]:
    lengths = lengths_of(data["next", "done"].flatten())
    if not len(lengths):
        advice = "pass max_episode_steps unless the environment has its own limit"
        return [f"none ended within {len(data)} steps", advice]
    episodes = "1 episode" if len(lengths) == 1 else f"{len(lengths)} episodes"
    found = [f"{episodes} ended within {len(data)} steps, after {span(lengths)} steps"]
    ends: Any = data["next"][data["next", "done"].flatten()]
    diverged = ends["reward"].isnan() & ~ends["terminated"]
    limited = (ends.get("truncated", ends["done"]) & ~diverged).flatten()
    if diverged.any():
        found.append(f"{int(diverged.sum())} of them were truncated at a non-finite value")
    elif lengths.float().mean() < 3:
        found.append("too short for the model rollouts to add anything")
    elif max_episode_steps is not None and (lengths[limited] < max_episode_steps).any():
        found.append(f"the environment has a limit of its own below max_episode_steps={max_episode_steps}")
    return found


def _seed(data: TensorDictBase, again: TensorDictBase) -> list[str]:
    if torch.equal(data["next", "observation"][: len(again)], again["next", "observation"]):
        return ["the same seed gives the same episode"]
    advice = "draw random numbers from self.np_random only, after super().reset(seed=seed)"
    return ["the same seed gives another episode", advice]


def _one_line(error: BaseException) -> str:
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return text if isinstance(error, (ValueError, RuntimeError, ImportError)) else f"{type(error).__name__}: {text}"


def _finite_steps(data: TensorDictBase) -> TensorDictBase:
    """The steps at which NonFiniteGuard truncated nothing."""
    return data[data["next", "reward"].isfinite().squeeze(-1)]  # pyright: ignore[reportReturnType]


def lengths_of(ends: Tensor) -> Tensor:
    """Steps of each finished episode, from the steps that end one, bool ``[T]``."""
    return torch.diff(ends.nonzero().flatten(), prepend=torch.tensor([-1]))


def span(lengths: Tensor) -> str:
    """The shortest and the longest length in words."""
    shortest, longest = lengths.aminmax()
    return f"{shortest}" if shortest == longest else f"{shortest} to {longest}"


def indices(chosen: Tensor) -> str:
    """Which entries are chosen, such as ``[0, 2]``."""
    return reprlib.repr(chosen.nonzero().flatten().tolist())


def numbers(values: Tensor) -> str:
    """Values of all entries, or the one that all have."""
    texts = [f"{value:.4g}" for value in values.tolist()]
    return texts[0] if len(set(texts)) == 1 else f"[{', '.join(texts)}]"
