"""Makes the data sets of benchmarks/offline.py: random, medium and mixed logs of a task, seeded, as .npz.

    python examples/eqr_sac.py algorithm=member_values budget=laptop env=dmc/cheetah-run keep_checkpoints=100 \\
        checkpoint_every=1000 run_dir=runs/cheetah
    python benchmarks/offline_data.py dmc/cheetah-run --run runs/cheetah --steps 25000 --out data
    python benchmarks/offline_data.py crane:Crane --policy crane:dithered_pd --steps 5000 --out data

random: random actions. medium: the sampled policy of the checkpoint whose evaluation is nearest the middle between the
first and the best one of the run. mixed: the newest transitions of the run's replay buffer. With --policy, a function
of observations in place of the run, medium is that policy, and mixed that policy with every third episode random.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from eqr_torchrl.lab.envs import import_by_name, make_env
from eqr_torchrl.lab.logs import episode_ends, episodes_of, read_transitions, returns_to_go
from eqr_torchrl.lab.runs import checkpoint_path, load_agent, read_csv
from eqr_torchrl.lab.runs.checkpoint import checkpoints_in, step_of

Policy = Callable[[TensorDictBase], TensorDictBase]


def collect(env: Any, policies: list[Policy | None], steps: int) -> TensorDict:
    """Transitions of whole episodes by turns of the policies (``None``: random), cut at ``steps``."""
    parts, count = [], 0
    while count < steps:
        policy = policies[len(parts) % len(policies)]
        with torch.no_grad():
            parts.append(env.rollout(steps, policy, auto_cast_to_device=True))
        count += len(parts[-1])
    return torch.cat(parts)[:steps]  # pyright: ignore[reportArgumentType, reportCallIssue, reportReturnType]


def half_way(run: Path) -> Policy:
    """The policy of the checkpoint whose evaluation is nearest the middle between the first and the best one."""
    returns: defaultdict[int, list[float]] = defaultdict(list)
    for row in read_csv(run / "evaluations.csv"):
        returns[int(row["env_steps"])].append(float(row["episode_return"]))
    means = {step: sum(values) / len(values) for step, values in returns.items()}
    kept = [step_of(file) for file in checkpoints_in(run / "checkpoints")]
    nearest = {step: min(means, key=lambda other: abs(other - step)) for step in kept}
    middle = (means[min(means)] + max(means.values())) / 2
    step = min(kept, key=lambda step: abs(means[nearest[step]] - middle))
    print(f"medium: step {step}, return {means[nearest[step]]:.4g} of at most {max(means.values()):.4g}")
    return load_agent(checkpoint_path(run, step)).actor


def as_policy(function: Callable[[np.ndarray], Any]) -> Policy:
    def policy(tensordict: TensorDictBase) -> TensorDictBase:
        action = np.asarray(function(tensordict["observation"].numpy()), np.float32)
        return tensordict.set("action", torch.from_numpy(action))

    return policy


def save(data: TensorDictBase, path: Path) -> None:
    names = {"observations": "observation", "actions": "action", "rewards": ("next", "reward")}
    names |= {"next_observations": ("next", "observation"), "terminals": ("next", "terminated")}
    arrays = {name: data[key].numpy() for name, key in names.items()}
    arrays |= {name: arrays[name][:, 0] for name in ("rewards", "terminals")}
    arrays["timeouts"] = episode_ends(data).numpy() & ~arrays["terminals"]  # gaps too, which d3rlpy does not look for
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)  # pyright: ignore[reportArgumentType]
    first = [float(returns_to_go(episode)[0]) for episode in episodes_of(data)]
    print(f"{path}: {len(data)} transitions, {len(first)} episodes, mean return {np.mean(first):.4g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--run", type=Path, help="run with a replay buffer and several checkpoints")
    source.add_argument("--policy", type=import_by_name, help="MODULE:FUNCTION of an observation")
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--max-episode-steps", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("data"))
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    env = make_env(options.env, seed=options.seed, max_episode_steps=options.max_episode_steps)
    medium = half_way(options.run) if options.run else as_policy(options.policy)
    name = env.env_name.replace("/", "-")
    save(collect(env, [None], options.steps), options.out / f"{name}-random.npz")
    save(collect(env, [medium], options.steps), options.out / f"{name}-medium.npz")
    if options.run:
        mixed = read_transitions(options.run)[-options.steps :]
    else:
        mixed = collect(env, [medium, medium, None], options.steps)
    save(mixed, options.out / f"{name}-mixed.npz")  # pyright: ignore[reportArgumentType]


if __name__ == "__main__":
    main()
