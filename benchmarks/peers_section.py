"""Our runs with the one setting beside SAC and TQC of stable-baselines3, by steps and by CPU time.

Used by benchmarks/results_page.py, from the rows that benchmarks/peers.py wrote.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportReturnType=false, reportOptionalMemberAccess=false
# The annotations of pandas are wider than what these calls return.

from __future__ import annotations

from pathlib import Path

import pandas as pd
from suite import SETTINGS, WINDOW

from eqr_torchrl.lab.figures import COLOURS, saved_figure

AGENTS = {"ours": "ours", "sac": "SAC", "tqc": "TQC"}
MINUTES = 10
WARMUP = 1000  # steps before learning starts: counted by the others, not by ours


def peer_curves(peers: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Every evaluation of the peers, and of our runs on their tasks whose CPU time is known, within the time."""
    ours = runs[(runs["settings"] == SETTINGS) & runs["env"].isin(peers["env"])]
    ours = ours.assign(agent="ours", env_steps=ours["env_steps"] + WARMUP)
    ours = ours.assign(cpu_seconds=pd.to_numeric(ours["cpu_seconds"])).dropna(subset=["cpu_seconds"])
    ours = ours[ours.groupby(["env", "seed"])["env_steps"].transform("size") > 1]  # not those with a total alone
    columns = ["env", "agent", "seed", "env_steps", "cpu_seconds", "episode_return"]
    found = pd.concat([ours[columns], peers[columns]], ignore_index=True)
    found["seed"] = found["seed"].astype(str)
    return found.sort_values(["env", "agent", "seed", "env_steps"], ignore_index=True)


def draw_peers(curves: pd.DataFrame, path: Path) -> None:
    """Return against steps and against CPU seconds, one column for each task."""
    tasks = sorted(curves["env"].unique())
    unnamed = dict(AGENTS)
    with saved_figure(path, 6.8, 4.2) as figure:
        panels = figure.subplots(2, len(tasks), squeeze=False)
        for column, task in enumerate(tasks):
            for colour, agent in zip(COLOURS, AGENTS, strict=False):
                mine = curves[(curves["env"] == task) & (curves["agent"] == agent)]
                for _, run in mine.groupby("seed"):
                    for panel, key in zip(panels[:, column], ("env_steps", "cpu_seconds"), strict=True):
                        label = unnamed.pop(agent, None)
                        panel.plot(run[key], run["episode_return"], color=colour, linewidth=1, label=label)
            panels[0, column].set(title=task.removeprefix("dmc/"), xlabel="environment steps")
            panels[0, column].title.set_fontsize(9)
            panels[0, column].xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if value else "0")
            panels[1, column].set(xlabel="CPU seconds of one thread")
        for row in panels:
            row[0].set_ylabel("return")
        figure.legend(loc="outside upper center", ncols=3)


def after_minutes(run: pd.DataFrame) -> str:
    """Mean of the last five evaluations within the time, with the steps reached."""
    seen = run[run["cpu_seconds"] <= 60 * MINUTES]
    return f"{seen['episode_return'].iloc[-WINDOW:].mean():z.1f} ({seen['env_steps'].max():,})" if len(seen) else ""


def peers_section(curves: pd.DataFrame, figure: Path) -> str:
    """Heading, figure and table: returns after the same CPU time, with the steps reached in it."""
    lines = [
        "\n## Beside SAC and TQC\n",
        f"![Returns against environment steps and against CPU seconds, three tasks]({figure.as_posix()})\n",
        "SAC and TQC of stable-baselines3 at their defaults, and the one setting (`budget=laptop`), one thread each. "
        f"Returns after {MINUTES} CPU minutes: the mean of the last five evaluations of one episode, seed by seed, and "
        "in brackets the environment steps in that time. SAC and TQC have seed 0 alone, cheetah-run on two "
        "machines (`benchmarks/results/README.md`); of ours, the runs are shown whose CPU time is known. "
        "CPU time includes evaluations in ours and not in theirs; steps include our warm-up here. "
        "`benchmarks/peers.py` makes the others.\n",
        f"| task | {' | '.join(AGENTS.values())} |",
        "|---" * (1 + len(AGENTS)) + "|",
    ]
    for task, of_task in curves.groupby("env"):
        cells = []
        for agent in AGENTS:
            found = [after_minutes(run) for _, run in of_task[of_task["agent"] == agent].groupby("seed")]
            cells.append(", ".join(filter(None, found)))
        lines.append(f"| {task} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
