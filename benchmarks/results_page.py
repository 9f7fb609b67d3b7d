"""Writes docs/reproduce/results.md and its figures from the CSV files of benchmarks/results.

    python benchmarks/results_page.py

Returns come from runs.csv (env, algorithm, utility, seed, env_steps, episode_return) and from the older files of single
studies; commit, command, hardware and time from runs_info.csv. A run is on the page whether or not it learned.
"""

# pyright: reportGeneralTypeIssues=false
# The annotations of pandas are wider than what these calls return.

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pandas as pd

from eqr_torchrl.lab.comparison import learning_curves, read_runs
from eqr_torchrl.lab.figures import COLOURS, LINES, saved_figure

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
#: Files from before runs.csv, of runs with the published model and fit; the label distinguishes them from later runs.
EARLIER = {"cheetah_run.csv": "eqr_sac (published fit)", "mountain_car.csv": "eqr_sac (published fit)"}
WINDOW = 5  # evaluations in a trailing mean, as in published_means.csv
RUN = ["env", "algorithm", "utility", "seed"]
INFO = ["commit", "seconds", "hardware", "command", "note"]
NOTES = {
    "cheetah_run.csv": "`benchmarks/results/README.md`",
    "mountain_car.csv": "{doc}`mountain_car`",
}

HEAD = """% Written by benchmarks/results_page.py from benchmarks/results/*.csv. Edit those, not this page.

# Results

Every task and algorithm that was run with this package, failed runs included. These are short runs on CPUs: the paper's
benchmark of 250,000 steps, 16 tasks and ten seeds has not been repeated.

- **Figures.** Thin lines are seeds, each the trailing mean of five evaluations; the thick line is their mean, up to the
  last step that all of them reached, without runs that were stopped or made for tuning ("stopped", with notes below
  the tables). Black marks with bars are the published means of ten seeds with their standard
  errors {cite:p}`luis2024value`, with settings that may differ from ours ({doc}`deviations`).
- **Tables.** "Last" is the mean of the last five evaluations of a run, "best" the highest such mean. Returns are as the
  environment pays them, `reward_scale` included: `-x0.5` in a name halves all rewards.
- **Few seeds.** Two or three seeds show that something works, not how often ({doc}`../evaluating`).

Rebuild this page with `python benchmarks/results_page.py`. The rows are in `benchmarks/results/`.
"""


