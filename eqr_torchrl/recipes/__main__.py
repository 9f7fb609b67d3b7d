"""Moved: says where the scripts are."""

import sys

sys.exit(
    "eqr_torchrl.recipes has moved to commands: eqr-sac, eqr-offline, eqr-enjoy, eqr-compare, eqr-diagnose, eqr-check."
)
