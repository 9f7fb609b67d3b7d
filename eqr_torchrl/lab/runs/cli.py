"""Runs a script from a Hydra command line: every mistake ends in one line, before anything is written. Imports Hydra.

Two schemas check what is typed: a dataclass for the settings of the loop, and the signatures of the parts.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import functools
import inspect
import os
import pkgutil
import re
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep
from hydra.errors import HydraException, InstantiationException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, OmegaConfBaseException
from torchrl import torchrl_logger

from eqr_torchrl.lab.runs.checkpoint import find_checkpoint, read_file
from eqr_torchrl.lab.runs.folder import check_types, flat, settings_of_run

# what TorchRL says of its own collector, in the workers of a launcher too, which import this file
warnings.filterwarnings("ignore", category=DeprecationWarning, module="torchrl")
torchrl_logger.setLevel("WARNING")

#: Errors that a user can cause; they are reported in one line.
EXPECTED = (ValueError, RuntimeError, ImportError, OSError, HydraException, OmegaConfBaseException)
_LEFT_TO_HYDRA = ("--cfg", "-c", "--info", "-i", "--hydra-help", "--resolve", "--package", "-p")


class CommandLineError(ValueError):
    """What is wrong with a command line, in one line."""


def run_hydra(
    main: Callable[[DictConfig], Any],
    config_dir: str | Path,
    config_name: str,
    argv: Sequence[str] | None = None,
    *,
    schema: Callable[[Any], object] | None = None,
) -> Any:
    """Composes the configuration that the command line asks for, checks it, and returns what ``main`` does with it.

    Keys, choices and types are checked first, for a sweep value by value. Without ``--multirun``, ``resume=RUN`` takes
    the settings of that run, except those that are typed. Hydra writes no files; sweeps go through its sweeper and
    launcher (basic, Ray, submitit); only submitit's files are kept, under ``slurm/``. A mistake on the command line
    ends in one line on stderr and status 2; an error that a user can cause in 1, Ctrl-C in 130. Other errors keep their
    traceback, and with ``HYDRA_FULL_ERROR=1`` all do.

    Args:
        main: takes the composed configuration.
        config_dir: folder of the configuration groups.
        config_name: the primary configuration in it.
        argv: the command line, without the program's name. Defaults to that of the process.
        schema: makes a dataclass of those settings that it knows, such as ``LoopSettings.of``, and raises
            ``ValueError`` for a wrong one. With it, other settings at the top level must be numbers, or true or
            false, where those of the primary configuration are.

    Examples:
        >>> import tempfile
        >>> configs = Path(tempfile.mkdtemp())
        >>> _ = (configs / "script.yaml").write_text("steps: 3")
        >>> run_hydra(lambda cfg: cfg.steps * 2, configs, "script", ["steps=5"])
        10
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--multirun", "-m", action="store_true")
    parser.add_argument("--help", "-h", action="store_true")
    parser.add_argument("--config-dir", "-cd", action="append", default=[])
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        options, overrides = parser.parse_known_args(words)
        folders = [Path(folder).expanduser().resolve() for folder in [config_dir, *options.config_dir]]
        script = _Script(main, config_name, folders, schema)
        if any(word.split("=")[0] in _LEFT_TO_HYDRA for word in words):
            return script.call_hydra(words)
        with tempfile.TemporaryDirectory() as folder:
            if not options.multirun:
                script = script.resumed(overrides, Path(folder))
            if len(script.folders) > 1:
                paths = (str(path).replace('"', '\\"') for path in script.folders[1:])
                overrides.append("hydra.searchpath=[" + ",".join(f'"file://{path}"' for path in paths) + "]")
            config = script.compose(overrides, sweep=options.multirun, show=options.help)
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
            text, status = f"error: {_typed(words, one_line(error))}{one_line(error)}", 1
        print(text, file=sys.stderr, flush=True)
        sys.exit(status)


