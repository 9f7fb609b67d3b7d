"""Runs: where they write, what they log, how they stop and resume; in ``cli``, how a command line starts them."""

from __future__ import annotations

from eqr_torchrl.lab.runs.agent import Agent, SpaceOnly, load_agent
from eqr_torchrl.lab.runs.checkpoint import (
    capture_state,
    checkpoint_path,
    latest_checkpoint,
    load_checkpoint,
    restore_state,
    save_checkpoint,
)
from eqr_torchrl.lab.runs.folder import (
    RunStatus,
    differing_settings,
    read_csv,
    read_status,
    rewind,
    settings_of_run,
    summarise_sweep,
)
from eqr_torchrl.lab.runs.logger import RunLogger
from eqr_torchrl.lab.runs.run import LoopSettings, Run

__all__ = [
    "Agent",
    "LoopSettings",
    "Run",
    "RunLogger",
    "RunStatus",
    "SpaceOnly",
    "capture_state",
    "checkpoint_path",
    "differing_settings",
    "latest_checkpoint",
    "load_agent",
    "load_checkpoint",
    "read_csv",
    "read_status",
    "restore_state",
    "rewind",
    "save_checkpoint",
    "settings_of_run",
    "summarise_sweep",
]
