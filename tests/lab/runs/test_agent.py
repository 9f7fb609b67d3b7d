"""A trained agent loads in another process, or says in one line why it does not."""

from __future__ import annotations

import pytest
from torch import nn

from eqr_torchrl.lab.runs import load_agent
from eqr_torchrl.lab.runs.agent import save_policy

pytest.importorskip("hydra")


def test_an_environment_that_cannot_be_imported_is_named(tmp_path):
    env = {"_target_": "eqr_torchrl.lab.envs.make_env", "name": "no_such_module:Env"}
    (tmp_path / "checkpoints").mkdir()
    policy = save_policy(tmp_path, nn.Linear(1, 1), {"env": env, "actor": {}}, env_steps=1)
    with pytest.raises(ValueError, match="^'no_such_module:Env' must name something .* PYTHONPATH"):
        load_agent(policy)


def test_what_an_environment_raises_is_passed_on(tmp_path):
    env = {"_target_": "fractions.Fraction", "numerator": 1, "denominator": 0}
    (tmp_path / "checkpoints").mkdir()
    policy = save_policy(tmp_path, nn.Linear(1, 1), {"env": env, "actor": {}}, env_steps=1)
    with pytest.raises(ZeroDivisionError, match=r"Fraction\(1, 0\)"):
        load_agent(policy)
