"""Compares runs over seeds, tasks and algorithms: a table on the terminal, CSV files, and figures.

    python examples/compare.py runs/ --out comparison
    python examples/compare.py runs/2026-01-* short=runs/short_horizon --smooth 10
    python examples/compare.py results.csv --rename env=task env_steps=step --range Pendulum-v1=-1500,0

Sources are run folders, folders of run folders, and tidy CSV files with the columns env, algorithm, utility, seed,
env_steps and episode_return. NAME=PATH renames the algorithm of the runs under PATH, to compare settings that these
columns do not show. Scores are read at the last step that all runs of a task have reached, or at --steps.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportPossiblyUnboundVariable=false
# The annotations of pandas are wider than what these calls take and return.

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import pandas as pd

from eqr_torchrl.lab._command import parser_of, run_command, short
from eqr_torchrl.lab.comparison import (
    PAPER_SMOOTHING,
    aggregate_table,
    find_published,
    improvement_table,
    label,
    learning_curves,
    mean_curves,
    normalised_scores,
    plot_aggregates,
    plot_learning_curves,
    plot_performance_profiles,
    read_runs,
    run_scores,
    score_table,
)
from eqr_torchrl.lab.comparison.reading import GROUP
from eqr_torchrl.lab.runs import differing_settings

FEW = 5  # runs below which an interval is too narrow to rely on


def parse_arguments() -> argparse.Namespace:
    parser = parser_of(__doc__, "compare.py")
    parser.add_argument("sources", nargs="+", metavar="[NAME=]PATH", help="run folders or CSV files")
    parser.add_argument("--out", type=Path, default=Path("comparison"), help="folder for results (%(default)s)")
    parser.add_argument(
        "--smooth",
        type=int,
        default=1,
        metavar="W",
        help=f"trailing moving average over W evaluations; the paper uses {PAPER_SMOOTHING} (%(default)s)",
    )
    parser.add_argument(
        "--steps", type=int, metavar="N", help="compare at env step N and leave out runs that do not reach it"
    )
    parser.add_argument(
        "--rename", nargs="+", default=[], metavar="OURS=THEIRS", help="columns that have other names in the CSV files"
    )
    parser.add_argument(
        "--range",
        nargs="+",
        default=[],
        metavar="ENV=LOW,HIGH",
        help="returns that count as 0 and 1 when tasks are aggregated; dmc/ tasks default to 0,1000",
    )
    parser.add_argument("--format", default="png", choices=["png", "pdf", "svg"], help="of the figures (%(default)s)")
    parser.add_argument("--no-published", action="store_true", help="leave out the paper's scores")
    parser.add_argument("--no-figures", action="store_true", help="tables only; needs no matplotlib")
    return parser.parse_args()


def parse_pairs(option: str, pairs: list[str]) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise ValueError(f"{option} must be NAME=VALUE, got {pair!r}.")
    return dict((name, value) for name, _, value in (pair.rpartition("=") for pair in pairs))


def parse_ranges(pairs: list[str]) -> dict[str, tuple[float, float]]:
    ranges = {}
    for env, value in parse_pairs("--range", pairs).items():
        try:
            low, high = map(float, value.split(","))
        except ValueError:
            raise ValueError(f"--range must be ENV=LOW,HIGH, got {env}={value}.") from None
        ranges[env] = (low, high)
    return ranges


def report_settings(runs: pd.DataFrame) -> None:
    """Prints which settings besides the seed differ between runs that the columns call seeds of one algorithm."""
    for (env, *names), files in runs.groupby(GROUP)["file"].unique().items():
        different = differing_settings([Path(file).parent for file in files])
        if different:
            shown = [f"{key} ({', '.join(dict.fromkeys(map(str, v)))})" for key, v in list(different.items())[:6]]
            more = f" and {len(different) - 6} more" if len(different) > 6 else ""
            print(f"Runs of {label(*names)} on {env} differ in other settings than the seed; label them with ", end="")
            print(f"NAME=PATH: {', '.join(shown)}{more}.")


def report_short_runs(curves: pd.DataFrame, scores: pd.DataFrame) -> None:
    """Prints which run decides the step of a comparison, where others are longer."""
    ends = curves.merge(scores[[*GROUP, "seed"]]).groupby([*GROUP, "seed"], as_index=False)["env_steps"].max()
    for env, runs in ends.groupby("env"):
        first, last = runs.loc[runs["env_steps"].idxmin()], runs["env_steps"].max()
        if first["env_steps"] < last:
            name = f"{label(first['algorithm'], first['utility'])}, seed {first['seed']}"
            print(f"{env}: compared at step {first['env_steps']:,} of {last:,}, the end of {name}; ", end="")
            print("--steps N compares at step N and leaves out shorter runs.")


def published_cells(table: pd.DataFrame, smoothing: int) -> list[str]:
    """The paper's scores, where ours are of the same kind: after as many steps, smoothed in the same way."""
    papers = [find_published(row.env, row.algorithm, row.utility) for row in table.itertuples()]
    same = [
        paper is not None and paper.env_steps == steps and smoothing == PAPER_SMOOTHING
        for paper, steps in zip(papers, table["env_steps"], strict=True)
    ]
    left_out = {p.env_steps for p, shown in zip(papers, same, strict=True) if p is not None and not shown}
    for steps in left_out:
        print(
            f"Published scores, at {steps:,} steps with --smooth {PAPER_SMOOTHING}, are shown beside such scores only."
        )
    return [f"{p.mean:.1f} ± {p.sem:.1f}" if p and shown else "" for p, shown in zip(papers, same, strict=True)]


