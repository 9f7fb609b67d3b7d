"""Each kind of algorithm, as its configuration composes it, learns to control a point in seconds."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

import hydra
import pytest
from toy_env import PointEnv

from eqr_torchrl.lab.evaluation import evaluate

ROOT = Path(__file__).parent.parent
# these differ from qr_mbpo in the rules of their rollouts alone, which tests/imagination/test_rollouts.py holds
ROLLOUTS = {"qr_mbpo_big", "qr_mbpo_consistent", "qr_mbpo_consistent_equal"}
ALGORITHMS = sorted({path.stem for path in (ROOT / "configs" / "algorithm").glob("*.yaml")} - ROLLOUTS)
STEPS, EPISODES = 200, 20
SIZES = [
    "budget=smoke", "progress=false", "gamma=0.9", "tau=0.1", "batch_size=64", "utd_ratio=4", f"env_steps={STEPS}",
    "warmup_steps=200", f"eval_every={STEPS}", f"final_episodes={EPISODES}", "log_every=100",
    "env.name=toy_env:PointEnv",
    "optim.lr_actor=1e-2", "optim.lr_critic=1e-2", "optim.lr_alpha=1e-2", "++loss.alpha_init=0.1",
    "actor.num_cells=[32]", "critic.num_cells=[32,32]",
]  # fmt: skip
MODEL = [
    "termination_fn=eqr_torchrl.imagination:never_terminates", "retrain_every=100", "world_model.num_cells=[32,32]",
    "fit.lr=1e-2", "fit.batch_size=64", "fit.num_steps=100", "rollout.horizon=3", "rollout.starts_per_step=20",
]  # fmt: skip


def train(script: str, *words: str) -> float:
    spec = importlib.util.spec_from_file_location(f"learning_{script}", ROOT / "examples" / f"{script}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with hydra.initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        return module.main(hydra.compose(script, [*SIZES, *words]))


@functools.cache
def mean_return(push: float) -> float:
    """Of a policy that pushes towards zero, or not at all."""

    def policy(td):
        return td.set("action", -push * (2 * td["observation"]).clamp(-1, 1))

    rows = evaluate(PointEnv(), policy, num_episodes=EPISODES, seed=0)
    return sum(row["episode_return"] for row in rows) / EPISODES


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of TorchRL's collector, by TorchRL
@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "sac"])
def test_an_algorithm_of_every_kind_learns_to_control_the_point(algorithm, tmp_path):
    run = [f"run_dir={tmp_path / 'run'}"]
    learnt = train("sac", *run) if algorithm == "sac" else train("eqr_sac", *run, *MODEL, f"algorithm={algorithm}")
    idle, best = mean_return(0.0), mean_return(1.0)
    assert learnt > idle + 0.5 * (best - idle), (idle, learnt, best)
