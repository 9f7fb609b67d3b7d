"""What config.yaml holds: the settings as plain values, written whole, reported where a resumed run changes them."""

from __future__ import annotations

import sys

import pytest
from omegaconf import OmegaConf

from eqr_torchrl.lab.runs import LoopSettings, differing_settings, settings_of_run
from eqr_torchrl.lab.runs.folder import save_settings

SETTINGS = {"seed": 1, "env_steps": 10, "optim": {"lr": 0.1}, "rate": 1e-05, "text": "1e-5", "resume": None}


def test_settings_are_written_as_they_are(tmp_path, capsys):
    save_settings(SETTINGS, tmp_path)
    assert OmegaConf.to_container(OmegaConf.load(tmp_path / "config.yaml")) == SETTINGS
    assert capsys.readouterr().out == ""


def test_settings_are_written_and_read_without_omegaconf(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "omegaconf", None)
    save_settings(SETTINGS, tmp_path)
    found = settings_of_run(tmp_path)
    monkeypatch.undo()
    expected = {key: value for key, value in SETTINGS.items() if key != "resume"}
    assert found == settings_of_run(tmp_path) == expected  # what is written there is YAML too


def test_a_failing_write_leaves_the_old_settings(tmp_path, monkeypatch):
    save_settings(SETTINGS, tmp_path)

    def torn(source, target):
        raise OSError("no space left on device")

    monkeypatch.setattr("os.replace", torn)
    with pytest.raises(OSError, match="cannot write .*config.yaml"):
        save_settings(SETTINGS | {"seed": 2}, tmp_path)
    assert settings_of_run(tmp_path)["seed"] == 1 and [file.name for file in tmp_path.iterdir()] == ["config.yaml"]


def test_a_resumed_run_reports_changed_settings(tmp_path, capsys):
    save_settings(SETTINGS, tmp_path)
    save_settings({**SETTINGS, "resume": "auto"}, tmp_path)
    assert capsys.readouterr().out == ""  # how it was started changes no number
    save_settings({**SETTINGS, "env_steps": 20, "optim": {"momentum": 0.9}}, tmp_path)
    told = "env_steps=20 (was 10), optim.lr=None (was 0.1), optim.momentum=0.9 (was None)"
    assert capsys.readouterr().out == f"resuming with changed settings: {told}\n"
    assert settings_of_run(tmp_path)["env_steps"] == 20


def test_what_differs_between_seeds_beside_the_seed(tmp_path):
    for seed, rate in enumerate((0.1, 0.1, 0.2)):
        (tmp_path / str(seed)).mkdir()
        save_settings({**SETTINGS, "seed": seed, "optim": {"lr": rate}}, tmp_path / str(seed))
    (tmp_path / "none").mkdir()
    folders = [tmp_path / name for name in ("0", "1", "none", "2")]
    assert differing_settings(folders[:3]) == {}
    assert differing_settings(folders) == {"optim.lr": [0.1, 0.1, 0.2]}


def test_what_settings_came_to_is_recorded_and_is_no_setting(tmp_path, capsys):
    for entropy in (-1.0, -2.0):
        save_settings(SETTINGS, tmp_path, target_entropy=entropy)
    assert OmegaConf.load(tmp_path / "config.yaml").record.target_entropy == -2.0
    assert capsys.readouterr().out == "" and differing_settings([tmp_path, tmp_path]) == {}
    assert "record" not in settings_of_run(tmp_path)


def test_settings_of_a_run_are_found_from_a_checkpoint_too_and_missing_ones_named(tmp_path):
    save_settings(SETTINGS | {"run_dir": "x"}, tmp_path)
    checkpoint = tmp_path / "checkpoints" / "step_000000001.pt"
    checkpoint.parent.mkdir()
    checkpoint.touch()
    found = settings_of_run(checkpoint)
    assert found == settings_of_run(tmp_path) and "run_dir" not in found and "resume" not in found
    with pytest.raises(ValueError, match="no settings of a run at .*nowhere"):
        settings_of_run(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"log_every": 2.5}, "log_every must be an integer, got 2.5"),
        ({"batch_size": True}, "batch_size must be an integer, got True"),
        ({"eval_every": "never"}, "eval_every must be an integer or null, got 'never'"),
        ({"eval_every": 0}, "eval_every must be at least 1, got 0"),
        ({"gamma": "high"}, "gamma must be a number, got 'high'"),
    ],
)
def test_a_wrong_type_is_named(changes, words):
    with pytest.raises(ValueError, match=words):
        LoopSettings(**changes)


def test_whole_numbers_are_numbers_and_evaluation_can_be_off():
    settings = LoopSettings.of({"gamma": 1, "eval_every": None, "unknown": 3})
    assert settings.gamma == 1.0 and isinstance(settings.gamma, float) and settings.eval_every is None
