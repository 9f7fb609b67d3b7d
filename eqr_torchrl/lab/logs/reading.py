"""Logged transitions from files, data sets and run folders."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, cast
from zipfile import BadZipFile

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from eqr_torchrl.lab.runs import latest_checkpoint, load_checkpoint

Columns = Mapping[str, str | Sequence[str]]

#: What an entry is called in a file: first the name of D4RL, then others.
_ARRAY_NAMES = {
    "observation": ("observations", "observation", "obs"),
    "action": ("actions", "action"),
    "reward": ("rewards", "reward"),
    "next_observation": ("next_observations", "next_observation", "next_obs"),
    "terminated": ("terminals", "terminations", "terminated"),
    "truncated": ("timeouts", "truncations", "truncated"),
}
_NEEDED = ("observation", "action", "reward")


def read_transitions(source: str | Path, *, columns: Columns | None = None) -> TensorDict:
    r"""Reads a log into transitions in TorchRL's layout.

    Where a log has no next observation, or one of NaN alone, the observation of the following row is used, and the last
    row of an episode, whose next observation is unknown, is left out.

    Args:
        source: a file ``.npz``, ``.hdf5`` or ``.h5`` with the arrays of D4RL (``observations``, ``actions``,
            ``rewards``, and where known ``next_observations``, ``terminals``, ``timeouts``); a table ``.csv`` or
            ``.parquet``, one row a transition; a run folder, whose replay buffer is read from its newest checkpoint;
            ``"minari:ID"``, a data set of Minari, local or downloaded.
        columns: for a table, which columns are ``observation``, ``action``, ``reward``, and where known
            ``next_observation``, ``terminated``, ``truncated``, ``episode``, which differs between episodes, and
            ``time``, numbers or ISO timestamps: where its step differs by more than half from the median step, the row
            before ends its episode, as truncated. For arrays, names other than D4RL's.

    Returns:
        Transitions in the order of the log, batch size ``[n]``, in its units: ``observation`` ``[n, S]``, ``action``
        ``[n, A]``, and under ``"next"`` ``observation``, ``reward`` ``[n, 1]``, ``terminated``, ``truncated`` and
        ``done`` (bool, ``[n, 1]``). The last row is ``truncated`` if it does not terminate.

    Raises:
        ValueError: if ``source`` is none of these, or an entry is missing or has another length or shape; it is named.
        FileNotFoundError: if there is no such file.
        ImportError: if the library that reads the format is missing; the message names it.

    Examples:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "log.csv"
        >>> _ = path.write_text("run,x,u,r\n0,0.0,1.0,5\n0,0.1,1.0,6\n0,0.2,-1.0,7\n1,9.0,0.0,0\n1,9.1,0.0,0\n")
        >>> columns = {"observation": "x", "action": "u", "reward": "r", "episode": "run"}
        >>> data = read_transitions(path, columns=columns)
        >>> data["next", "observation"].flatten().tolist(), data["next", "done"].flatten().tolist()
        ([0.1..., 0.2..., 9.1...], [False, True, True])
    """
    kind, _, name = str(source).partition(":")
    if kind == "minari" and name:
        return _from_minari(name)
    path = Path(source).expanduser()
    if path.is_dir():
        return _from_run(path)
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        kinds = ", ".join(_READERS)
        raise ValueError(f"source must be a file {kinds}, a run folder, or minari:ID: got {source}.")
    if not path.is_file():
        raise FileNotFoundError(f"source must be a file that exists: got {source}.")
    return transitions_from(reader(path, columns or {}))


def transitions_from(arrays: Mapping[str, np.ndarray]) -> TensorDict:
    """Transitions of arrays with one row a step: the layout that :func:`read_transitions` returns.

    Args:
        arrays: ``observation`` ``[n, S]``, ``action`` ``[n, A]``, ``reward`` ``[n]``, and where known
            ``next_observation`` ``[n, S]``, ``terminated``, ``truncated``, ``episode`` and ``time``, each ``[n]``.

    Examples:
        >>> rows = {"observation": np.zeros((4, 2)), "action": np.zeros((4, 1)), "reward": np.arange(4.0)}
        >>> transitions_from(rows)["next", "reward"].flatten().tolist()  # the last row has no next observation
        [0.0, 1.0, 2.0]
    """
    missing = [name for name in _NEEDED if arrays.get(name) is None]
    if missing:
        raise ValueError(f"a log must hold {', '.join(missing)}: found {', '.join(arrays) or 'nothing'}.")
    n = len(arrays["observation"])
    wrong = [f"{name} {len(value)}" for name, value in arrays.items() if len(value) != n]
    if wrong or n == 0:
        raise ValueError(f"arrays must have one row a step, observation has {n}: got {', '.join(wrong) or 'none'}.")

    def floats(name: str) -> Tensor:
        value = np.asarray(arrays[name], np.float32)
        value = value[:, None] if value.ndim == 1 else value
        if value.ndim != 2 or (name == "reward" and value.shape[1] != 1):
            raise ValueError(f"{name} must be one vector a step, shape [n, size], got {list(value.shape)}.")
        return torch.from_numpy(value.copy())

    def flags(name: str) -> Tensor:
        value = arrays.get(name)
        return torch.zeros(n, 1, dtype=torch.bool) if value is None else torch.from_numpy(_flags(name, value))

    observation, terminated, truncated = floats("observation"), flags("terminated"), flags("truncated")
    episode = arrays.get("episode")
    if episode is not None and (unknown := episode != episode).any():  # NaN differs from itself
        raise ValueError(f"episode must be given in every row, row {unknown.argmax()} (from 0) has none.")
    last = np.ones(n, bool) if episode is None else np.append(episode[1:] != episode[:-1], True)
    last[: n - 1] &= episode is not None
    truncated |= torch.from_numpy(last)[:, None] & ~terminated
    if arrays.get("time") is not None:
        truncated[:-1] |= _gaps(arrays["time"], ~(terminated | truncated)[:-1, 0].numpy())
    known = arrays.get("next_observation") is not None
    given = floats("next_observation") if known else torch.full_like(observation, torch.nan)
    if given.shape != observation.shape:
        sizes = f"{list(given.shape)} for {list(observation.shape)}"
        raise ValueError(f"next_observation must have the shape of observation, got {sizes}.")
    missing = given.isnan().all(-1, keepdim=True)
    following = {
        "observation": torch.where(missing, observation.roll(-1, 0), given), "reward": floats("reward"),
        "terminated": terminated, "truncated": truncated, "done": terminated | truncated,
    }  # fmt: skip
    data = TensorDict({"observation": observation, "action": floats("action"), "next": following}, [n])
    data["next"].batch_size = [n]
    return _without_ends(data, missing.flatten())


def _without_ends(data: TensorDict, missing: Tensor) -> TensorDict:
    """Leaves out ends whose next observation is missing, ``[n]``; the step before each ends the episode now."""
    done = data["next", "done"].flatten().clone()
    lost = done & missing
    if count := int((lost & data["next", "terminated"].flatten()).sum()):
        warnings.warn(
            f"{count} terminations have no next observation and are left out: fill a column next_observation in these "
            "rows with the values that stopped the episode (the limit that was crossed, other entries as in the row), "
            "and leave it empty elsewhere.",
            stacklevel=3,
        )
    if lost.all():
        raise ValueError(f"a log must hold a step whose next observation is known: got none in {len(lost)} rows.")
    ends = lost.roll(-1) & ~done
    ends[-1] = False
    data["next", "truncated"][ends] = True
    data["next", "done"][ends] = True
    return cast(TensorDict, data[~lost])


def _gaps(time: np.ndarray, inside: np.ndarray) -> Tensor:
    """Whether the step in time after a row ``inside`` an episode is no regular one, bool ``[n - 1, 1]``."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy turns an offset from UTC into UTC, and warns that it keeps none
            stamps = np.asarray(time) if np.asarray(time).dtype.kind in "fiu" else np.asarray(time, "datetime64[ns]")
        steps = np.diff(stamps.reshape(len(time))).astype(np.float64)
    except (TypeError, ValueError) as error:
        needed = "one number or ISO timestamp a step, such as 2026-11-30T13:00"
        raise ValueError(f"time must be {needed}, got {time[0]!r} first.") from error
    usual = np.nanmedian(steps[inside]) if inside.any() else 1.0
    if not usual > 0:
        raise ValueError(f"time must increase within an episode, its median step is {usual:.4g}.")
    gaps = inside & ~(np.abs(steps - usual) <= 0.5 * usual)
    if gaps.any():
        where = f"the first after row {gaps.argmax()} of the file (from 0, without its header)"
        warnings.warn(f"{gaps.sum()} gaps in time, {where}: episodes end there, as truncated.", stacklevel=4)
    return torch.from_numpy(gaps)[:, None]


