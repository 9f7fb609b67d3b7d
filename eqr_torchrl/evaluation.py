"""Moved: see :mod:`eqr_torchrl.lab.evaluation`."""

from eqr_torchrl._moved import moved

__getattr__ = moved(__name__, "eqr_torchrl.lab.evaluation")
