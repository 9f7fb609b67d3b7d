"""The settings of a training loop: their types and ranges, and ``config.yaml``, where a run records them."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

if TYPE_CHECKING:
    from omegaconf import DictConfig

CONFIG_FILE = "config.yaml"
_OF_THE_START = ("resume", "run_dir", "runs_root", "progress", "num_threads")  # how it was started, not what it does
_KINDS = {"int": "an integer", "float": "a number", "bool": "true or false", "str": "text", "None": "null"}
_PACKAGES = ("eqr_torchrl", "torch", "torchrl", "tensordict", "numpy")


_Schema = TypeVar("_Schema")


@dataclass
class LoopSettings:
    """Settings at the top level of the training scripts, as ``configs/eqr_sac.yaml`` explains them one by one.

    The dataclass is the schema: OmegaConf enforces the types, the constructor the ranges.

    Raises:
        ValueError: if a setting is out of its range; it is named.

    Examples:
        >>> LoopSettings(utd_ratio=0)
        Traceback (most recent call last):
        ValueError: utd_ratio must be at least 1, got 0.
    """

    seed: int = 0
    gamma: float = 0.99
    tau: float = 0.005
    device: str = "cpu"
    compile: bool = False
    cuda_graph: bool = False
    num_threads: int | None = None
    termination_fn: str | None = None
    reward_fn: str | None = None
    reward_bounds: Any = None  # "auto", two numbers, or None
    env_steps: int = 250_000
    warmup_steps: int = 5_000
    retrain_every: int = 250
    utd_ratio: int = 10
    replay_capacity: int = 100_000
    batch_size: int = 256
    eval_every: int = 1_000
    eval_episodes: int = 1
    final_episodes: int = 10
    log_every: int = 250
    checkpoint_every: int = 10_000
    keep_checkpoints: int = 1
    run_dir: str | None = None
    runs_root: str = "runs"
    resume: str | None = None
    progress: bool = True

    def __post_init__(self) -> None:
        least = {"seed": 0, "checkpoint_every": 0} | dict.fromkeys(_AT_LEAST_ONE, 1)
        for name, minimum in least.items():
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise ValueError(f"{name} must be at least {minimum}, got {value}.")
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma must be in [0, 1], got {self.gamma}.")
        if not 0 < self.tau <= 1:
            raise ValueError(f"tau must be in (0, 1], got {self.tau}.")
        bounds = self.reward_bounds
        pair = isinstance(bounds, list) and [type(bound) in (int, float) for bound in bounds] == [True, True]
        if bounds not in (None, "auto") and not pair:
            raise ValueError(f"reward_bounds must be two numbers, auto or null, got {bounds}.")
        try:
            device = torch.device(self.device)
        except RuntimeError as error:
            raise ValueError(f"device must be one of torch, such as cpu or cuda, got {self.device}.") from error
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            raise ValueError(f"device={self.device} needs that CUDA device, found {torch.cuda.device_count()}.")
        if self.cuda_graph and device.type != "cuda":
            raise ValueError(f"cuda_graph=true needs device=cuda, got device={self.device}.")


_AT_LEAST_ONE = (
    "num_threads",
    "env_steps",
    "warmup_steps",
    "retrain_every",
    "utd_ratio",
    "replay_capacity",
    "batch_size",
    "eval_every",
    "eval_episodes",
    "final_episodes",
    "log_every",
    "keep_checkpoints",
)


def read_settings(schema: type[_Schema], cfg: DictConfig) -> _Schema:
    """Builds the dataclass ``schema`` from the entries of a configuration that it names.

    Args:
        schema: a dataclass, such as :class:`LoopSettings`; OmegaConf checks the types of its fields.
        cfg: the configuration.

    Returns:
        An instance.

    Raises:
        ValueError: if an entry has the wrong type, or is out of range according to ``schema``; it is named.

    Examples:
        >>> from omegaconf import OmegaConf
        >>> read_settings(LoopSettings, OmegaConf.create({"batch_size": 1.5}))
        Traceback (most recent call last):
        ValueError: batch_size must be an integer, got 1.5.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import ValidationError

    node: Any = OmegaConf.structured(schema)
    for field in fields(schema):  # pyright: ignore[reportArgumentType]
        if field.name in cfg:
            value = OmegaConf.select(cfg, field.name)
            try:
                node[field.name] = value
            except ValidationError as error:
                raise ValueError(f"{field.name} must be {kind_of(field.type)}, got {value!r}.") from error
    found: Any = OmegaConf.to_object(node)
    return found


