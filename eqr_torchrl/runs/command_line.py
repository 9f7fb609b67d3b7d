"""Runs a script from a Hydra command line: every mistake ends in one line, before anything is written."""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import os
import pkgutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from unittest import mock

from eqr_torchrl.runs.settings import kind_of, plain_types, read_settings

if TYPE_CHECKING:
    from omegaconf import DictConfig

_FULL_ERROR = "HYDRA_FULL_ERROR"
_HYDRA_OPTIONS = ("--cfg", "-c", "--info", "-i", "--hydra-help", "--resolve", "--package", "-p")


class CommandLineError(ValueError):
    """What is wrong with a command line, in one line."""


def run_hydra(
    main: Callable[[DictConfig], Any],
    config_dir: str | Path,
    config_name: str,
    argv: Sequence[str] | None = None,
    *,
    schema: type | None = None,
) -> Any:
    """Compose the configuration that the command line asks for, check it, and call ``main`` with it.

    Keys, choices and types are checked first, for a sweep value by value. Errors are one line (``HYDRA_FULL_ERROR=1``
    shows the traceback). Hydra writes no files; ``--multirun`` goes through its sweeper and launcher (basic, Ray,
    submitit), and only submitit's files are kept, under ``slurm/``. ``--config-dir FOLDER`` adds choices.

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
            traceback.
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
        from hydra.core.hydra_config import HydraConfig
        from omegaconf import open_dict
    except ImportError as error:
        raise ImportError("command lines need Hydra: pip install 'eqr_torchrl[hydra]'.") from error

    typed, folders = list(sys.argv[1:] if argv is None else argv), [Path(config_dir).resolve()]
    try:
        options, overrides = [text for text in typed if text.startswith("-")], []
        if any(text.split("=")[0] in _HYDRA_OPTIONS for text in options):
            return _call_hydra(main, folders[0], config_name, typed)
        words = iter(typed)
        for word in words:
            if word.split("=")[0] in ("--config-dir", "-cd"):
                folders.append(Path(word.partition("=")[2] or next(words, "")).expanduser().resolve())
                overrides.append(f"hydra.searchpath=[file://{folders[-1]}]")
            elif word not in ("--multirun", "-m", "--help", "-h"):
                overrides.append(word)
        multirun, show = not {"--multirun", "-m"}.isdisjoint(typed), not {"--help", "-h"}.isdisjoint(typed)
        with hydra.initialize_config_dir(str(folders[0]), job_name=config_name, version_base="1.3"):
            config = _Checker(config_name, folders, schema).compose(overrides, sweep=multirun or show)
            if show:
                return print(_help(main, config_name, folders, config))
        if multirun:
            return _run_sweep(main, folders[0], config_name, overrides)
        HydraConfig.instance().set_config(config)  # for ${hydra:runtime.choices.env} and the like
        with open_dict(config):
            del config["hydra"]
        return main(config)
    except KeyboardInterrupt as error:
        _stop(error, 130)
    except CommandLineError as error:
        _stop(error, 2)
    except Exception as error:
        if not _is_expected(error):
            raise
        _stop(error, 1)


class _Checker:
    """Composes a script's configuration from overrides, each of which it checks."""

    def __init__(self, config_name: str, folders: Sequence[Path], schema: type | None) -> None:
        self.config_name, self.folders, self.schema = config_name, folders, schema

    def compose(self, overrides: Sequence[str], *, sweep: bool) -> DictConfig:
        """The configuration, with its ``hydra`` node; of a sweep the first job's, after every value was checked."""
        parsed = [_parse(text) for text in overrides]
        for override in parsed:
            if override.is_sweep_override() and not sweep:
                text, key = override.input_line, override.get_key_element().lstrip("+~")
                raise CommandLineError(f"{text} is a sweep: add --multirun, or pass a list as {key}=[...].")
        if sweep:  # that of an experiment
            params = self._compose(self._choices_in(_values(override)[0] for override in parsed)).hydra.sweeper.params
            typed = {override.key_or_group for override in parsed}
            parsed += [_parse(f"{key}={value}") for key, value in (params or {}).items() if key not in typed]
        first = [_values(override)[0] for override in parsed]
        result = self._compose(first)
        self._check(result)
        for i, override in enumerate(parsed):  # every value once, the other sweeps at their first value
            for text in _values(override)[1:]:
                self._check(self._compose([*first[:i], text, *first[i + 1 :]]))
        return result

    def _compose(self, job: Sequence[str]) -> DictConfig:
        from hydra import compose
        from hydra.errors import HydraException
        from omegaconf.errors import OmegaConfBaseException

        for override in map(_parse, job):
            group, value = override.key_or_group, override.value()
            known = choices(self.folders, group)
            if known and value is None and not override.is_delete():
                usual = ", ".join(_choices_of_script(self.folders, group, self.config_name))
                raise CommandLineError(f"{group} must be a choice, got null; ~{group} removes it. Choices: {usual}.")
            for choice in value if isinstance(value, list) else [value]:
                if known and choice is not None and not override.is_delete() and str(choice) not in known:
                    usual = ", ".join(_choices_of_script(self.folders, group, self.config_name))
                    own = group == "env" and ":" in str(choice)
                    hint = f" An environment of your own: env.name={choice}." if own else ""
                    raise CommandLineError(
                        f"unknown {group}={choice}{_hint(str(choice), known, f'{group}=')} Choices: {usual}.{hint}"
                    )
        try:
            return compose(self.config_name, list(job), return_hydra_config=True)
        except (HydraException, OmegaConfBaseException) as error:
            base = self._choices_in(job)
            if len(base) < len(job):
                self._name_unknown_key(self._compose(base), job)
            raise CommandLineError(_one_line(error)) from error

    def _choices_in(self, job: Any) -> list[str]:
        found = [(text, _parse(text).key_or_group) for text in job]
        return [text for text, key in found if key == "hydra.searchpath" or choices(self.folders, key)]

    def _name_unknown_key(self, base: DictConfig, job: Sequence[str]) -> None:
        from omegaconf import OmegaConf

        tree: Any = OmegaConf.to_container(base)
        groups = {name.split("@")[0] for name in tree.pop("hydra")["runtime"]["choices"] if name[:6] != "hydra/"}
        for override in map(_parse, job):
            node, key = tree, override.key_or_group
            parts = key.split(".")
            if override.is_add() or override.is_force_add() or key[:5] == "hydra" or key in groups - set(tree):
                continue
            for i, part in enumerate(parts):
                if isinstance(node, list) or str(node)[:2] == "${":
                    break
                if not isinstance(node, dict) or part not in node:
                    inside, options = ".".join([*parts[:i], ""]), node if isinstance(node, dict) else {}
                    names = sorted({str(name) for name in options if str(name)[0] != "_"} | (set() if i else groups))
                    same = [leaf for leaf in _leaves(tree) if leaf.split(".")[-1] == parts[-1]]
                    hint = f"; did you mean {same[0]}?" if same else _hint(part, names, inside)
                    add = f" (+{key}=... adds one that the part takes)" if i and options else ""
                    where = f" of {inside[:-1]}" if i else ""
                    raise CommandLineError(f"unknown key {key}{hint} Keys{where}: {', '.join(names) or 'none'}{add}.")
                node = node[part]

    def _check(self, config: DictConfig) -> None:
        """Missing values, interpolations, types and ranges."""
        from hydra.core.hydra_config import HydraConfig
        from omegaconf import OmegaConf, open_dict
        from omegaconf.errors import InterpolationToMissingValueError, OmegaConfBaseException

        HydraConfig.instance().set_config(config)  # for ${hydra:...}
        plain = config.copy()
        with open_dict(plain):
            del plain["hydra"]
        try:
            if missing := sorted(OmegaConf.missing_keys(plain)):
                raise CommandLineError(f"a value is needed for {', '.join(missing)}: add {missing[0]}=...")
            with contextlib.suppress(InterpolationToMissingValueError):  # known only while the job runs
                OmegaConf.resolve(plain)
        except OmegaConfBaseException as error:
            raise CommandLineError(_one_line(error)) from error
        if self.schema is not None:
            try:
                read_settings(self.schema, plain)
            except ValueError as error:
                raise CommandLineError(_one_line(error)) from error
        for name, node in plain.items():
            _check_part(str(name), node)