class _Script(NamedTuple):
    """A script's function, its primary configuration, the folders of its choices, and the schema of its settings."""

    main: Callable[[DictConfig], Any]
    config_name: str
    folders: Sequence[Path]
    schema: Callable[[Any], object] | None

    def compose(self, overrides: Sequence[str], *, sweep: bool, show: bool = False) -> DictConfig:
        """The settings; of a sweep (which help may ``show``) the first job's, after every value was checked."""
        with hydra.initialize_config_dir(str(self.folders[0]), job_name=self.config_name, version_base="1.3"):
            parsed = _parse(overrides)
            if sweep or show:
                params = self._compose([_values(override)[0] for override in parsed]).hydra.sweeper.params or {}
                typed = {override.key_or_group for override in parsed}  # an experiment brings the other values
                parsed += _parse([f"{key}={value}" for key, value in params.items() if key not in typed])
            elif several := [override.input_line for override in parsed if override.is_sweep_override()]:
                raise CommandLineError(f"{several[0]}: several values need --multirun; a list is written [1,2].")
            values = [_values(override) for override in parsed]
            last = max(map(len, values), default=1) - 1
            jobs = [[found[min(i, len(found) - 1)] for found in values] for i in range(last + 1)]
            for job in jobs[1:]:
                self._check(job, show=show)
            config = self._check(jobs[0], show=show)  # last, since Hydra's global configuration is that of the last
            intervals = [override.input_line for override in parsed if override.is_interval_sweep()]
            if intervals and "BasicSweeper" in HydraConfig.get().sweeper._target_:
                search = "an interval is searched: add hydra/sweeper=optuna (pip install 'eqr_torchrl[search]')"
                raise CommandLineError(f"{intervals[0]}: {search}, or write the values.")
            return config

    def resumed(self, overrides: Sequence[str], folder: Path) -> _Script:
        """With resume=RUN, the same script whose primary configuration, in ``folder``, has that run's settings.

        All groups are there without a choice, so that what is typed changes the run's settings and nothing else does.
        """
        source = {word.key_or_group: word.value() for word in _parse(overrides)}.get("resume")
        if not isinstance(source, str) or source == "auto":
            return self
        checkpoint = find_checkpoint(source)[0]
        if checkpoint is None:  # the run itself says what is missing
            return self
        read_file(checkpoint)  # one of an older version is refused before settings that it alone knew
        try:
            settings = settings_of_run(source)
        except ValueError:  # a checkpoint without settings
            return self
        with hydra.initialize_config_dir(str(self.folders[0]), job_name=self.config_name, version_base="1.3"):
            usual = hydra.compose(self.config_name, return_hydra_config=True)
        groups = [name for name in usual.hydra.runtime.choices if not name.startswith("hydra/")]
        entries: Any = OmegaConf.to_container(OmegaConf.masked_copy(usual, [str(k) for k in usual if k != "hydra"]))
        entries |= _linked(settings, entries, OmegaConf.create(settings))  # the run may be older than some setting
        for word in _parse(overrides):
            files = [folder / word.key_or_group / f"{word.value()}.yaml" for folder in self.folders]
            if word.key_or_group in groups and (file := next((f for f in files if f.is_file()), None)):
                _forget(entries, file)
        defaults = ["_self_", *({group: None} for group in groups)]
        OmegaConf.save({"defaults": defaults, **entries}, folder / f"{self.config_name}.yaml")
        return self._replace(folders=[folder, *self.folders])

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

        with contextlib.ExitStack() as at_the_end:
            folder = at_the_end.enter_context(tempfile.TemporaryDirectory())
            if any(text.startswith("hydra/launcher=submitit") for text in overrides):  # needs one on a shared disk
                folder = time.strftime("slurm/%Y%m%d-%H%M%S")
            if "HYDRA_FULL_ERROR" not in os.environ:
                os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra shall raise instead of printing
                at_the_end.callback(os.environ.pop, "HYDRA_FULL_ERROR")
            ours = ["hydra.output_subdir=null", "hydra.job.chdir=false", "hydra/job_logging=stdout"]
            try:  # what is typed comes last and prevails
                self._replace(main=job).call_hydra(["-m", *ours, f"hydra.sweep.dir={folder}", *overrides])
            except Exception as error:
                raise RuntimeError(f"some jobs of the sweep failed: {one_line(error)}") from error

    def call_hydra(self, argv: Sequence[str]) -> None:
        """Gives a command line to Hydra, which reads that of the process."""
        before = sys.argv
        sys.argv = [before[0], *argv]
        try:
            hydra.main(str(self.folders[0]), self.config_name, version_base="1.3")(self.main)()
        finally:
            sys.argv = before

    def help(self, config: DictConfig) -> str:
        """What the script is, its groups with all choices, and all settings."""
        module: Any = inspect.getmodule(self.main)
        command, file = Path(sys.argv[0]).name, Path(getattr(module, "__file__", None) or "").name
        about = inspect.cleandoc(getattr(module, "__doc__", None) or "")
        if command != file:  # an installed command
            about = about.replace(f"python examples/{file}", command)
        lines = []
        for group, choice in sorted(HydraConfig.get().runtime.choices.items()):
            name = group.split("@")[0]
            others = [other for other in self._choices(name) if other != choice]
            if not group.startswith("hydra/"):
                lines.append(f"{name}={choice or 'null'}" + (f"  or {', '.join(others)}" if others else ""))
        return (
            f"usage: {command} [GROUP=CHOICE ...] [KEY=VALUE ...] [--multirun] [--config-dir FOLDER]\n\n{about}\n\n"
            "Parts, each with the choice that is set (group=choice sets another):\n\n" + "\n".join(lines) + "\n\n"
            f"All settings (key=value sets another):\n\n{OmegaConf.to_yaml(config)}\n"
            "--multirun runs every combination of comma-separated values; --config-dir FOLDER adds choices of your "
            "own;\n--cfg job prints the settings alone; --hydra-help explains the other options of Hydra.\n"
            "HYDRA_FULL_ERROR=1 in the environment shows the tracebacks of errors."
        )

    def _choices(self, group: str) -> list[str]:
        """The choices of a group, without the folders named after other scripts; none if it is a key."""
        found = [(folder / group, file) for folder in self.folders for file in (folder / group).rglob("*.yaml")]
        names = {file.relative_to(root).with_suffix("").as_posix() for root, file in found if group}
        others = {file.stem for folder in self.folders for file in folder.glob("*.yaml")}
        own = [name for name in names if name.startswith(f"{self.config_name}/")]
        own = own or [name for name in names if name.rpartition("/")[0].split("/")[0] not in others]
        return sorted(own, key=lambda name: (name.count("/"), name))

    def _compose(self, job: Sequence[str]) -> DictConfig:
        try:
            return hydra.compose(self.config_name, list(job), return_hydra_config=True)
        except MissingConfigException as error:
            group, _, choice = str(error.missing_cfg_file).partition("/")
            known = self._choices(group)
            if not known:  # one of Hydra's own
                group, _, choice = str(error.missing_cfg_file).rpartition("/")
                known = sorted(error.options or ())
            problem = f"unknown {group}={choice}{_hint(choice, known, f'{group}=')} Choices: {', '.join(known)}."
            if group == "env" and ":" in choice:
                problem += f" An environment of your own: env=pendulum env.name={choice}."
            raise CommandLineError(problem) from error
        except (HydraException, OmegaConfBaseException) as error:
            # the first word without which it composes: keys depend on choices, and choices on where they are found
            rank = {word.key_or_group: 1 if self._choices(word.key_or_group) else 2 for word in _parse(job)}
            rank["hydra.searchpath"] = 0
            words = sorted(_parse(job), key=lambda word: rank[word.key_or_group])
            for i, word in enumerate(words):
                before = [other.input_line for other in words[:i]]
                try:
                    hydra.compose(self.config_name, [*before, word.input_line])
                except (HydraException, OmegaConfBaseException) as its_own:
                    _check_key(word, hydra.compose(self.config_name, before, return_hydra_config=True))
                    raise CommandLineError(f"{word.input_line}: {one_line(its_own)}") from its_own
            raise CommandLineError(one_line(error)) from error

    def _check(self, job: Sequence[str], *, show: bool = False) -> DictConfig:
        """Composes a job, and checks missing values (which help may ``show``), interpolations, types and ranges."""
        for word in _parse(job):
            if word.value() is None and not word.is_delete() and (known := self._choices(word.key_or_group)):
                key, names = word.key_or_group, ", ".join(known)
                raise CommandLineError(f"{key} must be a choice, got null; ~{key} removes it. Choices: {names}.")
        config = self._compose(job)
        HydraConfig.instance().set_config(config)  # for ${hydra:...}
        plain = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
        resolved = plain.copy()
        try:
            if missing := sorted(OmegaConf.missing_keys(plain)):
                if show:
                    return plain
                raise CommandLineError(f"a value is needed for {', '.join(missing)}: add {missing[0]}=...")
            with contextlib.suppress(InterpolationToMissingValueError):  # known only while the job runs
                OmegaConf.resolve(resolved)
            settings: Any = OmegaConf.to_container(resolved)
            if self.schema is not None:
                known = vars(self.schema(settings))
                check_types({name: kind for name, kind in self._kinds().items() if name not in known}, settings)
            _check_parts(settings)
        except (ValueError, OmegaConfBaseException) as error:
            raise CommandLineError(one_line(error)) from error
        return plain

    def _kinds(self) -> dict[str, str]:
        """The types of numbers and of true or false at the top level of the primary configuration."""
        usual: Any = OmegaConf.to_container(OmegaConf.load(self.folders[0] / f"{self.config_name}.yaml"))
        return {name: type(value).__name__ for name, value in usual.items() if isinstance(value, (bool, int, float))}


