"""A careful policy from a log alone: fit, imagine, learn a value for each member, and judge on held-out episodes.

python examples/offline.py data=npz data.path=log.npz                      # arrays of D4RL, also .hdf5
python examples/offline.py data=run data.path=runs/MY_RUN env=pendulum     # a run's replay buffer, and a simulator
python examples/offline.py data=csv data.path=log.csv data.columns.observation=[x,v] data.columns.action=[force] \
    data.columns.reward=reward data.columns.episode=episode
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from torchrl import torchrl_logger
from torchrl.objectives import SoftUpdate

from eqr_torchrl.imagination import ModelBasedEnv, never_terminates
from eqr_torchrl.lab.comparison import plot_learning_curve
from eqr_torchrl.lab.envs import import_by_name
from eqr_torchrl.lab.evaluation import evaluate
from eqr_torchrl.lab.judging import Judge, offline_report
from eqr_torchrl.lab.logs import (
    PenalizedModel,
    check_transitions,
    clone_behaviour,
    read_transitions,
    specs_of,
    split_episodes,
    uncertainty_stop,
)
from eqr_torchrl.lab.recipes import CONFIGS
from eqr_torchrl.lab.runs import LoopSettings, Run, run_hydra, seed_everything
from eqr_torchrl.objectives import make_update

warnings.filterwarnings("ignore", category=DeprecationWarning, module="torchrl")
torchrl_logger.setLevel("WARNING")


def main(cfg: DictConfig) -> float | None:
    """Trains one policy; returns the lower end of its judged return, ``None`` if the run was finished before."""
    seed_everything(cfg.seed)
    data = read_transitions(cfg.data.path, columns=cfg.data.columns)
    print(*check_transitions(data, **cfg.bounds), sep="\n")
    env = specs_of(data, **cfg.bounds, name=Path(cfg.data.path).stem)
    train, held_out = split_episodes(data, cfg.held_out)
    if cfg.reward_bounds == "auto":
        cfg.reward_bounds = [data["next", "reward"].min().item(), data["next", "reward"].max().item()]
    config: Any = OmegaConf.to_container(cfg, resolve=True)
    run = Run(LoopSettings.of(config), labels=config["labels"], logger=config["logger"], config=config)
    rules = {
        "termination_fn": import_by_name(cfg.termination_fn) if cfg.termination_fn else never_terminates,
        "reward_fn": import_by_name(cfg.reward_fn) if cfg.reward_fn else None,
    }

    # The parts
    actor, critics = instantiate(cfg.actor, env), [instantiate(cfg.critic, env)]
    world_model, judges = instantiate(cfg.world_model, env), instantiate(cfg.world_model, env)
    fit, fit_judges = instantiate(cfg.fit, world_model), instantiate(cfg.fit, judges)
    model = PenalizedModel(world_model, cfg.penalty) if cfg.penalty else world_model
    imagine = instantiate(cfg.rollout, model, env, **rules)
    model_buffer = instantiate(cfg.model_buffer, imagine.capacity, batch_size=cfg.batch_size)
    successors = instantiate(cfg.successors, imagine.model_env)
    loss = instantiate(cfg.loss, actor, critics)
    loss.make_value_estimator(gamma=cfg.gamma)
    optimizer = instantiate(cfg.optim, loss)
    updater = SoftUpdate(loss, tau=cfg.tau)
    update = make_update(lambda batch: loss(successors(batch)), optimizer, updater, sample=model_buffer.sample)
    simulator = instantiate(cfg.env, seed=cfg.seed) if cfg.env else None
    judge: Any = None

    def judged(num_episodes: int, seed: int) -> list[dict]:
        found = judge(actor)
        run.log("judged", found._asdict())
        if simulator is not None:  # a number to report: nothing is chosen by it
            rows = evaluate(simulator, actor, num_episodes=num_episodes, seed=seed)
            run.log("simulator", {"return": sum(row["episode_return"] for row in rows) / num_episodes})
        return [{"episode": 0, "episode_return": found.low, "episode_length": judge.horizon}]

    run.keep(
        env=env, policy=actor, loss=loss, optimizer=optimizer, world_model=world_model, judges=judges,
        model_buffer=model_buffer,
    )  # fmt: skip
    run.evaluate_with(judged)
    with run:
        for step in run.steps():
            if step < 1:
                run.log("model", fit(train))  # learn the models
                run.log("judges", fit_judges(train))  # and others, which the policy cannot learn to exploit
                run.log("clone", clone_behaviour(actor, train, num_steps=cfg.clone_steps))
                continue
            if judge is None:
                judge = Judge(ModelBasedEnv(judges, env, **rules), train, held_out)
                if cfg.stop_level:
                    imagine.stop_fn = uncertainty_stop(world_model, held_out, level=cfg.stop_level)
            if (step - 1) % cfg.retrain_every == 0:
                run.log("rollout", imagine(actor, train, model_buffer))  # imagine
            run.log("train", update())  # learn values, improve the policy
    if judge is not None:
        print(*offline_report(judge, actor, train), sep="\n")
        plot_learning_curve(run.folder, run.folder / "figures" / "learning_curve.png")
    return run.last_return


if __name__ == "__main__":
    run_hydra(main, CONFIGS, "offline", schema=LoopSettings)