def plain_types(annotation: Any) -> list[str]:
    """The plain types that an annotation consists of, such as ``["int", "None"]``; none if there are others in it."""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    types = [part.strip() for part in text.split("|")]
    return types if set(types) <= set(_KINDS) else []


def kind_of(annotation: Any) -> str:
    """What a value with this annotation must be, in words."""
    names = [name.strip() for name in str(getattr(annotation, "__name__", annotation)).split("|")]
    return " or ".join(_KINDS.get(name, name) for name in names)


def save_settings(cfg: DictConfig, folder: str | Path, **record: Any) -> dict[str, Any]:
    """Write a run's settings to ``config.yaml``, interpolations resolved, and print what changes in a resumed run.

    A run may be resumed with other settings, to train for longer or at another rate. One line on the terminal names
    each of them with its old and new value.

    Args:
        cfg: the configuration.
        folder: the run folder; if it holds a ``config.yaml``, this run is a resumed one.
        **record: what the settings were resolved to, for people (versions, target entropy): written under ``record``.

    Returns:
        The settings as plain dictionaries and lists.

    Examples:
        >>> import tempfile
        >>> from omegaconf import OmegaConf
        >>> folder = tempfile.mkdtemp()
        >>> save_settings(OmegaConf.create({"env_steps": 1000, "optim": {"lr": 0.1}}), folder)
        {'env_steps': 1000, 'optim': {'lr': 0.1}}
        >>> _ = save_settings(OmegaConf.create({"env_steps": 2000, "optim": {"lr": 0.1}}), folder)
        resuming with changed settings: env_steps=2000 (was 1000)
    """
    from omegaconf import OmegaConf

    path = Path(folder) / CONFIG_FILE
    settings: Any = OmegaConf.to_container(cfg, resolve=True)
    if path.is_file():
        before, after = _flat(_read(path)), _flat(settings)
        changed = [
            f"{key}={after.get(key)} (was {before.get(key)})"
            for key in {**before, **after}
            if before.get(key) != after.get(key) and key not in _OF_THE_START
        ]
        if changed:
            print(f"resuming with changed settings: {', '.join(changed)}")
    OmegaConf.save(OmegaConf.create({**settings, **({"record": record} if record else {})}), path)
    return settings


def differing_settings(folders: Sequence[str | Path]) -> dict[str, list[Any]]:
    """Settings in which runs differ that are compared as seeds of one algorithm on one task.

    Args:
        folders: run folders; those without a ``config.yaml`` are left out.

    Returns:
        Name of a setting to its values, one for each folder; without the seed and what changes no number.

    Examples:
        >>> import tempfile
        >>> from omegaconf import OmegaConf
        >>> folders = [tempfile.mkdtemp(), tempfile.mkdtemp()]
        >>> for seed, folder in enumerate(folders):
        ...     _ = save_settings(OmegaConf.create({"seed": seed, "tau": 0.1 * (seed + 1)}), folder)
        >>> differing_settings(folders)
        {'tau': [0.1, 0.2]}
    """
    files = [Path(folder) / CONFIG_FILE for folder in folders if (Path(folder) / CONFIG_FILE).is_file()]
    settings = [_flat(_read(file)) for file in files]
    names = dict.fromkeys(name for one in settings for name in one if name not in ("seed", *_OF_THE_START))
    values = {name: [one.get(name) for one in settings] for name in names}
    return {name: found for name, found in values.items() if any(value != found[0] for value in found)}


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries that decide on a run's numbers."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:  # used from a source folder
            found[package] = "unknown"
    return found


def _read(path: Path) -> dict[str, Any]:
    from omegaconf import OmegaConf

    found: Any = OmegaConf.to_container(OmegaConf.load(path))
    return {key: value for key, value in found.items() if key != "record"}


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, Mapping) or not tree:
        return {prefix.rstrip("."): tree}
    return {key: value for name, node in tree.items() for key, value in _flat(node, f"{prefix}{name}.").items()}
