"""Runs a script from a Hydra command line: every mistake is one readable line, and Hydra leaves no folders behind."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from eqr_torchrl.runs.help import help_text
from eqr_torchrl.runs.overrides import CommandLineError, compose_checked, one_line

if TYPE_CHECKING:
    import argparse

    from omegaconf import DictConfig

_FULL_ERROR = "HYDRA_FULL_ERROR"
_HYDRA_SWEEP_DIR = "multirun/${now:%Y-%m-%d}/${now:%H-%M-%S}"  # Hydra's default
_JUST_SHOW = ("hydra_help", "cfg", "info", "shell_completion", "experimental_rerun")


def run_hydra(
    main: Callable[[DictConfig], Any], config_dir: str | Path, config_name: str, argv: Sequence[str] | None = None
) -> Any:
    """Compose the configuration that the command line asks for, and call ``main`` with it.

    What differs from ``hydra.main``: all overrides are checked first, sweeps value by value, and a mistake ends in one
    line that names what is valid; errors of the script are one line too (``HYDRA_FULL_ERROR=1`` shows the traceback);
    ``main`` can be run any number of times in one process and may use Hydra itself; and no output folders, log files or
    copies of the configuration are written, since a run has a folder of its own. ``--multirun`` goes through Hydra's
    sweeper and launcher as usual (basic, Ray, submitit); only submitit's own files are kept, under ``slurm/``.

    Args:
        main: takes the composed configuration.
        config_dir: folder of the configuration groups.
        config_name: the primary configuration in it.
        argv: the command line, without the program's name. Defaults to that of the process.

    Returns:
        What ``main`` returns; ``None`` for ``--multirun``.

    Raises:
        SystemExit: with status 2 for a mistake on the command line, and 1 for a ``ValueError``, ``RuntimeError``,
            ``ImportError`` or ``OSError`` in ``main``. Other errors are bugs, and keep their traceback.
        ImportError: if Hydra is not installed.

    Examples:
        >>> import tempfile
        >>> configs = Path(tempfile.mkdtemp())
        >>> _ = (configs / "script.yaml").write_text("steps: 3")
        >>> run_hydra(lambda cfg: cfg.steps * 2, configs, "script", ["steps=5"])
        10
    """
    try:
        import hydra
    except ImportError as error:
        raise ImportError("command lines need Hydra: pip install 'eqr_torchrl[hydra]'.") from error
    typed = list(sys.argv[1:] if argv is None else argv)
    config_dir = str(Path(config_dir).resolve())
    try:
        args = _read(typed)
        config_name = args.config_name or config_name
        if any(getattr(args, name) for name in _JUST_SHOW):
            return _hand_over(main, config_dir, config_name, typed)
        overrides = [*args.overrides]
        if args.config_dir is not None:
            overrides.append(f"hydra.searchpath=[file://{Path(args.config_dir).resolve()}]")
        multirun = args.multirun or "hydra.mode=MULTIRUN" in overrides
        with _fresh_hydra(), hydra.initialize_config_dir(config_dir, job_name=_job_name(), version_base="1.3"):
            if args.help:
                return print(help_text(main, config_name, overrides))
            config = compose_checked(config_name, overrides, multirun=multirun)
            if not multirun:
                return _run_one(main, config)
        return _run_many(main, config_dir, config_name, typed, config)
    except CommandLineError as error:
        _stop(error, status=2)


def _run_one(main: Callable[[DictConfig], Any], config: DictConfig) -> Any:
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import open_dict

    HydraConfig.instance().set_config(config)  # ${hydra:runtime.choices.env} and the like
    with open_dict(config):
        del config["hydra"]
    try:
        return main(config)
    except Exception as error:
        cause = _expected(error)
        if cause is None:
            raise
        _stop(cause, status=1)


def _run_many(
    main: Callable[..., Any], config_dir: str, config_name: str, typed: list[str], config: DictConfig
) -> None:
    from hydra.errors import HydraException

    @functools.wraps(main)  # its module and name tell Hydra which script this is
    def job(cfg: DictConfig) -> Any:
        return _report_job(main, cfg)

    with contextlib.ExitStack() as stack:
        overrides = ["hydra.output_subdir=null", "hydra.job.chdir=false"]
        if not any(text.startswith("hydra/job_logging=") for text in typed):
            overrides.append("hydra/job_logging=stdout")
        sweep_dir = config.hydra.sweep._get_node("dir")._value()
        if sweep_dir == _HYDRA_SWEEP_DIR and not any(text.startswith("hydra.sweep.dir=") for text in typed):
            if any(text.startswith("hydra/launcher=submitit") for text in typed):
                folder = f"slurm/{time.strftime('%Y%m%d-%H%M%S')}"  # on a disk that all machines share
            else:
                folder = stack.enter_context(tempfile.TemporaryDirectory())
            overrides.append(f"hydra.sweep.dir={folder}")
        full_error = os.environ.get(_FULL_ERROR) == "1"
        stack.enter_context(_environment(_FULL_ERROR, "1"))  # Hydra then raises instead of printing tracebacks
        try:
            _hand_over(job, config_dir, config_name, [*typed, *overrides])
        except Exception as error:
            if full_error:
                raise
            if isinstance(error, HydraException):  # before the first job
                _stop(one_line(error), status=2)
            _stop(f"not all jobs of the sweep came through: {one_line(_expected(error) or error)}", status=1)


def _report_job(main: Callable[[DictConfig], Any], cfg: DictConfig) -> Any:
    from hydra.core.hydra_config import HydraConfig

    try:
        return main(cfg)
    except Exception as error:  # the other jobs of the sweep go on
        task = ", ".join(HydraConfig.get().overrides.task)
        print(f"error in the job {task}: {one_line(_expected(error) or error)}", file=sys.stderr, flush=True)
        if _expected(error) is None:
            traceback.print_exc()
        raise


def _hand_over(main: Callable[..., Any], config_dir: str, config_name: str, argv: list[str]) -> None:
    """Let Hydra's own entry point do it: help, printed configurations, sweeps."""
    import hydra

    before = sys.argv
    sys.argv = [sys.argv[0], *argv]
    try:
        with _fresh_hydra():
            hydra.main(config_dir, config_name, version_base="1.3")(main)()
    finally:
        sys.argv = before


