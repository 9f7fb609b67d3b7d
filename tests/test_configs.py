"""Every choice of every configuration group composes, builds, and holds the numbers that it should."""

from __future__ import annotations

from pathlib import Path

import hydra
import pytest
import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import OmegaConf

from eqr_torchrl.imagination import EnsembleSuccessors, never_terminates
from eqr_torchrl.lab.envs import PAPER_DMC_TASKS, make_env
from eqr_torchrl.lab.judging import judged_loop
from eqr_torchrl.lab.runs import LoopSettings
from eqr_torchrl.lab.runs.cli import run_hydra
from eqr_torchrl.lab.runs.folder import flat
from eqr_torchrl.testing import toy_actor, toy_critic, toy_env

CONFIGS = Path(__file__).parent.parent / "configs"
SCALAR = {"mbpo", "qu_sac"}  # their values have no spread for a utility to weigh


def choices(group: str) -> list[str]:
    folder = CONFIGS / group
    return sorted(str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*.yaml"))


ALGORITHMS, UTILITIES, BUDGETS = choices("algorithm"), choices("utility"), choices("budget")
DMC = [name for name in choices("env") if name.startswith("dmc/")]


@pytest.fixture(scope="module")
def compose():
    def composed(*overrides):
        with hydra.initialize_config_dir(str(CONFIGS), version_base="1.3"):  # not longer: tests start command lines too
            return hydra.compose("eqr_sac", list(overrides))

    return composed


def checked(*overrides):
    """The settings that the script gets, which its command line has checked: or it exits."""
    return run_hydra(lambda cfg: cfg, CONFIGS, "eqr_sac", list(overrides), schema=LoopSettings.of)


@pytest.mark.parametrize(
    ("script", "word", "needed"),
    [
        ("eqr_sac", "real_share=two", "real_share must be a number, got 'two'"),
        ("eqr_sac", "optim.lr=1", "did you mean optim.lr_actor or optim.lr_alpha or optim.lr_critic?"),
        ("offline", "values_first=soon", "values_first must be an integer, got 'soon'"),
        ("offline", "clone_steps=x", "clone_steps must be an integer, got 'x'"),
        ("offline", "penalty=x", "penalty must be a number, got 'x'"),
        ("offline", "penalty=null", "penalty must be a number, got None"),
        ("offline", "stop_level=high", "stop_level must be a number, got 'high'"),
    ],
)
def test_a_word_for_a_number_is_one_line(capsys, script, word, needed):
    data = ["data.path=log.npz"] if script == "offline" else []
    schema = judged_loop if script == "offline" else LoopSettings.of  # as the scripts have
    with pytest.raises(SystemExit):
        run_hydra(lambda cfg: cfg, CONFIGS, script, [word, *data], schema=schema)
    error = capsys.readouterr().err
    assert needed in error and error.count("\n") == 1


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_goes_with_every_utility_and_every_budget(algorithm):
    offset = ALGORITHMS.index(algorithm)  # over all algorithms, every utility meets every budget
    for i, utility in enumerate([None] * len(BUDGETS) if algorithm in SCALAR else UTILITIES):
        budget = BUDGETS[(i + offset) % len(BUDGETS)]
        cfg = checked(f"algorithm={algorithm}", f"budget={budget}", *([f"utility={utility}"] if utility else []))
        assert (cfg.labels.algorithm, cfg.labels.utility) == (algorithm, utility or "")
        assert ("utility" in cfg.loss) == (utility is not None)


def build_loss(cfg):
    quantiles = cfg.critic.num_quantiles
    critics = [toy_critic(num_quantiles=quantiles) for _ in range(cfg.loss.num_qvalue_nets)]
    return instantiate(cfg.loss, toy_actor(), critics)


@pytest.mark.parametrize("utility", UTILITIES)
def test_every_utility_is_what_the_policy_ascends(compose, utility):
    loss = build_loss(compose(f"utility={utility}"))
    kind = {"cvar": "CVaRUtility", "entropic": "EntropicUtility"}.get(utility, f"{utility.capitalize()}Utility")
    assert type(loss.utility).__name__ == kind


# critics, quantiles, member rules (and whose the start states are), loss
PARTS = {
    "mbpo": (2, 1, [("resampled", "shared")], "SACLoss"),
    "qr_mbpo": (1, 51, [("resampled", "shared")], "EpistemicQuantileLoss"),
    "qr_mbpo_big": (1, 51, [("resampled", "per_member")], "EpistemicQuantileLoss"),
    "qr_mbpo_consistent": (1, 51, [("fixed", "per_member")], "EpistemicQuantileLoss"),
    "qr_mbpo_consistent_equal": (1, 51, [("fixed", "shared")], "EpistemicQuantileLoss"),
    "qr_mbpo_loss": (1, 51, [("resampled", "shared")], "EpistemicQuantileLoss"),
    "qu_sac": (5, 1, [("fixed", "per_member"), ("resampled", "shared")], "MemberwiseSACLoss"),
    "eqr_sac": (1, 51, [("fixed", "per_member")], "EpistemicQuantileLoss"),
    "member_values": (1, 5, [("fixed", "per_member")], "MemberwiseSACLoss"),
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_parts_of_every_algorithm_build_and_fit_each_other(compose, algorithm):
    cfg = compose(f"algorithm={algorithm}", "world_model.num_cells=[8]", "budget=smoke")
    rules = [(rule.member, rule.starts) for rule in cfg.rollout.rules]
    kind = cfg.loss._target_.split(".")[-1]
    assert (cfg.loss.num_qvalue_nets, cfg.critic.num_quantiles, rules, kind) == PARTS[algorithm]
    env = toy_env()
    world_model = instantiate(cfg.world_model, env)
    actor, critic = instantiate(cfg.actor, env), instantiate(cfg.critic, env)
    assert actor(env.reset())["action"].shape == (1,)
    assert critic(env.rand_action(env.reset()))["state_action_value"].shape == (cfg.critic.num_quantiles,)
    imagine = instantiate(cfg.rollout, world_model, env, termination_fn=never_terminates)
    instantiate(cfg.fit, world_model)
    successors = instantiate(cfg.successors, imagine.model_env)
    loss = build_loss(cfg)
    loss.make_value_estimator(gamma=cfg.gamma)
    instantiate(cfg.optim, loss)
    instantiate(cfg.model_buffer, imagine.capacity, batch_size=cfg.batch_size)
    # a loss that averages over members draws its own successors: nothing else needs to be stored
    ensemble = isinstance(successors, EnsembleSuccessors)
    assert ensemble == (cfg.rollout["keys"] == ["observation", "action"])
    assert ensemble == (algorithm in ("eqr_sac", "member_values", "qr_mbpo_loss"))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_paper_budget_is_the_papers_protocol(compose, algorithm):
    published = ("fit=early_stopping", "world_model=published")
    cfg = compose(f"algorithm={algorithm}", "budget=paper", "env=dmc/cheetah-run", *published)
    assert (cfg.env_steps, cfg.warmup_steps, cfg.retrain_every, cfg.utd_ratio) == (250_000, 5_000, 250, 10)
    assert (cfg.replay_capacity, cfg.batch_size, cfg.gamma, cfg.tau) == (100_000, 256, 0.99, 0.005)
    rollout, fit = cfg.rollout, cfg.fit
    assert (rollout.starts_per_step, rollout.horizon, rollout.retained_rounds) == (400, 5, 10)
    assert not cfg.world_model.normalize_targets and fit.variance_weight == 0
    assert (fit.patience, fit.validation_fraction, fit.batch_size, fit.max_epochs) == (5, 0.2, 256, None)
    assert {"lr": fit.lr, "weight_decay": fit.weight_decay} == {"lr": 1e-3, "weight_decay": 5e-5}
    assert {key: value for key, value in cfg.optim.items() if key != "_target_"} == {
        "lr_actor": 3e-4,
        "lr_critic": 3e-4,
        "lr_alpha": 3e-4,
    }
    assert (cfg.world_model.num_members, cfg.world_model.num_cells) == (5, [200] * 4)
    assert (cfg.actor.num_cells, cfg.critic.num_cells) == ([128, 128], [256, 256])
    assert (cfg.loss.alpha_init, cfg.loss.target_entropy) == (1.0, "auto")
    assert cfg.loss.get("kappa", 1.0) == 1.0 and cfg.eval_every == 1000
    # 100,000 starts a refresh and member, 5 steps, 10 rounds: 25 million rows with five fixed members
    if algorithm == "eqr_sac":
        assert rollout.starts_per_step * cfg.retrain_every * 5 * rollout.horizon * rollout.retained_rounds == 25_000_000


def test_the_literal_target_of_the_paper_is_a_choice_of_successors(compose):
    cfg = compose("successors=paper", "budget=paper")
    assert (cfg.successors.num_next_states, cfg.successors.sampling) == (5, "iid")
    assert (cfg.loss.num_next_actions, cfg.loss.action_sampling) == (5, "iid")
    assert isinstance(build_loss(cfg).num_next_actions, int)


# `critic`, `loss` and `rollout` come with the algorithms; `env` and `experiment` have tests of their own
GROUPS = ("actor", "fit", "logger", "model_buffer", "optim", "successors", "utility", "world_model")


@pytest.mark.parametrize("budget", BUDGETS)
def test_every_choice_of_every_group_goes_with_every_budget(budget):
    found = [choices(group) for group in GROUPS]
    rounds = [[names[i % len(names)] for names in found] for i in range(max(map(len, found)))]  # each choice once
    for names in rounds:
        checked(*(f"{group}={choice}" for group, choice in zip(GROUPS, names, strict=True)), f"budget={budget}")


SCALE = {
    *("env_steps", "warmup_steps", "retrain_every", "utd_ratio", "fit_steps", "batch_size", "replay_capacity"),
    *("eval_every", "eval_episodes", "final_episodes", "log_every", "checkpoint_every", "num_threads"),
    *("tau", "optim.lr_actor", "optim.lr_critic", "optim.lr_alpha", "loss.alpha_init"),
    *("rollout.starts_per_step", "rollout.retained_rounds", "rollout.chunk_size"),
}


@pytest.mark.parametrize("budget", BUDGETS)
def test_a_budget_scales_and_does_not_change_what_the_critic_means(budget):
    # K, horizon, fit, utility and priors belong to algorithms and experiments
    text = OmegaConf.load(CONFIGS / "budget" / f"{budget}.yaml")
    names = {name for name in flat(OmegaConf.to_container(text)) if name != "defaults"}
    assert names <= SCALE


def test_tasks_of_deepmind_control_are_the_papers():
    assert sorted(DMC) == sorted(PAPER_DMC_TASKS)


@pytest.mark.parametrize("name", DMC)
def test_every_task_composes_builds_and_steps(compose, name):
    cfg = compose(f"env={name}", "budget=paper")
    assert cfg.env.name == name
    assert cfg.world_model.num_cells == ([400] * 4 if "quadruped" in name else [200] * 4)
    env = instantiate(cfg.env, seed=0)
    rollout = env.rollout(2)  # random actions
    assert rollout["observation"].dtype == rollout["action"].dtype == torch.float32
    assert torch.isfinite(rollout["next", "observation"]).all() and not rollout["next", "terminated"].any()
    env.close()


def test_what_is_typed_wins_over_what_a_choice_brings(compose):
    cfg = compose("env=dmc/quadruped-run", "budget=smoke", "world_model.num_cells=[8]", "rollout.horizon=7")
    assert cfg.world_model.num_cells == [8] and cfg.rollout.horizon == 7
    cfg = compose("algorithm=mbpo", "loss.num_qvalue_nets=4", "critic=scalar")
    assert cfg.loss.num_qvalue_nets == 4


def test_choices_do_not_depend_on_the_order_in_which_they_are_typed(compose):
    words = ["algorithm=qr_mbpo", "utility=optimistic", "budget=smoke", "env=mountain_car"]
    assert compose(*words) == compose(*reversed(words))


def test_a_signature_is_the_schema_of_a_part(compose):
    cfg = compose("+loss.kapa=1")
    with pytest.raises(InstantiationException, match="EpistemicQuantileLoss takes no argument 'kapa'"):
        build_loss(cfg)


@pytest.mark.parametrize("choice", [name for name in choices("env") if name not in DMC])
def test_gymnasium_tasks_build_and_step(compose, choice):
    env = instantiate(compose(f"env={choice}").env, seed=0)
    rollout = env.rollout(3)
    assert rollout["observation"].dtype == torch.float32 and len(rollout) == 3
    env.close()


def test_any_other_environment_is_one_override_away(compose):
    cfg = compose("env.name=MountainCarContinuous-v0", "env.reward_scale=0.5")
    env = instantiate(cfg.env, seed=0)
    plain = make_env("MountainCarContinuous-v0", seed=0)
    torch.manual_seed(0)
    scaled = env.rollout(3)["next", "reward"]
    torch.manual_seed(0)
    torch.testing.assert_close(scaled, 0.5 * plain.rollout(3)["next", "reward"])


def test_one_setting_chooses_the_precision_of_what_needs_no_gradient(compose):
    for algorithm in ("eqr_sac", "member_values", "qu_sac"):
        cfg = compose(f"algorithm={algorithm}", "precision=bf16", "world_model.num_members=2")
        critics = [toy_critic(num_quantiles=cfg.critic.num_quantiles) for _ in range(cfg.loss.num_qvalue_nets)]
        loss = instantiate(cfg.loss, toy_actor(), critics)
        rounds = [part.rounds for network in loss._target for part in network.modules()
                  if hasattr(part, "rounds")]  # fmt: skip
        assert rounds == [True] * (1 + cfg.loss.num_qvalue_nets) and cfg.inference.precision == "bf16"
