"""Steps on time, and the return, with a plant that has a clock: acting while learning, and in turns without the clock.

python benchmarks/act_while_learning.py                            # 5,000 steps at 50 Hz, about three minutes
python benchmarks/act_while_learning.py --learner-first --seconds 0  # the same run in one process, without a clock
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.envs.classic_control import PendulumEnv

ROOT = Path(__file__).parents[1]
LEARNING = [
    "utd_ratio=1",
    "env_steps=4000",
    "warmup_steps=1000",
    "eval_every=null",
    "checkpoint_every=0",
    "log_every=200",
]


class ClockedPendulum(PendulumEnv):
    """Pendulum-v1 whose steps begin at a clock's ticks; a step that is asked for after its tick is late.

    Args:
        log: JSON file for the counts, written at resets and at the end.
        seconds: between two ticks; with 0 there is no clock.
    """

    def __init__(self, log: str, seconds: float = 0.02) -> None:
        super().__init__()
        self.log, self.seconds, self.tick = Path(log), seconds, 0.0
        self.took: list[float] = []  # from an observation to its action
        self.late = 0

    def reset(self, **arguments: Any) -> Any:
        found = super().reset(**arguments)
        self.write()
        self.tick = time.perf_counter() + self.seconds
        return found

    def step(self, action: Any) -> Any:
        now = time.perf_counter()
        self.took.append(now - self.tick + self.seconds)
        if self.seconds and now > self.tick:
            self.late += 1
            self.tick = now
        time.sleep(max(self.tick - now, 0.0) if self.seconds else 0.0)
        found = super().step(action)
        self.tick = (self.tick if self.seconds else time.perf_counter()) + self.seconds
        return found

    def write(self) -> None:
        self.log.write_text(json.dumps({"late": self.late, "took": self.took}), encoding="utf-8")

    def close(self) -> None:
        self.write()
        super().close()


def returns_of(policy: Path, num_episodes: int) -> list[float]:
    """Deterministic returns of the last policy in Pendulum-v1, without a clock."""
    from eqr_torchrl.lab.envs import make_env
    from eqr_torchrl.lab.evaluation import evaluate
    from eqr_torchrl.lab.runs import load_agent

    rows = evaluate(make_env("Pendulum-v1"), load_agent(policy).actor, num_episodes=num_episodes, seed=1_000)
    return [row["episode_return"] for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.02, help="between two ticks of the clock; 0: none")
    parser.add_argument("--learner-first", action="store_true", help="act and learn in turns, in one process")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("settings", nargs="*", help="of eqr_sac.py")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    words = [
        *("env.name=act_while_learning:ClockedPendulum", "env.max_episode_steps=200"),
        *(f"+env.log={folder / 'clock.json'}", f"+env.seconds={options.seconds}", f"seed={options.seed}"),
        *("termination_fn=eqr_torchrl.imagination:never_terminates", f"act_while_learning={not options.learner_first}"),
        *(*LEARNING, f"run_dir={folder / 'run'}", "progress=false", *options.settings),
    ]
    start = time.perf_counter()
    path = os.pathsep.join([str(ROOT / "benchmarks"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(ROOT / "examples" / "eqr_sac.py"), *words]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": path})
    seconds = time.perf_counter() - start
    clock = json.loads((folder / "clock.json").read_text(encoding="utf-8"))
    took = 1000 * np.array(clock["took"])
    on_time = 100 * (1 - clock["late"] / len(took))
    quantiles = ", ".join(f"{np.quantile(took, level):.1f}" for level in (0.5, 0.99, 0.999, 1.0))
    returns = returns_of(folder / "run", 20)
    lateness = f"{on_time:.2f} % on time ({clock['late']} late)" if options.seconds else "without a clock"
    print(f"{len(took)} steps in {seconds:.0f} s, {lateness}")
    print(f"milliseconds from an observation to its action: median, 99 %, 99.9 %, most {quantiles}")
    print(f"return of 20 episodes: {np.mean(returns):.0f}, standard error {np.std(returns) / len(returns) ** 0.5:.0f}")


if __name__ == "__main__":
    main()
