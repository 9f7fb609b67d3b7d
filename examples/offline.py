"""A careful policy from a log alone: fit, imagine, learn a value for each member, and judge on held-out episodes.

python examples/offline.py data=npz data.path=log.npz    # or data=csv, data=run; with a simulator, also env=
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torchrl.objectives import SoftUpdate

from eqr_torchrl.functional import reward_unit
from eqr_torchrl.imagination import ModelBasedEnv
from eqr_torchrl.lab import logs
from eqr_torchrl.lab.comparison import plot_learning_curve
from eqr_torchrl.lab.evaluation import evaluate, seed_everything
from eqr_torchrl.lab.judging import Judge, functions_of, judged_loop, kept_report, time_limit
from eqr_torchrl.lab.runs import Run
from eqr_torchrl.lab.runs.cli import run_hydra
from eqr_torchrl.objectives import make_update


def main(cfg: DictConfig) -> float | None:
    """Trains one policy; returns its judged return, ``None`` if the run was finished before."""
    seed_everything(cfg.seed)
    data = logs.read_transitions(cfg.data.path, columns=cfg.data.columns)
    print(*logs.check_transitions(data, columns=cfg.data.columns, **cfg.bounds), sep="\n")
    env, rules = logs.specs_of(data, **cfg.bounds, name=Path(cfg.data.path).stem), functions_of(cfg, data)
    (train, held_out), limit = logs.split_episodes(data, cfg.held_out), time_limit(data, cfg.max_episode_steps)
    simulator = instantiate(cfg.env, seed=cfg.seed) if cfg.env else None
    logs.check_log_fits(data, simulator or env)
    cfg.world_model.learn_termination = rules["termination_fn"] is None
    if cfg.reward_bounds == "auto":
        cfg.reward_bounds = [bound.item() for bound in data["next", "reward"].aminmax()]
    run = Run.of(OmegaConf.to_container(cfg, resolve=True))
    actor, critic = instantiate(cfg.actor, env), instantiate(cfg.critic, env)
    world_model, judges = instantiate(cfg.world_model, env), instantiate(cfg.world_model, env)
    fit, fit_judges = instantiate(cfg.fit, world_model), instantiate(cfg.fit, judges)
    penalty = cfg.penalty * train["next", "reward"].std(correction=0).item()
    model = logs.PenalizedModel(world_model, penalty) if penalty else world_model
    imagine = instantiate(cfg.rollout, model, env, **rules)
    model_buffer = instantiate(cfg.model_buffer, imagine.capacity, batch_size=cfg.batch_size)
    successors = instantiate(cfg.successors, imagine.model_env)
    loss = instantiate(cfg.loss, actor, [critic]).make_value_estimator(gamma=cfg.gamma)
    optimizer, updater = instantiate(cfg.optim, loss), SoftUpdate(loss, tau=cfg.tau)
    average = AveragedModel(actor, multi_avg_fn=get_ema_multi_avg_fn(cfg.average))  # the policy that is judged and kept
    near = logs.NearTheLog(actor, critic, loss.utility, train, weight=cfg.clone_weight, gamma=cfg.gamma)
    update = make_update(  # the values of the clone come first, then a better policy near what is good in the log
        lambda batch: near(loss(successors(batch)), improve=run.step > cfg.values_first, unit=loss.value_unit),
        optimizer, updater, sample=model_buffer.sample, after_step=lambda: average.update_parameters(actor),
    )  # fmt: skip
    judge = found = cast(Any, None)  # made after the fit; the last judgement
    parts = {"loss": loss, "optimizer": optimizer, "average": average, "model_buffer": model_buffer, "judges": judges}
    run.keep(env=env, policy=average.module, world_model=world_model, **parts)
    run.evaluate_with(lambda num_episodes, seed: [judge.as_row(found)])
    with run:
        for step in run.steps():
            if step < 1:
                loss.set_scales(train["observation"], reward_unit(train["next", "reward"]))
                run.log("model", {"policy": fit(train), "judges": fit_judges(train)})
                run.log("clone", logs.clone_behaviour(actor, train, num_steps=cfg.clone_steps))
                continue
            judge = judge or Judge(ModelBasedEnv(judges, env, **rules), train, held_out, max_episode_steps=limit)
            imagine.stop_fn = imagine.stop_fn or logs.uncertainty_stop(world_model, held_out, level=cfg.stop_level)
            if (step - 1) % cfg.retrain_every == 0:
                run.log("rollout", imagine(instantiate(cfg.inference)(actor), train, model_buffer))  # imagine
            run.log("train", update())  # learn values, improve the policy
            if step % cfg.eval_every == 0 or step == cfg.env_steps:
                found = judge(average.module)  # the run keeps the policy of the best value
                run.log("judged", found._asdict())
                print(f"step {step}: return {found}{', kept' * (found.value > run.best_return)}", flush=True)
                if simulator is not None:  # nothing is chosen by it
                    rows = evaluate(simulator, average.module, num_episodes=cfg.eval_episodes, seed=cfg.seed)
                    run.log("simulator", {"return": sum(row["episode_return"] for row in rows) / len(rows)})
    if judge is not None:
        print(*kept_report(run.folder, judge, average.module, train), sep="\n")
        plot_learning_curve(run.folder, ylabel="judged return")
    return run.last_return


def cli() -> None:
    run_hydra(main, Path(__file__).parents[1] / "configs", "offline", schema=judged_loop)


if __name__ == "__main__":
    cli()