def _flags(name: str, value: np.ndarray) -> np.ndarray:
    value = np.asarray(value)
    value = value.reshape(len(value), -1)
    if value.shape[1] != 1:
        raise ValueError(f"{name} must be one flag a step, got shape {list(value.shape)}.")
    wrong = ~np.isin(value.astype(np.float64), (0.0, 1.0))
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(f"{name} must be 0 or 1, got {value[row, 0]} in row {row} (from 0).")
    return value.astype(bool)


def named_entries(columns: Columns, key: str, size: int) -> list[str]:
    """Names of the entries of a vector, counted from 0, with their columns where these are known."""
    given = columns.get(key) or []
    names = [given] if isinstance(given, str) else list(given)
    return [f"entry {i}" + (f" ({names[i]})" if len(names) == size else "") for i in range(size)]


def _entries(names: Sequence[str], read: Callable[[str], Any], columns: Columns) -> dict[str, np.ndarray]:
    """The entries of a log, under the names that ``columns`` gives, else those of D4RL; several are one vector."""
    given = {key: [value] if isinstance(value, str) else list(value) for key, value in columns.items() if value}
    usual = {key: [name] for key, usual in _ARRAY_NAMES.items() for name in reversed(usual) if name in names}
    chosen = {**usual, **given}
    known = all(key in (*_ARRAY_NAMES, "episode", "time") for key in given)
    if not known or not set(_NEEDED) <= set(chosen) or not {n for some in chosen.values() for n in some} <= set(names):
        needed = (
            f"columns must map {', '.join(_NEEDED)} (and {', '.join([*_ARRAY_NAMES][3:])}, episode, time, if known)"
        )
        raise ValueError(f"{needed} to names in the file, {', '.join(names)}: got {dict(columns)}.")
    arrays = {}
    for key, several in chosen.items():
        parts = [np.asarray(read(name)) for name in several]
        if not all(map(np.size, parts)):
            raise ValueError(f"a log must have rows, {key} has none.")
        text = [name for name, part in zip(several, parts, strict=True) if part.dtype.kind not in "fiub"]
        if text and key not in ("episode", "time"):
            raise ValueError(f"{key} must be numbers, {', '.join(text)} holds text: fix the file.")
        arrays[key] = parts[0] if len(parts) == 1 else np.stack(parts, -1)
    return arrays


