"""A search by Optuna: every trial is a run of its own, and the best return is the one that it reports."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from eqr_torchrl.lab.runs import LoopSettings, read_csv
from eqr_torchrl.lab.runs.cli import run_hydra

pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
ROOT = Path(__file__).parent.parent


@pytest.mark.filterwarnings("ignore")  # of SQLAlchemy, by Optuna; of TorchRL's collector, by TorchRL
def test_trials_draw_from_the_interval_and_the_best_return_is_reported(tmp_path, capsys, monkeypatch):
    import sac

    monkeypatch.chdir(tmp_path)
    search = ["hydra/sweeper=optuna", "hydra.sweeper.n_trials=2", "hydra.sweeper.n_jobs=1"]
    words = ["hydra.sweeper.direction=maximize", "optim.lr_actor=tag(log, interval(1e-4, 3e-3))", "budget=smoke"]
    run_hydra(sac.main, ROOT / "configs", "sac", ["-m", *search, *words, "progress=false"], schema=LoopSettings.of)
    out = capsys.readouterr().out
    runs = sorted((tmp_path / "runs").iterdir())
    rates = [float(out.split("optim.lr_actor=")[i].split()[0]) for i in (1, 2)]
    assert len(runs) == 2 and all(1e-4 <= rate <= 3e-3 for rate in rates) and rates[0] != rates[1]
    returns = []
    for run in runs:
        rows = read_csv(run / "evaluations.csv")
        returns.append(fmean(float(row["episode_return"]) for row in rows if row["env_steps"] == rows[-1]["env_steps"]))
    assert float(out.split("Best value: ")[1].split()[0]) == pytest.approx(max(returns), abs=1e-3)