def report_narrow_intervals(normalised: dict, *tables: pd.DataFrame) -> None:
    """Prints a warning where intervals rest on few runs or have no width."""
    fewest = min(runs.size for tasks in normalised.values() for runs in tasks.values())
    if fewest < FEW:
        print(
            f"Warning: with {fewest} run(s) of a task these intervals are too narrow (tasks with one run contribute ",
            end="",
        )
        print(f"no variance); use at least {FEW} seeds.")
    elif any((table["low"] == table["high"]).any() for table in tables):
        print("Warning: an interval of zero width means that all resamples agree, not that another seed would.")


def main() -> None:
    args = parse_arguments()
    ranges = parse_ranges(args.range)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        runs = read_runs(args.sources, columns=parse_pairs("--rename", args.rename))
        curves = learning_curves(runs, smoothing=args.smooth)
        scores = run_scores(curves, env_steps=args.steps)
    for warning in caught:
        print(warning.message)
    report_settings(runs)
    if args.steps is None:
        report_short_runs(curves, scores)
    compared = curves.merge(scores[[*GROUP, "seed"]])
    tasks = list(curves["env"].unique())
    args.out.mkdir(parents=True, exist_ok=True)

    # 1. Scores of each task
    table = score_table(scores)
    table.to_csv(args.out / "scores.csv", index=False)
    mean_curves(compared).to_csv(args.out / "curves.csv", index=False)
    all_seeds = curves.groupby(GROUP)["seed"].nunique()
    shown = pd.DataFrame(
        {
            "task": table["env"],
            "algorithm": list(map(label, table["algorithm"], table["utility"])),
            "steps": table["env_steps"],
            "seeds": [
                f"{row.num_seeds} of {all_seeds[row.env, row.algorithm, row.utility]}" for row in table.itertuples()
            ],
            "return": [short(r.mean) + (f" ± {short(r.sem)}" if r.num_seeds > 1 else "") for r in table.itertuples()],
        }
    )
    published = [] if args.no_published else published_cells(table, args.smooth)
    if any(published):
        shown["published"] = published
    print("Return, mean ± standard error over seeds")
    print(shown.to_string(index=False))

    # 2. Aggregates over tasks; a single task without a known range is compared in its own units
    unit = "normalised score"
    if len(tasks) == 1 and not tasks[0].startswith("dmc/") and tasks[0] not in ranges:
        ranges, unit = {tasks[0]: (0.0, 1.0)}, "return"
    normalised = normalised_scores(scores, score_ranges=ranges)
    used = next(iter(normalised.values()), {})
    left_out = [task for task in tasks if task not in used]
    if left_out:
        print(f"\nLeft out of the aggregates (no --range, or not every algorithm was run): {', '.join(left_out)}")
    if used:
        aggregates, improvements = aggregate_table(normalised), improvement_table(normalised)
        if unit == "return":  # the optimal return is unknown
            aggregates = aggregates[aggregates["metric"] != "optimality gap"]
        aggregates.to_csv(args.out / "aggregates.csv", index=False)
        improvements.to_csv(args.out / "improvement.csv", index=False)
        written = short if unit == "return" else "{:.3f}".format
        rows = aggregates.itertuples()
        cells = [f"{written(r.estimate)} ({written(r.low)}, {written(r.high)})" for r in rows]
        cells = aggregates.assign(cell=cells).pivot(index=["algorithm", "num_runs"], columns="metric", values="cell")
        cells = cells[aggregates["metric"].unique()].reset_index().rename(columns={"num_runs": "runs"})
        print(f"\nAggregates over {len(used)} task(s), {unit}, 95 % intervals from resampling runs within tasks")
        print(cells.to_string(index=False))
        if len(improvements):
            print("\nProbability that a run of the first algorithm beats a run of the second")
            for row in improvements.itertuples():
                print(f"{row.algorithm} > {row.baseline}: {row.probability:.2f} ({row.low:.2f}, {row.high:.2f})")
        report_narrow_intervals(normalised, aggregates, improvements)

    # 3. Figures
    if not args.no_figures:
        few_seeds = all_seeds.max() <= 10 and len(tasks) <= 4
        plot_learning_curves(
            compared, args.out / f"learning_curves.{args.format}", show_seeds=few_seeds, published=not args.no_published
        )
        if used:
            plot_performance_profiles(normalised, args.out / f"performance_profiles.{args.format}", xlabel=unit)
            plot_aggregates(aggregates, args.out / f"aggregates.{args.format}", xlabel=unit)
    print(f"\nWritten to {args.out}")


def cli() -> None:
    """The command line."""
    run_command(main)


if __name__ == "__main__":
    cli()
