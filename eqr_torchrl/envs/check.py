"""Moved: the command ``eqr-check``."""

import sys
import warnings

if __name__ == "__main__":
    from eqr_torchrl.lab.envs.check import main

    warnings.warn("python -m eqr_torchrl.envs.check has moved: eqr-check", DeprecationWarning, stacklevel=1)
    sys.exit(main())
