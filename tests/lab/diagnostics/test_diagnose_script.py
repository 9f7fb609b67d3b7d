from __future__ import annotations

import csv
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from eqr_torchrl.lab.diagnostics import sample_episodes
from eqr_torchrl.lab.runs import checkpoint_path, load_agent, save_checkpoint
from eqr_torchrl.lab.runs.agent import space_of

ROOT = Path(__file__).parents[3]
CONFIG = {
    "gamma": 0.5,  # 14 steps are enough
    "env": {"_target_": "eqr_torchrl.lab.envs.make_env", "name": "Pendulum-v1"},
    "actor": {"_target_": "eqr_torchrl.networks.make_actor", "num_cells": [8]},
    "critic": {"_target_": "eqr_torchrl.networks.make_critic", "num_cells": [8], "num_quantiles": 5},
    "world_model": {"_target_": "eqr_torchrl.world_models.make_world_model", "num_cells": [8]},
    "loss": {"_target_": "eqr_torchrl.objectives.EpistemicQuantileLoss", "num_qvalue_nets": 1},
    "rollout": {
        "_target_": "eqr_torchrl.imagination.BranchedRollouts",
        "horizon": 2,
    },
    "termination_fn": None,
    "reward_fn": None,
}
DOUBLE = {
    "critic": CONFIG["critic"] | {"num_quantiles": 1},
    "loss": {"_target_": "torchrl.objectives.SACLoss", "num_qvalue_nets": 2},
}
QU_SAC = {
    "critic": CONFIG["critic"] | {"num_quantiles": 1},
    "loss": {"_target_": "eqr_torchrl.objectives.MemberwiseSACLoss", "num_qvalue_nets": 5},
}


FEW = ["--states", "1", "--episodes", "1", "--rollouts", "2", "--horizon", "2", "--visited", "4", "--calibrate", "0"]


def make_run(folder: Path, changes: dict) -> None:
    """A run folder as the training script leaves it, without the training."""
    cfg = OmegaConf.create(CONFIG | changes)
    env = instantiate(cfg.env)
    critics = [instantiate(cfg.critic, env) for _ in range(cfg.loss.num_qvalue_nets)]
    loss = instantiate(cfg.loss, instantiate(cfg.actor, env), critics)
    loss.make_value_estimator(gamma=cfg.gamma)
    for parameter in loss.qvalue_network_params.parameters():
        parameter.data.fill_(0.0)
        if parameter.shape[-1] == cfg.critic.num_quantiles:
            parameter.data.fill_(7.0)  # the last bias: the value everywhere
    folder.mkdir()
    OmegaConf.save(cfg, folder / "config.yaml")
    parts = {"loss": loss.state_dict(), "world_model": instantiate(cfg.world_model, env).state_dict()}
    save_checkpoint(checkpoint_path(folder, 10), {"step": 10, "parts": parts, "space": space_of(env)})


def run_diagnose(monkeypatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["diagnose.py", *arguments])
    runpy.run_path(str(ROOT / "examples" / "diagnose.py"), run_name="__main__")


@pytest.mark.parametrize("changes", [{}, DOUBLE, QU_SAC], ids=["quantile critic", "two scalar critics", "QU-SAC"])
def test_diagnose_reads_a_run_folder(tmp_path, monkeypatch, capsys, changes):
    make_run(tmp_path / "run", changes)
    few = ["--states", "2", "--episodes", "2", "--rollouts", "2", "--horizon", "4"]
    run_diagnose(monkeypatch, str(tmp_path / "run"), *few, "--plane", "0,2")
    output = capsys.readouterr().out
    assert "World model on 56 unseen transitions" in output  # 2 states x 2 episodes x 14 steps
    assert "up to 14 steps here, of which the first half is judged" in output  # Pendulum's own limit is 200
    # 2 x 2 episodes to judge by, 2 rollouts from 2 states, and 40 episodes to calibrate
    assert "This runs 4 real episodes, and from 2 start states 2 imagined ones of 7 steps in each of 5 mem" in output
    assert "then 40 episodes of up to 7 for intervals" in output
    row = next(line for line in output.splitlines() if line.split()[:1] == ["0"])
    assert row.count("(state entry ") + row.count("(reward)") == 2  # which entry has the least, and the largest
    assert "7.00 (0.00)" in output  # the weights of the checkpoint, not fresh ones
    double = changes is DOUBLE  # two critics against overestimation are no posterior
    assert ("2 critics" if double else "posterior of 5 atoms") in output  # quantiles or members
    names = {path.name for path in (tmp_path / "run" / "figures" / "diagnostics").iterdir()}
    figures = {"model_drift.png", "value_distribution.png", "value_map.png", "diagnostics.txt"}
    assert names == figures | (set() if double else {"calibration.png", "spread.csv"})
    # the critic is 7 in every state, and every return far below: no atom holds any, calibrated intervals do
    *raw, calibrated = (
        line.split()[-1] for line in output.splitlines() if line.strip().startswith(("critic's a", "value -"))
    )
    assert (raw, int(calibrated[:-1]) >= 60) == ([] if double else ["0%"], True)
    assert ("Spread of values at 32 visited states" in output) != double
    if not double:  # before the episodes that take longest
        assert output.index("Spread of values at 32") < output.index("Return of a new episode")