def choices(folders: Sequence[Path], group: str) -> list[str]:
    """The choices of a configuration group in folders of configurations; none if it is a key."""
    found = [(folder / group, file) for folder in folders for file in (folder / group).rglob("*.yaml")]
    names = {file.relative_to(root).with_suffix("").as_posix() for root, file in found} if group else set()
    return sorted(names, key=lambda name: (name.count("/"), name))


def _choices_of_script(folders: Sequence[Path], group: str, config_name: str) -> list[str]:
    """Without the folders of choices that are named after other scripts."""
    scripts, found = {file.stem for file in folders[0].glob("*.yaml")}, choices(folders, group)
    own = [choice for choice in found if choice.startswith(f"{config_name}/")]
    return own or [choice for choice in found if "/" not in choice or choice.split("/")[0] not in scripts]


def _check_part(key: str, node: Any) -> None:
    """Checks the plain arguments of a part, and of the parts in it, against the annotations of its target."""
    from omegaconf import DictConfig

    if not isinstance(node, DictConfig):
        return
    parameters: Any = {}
    if "_target_" in node:
        try:
            parameters = inspect.signature(pkgutil.resolve_name(node._target_)).parameters
        except (ImportError, AttributeError, ValueError) as error:
            raise CommandLineError(f"{key}._target_={node._target_} cannot be imported: {_one_line(error)}") from error
    free = not parameters or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    unknown = [] if free else [str(name) for name in node if name not in parameters and str(name)[0] != "_"]
    if unknown:  # all of them at once: those of the usual part, where a target of the user's own replaces it
        removed = " ".join(f"~{key}.{name}" for name in unknown)
        raise CommandLineError(f"{key}: {node._target_} takes no {', '.join(unknown)}; to remove, add {removed}")
    for name, value in node.items():
        kinds = plain_types(parameters[name].annotation) if name in parameters else []
        if kinds and type(value).__name__.replace("NoneType", "None") not in [*kinds, "float" in kinds and "int"]:
            raise CommandLineError(f"{key}.{name} must be {kind_of(parameters[name].annotation)}, got {value!r}.")
        _check_part(f"{key}.{name}", value)


