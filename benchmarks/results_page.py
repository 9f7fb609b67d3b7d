"""Writes docs/reproduce/results.md, results_appendix.md and their figures from the CSV files of benchmarks/results.

    python benchmarks/results_page.py

Returns come from runs.csv and from the older files of single studies; commit, command, hardware and time from
runs_info.csv. The page shows whole runs, one per seed, the newest; the appendix every run, whether or not it learned.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportReturnType=false, reportOptionalMemberAccess=false
# The annotations of pandas are wider than what these calls return.

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pandas as pd
from logs_section import logs_section
from peers_section import draw_peers, peer_curves, peers_section
from suite import LONGER, SETTINGS, WINDOW, best_mean, draw_panels, draw_suite, longer_section, suite_section

from eqr_torchrl.lab.comparison import learning_curves, read_runs
from eqr_torchrl.lab.figures import COLOURS, LINES, saved_figure

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
EARLIER = ("cheetah_run.csv", "mountain_car.csv")  # from before runs.csv, with the published model and fit
KEY = ["env", "algorithm", "utility", "settings"]
RUN = [*KEY, "seed", "run"]
MOST = 3  # settings in a figure
INFO = ["commit", "seconds", "hardware", "command", "note"]
NOTES = {
    "cheetah_run.csv": "`benchmarks/results/README.md`",
    "mountain_car.csv": "{doc}`mountain_car`",
}

HEAD = """% Written by benchmarks/results_page.py from benchmarks/results/*.csv. Edit those, not this page.

# Results

Short runs on CPUs: the paper's benchmark of 250,000 steps, 16 tasks and ten seeds has not been repeated. The
[notes](#notes) at the end say what figures and tables show and leave out.
"""

END = """
## Notes

- **Figures.** Thin lines are seeds, each the trailing mean of five evaluations; the thick line is their mean, up to the
  last step that all of them reached. Black marks are the published means of EQR-SAC over ten seeds
  {cite:p}`luis2024value`, with settings that may differ from ours ({doc}`deviations`). The suite has those with the
  mean utility; elsewhere they have the utility of our runs where it was published, and bars of one standard error.
- **Tables.** "Last" is the mean of the last five evaluations of a run, "best" the highest such mean. Returns are as the
  environment pays them, `reward_scale` included: `-x0.5` in a name halves all rewards.
- **Few seeds.** Two or three seeds show that something works, not how often ({doc}`../evaluating`). Seeds 0 and 1 of
  the one setting are not independent of it: `tau` was chosen with seed 0 in view, and the prior was changed after seed
  1 had failed on two tasks (nine runs were then repeated).
- **Settings.** `quick`, `laptop`, `paper` and experiments are the settings at the commit of each run, which the
  appendix names. Rows named `one setting`, and the 1,500-step row of Pendulum-v1, have today's settings. The other runs
  are older than these changes, and were not repeated: `quick` ends at 1,500 steps and imagines 5 steps from 16 states a
  step (before: 4 from 20); `laptop` makes one update a step with `tau=0.05` (before: two with 0.02); K = 1 next state
  of each member belongs to `algorithm=member_values` (before: to `budget=laptop`); `member_values` has other networks,
  priors and rollouts ({doc}`../concepts/choose_nothing`); a randomised prior no longer changes once a fit saw rewards
  that differ; and learning does not depend on the unit of the action (Pendulum's is not 1).
- **Left out here:** every run with a note (tuning, stopped, comparisons), earlier runs of the same seed, and on tasks
  where the one setting was run every other setting; elsewhere at most three settings are shown.
  {doc}`results_appendix` has all of them, failures included, with commits and commands.
"""

APPENDIX = """% Written by benchmarks/results_page.py from benchmarks/results/*.csv. Edit those, not this page.

# Results: every run

Every task and algorithm that was run with this package, failed, stopped and tuning runs included. {doc}`results` has
the figures and says what the columns mean; the rows are in `benchmarks/results/`.
"""


def read_results(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Evaluations of all runs, and what is known of each run: commit, seconds, hardware, command."""
    earlier = read_runs([folder / name for name in EARLIER])
    earlier = earlier.assign(
        file=[Path(file).name for file in earlier["file"]], settings="published fit", run="earlier"
    )
    text = dict.fromkeys([*RUN, *INFO], str)
    runs, info = (
        pd.read_csv(folder / name, dtype=text, keep_default_na=False) for name in ("runs.csv", "runs_info.csv")
    )
    return pd.concat([earlier, runs.assign(file="runs.csv")], ignore_index=True), info


def smoothed_curves(evaluations: pd.DataFrame) -> pd.DataFrame:
    """Trailing mean of each run: that of :func:`learning_curves`, for which a seed is one run."""
    keys = evaluations[RUN].agg("\n".join, axis=1)
    curves = learning_curves(evaluations.assign(seed=keys), smoothing=WINDOW)
    return curves.assign(**dict(zip(RUN, zip(*curves["seed"].str.split("\n"), strict=True), strict=True)))


def whole_runs(info: pd.DataFrame) -> pd.DataFrame:
    """The newest run of each seed, of those without a note."""
    return info[info["note"] == ""].drop_duplicates([*KEY, "seed"], keep="last")[RUN]


def main_runs(curves: pd.DataFrame, info: pd.DataFrame) -> pd.DataFrame:
    """Curves of one task for its figure: whole runs, the newest of each seed, of one setting or of the few best known.

    Where the one setting was run, it is shown alone; elsewhere the settings with the most seeds, the longest first.
    """
    known = curves.merge(whole_runs(info))  # none of them: the task is for the appendix
    if (known["settings"] == SETTINGS).any():
        return known[known["settings"].isin((SETTINGS, LONGER))]
    size = known.groupby(KEY).agg(seeds=("seed", "nunique"), steps=("env_steps", "max"))
    best = size.sort_values(["seeds", "steps"], ascending=False).index[:MOST]
    return known[pd.MultiIndex.from_frame(known[KEY]).isin(best)]


def main_section(task: str, curves: pd.DataFrame) -> str:
    """Heading, figure and table of the settings in the figure of one task."""
    lines = [
        f"\n## {task}\n",
        f"![Returns on {task} against environment steps]({figure_path(task).as_posix()})\n",
        "| algorithm, utility | settings | seeds | steps | last, seed by seed | best |",
        "|---|---|---|---|---|---|",
    ]
    for (_, algorithm, utility, settings), group in curves.groupby(KEY):
        seeds = [run["episode_return"] for _, run in group.groupby("seed")]
        last, best = (", ".join(f"{value:z.1f}" for value in values) for values in
                      ([s.iloc[-1] for s in seeds], map(best_mean, seeds)))  # fmt: skip
        name = f"`{algorithm}`, {utility}" if utility else f"`{algorithm}`"
        steps = int(group.groupby("seed")["env_steps"].max().min())
        lines.append(f"| {name} | {settings} | {len(seeds)} | {steps:,} | {last} | {best} |")
    return "\n".join(lines) + "\n"


def task_section(task: str, curves: pd.DataFrame, info: pd.DataFrame, source: dict[Any, str]) -> str:
    """Heading, table of all runs and commands of one task."""
    lines = [f"\n## {task}\n"]
    lines += ["| algorithm, utility | settings | seed | steps | last | best | commit | minutes |", "|---" * 8 + "|"]
    commands, notes, hardware = {}, set(), set()
    notes_of_runs: list[str] = []
    for run, curve in curves.groupby(RUN, sort=True):
        _, algorithm, utility, settings, seed, _ = run
        found = info[(info[RUN].astype(str) == [str(part) for part in run]).all(axis=1)]
        row = found.iloc[0] if len(found) else dict.fromkeys(INFO, "")
        minutes = f"{float(row['seconds']) / 60:.0f}" if row["seconds"] else ""
        last, best = curve["episode_return"].iloc[-1], best_mean(curve["episode_return"])
        name = f"`{algorithm}`, {utility}" if utility else f"`{algorithm}`"
        commit = f"`{str(row['commit'])[:7]}`" if row["commit"] else "see below"
        steps = int(curve["env_steps"].max())
        lines.append(f"| {name} | {settings} | {seed} | {steps:,} | {last:z.1f} | {best:z.1f} | {commit} | {minutes} |")
        if row["note"]:
            notes_of_runs.append(f"- Seed {seed} of {name}, {settings}, at {commit}: {row['note']}.")
        if row["command"]:
            commands.setdefault(without_seed(str(row["command"])), None)
        else:
            notes.add(NOTES.get(source[run], "`benchmarks/results/README.md`"))
        hardware |= {str(row["hardware"])} - {""}
    if notes_of_runs:
        lines += ["", *notes_of_runs]
    if notes:
        lines.append(f"\nCommit, command, hardware and time of the rows without them: {', '.join(sorted(notes))}.")
    if hardware:
        lines.append(f"\nHardware: {'; '.join(sorted(hardware))}.")
    if commands:
        lines += ["\n```bash", *map(wrapped, commands), "```"]
    return "\n".join(lines) + "\n"


def without_seed(command: str) -> str:
    """The command with its seed left open, so that the seeds of a setting share a line."""
    parts = ["seed=SEED" if part.startswith("seed=") else part for part in command.split()]
    return " ".join(part for part in parts if "resume=" in command or not part.startswith("run_dir="))


def wrapped(command: str, width: int = 90) -> str:
    """A shell command on several lines; a description of how a run was started becomes a comment."""
    if not command.startswith("python "):
        return f"# {command}"
    lines = [""]
    for part in command.split():
        if lines[-1] and len(lines[-1]) + len(part) >= width:
            lines.append("   ")
        lines[-1] = f"{lines[-1]} {part}" if lines[-1] else part
    return " \\\n".join(lines)


def figure_path(task: str) -> Path:
    """Where the figure of a task lies, relative to the page."""
    return Path("figures") / f"results_{task.replace('/', '_').replace('.', '_')}.png"


def draw(task: str, curves: pd.DataFrame, published: pd.DataFrame, path: Path) -> None:
    """Seeds, their mean, and the published means of one task, of the utility that ours has, if there are any."""
    limit = curves["env_steps"].max()
    shown = published[(published["env"] == task) & (published["env_steps"] <= limit)]
    same = shown[shown["utility"].isin(curves["utility"].unique())]
    shown = same if len(same) else shown[shown["utility"] == shown["utility"].min()]
    with saved_figure(path, 4.4, 3.0) as figure:
        panel = figure.subplots()
        several = curves.groupby(["algorithm", "settings"])["utility"].nunique().max() > 1
        for i, ((_, algorithm, utility, settings), group) in enumerate(curves.groupby(KEY)):
            colour, line = COLOURS[i % len(COLOURS)], LINES[i // len(COLOURS) % len(LINES)]
            table = group.pivot(index="env_steps", columns="seed", values="episode_return")
            for seed in table:
                seen = table[seed].dropna()
                panel.plot(seen.index, seen, line, color=colour, linewidth=0.6, alpha=0.6)
            common, count = table.dropna().mean(axis=1), table.shape[1]
            words = [algorithm, *[utility][: int(several)], settings.split("/")[0]]
            name = f"{', '.join(words)} ({count} seed{'s' * (count > 1)})"
            panel.plot(common.index, common, line, color=colour, linewidth=1.8, label=name)
        if len(shown):
            panel.errorbar(
                shown["env_steps"], shown["mean"], shown["sem"], label=f"published, {shown['algorithm'].iloc[0]}",
                fmt="o", color="black", markersize=3.5, capsize=2, linewidth=0.8,
            )  # fmt: skip
        panel.set(xlabel="environment steps", ylabel="return", xlim=(0, 1.03 * limit))
        panel.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if value else "0")
        figure.legend(loc="outside upper left", fontsize=8)


def draw_first_run(whole: pd.DataFrame, path: Path) -> None:
    """What the quickstart's command learns: the mean of each evaluation of the newest whole run of each seed."""
    first = {"env": "Pendulum-v1", "algorithm": "member_values", "utility": "optimistic", "settings": "quick"}
    shown = whole[(whole[list(first)] == list(first.values())).all(axis=1)]
    if shown.empty:
        return
    with saved_figure(path, 4.4, 2.6) as figure:
        panel = figure.subplots()
        for colour, (seed, rows) in zip(COLOURS, shown.groupby("seed"), strict=False):
            means = rows.groupby("env_steps")["episode_return"].mean()
            panel.plot(means.index, means, color=colour, label=f"seed {seed}")
        panel.set(xlabel="environment steps", ylabel="return", xlim=(0, None))
        panel.legend()


def main() -> None:
    """Reads, draws and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the CSV files (%(default)s)")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "docs" / "reproduce", help="folder of the page (%(default)s)"
    )
    args = parser.parse_args()
    evaluations, info = read_results(args.results)
    published = pd.read_csv(RESULTS / "published_means.csv", comment="#")
    others = pd.read_csv(RESULTS / "other_systems.csv", comment="#")
    curves, whole = smoothed_curves(evaluations), evaluations.merge(whole_runs(info))
    source = evaluations.groupby(RUN)["file"].first().to_dict()
    page, appendix = [HEAD], [APPENDIX]
    sections = {str(task): main_runs(of_task, info) for task, of_task in curves.groupby("env", sort=True)}
    suite = pd.concat(sections.values(), ignore_index=True)  # without runs that have a note
    suite, longer = (suite[(suite["settings"] == s) & suite["env"].str.startswith("dmc/")] for s in (SETTINGS, LONGER))
    if len(suite):
        aggregate, panels = Path("figures") / "suite.png", Path("figures") / "suite_tasks.png"
        draw_suite(suite, others, args.out / aggregate)
        draw_panels(suite, others, args.out / panels)
        page.append(suite_section(suite, others, (aggregate, panels)))
    if len(longer):
        draw_panels(longer, others, args.out / "figures" / "longer.png")
        page.append(longer_section(longer, others, Path("figures") / "longer.png"))
    if (args.results / "peers.csv").exists():
        peers = peer_curves(pd.read_csv(args.results / "peers.csv"), whole)
        draw_peers(peers, args.out / "figures" / "peers.png")
        page.append(peers_section(peers, Path("figures") / "peers.png"))
    if (args.results / "offline.csv").exists():
        page.append(logs_section(pd.read_csv(args.results / "offline.csv")))
    for task, shown in sections.items():
        if len(shown) and task not in set(suite["env"]):  # which has its panel
            draw(task, shown, published, args.out / figure_path(task))
            page.append(main_section(task, shown))
        appendix.append(task_section(task, curves[curves["env"] == task], info, source))
    page.append(END)
    draw_first_run(whole, args.out / "figures" / "pendulum_learning_curve.png")
    (args.out / "results.md").write_text("".join(page), encoding="utf-8")
    (args.out / "results_appendix.md").write_text("".join(appendix), encoding="utf-8")
    print(f"{args.out / 'results.md'}: {len(source)} runs of {curves['env'].nunique()} tasks")


if __name__ == "__main__":
    main()
