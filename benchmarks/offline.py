"""Learning from logs: ours, penalised rewards, the mean, behaviour cloning, and CQL, IQL, TD3+BC of d3rlpy.

    python benchmarks/offline.py data/dmc-cheetah-run-medium.npz dmc/cheetah-run
    ~/d3rlpy_venv/bin/python benchmarks/offline.py data/... dmc/cheetah-run --algorithms cql iql td3bc
    PYTHONPATH=benchmarks python benchmarks/offline.py data/Crane-medium.npz crane:Crane

Each line of benchmarks/results/offline.csv is one run, and a run that is there is skipped: the return of ten episodes
in the simulator of the policy that was kept (ours: of the best judged return; d3rlpy: the last, since it has no
rule), the mean return of the log, and for ours the judged interval and whether it held. benchmarks/results_page.py
makes a table of them. d3rlpy lives in an environment of its own. Ours are given the task's rule of terminations and its
time limit, as the user of a plant would state them; overrides after -- go to examples/offline.py too.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eqr_torchrl.lab.envs import make_env
from eqr_torchrl.lab.evaluation import evaluate
from eqr_torchrl.lab.logs import clone_behaviour, episodes_of, read_transitions, returns_to_go, specs_of
from eqr_torchrl.lab.runs import load_agent, read_csv
from eqr_torchrl.networks import Normalizer, make_actor

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "offline.csv"
OURS, BASELINES = ("posterior", "penalty", "none"), {"cql": "CQLConfig", "iql": "IQLConfig", "td3bc": "TD3PlusBCConfig"}
# d3rlpy: no less CPU time than ours takes for 10,000; 116, 18 and 14 ms each, one core beside other runs
UPDATES = {"cloning": 10_000, "cql": 5_000, "iql": 20_000, "td3bc": 20_000}
KNOWN = {  # of the tasks that terminate; in a log of Hopper no episode may last as long as its limit
    "Hopper-v5": ("termination_fn=eqr_torchrl.lab.envs.terminations:hopper_terminates", "max_episode_steps=1000"),
    "crane:Crane": ("termination_fn=crane:crane_stops",),
}
COLUMNS = ("data", "algorithm", "seed", "updates", "return", "logged", "low", "value", "high", "held")


def ours(options: argparse.Namespace, pessimism: str, seed: int) -> tuple[Any, dict[str, Any]]:
    folder = options.out / f"{options.data.stem}-{pessimism}-{seed}"
    words = ["data=npz", f"data.path={options.data}", f"pessimism={pessimism}", f"seed={seed}", f"run_dir={folder}"]
    words += ["resume=auto", "progress=false", *KNOWN.get(options.env, ()), *options.overrides]
    subprocess.run([sys.executable, str(ROOT / "examples" / "offline.py"), *words], check=True)
    agent = load_agent(folder, which="best")
    rows = {int(row["env_steps"]): row for row in read_csv(folder / "metrics.csv") if row.get("judged/low")}
    judged = {name: float(rows[agent.env_steps][f"judged/{name}"]) for name in ("low", "value", "high")}
    return agent.actor, {**judged, "updates": max(rows)}


def cloned(data: Any, updates: int) -> Any:
    actor = make_actor(specs_of(data), normalize=True)
    for part in actor.modules():
        if isinstance(part, Normalizer):
            part.update(data["observation"])
    clone_behaviour(actor, data, num_steps=updates)
    return actor


def d3rlpy_policy(path: Path, name: str, updates: int, seed: int) -> Any:
    import d3rlpy  # pyright: ignore[reportMissingImports]  # in an environment of its own

    d3rlpy.seed(seed)
    with np.load(path) as file:
        arrays = {key: file[key] for key in ("observations", "actions", "rewards", "terminals", "timeouts")}
    arrays = {key: value.astype(np.float32) for key, value in arrays.items()}
    dataset = d3rlpy.dataset.MDPDataset(**arrays)
    config = getattr(d3rlpy.algos, BASELINES[name])
    scaler = d3rlpy.preprocessing.MinMaxActionScaler()
    algorithm = config(action_scaler=scaler, observation_scaler=d3rlpy.preprocessing.StandardObservationScaler())
    algorithm = algorithm.create(device="cpu")
    algorithm.fit(
        dataset, n_steps=updates, n_steps_per_epoch=updates, show_progress=False,
        logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
    )  # fmt: skip

    def policy(tensordict: Any) -> Any:
        observation = tensordict["observation"].numpy()
        action = algorithm.predict(observation.reshape(-1, observation.shape[-1])).astype(np.float32)
        return tensordict.set("action", torch.from_numpy(action).view(*tensordict.batch_size, -1))

    return policy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("env")
    parser.add_argument("--algorithms", nargs="+", default=[*OURS, "cloning"], choices=[*OURS, "cloning", *BASELINES])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--updates", type=int, help="of cloning and d3rlpy (10,000; CQL 5,000, IQL and TD3+BC 20,000)")
    parser.add_argument("--max-episode-steps", type=int)
    parser.add_argument("--out", type=Path, default=Path("runs/offline"))
    parser.add_argument("--results", type=Path, default=RESULTS, help="table (%(default)s)")
    parser.add_argument("overrides", nargs="*", help="of examples/offline.py, after --")
    options = parser.parse_intermixed_args()
    data = read_transitions(options.data)
    logged = float(np.mean([float(returns_to_go(episode)[0]) for episode in episodes_of(data)]))
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    for name in options.algorithms:
        for seed in options.seeds:
            table = options.results
            key = [options.data.stem, name, str(seed)]
            if table.exists() and any([row[column] for column in COLUMNS[:3]] == key for row in read_csv(table)):
                continue
            torch.manual_seed(seed)
            updates, judged = options.updates or UPDATES.get(name, 0), {}
            if name in OURS:
                policy, judged = ours(options, name, seed)
                updates = judged["updates"]
            elif name == "cloning":
                policy = cloned(data, updates)
            else:
                policy = d3rlpy_policy(options.data, name, updates, seed)
            env = make_env(options.env, max_episode_steps=options.max_episode_steps)
            rows = evaluate(env, policy, num_episodes=10, seed=1000 + seed)
            found = float(np.mean([row["episode_return"] for row in rows]))
            held = int(judged["low"] <= found <= judged["high"]) if judged else ""
            interval = (judged.get(side, "") for side in ("low", "value", "high"))
            row = [options.data.stem, name, seed, updates, found, logged, *interval, held]
            new = not table.exists()
            with open(table, "a", newline="", encoding="utf-8") as file:
                csv.writer(file, lineterminator="\n").writerows([COLUMNS, row] if new else [row])
            print(dict(zip(COLUMNS, row, strict=True)), flush=True)


if __name__ == "__main__":
    main()
