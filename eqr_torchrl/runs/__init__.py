"""Runs: where they write, what they log, how they stop and go on, and how a command line starts them."""

from __future__ import annotations

from eqr_torchrl.runs.checkpoint import checkpoint_path, latest_checkpoint, load_checkpoint, save_checkpoint
from eqr_torchrl.runs.command_line import run_hydra
from eqr_torchrl.runs.csv_table import read_csv
from eqr_torchrl.runs.folder import RunPlan, make_run_folder, open_run
from eqr_torchrl.runs.loggers import RunLogger
from eqr_torchrl.runs.progress import progress_bar
from eqr_torchrl.runs.settings import differing_settings, save_settings
from eqr_torchrl.runs.state import capture_state, restore_state
from eqr_torchrl.runs.status import RunStatus, read_status
from eqr_torchrl.runs.sweeps import summarise_sweep

__all__ = [
    "RunLogger",
    "RunPlan",
    "RunStatus",
    "capture_state",
    "checkpoint_path",
    "differing_settings",
    "latest_checkpoint",
    "load_checkpoint",
    "make_run_folder",
    "open_run",
    "progress_bar",
    "read_csv",
    "read_status",
    "restore_state",
    "run_hydra",
    "save_checkpoint",
    "save_settings",
    "summarise_sweep",
]
