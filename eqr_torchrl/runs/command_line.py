"""Runs a script from a Hydra command line: every mistake ends in one line, before anything is written."""

from __future__ import annotations

import argparse
import contextlib
import functools
import inspect
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from unittest import mock

from eqr_torchrl.runs.overrides import Checker, CommandLineError, choices_of_script, one_line, without_hydra

if TYPE_CHECKING:
    from omegaconf import DictConfig

_FULL_ERROR = "HYDRA_FULL_ERROR"
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

    Keys, choices and types are checked first, for a sweep value by value. Errors are one line. Hydra writes no files;
    ``--multirun`` goes through its sweeper and launcher (basic, Ray, submitit), and only submitit's files are kept,
    under ``slurm/``. ``--config-dir FOLDER`` adds choices.

    Args:
        main: takes the composed configuration.
        config_dir: folder of the configuration groups.
        config_name: the primary configuration in it.
        argv: the command line, without the program's name. Defaults to that of the process.
        schema: dataclass of settings at the top level: their types, and in ``__post_init__`` their ranges.

    Returns:
        What ``main`` returns; ``None`` for ``--multirun``.

    Raises:
        SystemExit: with status 2 for a mistake on the command line; 1 for a ``ValueError``, ``RuntimeError``,
            ``ImportError``, ``OSError`` or a part that cannot be built; 130 for Ctrl-C. Other errors keep their
            traceback, and with ``HYDRA_FULL_ERROR=1`` all do.

    Examples:
        >>> import tempfile
        >>> configs = Path(tempfile.mkdtemp())
        >>> _ = (configs / "script.yaml").write_text("steps: 3")
        >>> run_hydra(lambda cfg: cfg.steps * 2, configs, "script", ["steps=5"])
        10
    """
    try:
        import hydra
        from hydra.core.hydra_config import HydraConfig
    except ImportError as error:
        raise ImportError("command lines need Hydra: pip install 'eqr_torchrl[hydra]'.") from error
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--multirun", "-m", action="store_true")
    parser.add_argument("--help", "-h", action="store_true")
    parser.add_argument("--config-dir", "-cd", action="append", default=[])
    words, folders = list(sys.argv[1:] if argv is None else argv), [Path(config_dir).resolve()]
    try:
        if any(word.split("=")[0] in _LEFT_TO_HYDRA for word in words):
            return _call_hydra(main, folders[0], config_name, words)
        options, overrides = parser.parse_known_args(words)
        folders += [Path(folder).expanduser().resolve() for folder in options.config_dir]
        if options.config_dir:
            overrides.append(f"hydra.searchpath=[{','.join(f'file://{folder}' for folder in folders[1:])}]")
        with hydra.initialize_config_dir(str(folders[0]), job_name=config_name, version_base="1.3"):
            config = Checker(config_name, folders, schema).compose(overrides, sweep=options.multirun or options.help)
        if options.help:
            return print(_help(main, config_name, folders, config))
        if options.multirun:
            return _run_sweep(main, folders[0], config_name, overrides)
        HydraConfig.instance().set_config(config)  # for ${hydra:runtime.choices.env} and the like
        return main(without_hydra(config))
    except KeyboardInterrupt as error:
        _stop(error, 130)
    except Exception as error:
        mistake = isinstance(error, (CommandLineError, argparse.ArgumentError))
        if not mistake and not _is_expected(error):
            raise
        _stop(error, 2 if mistake else 1)


def _help(main: Callable[..., Any], config_name: str, folders: Sequence[Path], config: DictConfig) -> str:
    """What the script is, its groups with all choices, and all settings."""
    from omegaconf import OmegaConf

    lines = []
    for group, choice in sorted(config.hydra.runtime.choices.items()):
        if not group.startswith("hydra/"):
            name = group.split("@")[0]
            others = [other for other in choices_of_script(folders, name, config_name) if other != choice]
            lines.append(f"{name}={choice or 'null'}" + (f"  or {', '.join(others)}" if others else ""))
    return (
        f"{(inspect.getdoc(inspect.getmodule(main)) or '').strip()}\n\n"
        "Parts, each with the choice that is set (group=choice sets another):\n\n" + "\n".join(lines) + "\n\n"
        f"All settings (key=value sets another):\n\n{OmegaConf.to_yaml(without_hydra(config))}\n"
        "--multirun runs every combination of comma-separated values; --config-dir FOLDER adds choices of your own;\n"
        "--cfg job prints the settings alone; --hydra-help explains the other options of Hydra."
    )


def _run_sweep(main: Callable[..., Any], config_dir: Path, config_name: str, overrides: list[str]) -> None:
    from hydra.core.hydra_config import HydraConfig

    @functools.wraps(main)  # its module and name tell Hydra which script this is
    def job(cfg: DictConfig) -> Any:
        try:
            return main(cfg)
        except Exception as error:  # the other jobs of the sweep continue
            print(f"error in job {', '.join(HydraConfig.get().overrides.task)}: {_message(error)}", file=sys.stderr)
            if not _is_expected(error):
                traceback.print_exc()
            raise

    full_error = os.environ.get(_FULL_ERROR) == "1"
    submitit = any(text.startswith("hydra/launcher=submitit") for text in overrides)  # needs a folder on a shared disk
    with contextlib.ExitStack() as stack:
        folder = time.strftime("slurm/%Y%m%d-%H%M%S")
        if not submitit:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(mock.patch.dict(os.environ, {_FULL_ERROR: "1"}))  # Hydra raises instead of printing
        ours = ["hydra.output_subdir=null", "hydra.job.chdir=false", "hydra/job_logging=stdout"]
        try:  # what is typed comes last and prevails
            _call_hydra(job, config_dir, config_name, ["-m", *ours, f"hydra.sweep.dir={folder}", *overrides])
        except Exception as error:
            if full_error:
                raise
            raise RuntimeError(f"some jobs of the sweep failed: {_message(error)}") from error


def _call_hydra(main: Callable[..., Any], config_dir: Path, config_name: str, argv: list[str]) -> None:
    import hydra

    with mock.patch.object(sys, "argv", [sys.argv[0], *argv]):
        hydra.main(str(config_dir), config_name, version_base="1.3")(main)()


def _is_expected(error: BaseException) -> bool:
    """Whether a user can cause the error, which is then reported in one line."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    kinds = (ValueError, RuntimeError, ImportError, OSError, HydraException, OmegaConfBaseException)
    return isinstance(error, kinds)


def _message(error: BaseException) -> str:
    """One line; of a part that cannot be built, why."""
    from hydra.errors import InstantiationException

    cause = error.__cause__
    if isinstance(error, InstantiationException) and cause is not None and _is_expected(cause):
        return _message(cause)
    return one_line(error)


def _stop(error: BaseException, status: int) -> NoReturn:
    if os.environ.get(_FULL_ERROR) == "1":
        raise error
    hint = f" (set {_FULL_ERROR}=1 for the traceback)" if status == 1 else ""
    text = str(error) or "interrupted" if status == 130 else f"error: {_message(error)}{hint}"
    print(text, file=sys.stderr, flush=True)
    sys.exit(status)
