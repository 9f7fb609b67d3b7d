"""The settings of a training loop: their types and ranges, and ``config.yaml``, where a run records them."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from eqr_torchrl.networks._cpu import uses_bf16

if TYPE_CHECKING:
    from omegaconf import DictConfig

CONFIG_FILE = "config.yaml"
_OF_THE_START = ("resume", "run_dir", "runs_root", "progress", "num_threads")  # how it was started, not what it does
_WORDS = dict(int="an integer", float="a number", bool="true or false", str="text", NoneType="null")
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
    precision: str = "auto"
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
        for field in fields(self):
            value, least = getattr(self, field.name), int(field.name not in ("seed", "checkpoint_every"))
            if type(value) is int and value < least:
                raise ValueError(f"{field.name} must be at least {least}, got {value}.")
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma must be in [0, 1], got {self.gamma}.")
        if not 0 < self.tau <= 1:
            raise ValueError(f"tau must be in (0, 1], got {self.tau}.")
        uses_bf16(self.precision)  # pyright: ignore[reportArgumentType]  # or an error that names it
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


def read_settings(schema: type[_Schema], cfg: DictConfig) -> _Schema:
    """Builds the dataclass ``schema`` from the entries of a configuration that it names.

    Raises:
        ValueError: if an entry has the wrong type, or is out of range according to ``schema``; it is named.
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
                raise ValueError(f"{field.name} must be {in_words(kinds_of(field.type))}, got {value!r}.") from error
    found: Any = OmegaConf.to_object(node)
    return found


def kinds_of(annotation: Any) -> list[str]:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    return [part.strip().replace("None", "NoneType") for part in text.split("|")]


def in_words(kinds: Sequence[str]) -> str:
    return " or ".join(_WORDS.get(kind, kind) for kind in kinds)


def save_settings(cfg: DictConfig, folder: str | Path, **record: Any) -> dict[str, Any]:
    """Writes a run's settings to ``config.yaml``, and prints those that change in a resumed run.

    What they were resolved to (``record``: versions, target entropy) is added for people. Returns the settings as plain
    dictionaries and lists, interpolations resolved.
    """
    from omegaconf import OmegaConf

    path = Path(folder) / CONFIG_FILE
    settings: Any = OmegaConf.to_container(cfg, resolve=True)
    if path.is_file():
        found = differences(flat(_read(path)), flat(settings))
        changed = [f"{key}={new} (was {old})" for key, old, new in found if key not in _OF_THE_START]
        if changed:
            print(f"resuming with changed settings: {', '.join(changed)}")
    OmegaConf.save(OmegaConf.create({**settings, **({"record": record} if record else {})}), path)
    return settings


def differing_settings(folders: Sequence[str | Path]) -> dict[str, list[Any]]:
    """Finds the settings in which runs differ that are compared as seeds of one algorithm on one task.

    Args:
        folders: run folders; those without a ``config.yaml`` are left out.

    Returns:
        Name of a setting to its values, one for each folder; without the seed and what changes no number.

    Examples:
        >>> import tempfile
        >>> folders = [Path(tempfile.mkdtemp()), Path(tempfile.mkdtemp())]
        >>> for seed, folder in enumerate(folders):
        ...     _ = (folder / "config.yaml").write_text(f"{{seed: {seed}, tau: {0.1 * (seed + 1)}}}")
        >>> differing_settings(folders)
        {'tau': [0.1, 0.2]}
    """
    files = [Path(folder) / CONFIG_FILE for folder in folders if (Path(folder) / CONFIG_FILE).is_file()]
    settings = [flat(_read(file)) for file in files]
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


def differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Name, saved and current value of the entries in which two mappings differ."""
    names = {**saved, **current}
    return [(name, saved.get(name), current.get(name)) for name in names if saved.get(name) != current.get(name)]


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Nested settings by their dotted names."""
    if not isinstance(tree, Mapping) or not tree:
        return {prefix.rstrip("."): tree}
    return {key: value for name, node in tree.items() for key, value in flat(node, f"{prefix}{name}.").items()}