def test_diagnose_goes_by_the_rules_of_the_run_and_writes_the_verdict_as_a_row(tmp_path, monkeypatch, capsys):
    # every member earns 3 and ends at once: no spread in the members, none in the critic, which is 7 everywhere
    changes = {
        "termination_fn": "diagnose_rules:ends_at_once",
        "reward_fn": "diagnose_rules:pays_three",
        "world_model": CONFIG["world_model"] | {"learn_reward": False},
        "loss": CONFIG["loss"] | {"alpha_init": 1e-8},  # no entropy in the values
    }
    make_run(tmp_path / "run", changes)
    run_diagnose(monkeypatch, str(tmp_path / "run"), *FEW)
    printed = capsys.readouterr().out
    assert "3.00 (0.00)" in printed  # in every member: 3, and no step after it
    text = (tmp_path / "run" / "figures" / "diagnostics" / "spread.csv").read_text()
    row = next(csv.DictReader(text.splitlines()))
    assert row["verdict"] in printed
    assert (row["memberwise"], row["critic_std"], row["member_std"]) == ("no", "0", "0")
    assert "Reward: root mean square error" not in printed  # it is known


def test_diagnose_shows_returns_without_the_bonus_and_the_error_of_the_reward_in_its_unit(
    tmp_path, monkeypatch, capsys
):
    # one episode whose temperature is 1,000: its return is nearly all bonus, its rewards are those of Pendulum, <= 0
    make_run(tmp_path / "run", {"loss": CONFIG["loss"] | {"alpha_init": 1e3}})
    run_diagnose(monkeypatch, str(tmp_path / "run"), *FEW)
    printed = capsys.readouterr().out
    assert "of these, rewards alone" in printed
    *_, soft, plain = next(line for line in printed.splitlines() if "start state 1" in line).split()
    # the rewards again, of an agent without a bonus, whose episode is the same by its seed
    agent = load_agent(tmp_path / "run")
    env = agent.make_env(max_episode_steps=14)
    episode = sample_episodes(env, agent.actor, num_episodes=1, max_steps=14, gamma=0.5, seed=1_000_000).transitions[0]
    rewards = episode["next", "reward"].squeeze(-1)
    assert float(plain) == pytest.approx(sum(0.5**t * r.item() for t, r in enumerate(rewards)), abs=0.01)
    assert (float(plain) <= 0, abs(float(soft)) > 10 * abs(float(plain))) == (True, True)
    low, high, std = (
        float(x) for x in re.search(r"error (\S+) to (\S+) between .* deviation of (\S+), in unit", printed).groups()
    )
    assert std == pytest.approx(rewards.std(correction=0).item(), rel=0.01)
    assert 0 < low <= high


def test_diagnose_says_what_is_missing(tmp_path, monkeypatch):
    with pytest.raises(SystemExit, match="source must be a run folder with config.yaml and checkpoints"):
        run_diagnose(monkeypatch, str(tmp_path))


def test_same_seed_gives_the_same_report(tmp_path, monkeypatch):
    make_run(tmp_path / "run", {})
    reports = []
    for out in ("first", "second"):
        torch.manual_seed(len(reports))
        run_diagnose(monkeypatch, str(tmp_path / "run"), *FEW, "--out", str(tmp_path / out))
        reports.append((tmp_path / out / "diagnostics.txt").read_text())
    assert reports[0] == reports[1]
