"""Checks what was typed on a Hydra command line, and says in one line what it should have been."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig


class CommandLineError(ValueError):
    """What is wrong with a command line, in one line."""


def compose_checked(config_name: str, overrides: Sequence[str], *, multirun: bool) -> DictConfig:
    """Compose a configuration from overrides that have been checked one by one.

    Hydra must have been initialised. With ``multirun``, values may be sweeps: each choice of a group is composed once,
    each value is checked, and the configuration of the first job is returned.

    Args:
        config_name: name of the primary configuration.
        overrides: as typed: ``key=value``, ``group=choice``, ``+key=value``, ``~key``, ``hydra.key=value``.
        multirun: whether sweeps are allowed.

    Returns:
        The configuration, with its ``hydra`` node.

    Raises:
        CommandLineError: if an override cannot be read, names an unknown key, group or choice, or has a value of the
            wrong kind, or if the configuration does not hold together. The message names what is valid.
    """
    groups = ConfigGroups(config_name, overrides)
    parsed = [_parse(text) for text in overrides]
    for override in parsed:
        if override.is_sweep_override() and not multirun:
            text = override.input_line
            raise CommandLineError(f"{text} lists values: add --multirun, or write one list as {_key(override)}=[...].")
        groups.check(override)
    if multirun:
        chosen = [_texts(override)[0] for override in parsed if groups.choices(override.key_or_group)]
        configured = [
            _parse(text) for text in _configured_sweeps(_compose(config_name, [*chosen, *groups.searchpath]), parsed)
        ]
        for override in configured:
            groups.check(override)
        parsed += configured
    first = [_texts(override)[0] for override in parsed]
    jobs = [first]
    for i, override in enumerate(parsed):  # every choice once, the other sweeps at their first value
        if groups.choices(override.key_or_group):
            jobs += [[*first[:i], text, *first[i + 1 :]] for text in _texts(override)[1:]]
    composed = [_compose_job(config_name, job, parsed, groups) for job in jobs]
    return composed[0]


def one_line(error: BaseException | str) -> str:
    """The message of an error without line breaks."""
    return " ".join(str(error).split()) or type(error).__name__


class ConfigGroups:
    """The configuration groups that can be reached, and their choices.

    Args:
        config_name: the script's primary configuration.
        overrides: as typed; further folders of configurations count.
    """

    def __init__(self, config_name: str, overrides: Sequence[str]) -> None:
        self._config_name = config_name
        self.searchpath = [text for text in overrides if text.startswith("hydra.searchpath=")]
        self._known: dict[str, list[str]] = {}

    def choices(self, group: str) -> list[str]:
        """All choices of a group, those in subfolders included; none if there is no such group."""
        if group not in self._known:
            found = self._options(group, "CONFIG")
            for folder in self._options(group, "GROUP"):
                found += [f"{folder}/{choice}" for choice in self.choices(f"{group}/{folder}")]
            self._known[group] = found
        return self._known[group]

    def choices_of_script(self, group: str) -> list[str]:
        """Of the folders that are named after scripts, only what lies in this script's, if there is one."""
        scripts, found = self._options("", "CONFIG"), self.choices(group)
        own = [choice for choice in found if choice.startswith(f"{self._config_name}/")]
        return own or [choice for choice in found if "/" not in choice or choice.split("/")[0] not in scripts]

    def check(self, override: Override) -> None:
        group = override.key_or_group
        choices = self.choices(group)
        if not choices:
            return  # a key
        for text in _texts(override):
            for choice in _chosen(_parse(text)):
                if choice not in choices:
                    near = _near(choice, choices)
                    hint = f"; did you mean {group}={near[0]}?" if near else "."
                    usual = ", ".join(self.choices_of_script(group))
                    raise CommandLineError(f"unknown {group}={choice}{hint} Choices: {usual}.")

    def _options(self, group: str, kind: str) -> list[str]:
        from hydra.core.global_hydra import GlobalHydra
        from hydra.core.object_type import ObjectType

        loader = GlobalHydra.instance().config_loader()
        return list(loader.get_group_options(group, ObjectType[kind], self._config_name, self.searchpath))


def _parse(text: str) -> Override:
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
    try:
        return parser.parse_overrides([text])[0]
    except HydraException as error:
        reason = one_line(error.__cause__ or str(error).splitlines()[0])
        raise CommandLineError(f"cannot read {text!r} as key=value: {reason}") from error


def _configured_sweeps(config: DictConfig, parsed: Sequence[Override]) -> list[str]:
    """The sweeps that the configuration itself asks for (``hydra.sweeper.params``), as overrides."""
    typed = {_key(override) for override in parsed}
    params = config.hydra.sweeper.get("params") or {}
    return [f"{key}={value}" for key, value in params.items() if key not in typed]


