"""Soft actor-critic on real transitions alone: TorchRL's SACLoss, or a quantile critic of the return distribution.

python examples/sac.py                                               # Pendulum-v1, minutes on two cores
python examples/sac.py env=dmc/cheetah-run budget=paper              # the paper's model-free baseline
python examples/sac.py critic=quantile loss=epistemic_quantile labels.algorithm=qr_sac
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from torchrl.collectors import Collector
from torchrl.objectives import SoftUpdate

from eqr_torchrl.functional import reward_unit
from eqr_torchrl.imagination import TRANSITION_KEYS, make_replay_buffer
from eqr_torchrl.lab.comparison import plot_learning_curve
from eqr_torchrl.lab.envs import open_envs
from eqr_torchrl.lab.evaluation import evaluate, seed_everything
from eqr_torchrl.lab.memory import buffer_memory, check_memory
from eqr_torchrl.lab.runs import LoopSettings, Run
from eqr_torchrl.lab.runs.cli import run_hydra
from eqr_torchrl.objectives import SoftActorCriticLoss, make_update


def main(cfg: DictConfig) -> float | None:
    """Trains one agent; returns the mean return of its last evaluation, ``None`` without one and of a finished run."""
    seed_everything(cfg.seed)
    single = {"num_envs": 1} if "num_envs" in cfg.env else {}  # evaluations run one episode at a time
    with open_envs(partial(instantiate, cfg.env, seed=cfg.seed), evaluate=cfg.eval_every is not None, **single) as envs:
        return train(cfg, *envs)


def train(cfg: DictConfig, env: Any, eval_env: Any = None) -> float | None:
    """The loop; evaluations, if any, have an environment of their own."""
    run = Run.of(OmegaConf.to_container(cfg, resolve=True))
    with torch.device(cfg.device):  # its action bounds too
        actor = instantiate(cfg.actor, env).to(cfg.device)
    critics = [instantiate(cfg.critic, env).to(cfg.device) for _ in range(cfg.loss.num_qvalue_nets)]
    memory = buffer_memory("D", cfg.replay_capacity, env.fake_tensordict().select(*TRANSITION_KEYS), device=cfg.device)
    check_memory(memory)
    replay = make_replay_buffer(cfg.replay_capacity, batch_size=cfg.batch_size, device=cfg.device)
    loss = instantiate(cfg.loss, actor, critics)
    loss.make_value_estimator(gamma=cfg.gamma)
    optimizer, updater = instantiate(cfg.optim, loss), SoftUpdate(loss, tau=cfg.tau)
    update = make_update(loss, optimizer, updater, sample=replay.sample, cuda_graph=cfg.cuda_graph)
    collector = Collector(
        env, actor, frames_per_batch=env.batch_size.numel(), total_frames=-1, policy_device=cfg.device,
        env_device="cpu", storing_device="cpu", auto_register_policy_transforms=False,
    )  # fmt: skip

    transitions = run.watch(collector)
    run.keep(env=env, policy=actor, loss=loss, optimizer=optimizer, replay=replay)
    if eval_env is not None:
        run.evaluate_with(partial(evaluate, eval_env, actor))
    with run:
        for step in run.steps():  # negative in the warm-up, with the initial policy
            replay.extend(next(transitions).select(*TRANSITION_KEYS))  # act
            if step == 1 and isinstance(loss, SoftActorCriticLoss):  # networks with normalize=true fit the warm-up
                loss.set_scales(replay[:]["observation"], reward_unit(replay[:]["next", "reward"]))
            for _ in range(cfg.utd_ratio if step > 0 else 0):
                run.log("train", update())  # learn values, improve the policy
    if run.last_return is not None:
        plot_learning_curve(run.folder)
    return run.last_return


def cli() -> None:
    """The command line."""
    run_hydra(main, Path(__file__).parents[1] / "configs", "sac", schema=LoopSettings.of)


if __name__ == "__main__":
    cli()
