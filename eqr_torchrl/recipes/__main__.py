"""Moved: says where the scripts are."""

import sys

commands = ", ".join(f"eqr-{name}" for name in ("sac", "offline", "enjoy", "compare", "diagnose", "check"))
sys.exit(f"eqr_torchrl.recipes has moved to commands: {commands}.")