def _compose_job(config_name: str, job: list[str], parsed: Sequence[Override], groups: ConfigGroups) -> DictConfig:
    values = [override for override in parsed if not groups.choices(override.key_or_group)]
    chosen = [text for text, override in zip(job, parsed, strict=True) if override not in values]
    config = _compose(config_name, [*chosen, *groups.searchpath])
    if values:
        tree = _as_tree(config)
        for override in values:
            if not (override.is_add() or override.is_force_add()):
                _check_value(override, tree)
        config = _compose(config_name, job)
    _check_whole(config)
    return config


def _compose(config_name: str, overrides: list[str]) -> DictConfig:
    from hydra import compose
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        return compose(config_name, overrides, return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise CommandLineError(one_line(error)) from error


def _check_value(override: Override, tree: dict[str, Any]) -> None:
    key, path = override.key_or_group, []
    node: Any = tree
    for part in key.replace("[", ".").replace("]", "").split("."):
        if isinstance(node, list):
            return  # Hydra knows whether lists may be indexed
        if isinstance(node, str) and node.startswith("${"):
            return  # refers to another node, which alone knows its keys
        if not isinstance(node, dict) or part not in node:
            raise CommandLineError(_unknown_key(key, path, node, tree))
        node = node[part]
        path.append(part)
    if not override.is_delete():
        for text in _texts(override):
            _check_kind(key, node, _parse(text).value())


def _check_kind(key: str, current: Any, value: Any) -> None:
    if isinstance(current, dict) and not isinstance(value, dict) and value is not None:
        example = next(iter(current), "name")
        keys = ", ".join(str(name) for name in current)
        raise CommandLineError(f"{key} holds settings ({keys}): set one of them, as in {key}.{example}=...")
    if isinstance(value, str) and not value.startswith("${"):
        if isinstance(current, bool):
            raise CommandLineError(f"{key} must be true or false: got {value!r}.")
        if isinstance(current, (int, float)):
            raise CommandLineError(f"{key} must be a number, as {current} is: got {value!r}.")


def _unknown_key(key: str, path: list[str], node: Any, tree: dict[str, Any]) -> str:
    parent = ".".join(path)
    keys = [str(name) for name in node if not str(name).startswith("_")] if isinstance(node, dict) else []
    if not path:
        groups = {name.split("@")[0] for name in tree["hydra"]["runtime"]["choices"] if not name.startswith("hydra/")}
        keys = sorted({*keys, *groups} - {"hydra"})
    inside = f"{parent}." if parent else ""
    same_name = [leaf for leaf in _leaves(tree) if leaf.split(".")[-1] == key.split(".")[-1]]
    near = [f"{inside}{name}" for name in _near(key.removeprefix(inside).split(".")[0], keys)] or same_name
    hint = f"; did you mean {near[0]}?" if near else "."
    where = f"Keys of {parent}" if parent else "Keys"
    return f"unknown key {key}{hint} {where}: {', '.join(keys) or 'none, it is a single value'}."


def _check_whole(config: DictConfig) -> None:
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf, open_dict
    from omegaconf.errors import InterpolationToMissingValueError, OmegaConfBaseException

    plain = config.copy()
    with open_dict(plain):
        del plain["hydra"]
    missing = [key for key, value in _leaves(_as_tree(plain)).items() if value == "???"]
    if missing:
        raise CommandLineError(f"a value is needed for {', '.join(missing)}: add {missing[0]}=...")
    HydraConfig.instance().set_config(config)  # for ${hydra:...}
    try:
        OmegaConf.resolve(plain)
    except InterpolationToMissingValueError:
        pass  # known only while the job runs
    except OmegaConfBaseException as error:
        raise CommandLineError(one_line(error)) from error


def _chosen(override: Override) -> list[str]:
    value = override.value()
    if override.is_delete() or value is None:
        return []
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]


def _texts(override: Override) -> list[str]:
    """The override once for each value of its sweep; itself if it is none."""
    if not override.is_sweep_override():
        return [str(override.input_line)]
    return [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]


def _key(override: Override) -> str:
    return override.get_key_element().lstrip("+~")


def _as_tree(config: DictConfig) -> dict[str, Any]:
    from omegaconf import OmegaConf

    tree: Any = OmegaConf.to_container(config, resolve=False)
    return tree


def _leaves(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Single values by their full keys, Hydra's own left out."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if prefix or name != "hydra":
            nested = isinstance(value, dict) and value
            found |= _leaves(value, f"{prefix}{name}.") if nested else {f"{prefix}{name}": value}
    return found


def _near(word: str, words: Sequence[str]) -> list[str]:
    return difflib.get_close_matches(word, words, n=1, cutoff=0.6)
