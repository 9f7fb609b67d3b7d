"""EQR-SAC and its model-based relatives: Algorithm 2 of Luis et al. (2024), https://arxiv.org/abs/2308.06590.

python examples/eqr_sac.py                                          # Pendulum-v1, a few minutes on two cores
python examples/eqr_sac.py env=dmc/cheetah-run budget=paper         # the paper's protocol
python examples/eqr_sac.py utility=optimistic algorithm=qr_mbpo     # another attitude, another algorithm
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl import timeit, torchrl_logger
from torchrl.collectors import Collector
from torchrl.envs import EnvBase
from torchrl.objectives import SoftUpdate

from eqr_torchrl.comparison import plot_learning_curve
from eqr_torchrl.data import TRANSITION_KEYS, announce_buffer, branched_rollout, make_replay_buffer, model_buffer_bytes
from eqr_torchrl.diagnostics import plot_value_distribution, value_quantiles
from eqr_torchrl.envs import ModelBasedEnv, ResumableEpisode, TerminationGuard, import_by_name, termination_for
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
    for key in ("env_steps", "warmup_steps", "retrain_every", "utd_ratio", "eval_every", "log_every", "eval_episodes"):
        if cfg[key] < 1:
            raise ValueError(f"{key} must be positive, got {cfg[key]}.")
    if cfg.num_threads is not None:
        torch.set_num_threads(cfg.num_threads)
    torch.manual_seed(cfg.seed)

    # The parts
    env, eval_env = instantiate(cfg.env, seed=cfg.seed), instantiate(cfg.env, seed=cfg.seed)
    termination_fn = import_by_name(cfg.termination_fn) if cfg.termination_fn else termination_for(env)
    reward_fn = import_by_name(cfg.reward_fn) if cfg.reward_fn else None
    env.append_transform(TerminationGuard(termination_fn, env.env_name))
    env.append_transform(episode := ResumableEpisode())
    sizes = env.observation_spec["observation"].shape[-1], env.action_spec.shape[-1]
    bounds = tuple(cfg.reward_bounds) if cfg.reward_bounds else None
    actor = instantiate(cfg.actor, env).to(cfg.device)
    critics = [instantiate(cfg.critic, env).to(cfg.device) for _ in range(cfg.loss.num_qvalue_nets)]
    world_model = instantiate(cfg.world_model, env).to(cfg.device)  # posterior over MDPs
    fit = instantiate(cfg.fit, world_model)
    members, starts = world_model.num_members, cfg.rollout.starts_per_step * cfg.retrain_every
    rollouts = [  # pairs of an imagined environment and its start states per member
        (
            ModelBasedEnv(
                world_model,
                env,
                termination_fn=termination_fn,
                reward_fn=reward_fn,
                reward_bounds=bounds,
                member=rule.member,
            ),
            max(starts // members, 1) if rule.split_starts else starts,
        )
        for rule in cfg.rollout.member_rules
    ]
    keys = [key if isinstance(key, str) else tuple(key) for key in cfg.rollout.stored_keys]
    replay = make_replay_buffer(cfg.replay_capacity, batch_size=cfg.batch_size)
    capacity = cfg.rollout.horizon * members * sum(count for _, count in rollouts) * cfg.rollout.retained_rounds
    transition = env.fake_tensordict().select(*(key for key in keys if key != "member"))
    num_bytes = model_buffer_bytes(capacity, transition, dtype=cfg.model_buffer.dtype)
    print(announce_buffer(f"D_model ({capacity:,} transitions)", num_bytes, device=cfg.device))
    model_buffer = instantiate(cfg.model_buffer)(capacity, batch_size=cfg.batch_size, device=cfg.device)
    successors = instantiate(cfg.successors)(rollouts[0][0])  # EQR: K next states from each member
    loss = instantiate(cfg.loss)(actor_network=actor, qvalue_network=critics)
    loss.make_value_estimator(gamma=cfg.gamma)
    optimizer, target_updater = make_optimizer(loss, **cfg.optim), SoftUpdate(loss, tau=cfg.tau)
    update = make_update(
        lambda batch: loss(successors(batch)),
        optimizer,
        target_updater,
        sample=model_buffer.sample,
        compile=cfg.compile,
        cuda_graph=cfg.cuda_graph,
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
    parts = {"loss": loss, "optimizer": optimizer, "world_model": world_model, "fit": fit}
    parts |= {"replay": replay, "model_buffer": model_buffer, "logger": logger}
    step, report, losses = -cfg.warmup_steps, {}, []  # steps count from the end of the warm-up
    if saved is not None:
        step, report, losses = saved["step"], saved["report"], [TensorDict(entry) for entry in saved["losses"]]
        episode.restore(saved["episode"])
    collector = Collector(env, actor, frames_per_batch=1, total_frames=-1, auto_register_policy_transforms=False)
    transitions = iter(collector)
    if saved is not None:
        restore_state(saved["parts"], **parts)

    def save() -> Path:
        state = {"step": step, "report": report, "losses": [entry.to_dict() for entry in losses]}
        state |= {"episode": episode.episode_state(), "parts": capture_state(**parts)}
        path = checkpoint_path(folder, max(step, 0))
        return save_checkpoint(path, state, fingerprint=fingerprint, keep_last=cfg.keep_checkpoints)

    def evaluation(num_episodes: int) -> float:
        episodes = evaluate(eval_env, actor, num_episodes=num_episodes, seed=cfg.seed + 1_000_003 * (step + 1))
        for row in episodes:
            logger.log_evaluation(**labels, env_steps=step, **row)
        return sum(row["episode_return"] for row in episodes) / num_episodes

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
                bar.set_description(
                    f"warm-up {-step} steps left" if step else "fitting the first models", refresh=not step
                )
                bar.update(0)
                continue
            if (step - 1) % cfg.retrain_every == 0:
                rows = replay[:]
                with timeit("fit"):  # learn the models
                    report = columns("model", fit(rows))
                with timeit("rollout"):  # imagine
                    for model_env, num_starts in rollouts:
                        imagined = branched_rollout(
                            model_env,
                            actor,
                            rows["observation"],
                            model_buffer,
                            num_starts=num_starts,
                            horizon=cfg.rollout.horizon,
                            keys=keys,
                            chunk_size=cfg.rollout.chunk_size,
                        )
                        report |= columns(f"rollout/{model_env.member}", imagined)
            with timeit("update"):  # learn values, improve the policy
                losses += [update() for _ in range(cfg.utd_ratio)]
            if step % cfg.log_every == 0:
                train = columns("train", TensorDict.stack(losses).mean(0).to_dict())
                logger.log(train | report | timeit.todict(prefix="time"), step)
                status.update(step)
                losses = []
                timeit.erase()
            if step % cfg.eval_every == 0 or step == cfg.env_steps:
                last_return = evaluation(cfg.final_episodes if step == cfg.env_steps else cfg.eval_episodes)
                bar.set_postfix_str(f"return {last_return:.1f}", refresh=False)
            if (cfg.checkpoint_every and step % cfg.checkpoint_every == 0) or step == cfg.env_steps:
                save()
            if step == 1:  # the warm-up tells nothing about the time that is left
                bar.set_description(refresh=False)
                bar.unpause()
            bar.update()
    draw(folder, eval_env, actor, critics[0])
    print(f"{folder}: return {last_return:.1f} after {step} env steps, {time.perf_counter() - begin:.0f} s")
    return last_return


def draw(folder: Path, env: EnvBase, actor: TensorDictModule, critic: TensorDictModule) -> None:
    """The run's learning curve, and the value posterior at three initial states."""
    plot_learning_curve(folder, folder / "figures" / "learning_curve.png")
    states = torch.stack([env.reset()["observation"] for _ in range(3)])
    quantiles = value_quantiles(critic, actor, states)
    if quantiles.shape[-1] > 1:
        labels = [f"initial state {i + 1}" for i in range(3)]
        plot_value_distribution(quantiles, labels, folder / "figures" / "value_distribution.png")


def columns(prefix: str, values: dict) -> dict:
    """Names for a table: ``values`` under a prefix, one column for each entry of a list, seconds under ``time/``."""
    out = {}
    for key, value in values.items():
        name = f"time/{prefix}" if key == "seconds" else f"{prefix}/{key}"
        out |= {f"{name}_{i}": v for i, v in enumerate(value)} if isinstance(value, list) else {name: value}
    return out


if __name__ == "__main__":
    run_hydra(main, Path(__file__).parent.parent / "configs", "eqr_sac")
