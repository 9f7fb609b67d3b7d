"""Moved: see :mod:`eqr_torchrl.lab.runs`."""

from eqr_torchrl._moved import moved

__getattr__ = moved(__name__, "eqr_torchrl.lab.runs", run_hydra="eqr_torchrl.lab.runs.cli")
