"""Where the time of the paper's protocol goes: examples/eqr_sac.py on cheetah-run, some env steps after its warm-up.

The run times its own stages. The parts of an update are timed apart afterwards, at the same sizes, and the simulator
alone, so that what the collector adds to it can be seen.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _timing import parse_arguments, print_json, print_table
from hydra import compose, initialize_config_dir
from tensordict import TensorDict
from torchrl.objectives import SoftUpdate

from eqr_torchrl import (
    EnsembleSuccessors,
    EpistemicQuantileLoss,
    GaussianEnsemble,
    ModelBasedEnv,
    make_actor,
    make_critic,
    make_env,
)
from eqr_torchrl.imagination import never_terminates
from eqr_torchrl.lab.runs import read_csv
from eqr_torchrl.objectives import make_optimizer

ROOT = Path(__file__).resolve().parent.parent
STEPS = 500


def run_protocol(folder: str) -> tuple[dict[str, float], float]:
    """Seconds per env step of each stage, and of the whole loop, after the first fit."""
    sys.path.insert(0, str(ROOT / "examples"))
    import eqr_sac

    overrides = [
        "env=dmc/cheetah-run",
        "budget=paper",
        "fit=early_stopping",
        "world_model=published",
        f"env_steps={STEPS}",
        f"eval_every={10 * STEPS}",
        "final_episodes=1",
        f"run_dir={folder}",
        "checkpoint_every=0",
    ]
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        cfg = compose("eqr_sac", overrides)
    eqr_sac.main(cfg)
    row = read_csv(Path(folder) / "metrics.csv")[-1]
    columns = {  # seconds since the row before
        "collector, simulator and replay": "collect",
        "model fit": "model",
        "rollouts into D_model": "rollout",
        f"{cfg.utd_ratio} updates": "train",
    }
    stages = {name: float(row[f"time/{column}"]) / cfg.log_every for name, column in columns.items()}
    return stages, sum(stages.values())


def median_seconds(run: Callable[[], object], rounds: int) -> float:
    """Median of several calls."""
    seconds = []
    for _ in range(rounds + 2):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[2:])


def update_parts(rounds: int) -> dict[str, float]:
    """Seconds of each part of one update."""
    env = make_env("dmc/cheetah-run", seed=0)
    size, actions = env.observation_spec["observation"].shape[-1], env.action_spec.shape[-1]
    model_env = ModelBasedEnv(GaussianEnsemble(size, actions), env, termination_fn=never_terminates)
    successors = EnsembleSuccessors(model_env)
    loss = EpistemicQuantileLoss(make_actor(env), make_critic(env))
    optimizer, updater = make_optimizer(loss), SoftUpdate(loss, tau=0.005)
    batch = TensorDict(
        {"observation": torch.randn(256, size), "action": torch.rand(256, actions) * 2 - 1}, torch.Size([256])
    )
    full = successors(batch.copy())

    def backward() -> None:
        losses = loss(full.copy())
        (losses["loss_qvalue"] + losses["loss_actor"] + losses["loss_alpha"]).backward()

    def step() -> None:
        optimizer.step()
        updater.step()

    seconds = {
        "successors (world model)": median_seconds(lambda: successors(batch.copy()), rounds),
        "target (policy, target critic)": median_seconds(lambda: loss.compute_target(full), rounds),
    }
    critic = median_seconds(lambda: loss.qvalue_v2_loss(full), rounds)
    seconds["critic and quantile-Huber loss"] = critic - seconds["target (policy, target critic)"]
    seconds["actor loss"] = median_seconds(lambda: loss.actor_loss(full), rounds)
    forward = median_seconds(lambda: loss(full.copy()), rounds)
    seconds["backward"] = median_seconds(backward, rounds) - forward
    seconds["optimiser and target step"] = median_seconds(step, rounds)
    action = env.rand_action(env.reset())["action"].numpy()
    simulator: Any = env.base_env._env
    seconds["simulator alone, one env step"] = median_seconds(lambda: simulator.step(action), 200)
    return seconds


def main() -> None:
    """Runs, measures and prints."""
    arguments = parse_arguments(__doc__ or "")
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        stages, total = run_protocol(f"{folder}/run")
    rows = [(name, f"{1e3 * value:.1f}", f"{value / total:.1%}") for name, value in stages.items()]
    print_table([*rows, ("one env step", f"{1e3 * total:.1f}", "100 %")], ("stage", "ms per env step", "share"))
    print()
    parts = update_parts(arguments.rounds)
    print_table([(name, f"{1e3 * value:.2f}") for name, value in parts.items()], ("part of an update", "ms"))
    if arguments.json:
        print_json({"env_step_ms": 1e3 * total} | {f"{name} ms": 1e3 * value for name, value in parts.items()})


if __name__ == "__main__":
    main()
