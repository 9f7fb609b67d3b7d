"""What a command line asks for: a configuration whose every entry is checked, help, or a sweep. Imports Hydra."""

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
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, InstantiationException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, OmegaConfBaseException, ValidationError

from eqr_torchrl.lab.runs.folder import flat
from eqr_torchrl.lab.runs.run import in_words, kinds_of

#: Errors that a user can cause; they are reported in one line.
EXPECTED = (ValueError, RuntimeError, ImportError, OSError, HydraException, OmegaConfBaseException)
_PLAIN = {"int", "float", "bool", "str", "NoneType"}


class CommandLineError(ValueError):
    """What is wrong with a command line, in one line."""


class Script(NamedTuple):
    """A script's function, its primary configuration, the folders of its choices, and the schema of its settings."""

    main: Callable[[DictConfig], Any]
    config_name: str
    folders: Sequence[Path]
    schema: type | None

    def compose(self, overrides: Sequence[str], *, sweep: bool) -> DictConfig:
        """The settings; of a sweep the first job's, after every value was checked."""
        with hydra.initialize_config_dir(str(self.folders[0]), job_name=self.config_name, version_base="1.3"):
            parsed = _parse(overrides)
            if sweep:  # that of an experiment
                params = self._compose([_values(override)[0] for override in parsed]).hydra.sweeper.params or {}
                typed = {override.key_or_group for override in parsed}
                parsed += _parse([f"{key}={value}" for key, value in params.items() if key not in typed])
            values = [_values(override) if sweep else [override.input_line] for override in parsed]
            last = max((len(found) for found in values), default=1) - 1
            jobs = [[found[min(i, len(found) - 1)] for found in values] for i in range(last, -1, -1)]
            return [self._check(job) for job in jobs][-1]

    def run_sweep(self, overrides: Sequence[str]) -> None:
        """Runs the script for every combination of values; a job that fails does not stop the others."""

        @functools.wraps(self.main)  # its module and name tell Hydra which script this is
        def job(cfg: DictConfig) -> Any:
            try:
                return self.main(cfg)
            except Exception as error:
                print(f"error in job {', '.join(HydraConfig.get().overrides.task)}: {one_line(error)}", file=sys.stderr)
                if not isinstance(error, EXPECTED):
                    traceback.print_exc()
                raise

        # Hydra shall raise instead of printing; what is typed comes last and prevails
        with mock.patch.dict(os.environ, {"HYDRA_FULL_ERROR": "1"}), tempfile.TemporaryDirectory() as folder:
            if any(text.startswith("hydra/launcher=submitit") for text in overrides):  # needs one on a shared disk
                folder = time.strftime("slurm/%Y%m%d-%H%M%S")
            ours = ["hydra.output_subdir=null", "hydra.job.chdir=false", "hydra/job_logging=stdout"]
            try:
                self._replace(main=job).call_hydra(["-m", *ours, f"hydra.sweep.dir={folder}", *overrides])
            except Exception as error:
                raise RuntimeError(f"some jobs of the sweep failed: {one_line(error)}") from error

    def call_hydra(self, argv: Sequence[str]) -> None:
        """Gives a command line to Hydra."""
        with mock.patch.object(sys, "argv", [sys.argv[0], *argv]):
            hydra.main(str(self.folders[0]), self.config_name, version_base="1.3")(self.main)()

    def help(self, config: DictConfig) -> str:
        """What the script is, its groups with all choices, and all settings."""
        lines = []
        for group, choice in sorted(HydraConfig.get().runtime.choices.items()):
            name = group.split("@")[0]
            others = [other for other in self._choices(name) if other != choice]
            if not group.startswith("hydra/"):
                lines.append(f"{name}={choice or 'null'}" + (f"  or {', '.join(others)}" if others else ""))
        return (
            f"{(inspect.getdoc(inspect.getmodule(self.main)) or '').strip()}\n\n"
            "Parts, each with the choice that is set (group=choice sets another):\n\n" + "\n".join(lines) + "\n\n"
            f"All settings (key=value sets another):\n\n{OmegaConf.to_yaml(config)}\n"
            "--multirun runs every combination of comma-separated values; --config-dir FOLDER adds choices of your "
            "own;\n--cfg job prints the settings alone; --hydra-help explains the other options of Hydra."
        )

    def _choices(self, group: str) -> list[str]:
        """The choices of a group, without the folders named after other scripts; none if it is a key."""
        found = [(folder / group, file) for folder in self.folders for file in (folder / group).rglob("*.yaml")]
        names = {file.relative_to(root).with_suffix("").as_posix() for root, file in found if group}
        others = {file.stem for file in self.folders[0].glob("*.yaml")}
        own = [name for name in names if name.startswith(f"{self.config_name}/")]
        own = own or [name for name in names if name.rpartition("/")[0].split("/")[0] not in others]
        return sorted(own, key=lambda name: (name.count("/"), name))

    def _compose(self, job: Sequence[str]) -> DictConfig:
        for override in _parse(job):
            key = override.key_or_group
            if override.value() is None and not override.is_delete() and (known := self._choices(key)):
                problem = f"{key} must be a choice, got null; ~{key} removes it."
                raise CommandLineError(f"{problem} Choices: {', '.join(known)}.")
        try:
            return hydra.compose(self.config_name, list(job), return_hydra_config=True)
        except MissingConfigException as error:
            group, _, choice = str(error.missing_cfg_file).partition("/")
            if not (known := self._choices(group)):
                raise CommandLineError(one_line(error)) from error
            problem = f"unknown {group}={choice}{_hint(choice, known, f'{group}=')} Choices: {', '.join(known)}."
            own = f" An environment of your own: env.name={choice}." if group == "env" and ":" in choice else ""
            raise CommandLineError(problem + own) from error
        except (HydraException, OmegaConfBaseException) as error:
            key = [*str(error).split("'"), ""][1]  # Hydra quotes it first
            others = [override.input_line for override in _parse(job) if override.key_or_group != key]
            if len(others) < len(job) and not key.startswith("hydra"):
                _check_key(key, self._compose(others))
            raise CommandLineError(one_line(error)) from error

    def _check(self, job: Sequence[str]) -> DictConfig:
        """Composes a job, and checks missing values, interpolations, types and ranges."""
        config = self._compose(job)
        HydraConfig.instance().set_config(config)  # for ${hydra:...}
        plain = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
        resolved = plain.copy()
        try:
            if missing := sorted(OmegaConf.missing_keys(plain)):
                raise CommandLineError(f"a value is needed for {', '.join(missing)}: add {missing[0]}=...")
            with contextlib.suppress(InterpolationToMissingValueError):  # known only while the job runs
                OmegaConf.resolve(resolved)
            if self.schema is not None:
                read_settings(self.schema, resolved)
            _check_arguments(OmegaConf.to_container(resolved))
        except (ValueError, OmegaConfBaseException) as error:
            raise CommandLineError(one_line(error)) from error
        return plain


