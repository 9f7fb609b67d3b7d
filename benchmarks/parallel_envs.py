"""Environment steps per second of one slow simulator, and of several side by side.

python benchmarks/parallel_envs.py                              # 50 ms a step, eight simulators
python benchmarks/parallel_envs.py --milliseconds 20 --num-envs 4
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from gymnasium.envs.classic_control import PendulumEnv

from eqr_torchrl.lab.envs import make_env
from eqr_torchrl.networks import make_actor


class SlowPendulum(PendulumEnv):
    """Pendulum-v1 on a simulator that takes its time without using the processor, as a real one on another machine."""

    def __init__(self, milliseconds: float) -> None:
        super().__init__()
        self.seconds = milliseconds / 1000

    def step(self, action: Any) -> Any:
        time.sleep(self.seconds)
        return super().step(action)


def steps_per_second(num_envs: int, parallel: bool, milliseconds: float, num_steps: int) -> float:
    """Steps of all simulators together, with the actions of an untrained policy."""
    env = make_env(
        SlowPendulum, seed=0, num_envs=num_envs, parallel=parallel, max_episode_steps=200, milliseconds=milliseconds
    )
    actor = make_actor(env)
    env.rollout(3, actor)  # processes have started
    start = time.perf_counter()
    env.rollout(num_steps, actor, break_when_any_done=False)
    seconds = time.perf_counter() - start
    env.close()
    return num_steps * num_envs / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--milliseconds", type=float, default=50.0)
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--num-steps", type=int, default=100)
    options = parser.parse_args()
    rates = {}
    for name, num_envs, parallel in (
        ("one", 1, False), ("in turns", options.num_envs, False), ("side by side", options.num_envs, True)
    ):  # fmt: skip
        rates[name] = steps_per_second(num_envs, parallel, options.milliseconds, options.num_steps)
        ratio = rates[name] / rates["one"]
        print(f"{name:<14} {num_envs} simulators: {rates[name]:6.1f} steps per second, {ratio:.2f} times one")


if __name__ == "__main__":
    main()