def _help(main: Callable[..., Any], config_name: str, folders: Sequence[Path], config: DictConfig) -> str:
    """What the script is, its groups with all choices, and all settings."""
    from omegaconf import OmegaConf, open_dict

    lines = []
    for group, choice in sorted(config.hydra.runtime.choices.items()):
        if not group.startswith("hydra/"):
            others = [c for c in _choices_of_script(folders, group.split("@")[0], config_name) if c != choice]
            lines.append(f"{group.split('@')[0]}={choice or 'null'}" + (f"  or {', '.join(others)}" if others else ""))
    with open_dict(config):
        del config["hydra"]
    return (
        f"{(inspect.getdoc(inspect.getmodule(main)) or '').strip()}\n\n"
        "Parts, each with the choice that is set (group=choice sets another):\n\n" + "\n".join(lines) + "\n\n"
        f"All settings (key=value sets another):\n\n{OmegaConf.to_yaml(config)}\n"
        "--multirun runs every combination of comma-separated values; --config-dir FOLDER adds choices of your own;\n"
        "--cfg job prints the settings alone; --hydra-help explains the other options of Hydra."
    )


def _run_sweep(main: Callable[..., Any], config_dir: Path, config_name: str, overrides: list[str]) -> None:
    @functools.wraps(main)  # its module and name tell Hydra which script this is
    def job(cfg: DictConfig) -> Any:
        from hydra.core.hydra_config import HydraConfig

        try:
            return main(cfg)
        except Exception as error:  # the other jobs of the sweep continue
            print(f"error in job {', '.join(HydraConfig.get().overrides.task)}: {_message(error)}", file=sys.stderr)
            if not _is_expected(error):
                traceback.print_exc()
            raise

    with contextlib.ExitStack() as stack:
        extra = ["hydra.output_subdir=null", "hydra.job.chdir=false"]
        if not any(text.startswith("hydra/job_logging=") for text in overrides):
            extra.append("hydra/job_logging=stdout")
        if not any(text.startswith("hydra.sweep.dir=") for text in overrides):
            submitit = any(text.startswith("hydra/launcher=submitit") for text in overrides)  # needs a shared disk
            temporary = None if submitit else stack.enter_context(tempfile.TemporaryDirectory())
            extra.append(f"hydra.sweep.dir={temporary or time.strftime('slurm/%Y%m%d-%H%M%S')}")
        full_error = os.environ.get(_FULL_ERROR) == "1"
        stack.enter_context(mock.patch.dict(os.environ, {_FULL_ERROR: "1"}))  # Hydra raises instead of printing
        try:
            _call_hydra(job, config_dir, config_name, ["--multirun", *overrides, *extra])
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
    expected = isinstance(error, InstantiationException) and cause is not None and _is_expected(cause)
    return _message(cause) if expected and cause is not None else _one_line(error)


def _one_line(error: BaseException | str) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _stop(error: BaseException, status: int) -> NoReturn:
    if os.environ.get(_FULL_ERROR) == "1":
        raise error
    hint = f" (set {_FULL_ERROR}=1 for the traceback)" if status == 1 else ""
    text = str(error) or "interrupted" if status == 130 else f"error: {_message(error)}{hint}"
    print(text, file=sys.stderr, flush=True)
    sys.exit(status)


def _parse(text: str) -> Any:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    if text.startswith("-"):
        raise CommandLineError(f"unknown option {text}; settings are written key=value, see --help.")
    try:
        return OverridesParser.create().parse_overrides([text])[0]
    except HydraException as error:
        key, _, value = text.partition("=")
        hint = f"; quote the value: '{key}=\"{value}\"'" if "=" in value else ""
        reason = _one_line(error.__cause__ or str(error).splitlines()[0])
        raise CommandLineError(f"cannot read {text!r} as key=value: {reason}{hint}") from error


def _values(override: Any) -> list[str]:
    """The override once for each value of its sweep; itself if it is none."""
    if not override.is_sweep_override():
        return [str(override.input_line)]
    return [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]


def _leaves(tree: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _hint(word: str, words: Sequence[str], prefix: str) -> str:
    near = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    return f"; did you mean {prefix}{near[0]}?" if near else "."