def _check_key(key: str, config: DictConfig) -> None:
    """Raises an error with the nearest valid name if a configuration has no such key."""
    parent, _, word = key.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    if not isinstance(node, DictConfig):
        parent, node = "", config
    names = {str(name) for name in node if str(name)[0] != "_" and name != "hydra"}
    if not parent:
        names |= {group.split("@")[0] for group in config.hydra.runtime.choices if not group.startswith("hydra/")}
    if word not in names or parent != key.rpartition(".")[0]:
        leaves = flat(OmegaConf.to_container(config))
        same = [leaf for leaf in leaves if leaf.split(".")[-1] == word and not leaf.startswith("hydra.")]
        hint = f"; did you mean {same[0]}?" if same else _hint(word, sorted(names), f"{parent}." if parent else "")
        where = f" of {parent}" if parent else ""
        add = f" (+{key}=... adds one that the part takes)" if parent else ""
        raise CommandLineError(f"unknown key {key}{hint} Keys{where}: {', '.join(sorted(names))}{add}.")


def _check_arguments(node: Any, key: str = "") -> None:
    """Checks the plain arguments of all parts in a configuration against the annotations of their targets."""
    if not isinstance(node, dict):
        return
    parameters: Any = {}
    if target := node.get("_target_"):
        try:
            parameters = inspect.signature(pkgutil.resolve_name(target)).parameters
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(f"{key}._target_={target} cannot be imported: {error}") from error
    free = not parameters or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    unknown = [] if free else [str(name) for name in node if name not in parameters and str(name)[0] != "_"]
    if unknown:  # all of them at once: those of the usual part, where a target of the user's own replaces it
        removed = " ".join(f"~{key}.{name}" for name in unknown)
        raise ValueError(f"{key}: {target} takes no {', '.join(unknown)}; to remove, add {removed}")
    for name, value in node.items():
        where = f"{key}.{name}" if key else str(name)
        kinds = kinds_of(parameters[name].annotation) if name in parameters else []
        found = {type(value).__name__, "float"} if type(value) is int else {type(value).__name__}
        if kinds and set(kinds) <= _PLAIN and not found & set(kinds):
            raise ValueError(f"{where} must be {in_words(kinds)}, got {value!r}.")
        _check_arguments(value, where)


def read_settings(schema: type, cfg: DictConfig) -> Any:
    """Builds the dataclass ``schema`` from the entries of a configuration that it names.

    Raises:
        ValueError: if an entry has the wrong type, or is out of range according to ``schema``; it is named.
    """
    node: Any = OmegaConf.structured(schema)
    for field in fields(schema):
        if field.name in cfg:
            value = OmegaConf.select(cfg, field.name)
            try:
                node[field.name] = value
            except ValidationError as error:
                raise ValueError(f"{field.name} must be {in_words(kinds_of(field.type))}, got {value!r}.") from error
    found: Any = OmegaConf.to_object(node)
    return found


def one_line(error: BaseException) -> str:
    """The text of an error in one line; of a part that cannot be built, why."""
    if isinstance(error, InstantiationException) and isinstance(error.__cause__, EXPECTED):
        return one_line(error.__cause__)
    return " ".join(str(error).split()) or type(error).__name__


def _parse(texts: Sequence[str]) -> list[Any]:
    for text in texts:
        if text.startswith("-"):
            raise CommandLineError(f"unknown option {text}; settings are written key=value, see --help.")
    try:
        return OverridesParser.create().parse_overrides(list(texts))
    except OverrideParseException as error:
        key, _, value = error.override.partition("=")
        hint = f"; quote the value: '{key}=\"{value}\"'" if "=" in value else ""
        reason = one_line(error.__cause__ or error)
        raise CommandLineError(f"cannot read {error.override!r} as key=value: {reason}{hint}") from error


def _values(override: Any) -> list[str]:
    """The override once for each value of its sweep; itself if it is none."""
    if not override.is_sweep_override():
        return [override.input_line]
    return [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]


def _hint(word: str, words: Sequence[str], prefix: str) -> str:
    near = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    return f"; did you mean {prefix}{near[0]}?" if near else "."
