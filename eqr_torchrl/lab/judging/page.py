"""One page about a policy that was learned from a log, with advice."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase
from torchrl.envs.utils import ExplorationType, set_exploration_type

from eqr_torchrl.imagination import ModelBasedEnv, never_terminates
from eqr_torchrl.lab.diagnostics import held_out_errors, member_returns
from eqr_torchrl.lab.envs import rules_for
from eqr_torchrl.lab.judging.judge import ROLLOUTS, Judge, Judgement
from eqr_torchrl.lab.logs import episodes_of, read_transitions, split_episodes
from eqr_torchrl.lab.logs.reading import named_entries
from eqr_torchrl.lab.runs import LoopSettings, SpaceOnly, latest_checkpoint, load_agent, load_checkpoint, read_csv
from eqr_torchrl.lab.runs.checkpoint import CHECKPOINT_FOLDER, read_file, restore_module
from eqr_torchrl.lab.runs.folder import BEST_POLICY_FILE, EVALUATIONS_FILE, check_types
from eqr_torchrl.networks.layers import check_counts

_MARGIN = 0.05  # of the range of an entry in the log, by which predictions may leave it


@torch.no_grad()
def offline_report(
    judge: Judge,
    policy: Any,
    train: TensorDictBase,
    *,
    names: str | Sequence[str] = (),
    called: str = "",
    num_judgements: int = 1,
) -> list[str]:
    """One page about a policy that was learned from a log, a line a topic, advice last.

    Args:
        judge: what the policy is judged by.
        policy: reads ``observation``, writes ``action``.
        train: transitions of the training episodes, whose ranges the policy may leave.
        names: names of the entries of the observation, where known.
        called: what the page calls the policy.
        num_judgements: number of judgements of which this policy has the best.
    """
    held_out: Any = torch.cat(judge.held_out)  # pyright: ignore[reportArgumentType, reportCallIssue]
    model_env, found = judge.model_env, judge(policy)
    entries = named_entries({"observation": names}, "observation", held_out["observation"].shape[-1])
    explained = held_out_errors(model_env.world_model, held_out).explained.nanmean(0).tolist()
    reward = explained.pop() if model_env.world_model.predicts_reward else math.nan
    known = [share for share in explained if not math.isnan(share)] or explained  # of entries that change
    median, least = statistics.median(known), min(known)

    state = held_out["observation"].to(model_env.device)
    with set_exploration_type(ExplorationType.DETERMINISTIC):  # as it is judged
        action = policy(held_out.select("observation").to(model_env.device))["action"]
    low, high = train["observation"].amin(0), train["observation"].amax(0)
    margin = _MARGIN * (high - low)
    rows = (value.expand(model_env.world_model.num_members, *value.shape) for value in (state, action))
    reached = model_env.world_model(*rows)[0][..., : state.shape[-1]].cpu()
    outside = ((reached < low - margin) | (reached > high + margin)).float().mean((0, 1))
    beyond = [f"{entries[i]} in {share:.0%}" for i, share in enumerate(outside.tolist()) if share > 0.02]
    reach = "reach the spread of the states after"
    reach = reach if judge.trusted < judge.compared else "do not reach the spread of the states within"
    chosen = f"; the best of {num_judgements} judgements, so a little high" if num_judgements > 1 else ""
    of = f"{judge.whole} episodes that terminated or have about {judge.limit} steps"
    of = of if judge.whole else "all episodes, since fewer than three are whole: short ones compare with nothing"
    return [
        f"held-out episodes  {len(judge.held_out)} of up to {judge.limit} steps; one step ahead the models explain "
        f"{median:.0%} of the change of a typical entry, {least:.0%} of the worst, "
        f"{entries[explained.index(least)]}" + ("" if math.isnan(reward) else f", and {reward:.0%} of the reward"),
        f"how far            errors of imagined logged actions {reach} {judge.trusted} steps",
        f"leaves the data    in {found.left:.0%} of imagined episodes the models come to disagree more than anywhere "
        f"in held-out ones; next states over {_MARGIN:.0%} outside the logged range: {', '.join(beyond) or 'none'}",
        *_early_ends(judge, policy, train),
        f"logging policy     return {judge.logged} of an episode, mean of {of}",
        f"this policy        {called}return {found} of an episode: {judge.confidence:.0%} interval of the mean of "
        f"{judge.num_episodes} episodes, from {judge.num_scores} held-out episodes{chosen}",
        f"advice             {advice(judge, found, explained=median, reward=reward)}",
    ]


def _early_ends(judge: Judge, policy: Any, train: TensorDictBase) -> list[str]:
    """How many imagined episodes terminate, and how many of those logged, if any may."""
    if judge.model_env.termination_fn is never_terminates:
        return []
    imagined = member_returns(
        judge.model_env, policy, judge.starts, horizon=judge.limit, gamma=1.0, num_rollouts=ROLLOUTS,
        deterministic=True, seed=judge.seed,
    ).tail_weight == 0  # fmt: skip
    ended = [bool(part["next", "terminated"].any()) for part in episodes_of(train) + judge.held_out]
    shares = f"{imagined.float().mean():.0%} of imagined episodes terminate within {judge.limit} steps"
    return [f"early ends         {shares}; {sum(ended) / len(ended):.0%} of those logged"]


def kept_report(folder: str | Path, judge: Judge, policy: Any, train: TensorDictBase) -> list[str]:
    """The page of :func:`offline_report` about the policy that a run kept.

    Args:
        folder: of a run of ``examples/offline.py`` that has judged a policy.
        judge: what the policies were judged by.
        policy: takes the parameters of the one that was kept.
        train: transitions of the training episodes.
    """
    kept = read_file(Path(folder) / CHECKPOINT_FOLDER / BEST_POLICY_FILE)
    policy.load_state_dict(kept["actor"])
    return offline_report(
        judge, policy, train, names=(kept["settings"]["data"]["columns"] or {}).get("observation") or (),
        called=f"(step {kept['env_steps']}, {CHECKPOINT_FOLDER}/{BEST_POLICY_FILE}) ",
        num_judgements=len(read_csv(Path(folder) / EVALUATIONS_FILE)),
    )  # fmt: skip


def functions_of(settings: Mapping[str, Any], data: TensorDictBase) -> dict[str, Any]:
    """The rules of an offline run, for :class:`~eqr_torchrl.imagination.ModelBasedEnv`: those named, else learned.

    ``termination_fn`` is ``None``, that is learned, only if something in the log terminated.
    """
    named = settings["termination_fn"]
    learned = named is None and bool(data["next", "terminated"].any())
    return rules_for("log", named or never_terminates, settings["reward_fn"], learned=learned)


def judged_loop(config: Any) -> LoopSettings:
    """The loop's settings of a run that keeps a policy by its judgement; a ``ValueError`` if none is made.

    Settings of its rollouts and models are checked too, and refused where they would do nothing.
    """
    settings = LoopSettings.of(config)
    check_types({"stop_level": "float", "penalty": "float", "average": "float"}, config)
    if settings.eval_every is None:
        raise ValueError("eval_every must be at least 1, since a policy is kept by its judgement: got null.")
    for name, largest in (("stop_level", 1.0), ("penalty", math.inf), ("average", 1.0)):
        if not 0 <= (value := config.get(name, 0.0)) <= largest:
            raise ValueError(f"{name} must be in [0, {largest:g}], got {value}.")
    if (limit := config.get("max_episode_steps")) is not None:
        check_counts(max_episode_steps=limit)
    if (horizons := config.get("rollout", {}).get("horizon_range")) is not None:
        raise ValueError(f"rollout.horizon_range must be null, since no transitions come in later: got {horizons}.")
    if config.get("resume") is None and config.get("world_model", {}).get("learn_termination"):
        raise ValueError("world_model.learn_termination must be false, since it follows from termination_fn: got true.")
    return settings


def diagnose_offline(source: str | Path) -> list[str]:
    """The page of :func:`offline_report` about a run of ``examples/offline.py``, for the policy that it kept.

    Args:
        source: the run folder.

    Raises:
        ValueError: if it is no such run.
    """
    from hydra.utils import instantiate

    checkpoint = latest_checkpoint(Path(source))
    parts = {} if checkpoint is None else load_checkpoint(checkpoint)["parts"]
    if "judges" not in parts:
        raise ValueError(f"source must be a run folder of examples/offline.py with a checkpoint, got {source}.")
    agent = load_agent(source, which="best")
    settings, space = agent.settings, SpaceOnly(agent.space)
    data = read_transitions(settings["data"]["path"], columns=settings["data"]["columns"])
    train, held_out = split_episodes(data, settings["held_out"])
    judges = instantiate(settings["world_model"], space)
    restore_module("judges", judges, parts["judges"])
    model_env = ModelBasedEnv(judges, space, **functions_of(settings, data))
    judge = Judge(model_env, train, held_out, max_episode_steps=settings.get("max_episode_steps"))
    return kept_report(agent.folder, judge, agent.actor, train)


def advice(judge: Judge, found: Judgement, *, explained: float = 1.0, reward: float = math.nan) -> str:
    """One sentence: whether to use the policy that was judged.

    Args:
        judge: what it was judged by.
        found: its judgement.
        explained: share of the change of a typical entry that the models explain on held-out episodes.
        reward: the same share of the reward; NaN if the reward is known.

    Examples:
        >>> from types import SimpleNamespace
        >>> judge = SimpleNamespace(trusted=50, limit=100, logged=Judgement(1.0, 0.0, 2.0), best=8.0)
        >>> advice(judge, Judgement(9.0, 5.0, 13.0))
        'Better than the logging policy even at the lower end, by 4: try it, and watch it closely.'
    """
    if reward < 0.5:  # imagined returns are then no returns
        return f"Do not use it: the models explain {reward:.0%} of the reward; log more of it, or pass reward_fn."
    if explained < 0.5 or judge.trusted < min(5, judge.limit):
        return (
            f"Do not use it: the models predict {judge.trusted} steps only; log more, or wider actions, or fit longer."
        )
    if found.low > judge.best:
        extrapolated = "the models extrapolate. Test it step by step before you believe it."
        return f"No logged episode returned so much, at most {judge.best:.4g}: {extrapolated}"
    if found.low > judge.logged.value:
        gain = found.low - judge.logged.value
        return f"Better than the logging policy even at the lower end, by {gain:.3g}: try it, and watch it closely."
    if found.high < judge.logged.value:
        return "Worse than the logging policy even at the upper end: keep the logging policy, or train longer."
    return "Indistinguishable from the logging policy: log more episodes, or ask for less by a more cautious utility."
