"""Compares runs over seeds, tasks and algorithms: a table on the terminal, CSV files, and figures.

    python examples/compare.py runs/ --out comparison
    python examples/compare.py runs/2026-01-* short=runs/short_horizon --smooth 10
    python examples/compare.py results.csv --rename env=task env_steps=step --range Pendulum-v1=-1500,0

Sources are run folders, folders of run folders, and tidy CSV files with the columns env, algorithm, utility, seed,
env_steps and episode_return. NAME=PATH renames the algorithm of the runs under PATH, so that settings which these
columns do not tell apart can be compared. Scores are read at the last step that every algorithm reaches on the task.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from eqr_torchrl.evaluation import (
    PAPER_SMOOTHING,
    EvaluationRow,
    aggregate_table,
    curve_rows,
    find_published,
    format_table,
    improvement_table,
    learning_curves,
    normalised_scores,
    plot_aggregates,
    plot_learning_curves,
    plot_performance_profiles,
    read_run_files,
    score_table,
    write_csv,
)
from eqr_torchrl.runs import differing_settings


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
        "--rename", nargs="+", default=[], metavar="OURS=THEIRS", help="columns that are called otherwise"
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
            raise ValueError(f"{option} must be NAME=VALUE: got {pair!r}.")
    return dict((name, value) for name, _, value in (pair.rpartition("=") for pair in pairs))


def parse_ranges(pairs: list[str]) -> dict[str, tuple[float, float]]:
    ranges = {}
    for env, value in parse_pairs("--range", pairs).items():
        try:
            low, high = map(float, value.split(","))
        except ValueError:
            raise ValueError(f"--range must be ENV=LOW,HIGH: got {env}={value}.") from None
        ranges[env] = (low, high)
    return ranges


def warn_of_settings(runs: dict[tuple[str, Path], list[EvaluationRow]]) -> None:
    """Prints what else differs between runs that the columns call seeds of one algorithm on one task."""
    groups: dict[tuple[str, str, str], list[Path]] = {}
    for (_, file), rows in runs.items():
        for run in {row[:3] for row in rows}:
            groups.setdefault(run, []).append(file.parent)
    for (env, algorithm, utility), folders in groups.items():
        different = differing_settings(folders)
        if different:
            shown = [f"{key} ({', '.join(dict.fromkeys(map(str, v)))})" for key, v in list(different.items())[:6]]
            more = f" and {len(different) - 6} more" if len(different) > 6 else ""
            label = f"{algorithm} ({utility})" if utility else algorithm
            print(f"Runs of {label} on {env} differ in more than the seed, tell them apart with NAME=PATH:", end=" ")
            print(f"{', '.join(shown)}{more}.")


def main() -> None:
    args = parse_arguments()
    runs = read_run_files(args.sources, columns=parse_pairs("--rename", args.rename))
    warn_of_settings(runs)
    rows = [row for found in runs.values() for row in found]
    curves = learning_curves(rows, smoothing=args.smooth)
    tasks = list(dict.fromkeys(curve.env for curve in curves))
    ranges = parse_ranges(args.range)

    # 1. Scores of each task
    scores = score_table(curves)
    cells = []
    for curve, row in zip(curves, scores, strict=True):
        paper = None if args.no_published else find_published(row.env, row.algorithm, row.utility)
        published = f"{paper.mean:.1f} ± {paper.sem:.1f}" if paper else ""
        seeds = f"{row.num_seeds} of {len(curve.seeds)}"
        ours = f"{row.mean:.1f} ± {row.sem:.1f}" if row.num_seeds > 1 else f"{row.mean:.1f}"
        cells.append([row.env, curve.label, str(row.env_steps), seeds, ours, published])
    print("Return, mean ± standard error over the seeds that reach the step")
    header = ["task", "algorithm", "steps", "seeds", "return", "published, 250K"]
    if not any(line[-1] for line in cells):
        header, cells = header[:-1], [line[:-1] for line in cells]
    print(format_table(header, cells))
    write_csv(scores, args.out / "scores.csv")
    write_csv(curve_rows(curves), args.out / "curves.csv")

    # 2. Aggregates over tasks; a single task without a known range is compared in its own units
    unit, digits = "normalised score", 3
    if len(tasks) == 1 and not tasks[0].startswith("dmc/") and tasks[0] not in ranges:
        ranges, unit, digits = {tasks[0]: (0.0, 1.0)}, "return", 1
    normalised = normalised_scores(curves, score_ranges=ranges)
    used = next(iter(normalised.values()), {})
    left_out = [task for task in tasks if task not in used]
    if left_out:
        print(f"\nNot aggregated, for want of --range or of runs of every algorithm: {', '.join(left_out)}")
    if used:
        aggregates, improvements = aggregate_table(normalised), improvement_table(normalised)
        if unit == "return":  # nothing says which return is optimal
            aggregates = [row for row in aggregates if row.metric != "optimality gap"]
        metrics = list(dict.fromkeys(row.metric for row in aggregates))
        cells = []
        for label in normalised:
            mine = {row.metric: row for row in aggregates if row.algorithm == label}
            values = ["{:.{d}f} ({:.{d}f}, {:.{d}f})".format(*mine[m][-3:], d=digits) for m in metrics]
            cells.append([label, str(mine[metrics[0]].num_runs), *values])
        print(f"\nAggregates over {len(used)} task(s), {unit}, 95 % intervals from resampling runs within tasks")
        print(format_table(["algorithm", "runs", *metrics], cells))
        if any(runs.size == 1 for tasks_of_one in normalised.values() for runs in tasks_of_one.values()):
            print("Intervals are too narrow: a task with a single run adds no width, since its spread cannot be seen.")
        write_csv(aggregates, args.out / "aggregates.csv")
        if improvements:
            print("\nProbability that a run of the first algorithm beats a run of the second")
            cells = [
                [f"{r.algorithm} > {r.baseline}", f"{r.probability:.2f} ({r.low:.2f}, {r.high:.2f})"]
                for r in improvements
            ]
            print(format_table(["pair", "probability"], cells))
            write_csv(improvements, args.out / "improvement.csv")

    # 3. Figures
    if not args.no_figures:
        few_seeds = max(len(curve.seeds) for curve in curves) <= 10 and len(tasks) <= 4
        plot_learning_curves(
            curves, args.out / f"learning_curves.{args.format}", show_seeds=few_seeds, published=not args.no_published
        )
        if used:
            plot_performance_profiles(normalised, args.out / f"performance_profiles.{args.format}", xlabel=unit)
            plot_aggregates(aggregates, args.out / f"aggregates.{args.format}", xlabel=unit)
    print(f"\nWritten to {args.out}")


if __name__ == "__main__":
    try:
        main()
    except (ValueError, ImportError, OSError) as error:
        sys.exit(f"compare.py: {error}")
