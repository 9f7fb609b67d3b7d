"""The aggregate over the DeepMind Control suite: runs of one setting, published means and other systems beside them.

Used by benchmarks/results_page.py. It works with the tasks and seeds that are there, and says how many there are.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportReturnType=false, reportOptionalMemberAccess=false
# The annotations of pandas are wider than what these calls return.

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from eqr_torchrl.lab.comparison import (
    interquartile_mean,
    mean_score,
    normalised_scores,
    performance_profile,
    run_scores,
    stratified_bootstrap,
)
from eqr_torchrl.lab.figures import COLOURS, saved_figure

SETTINGS = "one setting"
LONGER = "one setting, 100,000 steps"  # its rates and optimism fall later, so that it is no continuation
PUBLISHED = "EQR-SAC"
LATER = 100_000  # steps at which the published means are a line
WINDOW = 5  # evaluations in a trailing mean, as in published_means.csv


def scores_at(curves: pd.DataFrame, step: int) -> dict[str, np.ndarray]:
    """Task to the returns / 1,000 of its runs at a step that all of them have reached; DeepMind Control alone."""
    return next(iter(normalised_scores(run_scores(curves, env_steps=step)).values()))


def common_steps(curves: pd.DataFrame) -> list[int]:
    """The evaluations from where the last run begins to where the first one ends."""
    spans = curves.groupby(["env", "seed"])["env_steps"].agg(["min", "max"])
    steps = np.unique(curves["env_steps"])
    return [int(step) for step in steps if spans["min"].max() <= step <= spans["max"].min()]


def reference_means(others: pd.DataFrame, tasks: list[str]) -> pd.DataFrame:
    """Mean over ``tasks`` of each other system at its steps, where it has all of them: system, env_steps, mean."""
    shared = others[others["env"].isin(tasks)].groupby(["system", "env_steps"])["episode_return"].agg(["size", "mean"])
    return (shared.loc[shared["size"] == len(tasks), "mean"] / 1000).reset_index()


def draw_suite(curves: pd.DataFrame, others: pd.DataFrame, path: Path) -> None:
    """Mean over tasks against steps, and the share of runs above each score at the last common step."""
    steps = common_steps(curves)
    scores = [scores_at(curves, step) for step in steps]
    tasks = list(scores[-1])
    means = [stratified_bootstrap(mean_score, score, num_resamples=500) for score in scores]
    with saved_figure(path, 6.8, 2.8) as figure:
        left, right = figure.subplots(1, 2)
        left.plot(steps, [float(m.estimate) for m in means], color=COLOURS[0], label=f"one setting, {len(tasks)} tasks")
        left.fill_between(
            steps, [float(m.low) for m in means], [float(m.high) for m in means], color=COLOURS[0], alpha=0.2
        )
        references = reference_means(others, tasks)
        published = references["system"] == PUBLISHED
        left.plot(
            references["env_steps"][published], references["mean"][published], "ko", markersize=4,
            label="EQR-SAC, published",
        )  # fmt: skip
        later = references["mean"][published & (references["env_steps"] == LATER)]
        if len(later) and steps[-1] < LATER:
            left.axhline(float(later.iloc[0]), color="black", linestyle=":", label=f"the same at {LATER:,} steps")
        for row in references[~published & (references["env_steps"] <= 1.1 * steps[-1])].itertuples():
            left.plot(row.env_steps, row.mean, "s", color="0.4", markersize=4)
            left.annotate(
                row.system, (row.env_steps, row.mean), (4, 0), textcoords="offset points", fontsize=7, va="center"
            )
        left.set(xlabel="environment steps", ylabel="mean return / 1,000", xlim=(0, 1.15 * steps[-1]), ylim=(0, 1))
        left.legend(loc="upper left")
        thresholds = np.linspace(0, 1, 101)
        profile = stratified_bootstrap(lambda s: performance_profile(s, thresholds), scores[-1], num_resamples=500)
        right.plot(thresholds, profile.estimate, color=COLOURS[0])
        right.fill_between(thresholds, profile.low, profile.high, color=COLOURS[0], alpha=0.2)
        right.set(xlabel=f"return / 1,000 after {steps[-1]:,} steps", ylabel="share of runs above", ylim=(0, 1.02))


def draw_panels(curves: pd.DataFrame, others: pd.DataFrame, path: Path) -> None:
    """One panel a task: seeds, their mean, and the published means of EQR-SAC at the steps shown."""
    tasks, limit = sorted(curves["env"].unique()), curves["env_steps"].max()
    columns = len(tasks) if len(tasks) < 6 else 4
    rows = -(-len(tasks) // columns)
    published = others[(others["system"] == PUBLISHED) & (others["env_steps"] <= limit)]
    with saved_figure(path, 6.8, 1.35 * rows + 0.4) as figure:
        panels = figure.subplots(rows, columns, squeeze=False, sharex=True)
        for panel in panels.flat[len(tasks) :]:
            panel.axis("off")
        for task, panel in zip(tasks, panels.flat, strict=False):
            table = curves[curves["env"] == task].pivot(index="env_steps", columns="seed", values="episode_return")
            panel.plot(table.index, table, color=COLOURS[0], linewidth=0.6, alpha=0.6)
            (mean,) = panel.plot(table.dropna().index, table.dropna().mean(axis=1), color=COLOURS[0], linewidth=1.8)
            marks = published[published["env"] == task]
            (mark,) = panel.plot(marks["env_steps"], marks["episode_return"], "ko", markersize=4, clip_on=False)
            mark.set_in_layout(False)  # without a mark its box is no number
            panel.set(title=task.removeprefix("dmc/"), xlim=(0, limit), ylim=(0, None))
            panel.title.set_fontsize(7)
            panel.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if value else "0")
        figure.legend([mean, mark], ["one setting", "EQR-SAC, published"], loc="outside upper center", ncols=2)
        figure.supxlabel("environment steps", fontsize=8)
        figure.supylabel("return", fontsize=8)


def best_mean(means: pd.Series) -> float:
    """The largest trailing mean of a run; the first ones are of fewer evaluations, which count if there are no more."""
    return float(means.iloc[min(WINDOW, len(means)) - 1 :].max())


def kept_shares(curves: pd.DataFrame) -> dict[str, list[float]]:
    """Task to the last mean of five evaluations over the best one, of each run."""
    found: dict[str, list[float]] = {}
    for (task, _), run in curves.sort_values("env_steps").groupby(["env", "seed"]):
        best = best_mean(run["episode_return"])
        found.setdefault(task, []).append(float(run["episode_return"].iloc[-1]) / best if best > 0 else 1.0)
    return found


def suite_section(curves: pd.DataFrame, others: pd.DataFrame, figures: tuple[Path, Path]) -> str:
    """Heading, figures and table of all tasks, ours beside the published means at the last common step."""
    steps = common_steps(curves)
    step, scores = steps[-1], scores_at(curves, steps[-1])
    runs = sum(len(values) for values in scores.values())
    iqm, mean = (stratified_bootstrap(metric, scores) for metric in (interquartile_mean, mean_score))
    several = runs > len(scores)  # one run a task has no interval
    resampled = "; intervals of 95 % from resampling runs within tasks" if several else ""

    def stated(found: Any) -> str:
        interval = f" ({float(found.low):.3f} to {float(found.high):.3f})" if several else ""
        return f"{float(found.estimate):.3f}{interval}"

    references = reference_means(others, list(scores))
    means = references[references["system"] == PUBLISHED].set_index("env_steps")["mean"]
    kept = kept_shares(curves)
    shares = [share for values in kept.values() for share in values]
    theirs = others[others["system"] == PUBLISHED].pivot_table(
        index="env", columns="env_steps", values="episode_return"
    )
    lines = [
        "\n## One setting for every task\n",
        f"![Mean over tasks against steps, and the share of runs above each score]({figures[0].as_posix()})\n",
        f"{runs} runs of {len(scores)} of the 16 tasks, each with the same setting, after {step:,} steps: mean of "
        f"return / 1,000 {stated(mean)}, interquartile mean {stated(iqm)}{resampled}. EQR-SAC, published, has on these "
        f"tasks {means[25_000]:.3f} at 25,000 steps and {means[LATER]:.3f} at {LATER:,} (the marks). "
        "A return is the mean of five evaluations; kept is the last of these over the best, and at least 0.9 in "
        f"{sum(s >= 0.9 for s in shares)} of {len(shares)} runs.\n",
        f"![Return on each task against environment steps, seeds and mean]({figures[1].as_posix()})\n",
        f"| task | runs | return at {step:,} | kept | EQR-SAC, published at 25,000 | at 100,000 |",
        "|---|---|---|---|---|---|",
    ]
    for task, values in sorted(scores.items()):
        cells = [f"{theirs[n].get(task, float('nan')):.0f}" for n in (25_000, 100_000)]
        returns = ", ".join(f"{1000 * value:.0f}" for value in values)
        held = ", ".join(f"{share:.2f}" for share in kept[task])
        lines.append(f"| {task} | {len(values)} | {returns} | {held} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines) + "\n"


def longer_section(curves: pd.DataFrame, others: pd.DataFrame, figure: Path) -> str:
    """Heading, figure and table of the longer runs, beside what was published of other systems at the same steps."""
    step = common_steps(curves)[-1]
    scores, kept = scores_at(curves, step), kept_shares(curves)
    theirs = others[(others["env_steps"] == step) & others["env"].isin(scores)]
    theirs = theirs.pivot_table(index="env", columns="system", values="episode_return")
    lines = [
        f"\n## One setting for {step:,} steps\n",
        f"`env_steps={step}` and nothing else: rates and optimism fall later. Returns are means of five evaluations, "
        "kept is the last of these over the best. One seed of each task: a selection, on which the setting also does "
        "well after 25,000 steps. Other systems: published means; BRO and EQR-SAC make ten updates a step, SimbaV2 "
        "eight.\n",
        f"![Return on each task against environment steps]({figure.as_posix()})\n",
        f"| task | ours | kept | {' | '.join(theirs)} |",
        "|---" * (3 + len(theirs.columns)) + "|",
    ]
    for task, values in sorted(scores.items()):
        returns, held = (", ".join(f"{value:{form}}" for value in found) for found, form in
                         ((1000 * values, ".0f"), (kept[task], ".2f")))  # fmt: skip
        cells = [f"{value:.0f}" for value in theirs.loc[task]]
        lines.append(f"| {task} | {returns} | {held} | {' | '.join(cells)} |")
    means = [1000 * float(np.mean([values.mean() for values in scores.values()])), *theirs.mean()]
    lines.append(f"| mean | {means[0]:.0f} | | {' | '.join(f'{value:.0f}' for value in means[1:])} |")
    return "\n".join(lines) + "\n"
