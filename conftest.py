"""Settings of every test and docstring example: no display, one thread, names that examples may use."""

from __future__ import annotations

import os

os.environ.setdefault("MUJOCO_GL", "disable")  # nothing here renders; must be set before dm_control is imported
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("WANDB_MODE", "offline")

import pytest
import torch

torch.set_num_threads(1)  # tiny tensors: more threads only add waiting


@pytest.fixture(autouse=True)
def _example_names(doctest_namespace: dict[str, object], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Puts into docstring examples the names that they use without importing them, all of the method among them."""
    from torchrl.objectives import SoftUpdate

    import eqr_torchrl

    doctest_namespace.update({name: getattr(eqr_torchrl, name) for name in eqr_torchrl.__all__})
    doctest_namespace.update(folder=tmp_path_factory.getbasetemp(), torch=torch, nn=torch.nn, SoftUpdate=SoftUpdate)


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Every test starts from the same random numbers, whatever ran before it."""
    torch.manual_seed(0)
