"""The policies that come with the package: each loads by its name, holds data alone, and does what its row says."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

import eqr_torchrl.lab
from eqr_torchrl.lab.evaluation import evaluate
from eqr_torchrl.lab.runs import load_agent

FOLDER = Path(eqr_torchrl.lab.__file__).parent / "pretrained"
with (FOLDER / "pretrained.csv").open(encoding="utf-8", newline="") as file:
    ROWS = {row["name"]: row for row in csv.DictReader(file)}


def test_each_file_has_a_row_and_each_row_a_file():
    assert ROWS and sorted(path.stem for path in FOLDER.glob("*.pt")) == sorted(ROWS)


@pytest.mark.parametrize("name", ROWS)
def test_a_policy_loads_by_its_name_and_names_no_folder_of_the_machine_that_trained_it(name):
    agent, row = load_agent(f"pretrained/{name}"), ROWS[name]
    assert agent.space["env"].replace("/", "_") == name
    assert (agent.settings["seed"], agent.env_steps) == (int(row["seed"]), int(row["env_steps"]))
    assert '"/' not in json.dumps(agent.settings)
    assert (FOLDER / f"{name}.pt").stat().st_size < 200_000
    action = agent.act([0.1] * agent.space["observation_size"])
    assert action.tolist() != [0.0] * len(action)


def test_a_policy_earns_what_its_row_says():
    row = ROWS["dmc_cheetah-run"]
    agent = load_agent("pretrained/dmc_cheetah-run")
    env = agent.make_env(seed=5)
    (episode,) = evaluate(env, agent.actor, seed=5)
    env.close()
    # one episode of a policy whose episodes have this mean and standard deviation; the physics may differ in a digit
    assert abs(episode["episode_return"] - float(row["return"])) < 6 * float(row["std"]) + 5


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match="source must be pretrained/ and one of .*dmc_cheetah-run.*: got pretrained/x"):
        load_agent("pretrained/x")
