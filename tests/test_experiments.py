"""Every study composes as a whole, sweeps what it says, and gives each of its jobs a folder of its own."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

pytest.importorskip("hydra")

from omegaconf import OmegaConf, open_dict

from eqr_torchrl.lab.envs import PAPER_DMC_TASKS
from eqr_torchrl.lab.runs import LoopSettings
from eqr_torchrl.lab.runs.cli import run_hydra

CONFIGS = Path(__file__).parent.parent / "configs"

# Jobs of each study: seeds x tasks x settings.
JOBS = {
    "dmc": 10 * 16 * 2 * 2,
    "dmc_baselines": 10 * 16 * 2,
    "sac/dmc": 10 * 16,
    "mountain_car": 10 * 3 * 2 * 2,
    "mountain_car_baselines": 10 * 3 * 2,
    "sac/mountain_car": 10 * 3,
    "action_cost_cartpole": 10 * 3 * 3,
    "action_cost_pendulum": 10 * 3 * 3,
    "sac/action_cost_cartpole": 10 * 3,
    "sac/action_cost_pendulum": 10 * 3,
    "quantile_utility": 10 * 4 * 3,
    "qr_mbpo_investigation": 10 * 4 * 6,
    "ablation/quantiles_mean": 10 * 6 * 5,
    "ablation/quantiles_optimistic": 10 * 6 * 5,
    "ablation/rollout_length": 10 * 6 * 4,
    "ablation/retained_rounds": 10 * 6 * 4,
    "ablation/target_samples": 10 * 4 * 3 * 2,
    "ablation/stratified_samples": 10 * 4 * 4 * 2,
    "sac/quantile": 5,
    "suite": 2 * 17,
    "exploration/mountain_car": 5,
    "exploration/pendulum_swingup": 3,
    "exploration/cartpole_swingup_sparse": 3,
}


def script(experiment: str) -> str:
    return "sac" if experiment.startswith("sac/") else "eqr_sac"


def composed(experiment: str, *overrides: str):
    """A single job as the script would get it, and what a multirun would sweep."""
    import hydra
    from hydra.core.hydra_config import HydraConfig

    with hydra.initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config = hydra.compose(script(experiment), [f"experiment={experiment}", *overrides], return_hydra_config=True)
        HydraConfig.instance().set_config(config)  # for ${hydra:...}
        params = config.hydra.sweeper.params
        with open_dict(config):
            del config["hydra"]
        OmegaConf.resolve(config)
    return config, params


def sweep(experiment: str, *overrides: str) -> list:
    """All jobs of ``--multirun``, as the script would get them."""
    jobs = []
    command = ["--multirun", f"experiment={experiment}", *overrides]
    run_hydra(
        lambda cfg: jobs.append(OmegaConf.to_container(cfg, resolve=True)),
        CONFIGS,
        script(experiment),
        command,
        schema=LoopSettings.of,
    )
    return jobs


def test_every_experiment_file_is_listed_here():
    folder = CONFIGS / "experiment"
    assert {path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml")} == set(JOBS)


@pytest.mark.parametrize("experiment", JOBS)
def test_a_study_composes_and_sweeps_what_it_says(experiment):
    from hydra.core.override_parser.overrides_parser import OverridesParser

    config, params = composed(experiment)
    lengths = []
    for override in OverridesParser.create().parse_overrides([f"{key}={value}" for key, value in params.items()]):
        choices = [text.strip("'") for text in override.sweep_string_iterator()]
        lengths.append(len(set(choices)))
        if (CONFIGS / override.key_or_group).is_dir():
            missing = [name for name in choices if not (CONFIGS / override.key_or_group / f"{name}.yaml").is_file()]
            assert not missing
        else:
            assert OmegaConf.select(config, override.key_or_group, throw_on_missing=True) is not None
    assert math.prod(lengths) == JOBS[experiment]
    assert config.resume == "auto" and next(iter(params)) == "seed"


def test_multirun_alone_sweeps_a_study_and_each_job_has_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    jobs = sweep("mountain_car", "seed=0", "env.reward_scale=0.5,0.1", "algorithm=eqr_sac", "runs_root=here")
    assert [(job["env"]["reward_scale"], job["labels"]["utility"]) for job in jobs] == [
        (scale, utility) for scale in (0.5, 0.1) for utility in ("mean", "optimistic")
    ]
    root = "here/mountain_car/MountainCarContinuous-v0"
    assert jobs[1]["run_dir"] == f"{root}/eqr_sac-env.reward_scale=0.5,seed=0,utility=optimistic"
    assert len({job["run_dir"] for job in jobs}) == len(jobs)
    assert jobs[0]["labels"]["env"] == "MountainCarContinuous-v0-x0.5"
    assert jobs[0]["env_steps"] == 25_000 and jobs[0]["actor"]["num_cells"] == [64, 64]
    assert not list(tmp_path.iterdir())  # Hydra leaves nothing behind


def test_the_suite_names_tasks_and_a_budget_and_nothing_else():
    text = OmegaConf.to_container(OmegaConf.load(CONFIGS / "experiment" / "suite.yaml"))
    groups = {next(iter(entry)) for entry in text.pop("defaults") if isinstance(entry, dict)}
    assert groups == {"override /env", "override /algorithm", "override /budget"}
    assert set(text) == {"study", "hydra"} and set(text["hydra"]["sweeper"]["params"]) == {"seed", "env"}
    tasks = text["hydra"]["sweeper"]["params"]["env"].replace(" ", "").split(",")
    assert sorted(tasks) == sorted([*PAPER_DMC_TASKS, "mountain_car"])


def test_a_budget_scales_a_study_down_into_another_folder():
    study, _ = composed("ablation/rollout_length", "rollout.horizon=20")
    small, _ = composed("ablation/rollout_length", "rollout.horizon=20", "budget=smoke")
    assert study.env_steps == 250_000 and small.env_steps == 40
    assert study.rollout.horizon == small.rollout.horizon == 20
    assert study.labels.algorithm == "eqr_sac_T20"
    assert study.run_dir == "runs/rollout_length/dmc/cheetah-run/eqr_sac_T20-rollout.horizon=20"
    assert small.run_dir == "runs/rollout_length/dmc/cheetah-run/eqr_sac_T20-budget=smoke,rollout.horizon=20"
    longer, _ = composed("ablation/rollout_length", "rollout.horizon=20", "resume=elsewhere/run")
    assert longer.run_dir == study.run_dir  # a path in the name would be folders


@pytest.mark.parametrize(
    ("experiment", "overrides", "label"),
    [
        (
            "action_cost_pendulum",
            ["loss.utility.level=0.9"],
            ("dmc/pendulum-swingup-cost0.01", "eqr_sac", "quantile0.9"),
        ),
        ("sac/action_cost_cartpole", [], ("dmc/cartpole-swingup_sparse-cost0.001", "sac", "")),
        ("mountain_car_baselines", ["algorithm=qu_sac"], ("MountainCarContinuous-v0-x0.5", "qu_sac", "")),
        ("ablation/target_samples", ["successors.num_next_states=10"], (None, "eqr_sac_iid10", "mean")),
        ("ablation/quantiles_optimistic", ["critic.num_quantiles=3"], (None, "eqr_sac_N3", "optimistic")),
    ],
)
def test_settings_that_a_study_compares_are_told_apart_in_its_tables(experiment, overrides, label):
    labels = composed(experiment, *overrides)[0].labels
    assert (labels.get("env"), labels.algorithm, labels.utility) == label


def test_target_samples_are_as_many_independent_actions_as_next_states():
    config, _ = composed("ablation/target_samples", "successors.num_next_states=10")
    assert (config.successors.sampling, config.loss.action_sampling) == ("iid", "iid")
    assert config.loss.num_next_actions == 10
