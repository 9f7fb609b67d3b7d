"""Runs: where they write, what they log, how they stop and resume, and how a command line starts them."""

from __future__ import annotations

from eqr_torchrl.lab.runs.agent import Agent, load_agent
from eqr_torchrl.lab.runs.checkpoint import checkpoint_path, latest_checkpoint, load_checkpoint, save_checkpoint
from eqr_torchrl.lab.runs.command_line import run_hydra
from eqr_torchrl.lab.runs.folder import make_run_folder
from eqr_torchrl.lab.runs.loggers import RunLogger
from eqr_torchrl.lab.runs.run import Run
from eqr_torchrl.lab.runs.settings import LoopSettings, differing_settings
from eqr_torchrl.lab.runs.state import capture_state, restore_state
from eqr_torchrl.lab.runs.status import RunStatus, read_status, summarise_sweep
from eqr_torchrl.lab.runs.tables import read_csv

__all__ = [
    "Agent",
    "LoopSettings",
    "Run",
    "RunLogger",
    "RunStatus",
    "capture_state",
    "checkpoint_path",
    "differing_settings",
    "latest_checkpoint",
    "load_agent",
    "load_checkpoint",
    "make_run_folder",
    "read_csv",
    "read_status",
    "restore_state",
    "run_hydra",
    "save_checkpoint",
    "summarise_sweep",
]
