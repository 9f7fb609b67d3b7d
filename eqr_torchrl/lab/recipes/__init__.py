"""The training scripts and their configurations: ``python -m eqr_torchrl.lab.recipes.eqr_sac env=dmc/cheetah-run``.

An installed package holds them in this folder; in a clone they are the folders ``examples`` and ``configs``.
"""

from __future__ import annotations

from pathlib import Path

_HERE, _CLONE = Path(__file__).parent, Path(__file__).parents[3]

#: Folder of the configurations.
CONFIGS = _HERE / "configs"
if not CONFIGS.is_dir():
    CONFIGS = _CLONE / "configs"
    __path__.append(str(_CLONE / "examples"))  # so that the modules are found in a clone too

__all__ = ["CONFIGS"]
