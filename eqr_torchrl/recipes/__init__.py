"""Moved: the scripts are commands now, ``eqr-sac``, ``eqr-enjoy`` and others."""
