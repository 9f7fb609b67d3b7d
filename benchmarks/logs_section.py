"""What was learned from logs: ours, its baselines with the same parts, and CQL, IQL and TD3+BC.

Used by benchmarks/results_page.py, from the rows that benchmarks/offline.py wrote.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportReturnType=false, reportOptionalMemberAccess=false
# The annotations of pandas are wider than what these calls return.

from __future__ import annotations

import pandas as pd

OURS, MEAN = "posterior", "none"
NAMES = {
    OURS: "ours",
    MEAN: "mean, no pessimism",
    "penalty": "penalised rewards",
    "cloning": "cloning",
    "cql": "CQL",
    "iql": "IQL",
    "td3bc": "TD3+BC",
}
NEAR = 0.05  # of the size of the best return: counts as equal
LOGS, SEEDS = 12, 2  # of the comparison when it is complete


def compared(table: pd.DataFrame) -> list[tuple[str, int, int]]:
    """What was asked of ours, on how many data sets it holds, and of how many: those with the runs that it needs."""
    means = table.pivot_table(index="data", columns="algorithm", values="return")
    worst = table.pivot_table(index="data", columns="algorithm", values="return", aggfunc="min")
    logged, best = table.groupby("data")["logged"].first(), means.max(axis=1)
    # by differences, not by ratios: returns may be negative
    near = means[OURS] >= best - NEAR * best.abs()
    whole = means.notna().all(axis=1)
    led = means.index[~means.index.str.endswith("random") & means[OURS].notna()]
    found = [
        ("the best mean return, or within 5 % of it, of the logs with all algorithms", near[whole]),
        ("medium and mixed logs: a mean return of at least that of the log", means.loc[led, OURS] >= logged[led]),
    ]
    if MEAN in means:
        both = worst[[OURS, MEAN]].dropna()
        found.append(("a worst seed above that of the mean without pessimism", both[OURS] > both[MEAN]))
    return [(text, int(holds.sum()), len(holds)) for text, holds in found]


def logs_section(table: pd.DataFrame) -> str:
    """Heading, table of returns seed by seed, and what holds on how many data sets."""
    shown = [name for name in NAMES if (table["algorithm"] == name).any()]
    updates = table.groupby("algorithm")["updates"].max().to_dict()
    made = ", ".join(f"{NAMES[name]} {updates[name]:,}" for name in shown)
    lines = [
        "\n## Learning from logs\n",
        "Returns of ten episodes of the policy that was kept (ours: by its judged return; CQL, IQL and TD3+BC of "
        f"d3rlpy at their defaults and cloning: the last), seed by seed. Updates on the same log: {made}. "
        "`benchmarks/offline_data.py` makes the logs, `benchmarks/offline.py` the runs "
        "({doc}`../how_to/learn_from_logs`). Our defaults were chosen on logs of the crane and of cheetah-run, and the "
        "judge also with the medium logs of walker-walk and Hopper; the other logs are independent of them.\n",
        f"| log | its mean return | {' | '.join(NAMES[name] for name in shown)} |",
        "|---" * (2 + len(shown)) + "|",
    ]
    for data, rows in table.groupby("data", sort=True):
        cells = []
        for name in shown:
            returns = rows[rows["algorithm"] == name].sort_values("seed")["return"]
            cells.append(", ".join(f"{value:z.1f}" for value in returns))
        lines.append(f"| {data} | {rows['logged'].iloc[0]:z.1f} | {' | '.join(cells)} |")
    whole = LOGS * len(NAMES) * SEEDS
    if len(table) < whole:
        lines.append(f"\nNot all runs are made yet: {len(table)} of {whole}.")
    lines.append("\nOf ours, with the default `pessimism=posterior`:\n")
    lines += [f"- {text}: {count} of {total} logs" for text, count, total in compared(table)]
    judged = table["held"].dropna()
    lines.append(
        f"\nThe judged interval holds the real return in {int(judged.sum())} of {len(judged)} runs, those of the mean "
        "and of penalised rewards included."
    )
    return "\n".join(lines) + "\n"
