"""Composes a configuration from the overrides of a command line, each of which is checked."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eqr_torchrl.runs.settings import check_arguments, flat, read_settings

if TYPE_CHECKING:
    from omegaconf import DictConfig


class CommandLineError(ValueError):
    """What is wrong with a command line, in one line."""


class Checker:
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
        result = self._check(self._compose(first))
        for i, override in enumerate(parsed):  # every value once, the other sweeps at their first value
            for text in _values(override)[1:]:
                self._check(self._compose([*first[:i], text, *first[i + 1 :]]))
        return result

    def _compose(self, job: Sequence[str]) -> DictConfig:
        from hydra import compose
        from hydra.errors import HydraException
        from omegaconf.errors import OmegaConfBaseException

        for override in map(_parse, job):
            self._check_choice(override)
        try:
            return compose(self.config_name, list(job), return_hydra_config=True)
        except (HydraException, OmegaConfBaseException) as error:
            base = self._choices_in(job)
            if len(base) < len(job):
                self._name_unknown_key(self._compose(base), job)
            raise CommandLineError(one_line(error)) from error

    def _choices_in(self, job: Iterable[str]) -> list[str]:
        found = [(text, _parse(text).key_or_group) for text in job]
        return [text for text, key in found if key == "hydra.searchpath" or choices(self.folders, key)]

    def _check_choice(self, override: Any) -> None:
        group, value = override.key_or_group, override.value()
        known = [] if override.is_delete() else choices(self.folders, group)
        for choice in value if isinstance(value, list) else [value]:
            if known and str(choice) not in known:
                problem = f"unknown {group}={choice}{_hint(str(choice), known, f'{group}=')}"
                if choice is None:
                    problem = f"{group} must be a choice, got null; ~{group} removes it."
                own = group == "env" and ":" in str(choice)
                hint = f" An environment of your own: env.name={choice}." if own else ""
                usual = ", ".join(choices_of_script(self.folders, group, self.config_name))
                raise CommandLineError(f"{problem} Choices: {usual}.{hint}")

    def _name_unknown_key(self, base: DictConfig, job: Sequence[str]) -> None:
        from omegaconf import OmegaConf

        groups = {name.split("@")[0] for name in base.hydra.runtime.choices if not name.startswith("hydra/")}
        tree: Any = OmegaConf.to_container(without_hydra(base))
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
                    same = [leaf for leaf in flat(tree) if leaf.split(".")[-1] == parts[-1]]
                    hint = f"; did you mean {same[0]}?" if same else _hint(part, names, inside)
                    add = f" (+{key}=... adds one that the part takes)" if i and options else ""
                    where = f" of {inside[:-1]}" if i else ""
                    raise CommandLineError(f"unknown key {key}{hint} Keys{where}: {', '.join(names) or 'none'}{add}.")
                node = node[part]

    def _check(self, config: DictConfig) -> DictConfig:
        """Missing values, interpolations, types and ranges."""
        from hydra.core.hydra_config import HydraConfig
        from omegaconf import OmegaConf
        from omegaconf.errors import InterpolationToMissingValueError, OmegaConfBaseException

        HydraConfig.instance().set_config(config)  # for ${hydra:...}
        plain = without_hydra(config)
        try:
            if missing := sorted(OmegaConf.missing_keys(plain)):
                raise CommandLineError(f"a value is needed for {', '.join(missing)}: add {missing[0]}=...")
            with contextlib.suppress(InterpolationToMissingValueError):  # known only while the job runs
                OmegaConf.resolve(plain)
            if self.schema is not None:
                read_settings(self.schema, plain)
            check_arguments(plain)
        except (ValueError, OmegaConfBaseException) as error:
            raise CommandLineError(one_line(error)) from error
        return config


def choices(folders: Sequence[Path], group: str) -> list[str]:
    """The choices of a configuration group in folders of configurations; none if it is a key."""
    found = [(folder / group, file) for folder in folders for file in (folder / group).rglob("*.yaml")]
    names = {file.relative_to(root).with_suffix("").as_posix() for root, file in found} if group else set()
    return sorted(names, key=lambda name: (name.count("/"), name))


def choices_of_script(folders: Sequence[Path], group: str, config_name: str) -> list[str]:
    """Those of :func:`choices`, without the folders that are named after other scripts."""
    scripts, found = {file.stem for file in folders[0].glob("*.yaml")}, choices(folders, group)
    own = [choice for choice in found if choice.startswith(f"{config_name}/")]
    return own or [choice for choice in found if "/" not in choice or choice.split("/")[0] not in scripts]


def without_hydra(config: DictConfig) -> DictConfig:
    """The settings of the script alone."""
    from omegaconf import open_dict

    plain = config.copy()
    with open_dict(plain):
        del plain["hydra"]
    return plain


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
        reason = one_line(error.__cause__ or str(error).splitlines()[0])
        raise CommandLineError(f"cannot read {text!r} as key=value: {reason}{hint}") from error


def _values(override: Any) -> list[str]:
    """The override once for each value of its sweep; itself if it is none."""
    if not override.is_sweep_override():
        return [str(override.input_line)]
    return [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]


def one_line(error: BaseException | str) -> str:
    """The text of an error in one line."""
    return " ".join(str(error).split()) or type(error).__name__


def _hint(word: str, words: Sequence[str], prefix: str) -> str:
    near = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    return f"; did you mean {prefix}{near[0]}?" if near else "."
