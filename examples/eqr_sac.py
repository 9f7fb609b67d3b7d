"""EQR-SAC and its model-based relatives: Algorithm 2 of Luis et al. (2024), https://arxiv.org/abs/2308.06590.

python examples/eqr_sac.py                                          # Pendulum-v1, a few minutes on one core
python examples/eqr_sac.py env=dmc/cheetah-run budget=paper         # steps and updates of the paper
python examples/eqr_sac.py utility=optimistic algorithm=qr_mbpo     # another utility, another algorithm
python examples/eqr_sac.py data=npz data.path=log.npz               # from a log, without random warm-up
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
from eqr_torchrl.imagination import TRANSITION_KEYS, RealSuccessors, make_replay_buffer
from eqr_torchrl.lab.acting import ActingProcess
from eqr_torchrl.lab.comparison import plot_learning_curve
from eqr_torchrl.lab.diagnostics import plot_start_values
from eqr_torchrl.lab.envs import add_guards, open_envs, reward_bounds, rules_for
from eqr_torchrl.lab.evaluation import evaluate, seed_everything
from eqr_torchrl.lab.logs import check_log_fits, read_transitions
from eqr_torchrl.lab.memory import buffer_memory, check_memory
from eqr_torchrl.lab.runs import LoopSettings, Run, load_agent
from eqr_torchrl.lab.runs.cli import run_hydra
from eqr_torchrl.objectives import SoftActorCriticLoss, make_update


def main(cfg: DictConfig) -> float | None:
    """Trains one agent; returns the mean return of its last evaluation, ``None`` without one and of a finished run."""
    seed_everything(cfg.seed)
    single = {"num_envs": 1} if "num_envs" in cfg.env else {}  # evaluations run one episode at a time
    with open_envs(partial(instantiate, cfg.env, seed=cfg.seed), evaluate=cfg.eval_every is not None, **single) as envs:
        return train(cfg, *envs)


def train(cfg: DictConfig, env: Any, eval_env: Any = None) -> float | None:
    """The loop of Algorithm 2; evaluations, if any, have an environment of their own."""
    if cfg.reward_bounds == "auto":
        cfg.reward_bounds = reward_bounds(env)  # None: unknown
    if cfg.data is not None:
        cfg.warmup_steps = 1  # a log takes the place of random actions
    run = Run.of(OmegaConf.to_container(cfg, resolve=True))

    # The parts
    with torch.device(cfg.device):  # its action bounds too
        actor = instantiate(cfg.actor, env).to(cfg.device)
    imagined_policy = instantiate(cfg.inference)(actor)  # the same policy, faster on many states
    critics = [instantiate(cfg.critic, env).to(cfg.device) for _ in range(cfg.loss.num_qvalue_nets)]
    world_model = instantiate(cfg.world_model, env).to(cfg.device)  # posterior over MDPs
    if cfg.start_from is not None:  # what another run has learned, such as one of examples/offline.py
        load_agent(cfg.start_from, env=env).copy_to(actor, world_model, *critics)
    fit = instantiate(cfg.fit, world_model)  # maximum likelihood
    rules = rules_for(env, cfg.termination_fn, cfg.reward_fn, learned=world_model.predicts_termination)
    imagine = instantiate(cfg.rollout, world_model, env, **rules)  # T steps in each member
    guard = partial(add_guards, termination_fn=rules["termination_fn"], reward_bounds=cfg.reward_bounds)
    guard(env)
    check_memory(
        buffer_memory("D", cfg.replay_capacity, env.fake_tensordict().select(*TRANSITION_KEYS)),
        buffer_memory("D_model", imagine.capacity, imagine.transition, cfg.model_buffer.dtype, cfg.device),
    )
    replay = make_replay_buffer(cfg.replay_capacity)
    if cfg.data is not None:
        log = read_transitions(cfg.data.path, columns=cfg.data.columns)
        check_log_fits(log, env, cfg.reward_bounds, capacity=cfg.replay_capacity)
        replay.extend(log.select(*TRANSITION_KEYS))
    model_buffer = instantiate(cfg.model_buffer, imagine.capacity, batch_size=cfg.batch_size, device=cfg.device)
    successors = instantiate(cfg.successors, imagine.model_env)  # EQR: K next states from each member
    successors = RealSuccessors(successors, replay, share=cfg.real_share)
    loss = instantiate(cfg.loss, actor, critics)
    loss.make_value_estimator(gamma=cfg.gamma)
    optimizer, updater = instantiate(cfg.optim, loss), SoftUpdate(loss, tau=cfg.tau)
    anneal = instantiate(cfg.annealing, optimizer, getattr(loss, "utility", None))  # TorchRL's SACLoss has none
    if cfg.cuda_graph and (cfg.real_share or anneal.start < 1):
        raise ValueError("cuda_graph must be false where real_share is not 0 or annealing lowers rates: got true.")
    update = make_update(
        lambda batch: loss(successors(batch)), optimizer, updater, sample=model_buffer.sample, cuda_graph=cfg.cuda_graph
    )
    if cfg.act_while_learning:
        env.close()  # another process opens it
        collector = ActingProcess(partial(instantiate, cfg.env, seed=cfg.seed), actor, prepare=guard)
    else:
        collector = Collector(
            env, actor, frames_per_batch=env.batch_size.numel(), total_frames=-1, policy_device=cfg.device,
            env_device="cpu", storing_device="cpu", auto_register_policy_transforms=False,
        )  # fmt: skip

    # `run` records between two steps; without its lines this still learns
    transitions = run.watch(collector)
    run.keep(
        env=env, policy=actor, loss=loss, optimizer=optimizer, world_model=world_model, fit=fit,
        replay=replay, model_buffer=model_buffer,
    )  # fmt: skip
    if eval_env is not None:
        run.evaluate_with(partial(evaluate, eval_env, actor))
    with run:
        for step in run.steps():  # negative in the warm-up, with the initial policy
            replay.extend(next(transitions).select(*TRANSITION_KEYS))  # act
            if step < 1:
                continue
            if (step - 1) % cfg.retrain_every == 0:
                imagine.adapt_horizon(replay)  # as many steps as the models foresaw what came since the last fit
                data = replay[:]
                run.log("model", fit(data))  # learn the models
                if isinstance(loss, SoftActorCriticLoss):  # networks with normalize=true follow the data
                    loss.set_scales(data["observation"], reward_unit(data["next", "reward"], cfg.reward_bounds))
                run.log("rollout", imagine(imagined_policy, data, model_buffer))  # imagine
            anneal(step / cfg.env_steps)
            for _ in range(cfg.utd_ratio):
                run.log("train", update())  # learn values, improve the policy

    if run.last_return is not None and eval_env is not None:
        plot_learning_curve(run.folder)
        plot_start_values(
            eval_env, actor, critics[0], imagine.model_env, run.folder / "figures" / "value_distribution.png",
            gamma=cfg.gamma, alpha=loss.log_alpha.exp().item(),
        )  # fmt: skip
    return run.last_return


def cli() -> None:
    """The command line."""
    run_hydra(main, Path(__file__).parents[1] / "configs", "eqr_sac", schema=LoopSettings.of)


if __name__ == "__main__":
    cli()