def read_results(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Evaluations of all runs, and what is known of each run: commit, seconds, hardware, command."""
    earlier = read_runs([f"{label}={folder / name}" for name, label in EARLIER.items()])
    earlier["file"] = earlier["file"].map(lambda file: Path(file).name)
    text = dict.fromkeys([*RUN, *INFO], str)
    runs, info = (
        pd.read_csv(folder / name, dtype=text, keep_default_na=False) for name in ("runs.csv", "runs_info.csv")
    )
    newest = info.groupby(RUN[:3])["commit"].last().to_dict()
    for table in (runs, info):  # other commits are other settings
        current = [newest[tuple(row)] for row in table[RUN[:3]].to_numpy()]
        table["algorithm"] += [
            "" if commit == last else f" ({commit[:7]})" for commit, last in zip(table["commit"], current, strict=True)
        ]
    return pd.concat([earlier, runs.assign(file="runs.csv")], ignore_index=True), info


def task_section(task: str, curves: pd.DataFrame, info: pd.DataFrame, source: dict[Any, str]) -> str:
    """Heading, figure, table of runs and commands of one task."""
    lines = [
        f"\n## {task}\n",
        f"![Returns of all runs on {task} against environment steps]({figure_path(task).as_posix()})\n",
    ]
    lines += ["| algorithm, utility | seed | steps | last | best | commit | minutes |", "|---|---|---|---|---|---|---|"]
    commands, notes, hardware = {}, set(), set()
    notes_of_runs: list[str] = []
    for run, curve in curves.groupby(RUN, sort=True):
        _, algorithm, utility, seed = run
        found = info[(info[RUN].astype(str) == [str(part) for part in run]).all(axis=1)]
        row = found.iloc[0] if len(found) else dict.fromkeys(INFO, "")
        minutes = f"{float(row['seconds']) / 60:.0f}" if row["seconds"] else ""
        last, best = curve["episode_return"].iloc[-1], curve["episode_return"].max()
        name = f"`{algorithm}`, {utility}" if utility else f"`{algorithm}`"
        commit = f"`{str(row['commit'])[:7]}`" if row["commit"] else "see below"
        steps = int(curve["env_steps"].max())
        lines.append(f"| {name} | {seed} | {steps:,} | {last:z.1f} | {best:z.1f} | {commit} | {minutes} |")
        if row["note"]:
            notes_of_runs.append(f"- Seed {seed} of {name}: {row['note']}.")
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
    return " ".join(
        "seed=SEED" if part.startswith("seed=") else part for part in command.split() if not part.startswith("run_dir=")
    )


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


def count_of_seeds(whole: int, partial: int) -> str:
    """How many seeds a curve has, and how many runs are not in its mean."""
    parts = [f"{whole} seed{'s' * (whole > 1)}"] * (whole > 0) + [f"{partial} stopped"] * (partial > 0)
    return ", ".join(parts)


def draw(task: str, curves: pd.DataFrame, published: pd.DataFrame, partial: set[Any], path: Path) -> None:
    """Seeds, their mean without the ``partial`` runs, and published means of one task."""
    limit = curves["env_steps"].max()
    shown = published[(published["env"] == task) & (published["env_steps"] <= limit)].groupby(["algorithm", "utility"])
    groups = curves.groupby(["algorithm", "utility"])
    with saved_figure(path, 4.4, 2.5 + 0.16 * (groups.ngroups + shown.ngroups)) as figure:
        panel = figure.subplots()
        for i, ((algorithm, utility), group) in enumerate(groups):
            colour, line = COLOURS[i % len(COLOURS)], LINES[i // len(COLOURS) % len(LINES)]
            table = group.pivot(index="env_steps", columns="seed", values="episode_return")
            for seed in table:
                seen = table[seed].dropna()
                panel.plot(seen.index, seen, line, color=colour, linewidth=0.6, alpha=0.6)
            whole = [seed for seed in table if (task, algorithm, utility, seed) not in partial]
            common = table[whole or table.columns].dropna().mean(axis=1)
            name = f"{algorithm} {utility}".strip() + f" ({count_of_seeds(len(whole), table.shape[1] - len(whole))})"
            panel.plot(common.index, common, line, color=colour, linewidth=1.8 if whole else 0.6, label=name)
        for i, ((algorithm, utility), group) in enumerate(shown):
            style: dict[str, Any] = {
                "fmt": "os"[i % 2],
                "color": "black",
                "markersize": 3.5,
                "capsize": 2,
                "linewidth": 0.8,
            }
            panel.errorbar(
                group["env_steps"], group["mean"], group["sem"], label=f"published {algorithm} {utility}", **style
            )
        panel.set(xlabel="environment steps", ylabel="return", xlim=(0, 1.03 * limit))
        panel.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if value else "0")
        figure.legend(loc="outside upper left", fontsize=8)


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
    curves = learning_curves(evaluations, smoothing=WINDOW)
    source = evaluations.groupby(RUN)["file"].first().to_dict()
    partial = set(info.loc[info["note"] != "", RUN].itertuples(index=False, name=None))
    sections = [HEAD]
    for task, of_task in curves.groupby("env", sort=True):
        draw(str(task), of_task, published, partial, args.out / figure_path(str(task)))
        sections.append(task_section(str(task), of_task, info, source))
    (args.out / "results.md").write_text("".join(sections), encoding="utf-8")
    print(f"{args.out / 'results.md'}: {len(source)} runs of {curves['env'].nunique()} tasks")


if __name__ == "__main__":
    main()