def _read_npz(path: Path, columns: Columns) -> dict[str, np.ndarray]:
    try:
        file: Any = np.load(path)
        names = file.files
    except (BadZipFile, EOFError, ValueError, AttributeError) as error:
        raise ValueError(f"{path} must be a file of numpy.savez: it is another, or damaged.") from error
    with file:
        return _entries(names, file.__getitem__, columns)


def _read_hdf5(path: Path, columns: Columns) -> dict[str, np.ndarray]:
    with _imported("h5py", path.suffix).File(path, "r") as file:
        return _entries([str(name) for name in file], lambda name: file[name][()], columns)


def _read_table(path: Path, columns: Columns) -> dict[str, np.ndarray]:
    pandas = _imported("pandas", path.suffix)
    table = pandas.read_csv(path) if path.suffix.lower() == ".csv" else pandas.read_parquet(path)
    return _entries(list(table.columns), lambda name: table[name].to_numpy(), columns)


_READERS: dict[str, Callable[[Path, Columns], dict[str, np.ndarray]]] = {
    ".npz": _read_npz, ".hdf5": _read_hdf5, ".h5": _read_hdf5, ".csv": _read_table, ".parquet": _read_table,
}  # fmt: skip


def _imported(module: str, suffix: str) -> Any:
    try:
        return __import__(module)
    except ImportError as error:
        raise ImportError(f"reading {suffix} needs {module}: pip install {module}.") from error


def _from_run(folder: Path) -> TensorDict:
    checkpoint = latest_checkpoint(folder)
    replay = None if checkpoint is None else load_checkpoint(checkpoint)["parts"].get("replay")
    if not replay or not replay["num_rows"]:
        raise ValueError(f"source must be a run folder whose checkpoint holds a replay buffer: got {folder}.")
    n, rows = replay["num_rows"], replay["rows"]
    order = torch.arange(n).roll(-(replay["writer"].get("_cursor", 0) % n))  # from the oldest row of a ring
    arrays = {name: rows[name,] for name in ("observation", "action")}
    arrays |= {name: rows["next", name] for name in ("reward", "terminated")}
    arrays["next_observation"] = rows["next", "observation"]
    arrays["truncated"] = rows["next", "done"] & ~rows["next", "terminated"]
    arrays = {name: value.reshape(n, -1)[order].numpy() for name, value in arrays.items()}
    in_turn = _episode_after_episode(arrays)
    return transitions_from({name: value[in_turn] for name, value in arrays.items()})


def _episode_after_episode(arrays: dict[str, np.ndarray]) -> list[int]:
    """Rows in the order of episodes, the first begun first: several simulators write theirs in turn."""
    episodes: list[list[int]] = []
    waiting: dict[bytes, list[list[int]]] = {}  # episodes that have not ended, by the observation that comes next
    ends = (arrays["terminated"] | arrays["truncated"])[:, 0]
    for row, (begin, reached) in enumerate(zip(arrays["observation"], arrays["next_observation"], strict=True)):
        found = waiting.get(begin.tobytes())
        if found:
            episode = found.pop(0)
        else:
            episodes.append(episode := [])
        episode.append(row)
        if not ends[row]:
            waiting.setdefault(reached.tobytes(), []).append(episode)
    return list(chain.from_iterable(episodes))


def _from_minari(name: str) -> TensorDict:
    # not by TorchRL: its MinariExperienceReplay returns zeros in 0.14.1 (it fills a TensorDict, then maps an empty one)
    minari = _imported("minari", "minari:ID")
    dataset = minari.load_dataset(name, download=name not in minari.list_local_datasets())
    parts: dict[str, list[np.ndarray]] = {}
    for episode in dataset.iterate_episodes():
        if not isinstance(episode.observations, np.ndarray):
            raise ValueError(f"{name} must have vector observations, got {type(episode.observations).__name__}.")
        found = {"observation": episode.observations[:-1], "next_observation": episode.observations[1:]}
        found |= {"action": episode.actions, "reward": episode.rewards}
        found |= {"terminated": episode.terminations, "truncated": episode.truncations}
        for key, value in found.items():
            parts.setdefault(key, []).append(np.asarray(value))
    return transitions_from({key: np.concatenate(values) for key, values in parts.items()})
