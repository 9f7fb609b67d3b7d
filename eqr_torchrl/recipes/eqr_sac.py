"""Moved: the command ``eqr-sac``."""

import warnings

if __name__ == "__main__":
    from eqr_torchrl.lab.scripts.eqr_sac import cli  # pyright: ignore[reportMissingImports]  # examples/ of the clone

    warnings.warn("python -m eqr_torchrl.recipes.eqr_sac has moved: eqr-sac", DeprecationWarning, stacklevel=1)
    cli()
