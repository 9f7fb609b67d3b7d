"""The policies that come with the package: the best of each task's finished runs, evaluated again.

    python benchmarks/pretrained.py RUN ... --commit 4f9e81d
    python benchmarks/pretrained.py --check

Of the runs given, the policy of the best evaluation and the last one of each are evaluated for twenty episodes from
seeds of no training. The better one is kept for its task in eqr_torchrl/lab/pretrained/, with a row of pretrained.csv:
mean and standard deviation of other twenty episodes, so that the choice does not flatter it. A policy that is there is
replaced by a better one alone. --check evaluates each file once more, and fails where a mean is not what the row says.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from eqr_torchrl.lab.evaluation import evaluate
from eqr_torchrl.lab.runs import load_agent, read_csv
from eqr_torchrl.lab.runs.agent import describe_actor, policy_content, save_policy
from eqr_torchrl.lab.runs.folder import write_csv

FOLDER = Path(__file__).parents[1] / "eqr_torchrl" / "lab" / "pretrained"
TABLE = FOLDER / "pretrained.csv"
COLUMNS: tuple[str, ...] = ("name", "utility", "seed", "env_steps", "return", "std", "commit")
EPISODES, CHOICE, REPORT, CHECK = 20, 10_000, 20_000, 30_000  # seeds of the environment


def returns(agent: Any, seed: int) -> list[float]:
    env = agent.make_env(seed=seed)
    rows = evaluate(env, agent.actor, num_episodes=EPISODES, seed=seed)
    env.close()
    return [row["episode_return"] for row in rows]


def read_table() -> dict[str, dict[str, str]]:
    return {row["name"]: row for row in read_csv(TABLE)} if TABLE.exists() else {}


def keep(folder: Path, commit: str, table: dict[str, dict[str, str]]) -> None:
    """Keeps the better of a run's two policies, if it is better than the one that is there."""
    files = [folder / "checkpoints" / name for name in ("policy_best.pt", "policy.pt")]
    best, agent = max(((mean(returns(one, CHOICE)), one) for one in map(load_agent, files)), key=lambda pair: pair[0])
    name = agent.space["env"].replace("/", "_")
    if name in table and mean(returns(load_agent(f"pretrained/{name}"), CHOICE)) >= best:
        print(f"{name}: the policy that is there is as good")
        return
    found = returns(agent, REPORT)
    print(f"{name}: {mean(found):.1f}, standard deviation {stdev(found):.1f}, {agent.env_steps} steps ({agent.source})")
    settings = {**agent.settings, "run_dir": None, "runs_root": "runs", "resume": None}  # no folders of a machine
    network = describe_actor(agent.actor, agent.space)
    content = policy_content(agent.actor, network, agent.space, settings, agent.env_steps, agent.evaluation)
    save_policy(FOLDER / f"{name}.pt", content)
    scores = f"{mean(found):.1f}", f"{stdev(found):.1f}"
    values = name, settings["labels"]["utility"], settings["seed"], agent.env_steps, *scores, commit
    table[name] = dict(zip(COLUMNS, map(str, values), strict=True))


def check(row: dict[str, str]) -> bool:
    """Whether twenty more episodes agree with a row within three standard errors of the difference."""
    found = returns(load_agent(f"pretrained/{row['name']}"), CHECK)
    error = math.hypot(stdev(found), float(row["std"])) / math.sqrt(EPISODES)
    print(f"{row['name']}: {mean(found):.1f} now, {row['return']} in the table, standard error {error:.1f}")
    return abs(mean(found) - float(row["return"])) <= 3 * error + 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--commit", help="of the code that the runs were trained with")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    table = read_table()
    if args.check:
        raise SystemExit(0 if all([check(row) for row in table.values()]) else 1)
    if not args.folders or not args.commit:
        parser.error("runs and --commit are needed, or --check.")
    for folder in args.folders:
        keep(folder, args.commit, table)
        write_csv(TABLE, COLUMNS, [table[name] for name in sorted(table)])


if __name__ == "__main__":
    main()
