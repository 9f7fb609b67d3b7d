"""Says in one sentence per topic whether an environment fits, and what to change."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from tensordict import TensorDictBase
from torchrl.envs import EnvBase

from eqr_torchrl.envs.real import make_env
from eqr_torchrl.envs.terminations import TerminationFn, never_terminates, termination_for

if TYPE_CHECKING:
    import gymnasium

_AGREEMENT = 0.999  # rounding at a threshold may cost a rule one step in a thousand
_LARGE, _SMALL = 100.0, 0.01  # per-step rewards outside this range do not suit a Huber threshold and networks near 1


@dataclass(frozen=True)
class Finding:
    """One sentence about one property of an environment.

    Args:
        level: ``"ok"``, ``"warning"`` (works, but look at it) or ``"error"`` (learning would fail or be wrong).
        topic: what the sentence is about: ``"environment"``, ``"observation"``, ``"action"``, ``"reward"``,
            ``"termination"``, ``"episode"`` or ``"seed"``.
        message: what was found, and what to change.

    Examples:
        >>> print(Finding("ok", "action", "1 entry, from -2 to 2."))
        ok      action       1 entry, from -2 to 2.
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
    seed: int = 0,
    **kwargs: Any,
) -> list[Finding]:
    r"""Tries an environment with random actions and reports, topic by topic, whether it fits the library.

    Looks at observation and action spaces, data types, the size of rewards, the length of episodes, whether a seed
    reproduces an episode, and whether ``termination_fn`` gives the environment's own ``terminated`` flag.

    Args:
        env: an environment, or anything that :func:`~eqr_torchrl.envs.make_env` takes. It is reset and stepped.
        termination_fn: the function that the model environment will use. Defaults to the known rule of the environment,
            see :func:`~eqr_torchrl.envs.termination_for`.
        num_steps: number of random steps, in environment steps.
        seed: seed of the environment and of the random actions; torch's global generator is left as it was.
        **kwargs: passed on to :func:`~eqr_torchrl.envs.make_env`.

    Returns:
        One :class:`Finding` per topic, those without fault included. ``ImportError`` and errors of the environment's
        own code become findings too.

    Raises:
        ValueError: if ``num_steps`` is not positive.

    Examples:
        >>> for finding in check_env("Pendulum-v1", num_steps=400):
        ...     print(finding)
        ok      observation  3 entries, float32, seen from -... to ...
        ok      action       1 entry, each from -2 to 2.
        ok      reward       per step from -... to ...
        ok      termination  never_terminates gives the environment's own flag in 400 of 400 steps (0 terminated).
        ok      episode      2 episodes ended within 400 steps, after 200 steps.
        ok      seed         the same seed gives the same episode.
    """
    if num_steps < 1:
        raise ValueError(f"num_steps must be at least 1: got {num_steps}.")
    with torch.random.fork_rng(devices=[]):
        try:
            real = make_env(env, **kwargs)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                data = _random_steps(real, num_steps, seed)
                again = _random_steps(real, min(num_steps, 100), seed)
        except Exception as error:  # whatever the user's code raises is the finding
            return [Finding("error", "environment", f"{_one_line(error)}")]
    cuts = [str(warning.message) for warning in caught if "non-finite" in str(warning.message)]
    findings = [Finding("error", "observation", cuts[0])] if cuts else []
    findings += [_observation(data), _action(real), _reward(data)]
    findings += [_termination(real, data, termination_fn), _episode(data), _seed(data, again)]
    return findings


def _random_steps(env: EnvBase, num_steps: int, seed: int) -> TensorDictBase:
    env.set_seed(seed)
    torch.manual_seed(seed)
    return env.rollout(num_steps, break_when_any_done=False).flatten()


def _observation(data: TensorDictBase) -> Finding:
    seen = data["next", "observation"]
    size, low, high = seen.shape[-1], seen.min().item(), seen.max().item()
    what = f"{_entries(size)}, float32, seen from {low:.3g} to {high:.3g}"
    constant = (seen == seen[0]).all(0).nonzero().flatten().tolist()
    if constant and len(seen) > 1:
        return Finding(
            "warning", "observation", f"{what}; entries {_some(constant)} never change: drop them if you can."
        )
    if max(abs(low), abs(high)) > 1e4:
        return Finding("warning", "observation", f"{what}: rescale such entries, networks want values near 1.")
    return Finding("ok", "observation", f"{what}.")


def _action(env: EnvBase) -> Finding:
    space: Any = env.full_action_spec["action"].space
    low, high = space.low.reshape(-1, space.low.shape[-1])[0], space.high.reshape(-1, space.high.shape[-1])[0]
    if (low == low[0]).all() and (high == high[0]).all():
        bounds = f"each from {low[0].item():.4g} to {high[0].item():.4g}"
    else:
        bounds = f"from {_numbers(low)} to {_numbers(high)}"
    if (high - low).max() > 1e4:
        advice = "this wide, exploration is blind: rescale the actions, for example with gymnasium's RescaleAction"
        return Finding("warning", "action", f"{_entries(len(low))}, {bounds}; {advice}.")
    return Finding("ok", "action", f"{_entries(len(low))}, {bounds}.")


