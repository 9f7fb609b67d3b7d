"""Runs a script from a Hydra command line: every mistake ends in one line, before anything is written."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omegaconf import DictConfig

_LEFT_TO_HYDRA = ("--cfg", "-c", "--info", "-i", "--hydra-help", "--resolve", "--package", "-p")


def run_hydra(
    main: Callable[[DictConfig], Any],
    config_dir: str | Path,
    config_name: str,
    argv: Sequence[str] | None = None,
    *,
    schema: type | None = None,
) -> Any:
    """Composes the configuration that the command line asks for, checks it, and calls ``main`` with it.

    Keys, choices and types are checked first, for a sweep value by value. Hydra writes no files; ``--multirun`` goes
    through its sweeper and launcher (basic, Ray, submitit), and only submitit's files are kept, under ``slurm/``.

    Args:
        main: takes the composed configuration.
        config_dir: folder of the configuration groups.
        config_name: the primary configuration in it.
        argv: the command line, without the program's name. Defaults to that of the process.
        schema: dataclass of settings at the top level: their types, and in ``__post_init__`` their ranges.

    Returns:
        What ``main`` returns; ``None`` for ``--multirun``.

    Raises:
        SystemExit: after one line on stderr, with status 2 for a mistake on the command line; 1 for a ``ValueError``,
            ``RuntimeError``, ``ImportError``, ``OSError`` or a part that cannot be built; 130 for Ctrl-C. Other errors
            keep their traceback, and with ``HYDRA_FULL_ERROR=1`` all do.

    Examples:
        >>> import tempfile
        >>> configs = Path(tempfile.mkdtemp())
        >>> _ = (configs / "script.yaml").write_text("steps: 3")
        >>> run_hydra(lambda cfg: cfg.steps * 2, configs, "script", ["steps=5"])
        10
    """
    try:
        from eqr_torchrl.lab.runs.overrides import EXPECTED, CommandLineError, Script, one_line
    except ImportError as error:
        raise ImportError("command lines need Hydra: pip install 'eqr_torchrl[hydra]'.") from error
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--multirun", "-m", action="store_true")
    parser.add_argument("--help", "-h", action="store_true")
    parser.add_argument("--config-dir", "-cd", action="append", default=[])
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        options, overrides = parser.parse_known_args(words)
        folders = [Path(folder).expanduser().resolve() for folder in [config_dir, *options.config_dir]]
        script = Script(main, config_name, folders, schema)
        if any(word.split("=")[0] in _LEFT_TO_HYDRA for word in words):
            return script.call_hydra(words)
        if options.config_dir:
            overrides.append(f"hydra.searchpath=[{','.join(f'file://{folder}' for folder in folders[1:])}]")
        config = script.compose(overrides, sweep=options.multirun or options.help)
        if options.help:
            return print(script.help(config))
        return script.run_sweep(overrides) if options.multirun else main(config)
    except (KeyboardInterrupt, argparse.ArgumentError, *EXPECTED) as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        text, status = f"error: {one_line(error)}", 2
        if isinstance(error, KeyboardInterrupt):
            text, status = str(error) or "interrupted", 130
        elif not isinstance(error, (CommandLineError, argparse.ArgumentError)):
            text, status = f"{text} (set HYDRA_FULL_ERROR=1 for the traceback)", 1
        print(text, file=sys.stderr, flush=True)
        sys.exit(status)