def _linked(settings: Any, usual: Any, run: DictConfig) -> Any:
    """The settings of a run, where a part's follows from another, such as ``${batch_size}``, by that name again."""
    if isinstance(settings, dict):
        usual = usual if isinstance(usual, dict) else {}
        return {name: _linked(value, usual.get(name), run) for name, value in settings.items()}
    link = re.fullmatch(r"\$\{(\w+)\}", usual) if isinstance(usual, str) else None
    return usual if link and run.get(link[1]) == settings else settings


def _forget(settings: Any, file: Path) -> None:
    """Removes the arguments of each part that a choice, in ``file``, replaces by another one at the top level."""
    chosen: Any = OmegaConf.to_container(OmegaConf.load(file))
    nodes = [(settings, chosen)] if "@package _global_" in file.read_text(encoding="utf-8") else []
    while nodes:
        node, other = nodes.pop()
        if "_target_" in other and other["_target_"] != node.get("_target_"):
            node.clear()
        nodes += [(node[k], v) for k, v in other.items() if isinstance(v, dict) and isinstance(node.get(k), dict)]


def _check_key(word: Any, config: DictConfig) -> None:
    """Raises an error with the nearest valid name if a configuration has no key such as that of an override."""
    key: str = word.key_or_group
    if word.is_add():
        if OmegaConf.select(config, key) is not None:
            raise CommandLineError(f"+{key} adds a key, and it is there: write {key}=... to set it.")
        return
    leaves = [leaf for leaf in flat(OmegaConf.to_container(config)) if not leaf.startswith("hydra.")]
    groups = {group.split("@")[0] for group in config.hydra.runtime.choices if not group.startswith("hydra/")}
    parent, _, name = key.rpartition(".")
    if parent in groups and not isinstance(OmegaConf.select(config, parent), DictConfig):
        parent = next((leaf.rpartition(".")[0] for leaf in leaves if f".{parent}." in leaf), "")  # such as loss.utility
    node = OmegaConf.select(config, parent) if parent else config
    if not isinstance(node, DictConfig):
        parent, node = "", config
    names = {str(entry) for entry in node if str(entry)[0] != "_" and entry != "hydra"}
    names |= set() if parent else groups
    if name in names and parent == key.rpartition(".")[0]:
        return
    prefix = f"{parent}." if parent else ""
    longer = [f"{prefix}{other}" for other in sorted(names) if other.startswith(f"{name}_")]  # lr: lr_actor, lr_critic
    near = longer or [leaf for leaf in leaves if leaf.split(".")[-1] == name][:1]
    hint = f"; did you mean {' or '.join(near)}?" if near else _hint(name, sorted(names), prefix)
    where = f" of {parent}" if parent else ""
    add = f" (+{parent}.{name}=... adds one that the part takes)" if parent else ""
    raise CommandLineError(f"unknown key {key}{hint} Keys{where}: {', '.join(sorted(names)) or 'none'}{add}.")


