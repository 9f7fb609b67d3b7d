"""A run that SIGTERM ends ten times at random moments, each time resumed: which environment steps were lost?

python benchmarks/kill_and_resume.py                 # two minutes
python benchmarks/kill_and_resume.py --signal KILL   # what a second signal or the kernel does

The environment itself counts its steps. After SIGTERM none may be lost, after SIGKILL those since the last checkpoint,
at most twice `checkpoint_every`. Linux and macOS.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
from gymnasium.envs.classic_control import PendulumEnv

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
warnings.simplefilter("ignore")
WARMUP, STEPS, BETWEEN = 60, 700, 60  # steps in the warm-up, after it, and most between two signals


class CountedPendulum(PendulumEnv):
    """Pendulum-v1 that appends one byte to a file in every step."""

    def __init__(self, record: str) -> None:
        super().__init__()
        self.record = record

    def step(self, action: Any) -> Any:
        with open(self.record, "ab") as file:
            file.write(b".")
        return super().step(action)


def start(folder: Path, checkpoint_every: int) -> int:
    """Trains in a copy of this process, which has imported everything; returns its number."""
    child = os.fork()
    if child:
        return child
    from eqr_torchrl.lab.runs import LoopSettings
    from eqr_torchrl.lab.runs.cli import run_hydra
    from examples.eqr_sac import main

    words = [
        *("budget=smoke", f"env_steps={STEPS}", f"warmup_steps={WARMUP}", "eval_every=null", "progress=false"),
        *("env.name=kill_and_resume:CountedPendulum", f"+env.record={folder / 'steps'}", "env.max_episode_steps=25"),
        *("termination_fn=eqr_torchrl.imagination:never_terminates", f"checkpoint_every={checkpoint_every}"),
        *(f"run_dir={folder / 'run'}", "resume=auto"),
    ]
    status = 1
    try:
        with open(folder / "log.txt", "a", encoding="utf-8") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            run_hydra(main, ROOT / "configs", "eqr_sac", words, schema=LoopSettings.of)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    os._exit(status)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--signal", choices=("TERM", "KILL"), default="TERM")
    options = parser.parse_args()
    import examples.eqr_sac  # noqa: F401  # once, not in each child
    from eqr_torchrl.lab.runs import latest_checkpoint, load_checkpoint, read_csv, read_status

    torch.set_num_threads(1)
    number = getattr(signal, f"SIG{options.signal}")
    moments, folder = random.Random(options.seed), Path(tempfile.mkdtemp())
    record, every = folder / "steps", 50
    record.touch()
    lost_in_all = 0
    for time_number in range(1, options.times + 1):
        taken = record.stat().st_size
        target, child = taken + moments.randint(1, BETWEEN), start(folder, every)
        while record.stat().st_size < target:
            if os.waitpid(child, os.WNOHANG) != (0, 0):
                raise SystemExit(f"the run ended by itself: see {folder / 'log.txt'}")
            time.sleep(0.001)
        time.sleep(moments.uniform(0, 0.1))
        os.kill(child, number)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        checkpoint = latest_checkpoint(folder / "run")
        state = load_checkpoint(checkpoint) if checkpoint else None
        kept = len(state["parts"]["replay"]["rows"][("action",)]) if state else 0
        lost = record.stat().st_size - lost_in_all - kept
        lost_in_all += lost
        words = f"step {state['step']}, {kept} transitions" if state else "none"
        print(f"{time_number:2d}: SIG{options.signal}, exit status {status}; checkpoint: {words}; lost: {lost}")
    status = os.waitstatus_to_exitcode(os.waitpid(start(folder, every), 0)[1])
    ending = read_status(folder / "run") or {}
    rows = [int(row["env_steps"]) for row in read_csv(folder / "run" / "metrics.csv")]
    once = rows == list(range(20, STEPS + 1, 20))
    print(f"at last: status {status}, {ending.get('state')}; every row of metrics.csv once and in order: {once}")
    print(f"steps of the environment: {record.stat().st_size}, needed {WARMUP + STEPS}, lost {lost_in_all}")
    print(f"log: {folder / 'log.txt'}")


if __name__ == "__main__":
    main()