def _expected(error: BaseException) -> BaseException | None:
    """The error to be told in one line, or ``None`` if it is none that a user could cause."""
    from hydra.errors import HydraException, InstantiationException
    from omegaconf.errors import OmegaConfBaseException

    if isinstance(error, InstantiationException):
        inner = error.__cause__
        return _expected(inner) if inner is not None and _expected(inner) is not None else error
    kinds = (ValueError, RuntimeError, ImportError, OSError, HydraException, OmegaConfBaseException)
    if isinstance(error, kinds):
        return error
    # a setting that its part does not have shows when the part is built, a missing device when something moves there
    told = {TypeError: "unexpected keyword argument", AssertionError: "Torch not compiled with"}
    return error if type(error) in told and told[type(error)] in str(error) else None


def _stop(error: BaseException | str, *, status: int) -> NoReturn:
    if isinstance(error, BaseException) and os.environ.get(_FULL_ERROR) == "1":
        raise error
    hint = f" ({_FULL_ERROR}=1 shows where)" if status == 1 else ""
    print(f"error: {one_line(error)}{hint}", file=sys.stderr, flush=True)
    sys.exit(status)


def _read(argv: list[str]) -> argparse.Namespace:
    from hydra._internal.utils import get_args_parser

    parser = get_args_parser()

    def refuse(message: str) -> NoReturn:
        raise CommandLineError(f"{message}; options start with --, settings are written key=value, see --help.")

    parser.error = refuse  # in place of a page of usage
    return parser.parse_args(argv)


def _job_name() -> str:
    return Path(sys.argv[0]).stem or "app"


@contextlib.contextmanager
def _fresh_hydra() -> Iterator[None]:
    """Hydra as in a new process; what somebody else initialised (a notebook, an outer script) is put back after."""
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.hydra_config import HydraConfig

    before = GlobalHydra.instance().hydra, HydraConfig.instance().cfg
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        GlobalHydra.instance().hydra, HydraConfig.instance().cfg = before


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