def _check_parts(node: Any, key: str = "") -> None:
    """Checks the plain arguments of all parts in a configuration against the signatures of their targets."""
    if not isinstance(node, dict):
        return
    if target := node.get("_target_"):
        try:
            part = pkgutil.resolve_name(target)
            names = inspect.signature(part).parameters
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(f"{key}._target_={target} cannot be imported: {error}") from error
        free = not names or any(parameter.kind is parameter.VAR_KEYWORD for parameter in names.values())
        if unknown := [] if free else [str(name) for name in node if name not in names and str(name)[0] != "_"]:
            # all of them at once: those of the usual part, where a target of the user's own replaces it
            remove = " ".join(f"~{key}.{name}" for name in unknown)
            raise ValueError(
                f"{key}: {target.rpartition('.')[2]} takes no {', '.join(unknown)}; to remove, add {remove}"
            )
        check_types({name: parameter.annotation for name, parameter in names.items()}, node, f"{key}.")
    for name, value in node.items():
        _check_parts(value, f"{key}.{name}".lstrip("."))


def one_line(error: BaseException) -> str:
    """The text of an error in one line; of a part that cannot be built, why, in the words of a command line."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, OmegaConfBaseException):
        return text.split(" full_key:")[0]
    cause = error.__cause__
    if not isinstance(error, InstantiationException) or cause is None:
        return text
    reason = one_line(cause)
    key = text.rpartition("full_key: ")[2] if "full_key: " in text else "a part"
    if isinstance(cause, EXPECTED):
        return reason
    if match := re.search(r"(\w+)\.__init__\(\) missing \d+ required .*?arguments?: (.*)", reason):
        names = re.findall(r"'(\w+)'", match[2])
        return f"{key}: {match[1]} needs {' and '.join(names)}: add {' '.join(f'+{key}.{name}=...' for name in names)}"
    return f"{key} cannot be built: {type(cause).__name__}: {reason}"


def _typed(words: Sequence[str], text: str) -> str:
    """The typed setting whose value a message quotes, to stand before it; nothing if the message names a typed one."""
    settings = {key: value for key, equals, value in (word.partition("=") for word in words) if equals and value}
    if any(re.search(rf"\b{re.escape(key.rpartition('.')[2])}\b", text) for key in settings):
        return ""
    found = [f"{k}={v}: " for k, v in settings.items() if re.search(rf"(got |'){re.escape(v)}(?!\w|\.\d)", text)]
    return found[0] if len(found) == 1 else ""


def _parse(texts: Sequence[str]) -> list[Any]:
    parser, found = OverridesParser.create(), []
    for text in texts:
        key, equals, value = text.partition("=")
        if text.startswith("-"):
            raise CommandLineError(f"unknown option {text}; settings are written key=value, see --help.")
        try:
            found += parser.parse_overrides([text])
        except (OverrideParseException, HydraException) as error:
            problem = "settings are written key=value" if not equals else f"quote the value: '{key}=\"{value}\"'"
            if value[:1] in ("[", "{"):
                problem = "a list is written [1,2] and a mapping {a:1}; with spaces, all of it in single quotes"
            raise CommandLineError(f"cannot read {text!r}: {problem}.") from error
    return found


def _values(override: Any) -> list[str]:
    """The override once for each value of its sweep, or for both ends of an interval; itself if it is none."""
    if not override.is_sweep_override():
        return [override.input_line]
    if isinstance(sweep := override.value(), IntervalSweep):  # of a search, such as Optuna's
        return [f"{override.get_key_element()}={value}" for value in (sweep.start, sweep.end)]
    return [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]


def _hint(word: str, words: Sequence[str], prefix: str) -> str:
    near = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    return f"; did you mean {prefix}{near[0]}?" if near else "."
