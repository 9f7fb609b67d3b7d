"""Moved: see :mod:`eqr_torchrl.lab.envs`."""

from eqr_torchrl._moved import moved

__getattr__ = moved(
    __name__,
    "eqr_torchrl.lab.envs",
    ModelBasedEnv="eqr_torchrl.imagination",
    TerminationFn="eqr_torchrl.imagination",
    never_terminates="eqr_torchrl.imagination",
)
