"""``config.yaml``: the settings a run goes by, and what changed when it was gone on with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eqr_torchrl.runs.folder import CONFIG_FILE

if TYPE_CHECKING:
    from omegaconf import DictConfig

_OF_THE_START = ("resume", "run_dir", "runs_root", "progress", "num_threads")  # how it was started, not what it does


def save_settings(cfg: DictConfig, folder: str | Path) -> dict[str, Any]:
    """Write a run's settings to ``config.yaml``, interpolations resolved, and print what a resumed run does otherwise.

    A run may go on with other settings, to train for longer or at another rate. That should be seen: one line on the
    terminal names every setting with its old and new value.

    Args:
        cfg: the configuration.
        folder: the run folder; if it holds a ``config.yaml``, this run is a resumed one.

    Returns:
        The settings as plain dictionaries and lists.

    Examples:
        >>> import tempfile
        >>> from omegaconf import OmegaConf
        >>> folder = tempfile.mkdtemp()
        >>> save_settings(OmegaConf.create({"env_steps": 1000, "optim": {"lr": 0.1}}), folder)
        {'env_steps': 1000, 'optim': {'lr': 0.1}}
        >>> _ = save_settings(OmegaConf.create({"env_steps": 2000, "optim": {"lr": 0.1}}), folder)
        goes on with changed settings: env_steps=2000 (was 1000)
    """
    from omegaconf import OmegaConf

    path = Path(folder) / CONFIG_FILE
    settings: Any = OmegaConf.to_container(cfg, resolve=True)
    if path.is_file():
        before, after = _flat(OmegaConf.to_container(OmegaConf.load(path))), _flat(settings)
        changed = [
            f"{key}={after.get(key)} (was {before.get(key)})"
            for key in {**before, **after}
            if before.get(key) != after.get(key) and key not in _OF_THE_START
        ]
        if changed:
            print(f"goes on with changed settings: {', '.join(changed)}")
    OmegaConf.save(OmegaConf.create(settings), path)
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
    from omegaconf import OmegaConf

    files = [Path(folder) / CONFIG_FILE for folder in folders if (Path(folder) / CONFIG_FILE).is_file()]
    settings = [_flat(OmegaConf.to_container(OmegaConf.load(file))) for file in files]
    names = dict.fromkeys(name for one in settings for name in one if name not in ("seed", *_OF_THE_START))
    values = {name: [one.get(name) for one in settings] for name in names}
    return {name: found for name, found in values.items() if any(value != found[0] for value in found)}


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict) or not tree:
        return {prefix.rstrip("."): tree}
    return {key: value for name, node in tree.items() for key, value in _flat(node, f"{prefix}{name}.").items()}
