"""EQR-SAC and its model-based relatives: Algorithm 2 of Luis et al. (2024), https://arxiv.org/abs/2308.06590.

python examples/eqr_sac.py                                          # Pendulum-v1, a few minutes on two cores
python examples/eqr_sac.py env=dmc/cheetah-run budget=paper         # steps and updates of the paper
python examples/eqr_sac.py utility=optimistic algorithm=qr_mbpo     # another utility, another algorithm
"""

from __future__ import annotations

import time
import warnings

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig
from torchrl import torchrl_logger
from torchrl.collectors import Collector

from eqr_torchrl.comparison import plot_learning_curve
from eqr_torchrl.data import TRANSITION_KEYS, check_memory, make_replay_buffer
from eqr_torchrl.diagnostics import plot_value_distribution, value_quantiles
from eqr_torchrl.envs import TerminationGuard, reward_bounds
from eqr_torchrl.evaluation import evaluate
from eqr_torchrl.modules.optimism import OptimismPolicy
from eqr_torchrl.lean import LeanMemberValues, RingBuffer
from eqr_torchrl.objectives import reward_unit
from eqr_torchrl.recipes import CONFIGS
from eqr_torchrl.runs import LoopSettings, Run, run_hydra

warnings.filterwarnings("ignore", category=DeprecationWarning, module="torchrl")
torchrl_logger.setLevel("WARNING")


def with_variants(run: Run, episodes: dict[str, list]) -> list:
    """Writes beside each evaluation the CPU seconds of the process, and the returns of other policies."""
    with open(run.folder / "cpu.csv", "a") as file:
        file.write(f"{run.step},{time.process_time():.1f}\n")
    with open(run.folder / "variants.csv", "a") as file:
        for name, rows in episodes.items():
            file.writelines(f"{run.step},{name},{row['episode_return']}\n" for row in rows)
    return episodes["reported"]


def main(cfg: DictConfig) -> float | None:
    """Trains one agent; returns the mean return of its last evaluation, ``None`` if the run was finished before."""
    run = Run(cfg)  # checks the settings and seeds; nothing is on the disk yet
    env, eval_env = instantiate(cfg.env, seed=cfg.seed), instantiate(cfg.env, seed=cfg.seed)

    if cfg.reward_bounds == "auto":
        cfg.reward_bounds = reward_bounds(env)  # None: unknown

    # The parts
    actor = instantiate(cfg.actor, env).to(cfg.device)
    critics = [instantiate(cfg.critic, env).to(cfg.device) for _ in range(cfg.loss.num_qvalue_nets)]
    world_model = instantiate(cfg.world_model, env).to(cfg.device)  # posterior over MDPs
    fit = instantiate(cfg.fit, world_model)  # maximum likelihood
    imagine = instantiate(cfg.rollout, world_model, env)  # rollouts of T steps in each member
    env.append_transform(TerminationGuard(imagine.termination_fn, env.env_name))
    print(check_memory("D", cfg.replay_capacity, env.fake_tensordict().select(*TRANSITION_KEYS)))
    print(check_memory("D_model", imagine.capacity, imagine.transition, cfg.model_buffer.dtype, cfg.device))
    replay = make_replay_buffer(cfg.replay_capacity)
    model_buffer = RingBuffer(imagine.capacity)
    explorer, reported, imagined = (OptimismPolicy(actor, optimism) for optimism in (1, 1, 1))
    trust = instantiate(cfg.trust) or None
    agent = LeanMemberValues(
        actor,
        critics[0],
        imagine.model_env,
        model_buffer,
        instantiate(cfg.loss.utility),
        action_spec=env.action_spec_unbatched,
        batch_size=cfg.batch_size,
        gamma=cfg.gamma,
        tau=cfg.tau,
        alpha_init=cfg.loss.alpha_init,
        reward_bounds=cfg.loss.reward_bounds,
        lr_actor=cfg.optim.lr_actor,
        lr_critic=cfg.optim.lr_critic,
        lr_alpha=cfg.optim.lr_alpha,
        **cfg.agent,
    )
    variants = {"average": OptimismPolicy(agent.average, 1)}
    collector = Collector(
        env,
        explorer,
        frames_per_batch=1,
        total_frames=-1,
        policy_device=cfg.device,
        env_device="cpu",
        storing_device="cpu",
        auto_register_policy_transforms=False,
    )

    # `run` records between two steps; without its lines this still learns
    transitions = run.watch(collector)
    run.keep(
        env=env, policy=actor, critic=critics[0], world_model=world_model, fit=fit, replay=replay,
    )  # fmt: skip
    run.evaluate_with(
        lambda num_episodes, seed: with_variants(
            run,
            {
                name: evaluate(eval_env, policy, num_episodes=num_episodes, seed=seed)
                for name, policy in {"reported": reported, **variants}.items()
            },
        )
    )
    with run:
        for step in run.steps():  # negative in the warm-up, with the initial policy
            transition = next(transitions)
            replay.extend(transition.select(*TRANSITION_KEYS))  # act
            if step < 1:
                continue
            if (step - 1) % cfg.retrain_every == 0:
                data = replay[:]
                unit = reward_unit(data["next", "reward"], cfg.reward_bounds)
                world_model.reward_unit.fill_(unit)
                agent.update_units(data["observation"], unit)
                horizon = None
                if trust is not None and step > 1:
                    horizon, drift = trust(world_model, replay[:][-cfg.retrain_every :])
                    run.log("trust", {"horizon": horizon, **{f"drift_{k}": drift[k - 1] for k in (1, 5, 10, 25)}})
                elif trust is not None:
                    horizon = trust.shortest
                run.log("prior", {"reward": float(world_model.prior_weight[-1] * world_model.target_scale[-1])})
                run.log("model", fit(replay[:]))  # learn the models
                run.log("rollout", imagine(imagined, replay[:], model_buffer, horizon=horizon))  # imagine
            for _ in range(cfg.utd_ratio):
                run.log("train", agent.update())  # learn values, improve the policy

    if run.last_return is not None:
        plot_learning_curve(run.folder, run.folder / "figures" / "learning_curve.png")
    return run.last_return


if __name__ == "__main__":
    run_hydra(main, CONFIGS, "eqr_sac", schema=LoopSettings)
