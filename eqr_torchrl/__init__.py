"""Composable TorchRL components for epistemic quantile regression: uncertainty about values in continuous control.

All public names of the method, folder by folder. The exact, tabular counterpart is :mod:`eqr_torchrl.tabular`, and the
application around both is :mod:`eqr_torchrl.lab`.
"""

from __future__ import annotations

from eqr_torchrl import _versions as _versions  # first: it reports incompatible versions before they fail obscurely
from eqr_torchrl import functional, imagination, networks, objectives, testing, utility, world_models
from eqr_torchrl._moved import moved as _moved
from eqr_torchrl.functional import *
from eqr_torchrl.imagination import *
from eqr_torchrl.networks import *
from eqr_torchrl.objectives import *
from eqr_torchrl.testing import *
from eqr_torchrl.utility import *
from eqr_torchrl.world_models import *

__version__ = "0.3.0"
__all__: list[str] = []
__all__ += functional.__all__
__all__ += imagination.__all__
__all__ += networks.__all__
__all__ += objectives.__all__
__all__ += testing.__all__
__all__ += utility.__all__
__all__ += world_models.__all__

__getattr__ = _moved(__name__, make_env="eqr_torchrl.lab.envs")
