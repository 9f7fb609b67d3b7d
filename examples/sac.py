"""Soft actor-critic on real transitions alone: TorchRL's SACLoss, or a quantile critic of the return distribution.

python examples/sac.py                                               # Pendulum-v1, minutes on two cores
python examples/sac.py env=dmc/cheetah-run budget=paper              # the paper's model-free baseline
python examples/sac.py critic=quantile loss=epistemic_quantile labels.algorithm=qr_sac
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig
from tensordict import TensorDict
from torchrl import timeit, torchrl_logger
from torchrl.collectors import Collector
from torchrl.objectives import SoftUpdate

from eqr_torchrl.comparison import plot_learning_curve
from eqr_torchrl.data import TRANSITION_KEYS, make_replay_buffer
from eqr_torchrl.envs import ResumableEpisode
from eqr_torchrl.evaluation import evaluate
from eqr_torchrl.objectives import make_optimizer, make_update
from eqr_torchrl.runs import (
    RunLogger,
    RunStatus,
    capture_state,
    checkpoint_path,
    load_checkpoint,
    open_run,
    progress_bar,
    restore_state,
    run_hydra,
    save_checkpoint,
    save_settings,
)

warnings.filterwarnings("ignore", category=DeprecationWarning, module="torchrl")
torchrl_logger.setLevel("WARNING")


def main(cfg: DictConfig) -> float | None:
    """Trains one agent; returns the mean return of its last evaluation."""
    for key in ("env_steps", "warmup_steps", "utd_ratio", "eval_every", "log_every", "eval_episodes"):
        if cfg[key] < 1:
            raise ValueError(f"{key} must be positive, got {cfg[key]}.")
    if cfg.num_threads is not None:
        torch.set_num_threads(cfg.num_threads)
    torch.manual_seed(cfg.seed)

    # The parts
    env, eval_env = instantiate(cfg.env, seed=cfg.seed), instantiate(cfg.env, seed=cfg.seed)
    env.append_transform(episode := ResumableEpisode())
    sizes = env.observation_spec["observation"].shape[-1], env.action_spec.shape[-1]
    actor = instantiate(cfg.actor, env).to(cfg.device)
    critics = [instantiate(cfg.critic, env).to(cfg.device) for _ in range(cfg.loss.num_qvalue_nets)]
    replay = make_replay_buffer(cfg.replay_capacity, batch_size=cfg.batch_size, device=cfg.device)
    loss = instantiate(cfg.loss)(actor_network=actor, qvalue_network=critics)
    loss.make_value_estimator(gamma=cfg.gamma)
    optimizer, target_updater = make_optimizer(loss, **cfg.optim), SoftUpdate(loss, tau=cfg.tau)
    update = make_update(
        loss, optimizer, target_updater, sample=replay.sample, compile=cfg.compile, cuda_graph=cfg.cuda_graph
    )

    # The run: its folder, its logs, and what a checkpoint holds
    name = f"{cfg.labels.algorithm}-{env.env_name}-seed{cfg.seed}"
    folder, checkpoint, finished = open_run(cfg.runs_root, name, run_dir=cfg.run_dir, resume=cfg.resume)
    if finished:
        return print(f"{folder}: finished before, nothing to do (resume={folder} trains it for longer)")
    fingerprint = {"env": env.env_name, "algorithm": cfg.labels.algorithm, "seed": cfg.seed, "sizes": list(sizes)}
    saved = None if checkpoint is None else load_checkpoint(checkpoint, fingerprint=fingerprint)
    settings = save_settings(cfg, folder)
    logger = RunLogger(folder, config=settings, **cfg.logger)
    labels = {"env": env.env_name, **cfg.labels, "seed": cfg.seed, "warmup_steps": cfg.warmup_steps}
    parts = {"loss": loss, "optimizer": optimizer, "replay": replay, "logger": logger}
    step, losses = -cfg.warmup_steps, []  # steps count from the end of the warm-up
    if saved is not None:
        step, losses = saved["step"], [TensorDict(entry) for entry in saved["losses"]]
        episode.restore(saved["episode"])
    collector = Collector(env, actor, frames_per_batch=1, total_frames=-1, auto_register_policy_transforms=False)
    transitions = iter(collector)
    if saved is not None:
        restore_state(saved["parts"], **parts)

    def save() -> Path:
        state = {"step": step, "losses": [entry.to_dict() for entry in losses]}
        state |= {"episode": episode.episode_state(), "parts": capture_state(**parts)}
        path = checkpoint_path(folder, max(step, 0))
        return save_checkpoint(path, state, fingerprint=fingerprint, keep_last=cfg.keep_checkpoints)

    # The loop
    bar = progress_bar(cfg.env_steps, initial=max(step, 0), disable=not cfg.progress)
    last_return, begin = float("nan"), time.perf_counter()
    with RunStatus(folder, env_steps=max(step, 0)) as status, logger, bar:
        while step < cfg.env_steps:
            with timeit("collect"):  # act
                try:
                    replay.extend(next(transitions).select(*TRANSITION_KEYS))
                except Exception as error:
                    raise RuntimeError(f"{env.env_name} failed at env step {step}: {error} (saved {save()})") from error
            step += 1
            if step <= 0:
                bar.set_description(f"warm-up {-step} steps left" if step else "", refresh=False)
                bar.update(0)
                continue
            with timeit("update"):  # learn values, improve the policy
                losses += [update() for _ in range(cfg.utd_ratio)]
            if step % cfg.log_every == 0:
                means = TensorDict.stack(losses).mean(0).to_dict()
                train = {f"train/{key}": value for key, value in means.items()}
                logger.log(train | timeit.todict(prefix="time"), step)
                status.update(step)
                losses = []
                timeit.erase()
            if step % cfg.eval_every == 0 or step == cfg.env_steps:
                num_episodes = cfg.final_episodes if step == cfg.env_steps else cfg.eval_episodes
                rows = evaluate(eval_env, actor, num_episodes=num_episodes, seed=cfg.seed + 1_000_003 * (step + 1))
                for row in rows:
                    logger.log_evaluation(**labels, env_steps=step, **row)
                last_return = sum(row["episode_return"] for row in rows) / num_episodes
                bar.set_postfix_str(f"return {last_return:.1f}", refresh=False)
            if (cfg.checkpoint_every and step % cfg.checkpoint_every == 0) or step == cfg.env_steps:
                save()
            if step == 1:  # the warm-up tells nothing about the time that is left
                bar.unpause()
            bar.update()
    plot_learning_curve(folder, folder / "figures" / "learning_curve.png")
    print(f"{folder}: return {last_return:.1f} after {step} env steps, {time.perf_counter() - begin:.0f} s")
    return last_return


if __name__ == "__main__":
    run_hydra(main, Path(__file__).parent.parent / "configs", "sac")
