"""Calls every command of the installed package: its help names it, and a finished run can be watched and compared.

One process for all, since importing torch and torchrl takes longer than what is checked.
    python .ci/commands.py RUN_FOLDER
"""

from __future__ import annotations

import contextlib
import io
import sys
from importlib.metadata import distribution

import eqr_torchrl

installed = distribution("eqr_torchrl")
commands = {entry.name: entry for entry in installed.entry_points}


def call(name: str, *arguments: str) -> str:
    """What a command prints; it must end without an error."""
    sys.argv, status = [name, *arguments], None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            status = commands[name].load()()
        except SystemExit as end:
            status = end.code
    if status:
        sys.exit(f"{' '.join(sys.argv)}: {status}")
    return printed.getvalue()


if eqr_torchrl.__file__ != str(installed.locate_file("eqr_torchrl/__init__.py")):
    sys.exit(f"{eqr_torchrl.__file__} is not the installed package.")
run = sys.argv[1]
for command in commands:
    if command not in call(command, "--help"):
        sys.exit(f"{command} --help does not name the command.")
call("eqr-enjoy", run, "--episodes", "1")
call("eqr-enjoy", "pretrained/dmc_cheetah-run", "--episodes", "1", "--max-steps", "10")
call("eqr-compare", run, "--no-figures")
call("eqr-diagnose", run, "--states=1", "--episodes=1", "--visited=2", "--rollouts=2", "--calibrate=0")
