from __future__ import annotations

from omegaconf import OmegaConf

from eqr_torchrl.lab.runs import differing_settings
from eqr_torchrl.lab.runs.settings import save_settings

SETTINGS = {"seed": 1, "env_steps": 10, "optim": {"lr": 0.1}, "twice": "${seed}", "resume": None}


def test_settings_are_written_resolved_and_returned(tmp_path, capsys):
    written = {**SETTINGS, "twice": 1}
    assert save_settings(OmegaConf.create(SETTINGS), tmp_path) == written
    assert OmegaConf.to_container(OmegaConf.load(tmp_path / "config.yaml")) == written
    assert capsys.readouterr().out == ""


def test_a_resumed_run_reports_changed_settings(tmp_path, capsys):
    save_settings(OmegaConf.create(SETTINGS), tmp_path)
    save_settings(OmegaConf.create({**SETTINGS, "resume": "auto"}), tmp_path)
    assert capsys.readouterr().out == ""  # how it was started changes no number
    save_settings(OmegaConf.create({**SETTINGS, "env_steps": 20, "optim": {"momentum": 0.9}}), tmp_path)
    told = "env_steps=20 (was 10), optim.lr=None (was 0.1), optim.momentum=0.9 (was None)"
    assert capsys.readouterr().out == f"resuming with changed settings: {told}\n"
    assert OmegaConf.load(tmp_path / "config.yaml").env_steps == 20


def test_what_differs_between_seeds_beside_the_seed(tmp_path):
    for seed, rate in enumerate((0.1, 0.1, 0.2)):
        (tmp_path / str(seed)).mkdir()
        save_settings(
            OmegaConf.create({**SETTINGS, "seed": seed, "twice": 0, "optim": {"lr": rate}}), tmp_path / str(seed)
        )
    (tmp_path / "none").mkdir()
    folders = [tmp_path / name for name in ("0", "1", "none", "2")]
    assert differing_settings(folders[:3]) == {}
    assert differing_settings(folders) == {"optim.lr": [0.1, 0.1, 0.2]}


def test_what_settings_came_to_is_recorded_and_is_no_setting(tmp_path, capsys):
    for entropy in (-1.0, -2.0):
        save_settings(OmegaConf.create(SETTINGS), tmp_path, target_entropy=entropy)
    assert OmegaConf.load(tmp_path / "config.yaml").record.target_entropy == -2.0
    assert capsys.readouterr().out == "" and differing_settings([tmp_path, tmp_path]) == {}
