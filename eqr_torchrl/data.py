"""Moved: see :mod:`eqr_torchrl.imagination`."""

from eqr_torchrl._moved import moved

__getattr__ = moved(__name__, "eqr_torchrl.imagination")