def _reward(data: TensorDictBase) -> Finding:
    reward = data["next", "reward"]
    low, high, size = reward.min().item(), reward.max().item(), reward.abs().max().item()
    what = f"per step from {low:.3g} to {high:.3g}, mean {reward.mean().item():.3g}"
    if size > _LARGE:
        advice = f"large: pass reward_scale={1 / size:.0e}, so that values stay within reach of the networks."
    elif low == high:
        advice = "the same in every step: fine for a sparse task, but random actions never found another reward."
    elif size < _SMALL:
        advice = f"small: pass reward_scale={1 / size:.0e}, or lower the Huber threshold kappa of the critic's loss."
    else:
        return Finding("ok", "reward", f"{what}.")
    return Finding("warning", "reward", f"{what}; {advice}")


def _termination(env: EnvBase, data: TensorDictBase, termination_fn: TerminationFn | None) -> Finding:
    terminated, total = data["next", "terminated"], len(data)
    ended = int(terminated.sum())
    if termination_fn is None:
        try:
            termination_fn = termination_for(env)
        except ValueError as error:
            return Finding("error", "termination", f"{ended} of {total} steps terminated; {_one_line(error)}")
    rule = getattr(termination_fn, "__name__", None) or getattr(getattr(termination_fn, "func", None), "__name__", "it")
    try:
        predicted = termination_fn(data["next", "observation"], data["action"])
    except Exception as error:
        shapes = f"observations {tuple(data['observation'].shape)} and actions {tuple(data['action'].shape)}"
        return Finding("error", "termination", f"{rule} fails on {shapes}: {type(error).__name__}: {_one_line(error)}")
    if predicted.shape != terminated.shape or predicted.dtype != torch.bool:
        needed = f"bool of shape {tuple(terminated.shape)} for observations {tuple(data['observation'].shape)}"
        got = f"{predicted.dtype} of shape {tuple(predicted.shape)}"
        return Finding("error", "termination", f"{rule} must return {needed}: got {got}.")
    missed, false_alarms = int((terminated & ~predicted).sum()), int((~terminated & predicted).sum())
    right = total - missed - false_alarms
    if right < _AGREEMENT * total:
        advice = (
            "pass the rule of this environment instead"
            if termination_fn is never_terminates
            else "mend it: the model would dream on past the end, or stop too early"
        )
        wrong = (
            f"{rule} misses {missed} of {ended} terminations and raises {false_alarms} false alarms in {total} steps"
        )
        return Finding("error", "termination", f"{wrong}; {advice}.")
    what = f"{rule} gives the environment's own flag in {right} of {total} steps ({ended} terminated)"
    if not ended and termination_fn is not never_terminates:
        return Finding("warning", "termination", f"{what}: no end was seen, so this proves little; raise num_steps.")
    return Finding("ok", "termination", f"{what}.")


def _episode(data: TensorDictBase) -> Finding:
    ends = data["next", "done"].flatten().nonzero().flatten()
    if not len(ends):
        advice = "pass max_episode_steps unless the environment has its own limit"
        return Finding("warning", "episode", f"none ended within {len(data)} steps: {advice}.")
    lengths = torch.diff(ends, prepend=torch.tensor([-1]))
    shortest, longest = int(lengths.min()), int(lengths.max())
    after = f"{shortest}" if shortest == longest else f"{shortest} to {longest}"
    episodes = "1 episode" if len(ends) == 1 else f"{len(ends)} episodes"
    what = f"{episodes} ended within {len(data)} steps, after {after} steps"
    if lengths.float().mean() < 3:
        return Finding("warning", "episode", f"{what}: too short for the model rollouts to add anything.")
    return Finding("ok", "episode", f"{what}.")


def _seed(data: TensorDictBase, again: TensorDictBase) -> Finding:
    if torch.equal(data["next", "observation"][: len(again)], again["next", "observation"]):
        return Finding("ok", "seed", "the same seed gives the same episode.")
    advice = "draw random numbers from self.np_random only, after super().reset(seed=seed)"
    return Finding("warning", "seed", f"the same seed gives another episode: {advice}.")


def _entries(number: int) -> str:
    return "1 entry" if number == 1 else f"{number} entries"


def _numbers(values: torch.Tensor) -> str:
    return f"[{', '.join(f'{value:.4g}' for value in values.tolist())}]"


def _some(indices: list[int]) -> str:
    return f"{indices[:5]}" if len(indices) <= 5 else f"{indices[:5]} and {len(indices) - 5} more"


def _one_line(error: BaseException) -> str:
    lines: Iterator[str] = (line.strip() for line in str(error).splitlines())
    text = next((line for line in lines if line), "")
    return text if isinstance(error, (ValueError, RuntimeError, ImportError)) else f"{type(error).__name__}: {text}"
