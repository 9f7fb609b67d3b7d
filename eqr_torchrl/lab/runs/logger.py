"""Logging: CSV always, TensorBoard and wandb on request; a logger that fails never stops training."""

from __future__ import annotations

import csv
import os
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchrl.record.loggers import Logger, TensorboardLogger, WandbLogger

from eqr_torchrl.lab.runs.folder import EVALUATIONS_FILE, METRICS_FILE, STEP, read_csv, write_csv

BACKENDS = ("tensorboard", "wandb")
_LABELS = ("env", "algorithm", "utility", "seed", STEP, "warmup_steps")
_NEEDED = (*_LABELS, "episode", "episode_return", "episode_length")
EVALUATION_COLUMNS = (*_NEEDED, "terminated")


class RunLogger:
    """Writes a run's numbers: ``metrics.csv`` (one row a call), ``evaluations.csv`` (one row an evaluation episode).

    Both reach TensorBoard and wandb too, with environment steps as horizontal axis; of an evaluation the means over its
    episodes, such as ``evaluation/episode_return``. An error of a logger (no account, no network, a full disk) becomes
    one warning, and training continues.

    Args:
        folder: the run folder, made if need be. Existing tables are continued.
        backends: further loggers: ``"tensorboard"``, ``"wandb"``, or objects of TorchRL's ``Logger``.
        config: settings of the run, for loggers that show them.
        wandb: keyword arguments of ``wandb.init`` (``project``, ``group``, ``mode``, ...). Without a ``mode``, wandb is
            offline if there is no key or no network: upload later with ``wandb sync``.
        resume_at: environment step of the checkpoint that is resumed: TensorBoard drops what lies beyond, as
            :func:`~eqr_torchrl.lab.runs.rewind` does in the tables; wandb cannot, and shows those points twice.

    Examples:
        >>> import tempfile
        >>> logger = RunLogger(tempfile.mkdtemp())
        >>> logger.log({"train/loss_qvalue": torch.tensor(0.5), "time/train": 0.01}, env_steps=250)
        >>> print((logger.folder / "metrics.csv").read_text())
        env_steps,train/loss_qvalue,time/train
        250,0.5,0.01
        >>> logger.close()
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        backends: Sequence[str | Logger] = (),
        config: Mapping[str, Any] | None = None,
        wandb: Mapping[str, Any] | None = None,
        resume_at: int | None = None,
    ) -> None:
        check_backends(backends)
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._warned: set[str] = set()
        self._metrics = _Table(self.folder / METRICS_FILE, [STEP])
        self._evaluations = _Table(self.folder / EVALUATIONS_FILE, EVALUATION_COLUMNS)
        self._backends: dict[str, Logger] = {}
        for backend in backends:
            name = backend if isinstance(backend, str) else type(backend).__name__
            opened = self._guard(name, _open, backend, self.folder, config, dict(wandb or {}), resume_at)
            if opened is not None:
                self._backends[name] = opened

    def log(self, metrics: Mapping[str, Any], env_steps: int) -> None:
        """Logs numbers, or one-element tensors, by name, at ``env_steps``, the horizontal axis of every logger."""
        values = {name: _as_number(name, value) for name, value in metrics.items()}
        self._guard(METRICS_FILE, self._metrics.append, {STEP: int(env_steps), **values})
        self._send(values, int(env_steps))

    def log_evaluation(self, episodes: Sequence[Mapping[str, Any]], env_steps: int, **labels: Any) -> None:
        """Logs the episodes of one evaluation after ``env_steps``, which do not count the warm-up, as in the paper.

        These are rows of :func:`~eqr_torchrl.lab.evaluation.evaluate`; ``terminated`` may be missing. The ``labels``
        are the same in every row: ``env``, ``algorithm``, ``utility``, ``seed``, ``warmup_steps``.
        """
        for episode in episodes:
            row = {**labels, STEP: int(env_steps), **episode}
            if missing := [name for name in _NEEDED if name not in row]:
                raise ValueError(f"an evaluation must have the columns {', '.join(_NEEDED)}: missing {missing}.")
            self._guard(EVALUATIONS_FILE, self._evaluations.append, row)
        names = [name for name in ("episode_return", "episode_length", "terminated") if name in episodes[0]]
        means = {f"evaluation/{name}": float(np.mean([row[name] for row in episodes])) for name in names}
        self._send(means, int(env_steps))

    def close(self) -> None:
        """Closes all loggers, so that the next run in this process starts its own."""
        for name, backend in self._backends.items():
            self._guard(name, backend.close)
        self._backends = {}

    def _send(self, values: Mapping[str, float], env_steps: int) -> None:
        for name, backend in self._backends.items():
            if isinstance(backend, WandbLogger):
                # wandb drops rows whose own step decreases; as a column that serves as the horizontal axis, it may
                self._guard(name, backend.log_metrics, {STEP: env_steps, **values}, override_global_step=True)
            else:
                self._guard(name, backend.log_metrics, dict(values), step=env_steps)

    def _guard(self, name: str, action: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return action(*args, **kwargs)
        except Exception as error:
            if name not in self._warned:
                self._warned.add(name)
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
                warnings.warn(f"logger {name} failed; training continues without it: {reason}", stacklevel=4)
            return None


def check_backends(backends: Sequence[str | Logger]) -> None:
    """Raises a ``ValueError`` if ``backends`` is no list of known names and TorchRL loggers."""
    if isinstance(backends, str):
        raise ValueError(f"logger.backends must be a list, such as [tensorboard], got {backends!r}.")
    for backend in backends:
        if not isinstance(backend, Logger) and backend not in BACKENDS:
            raise ValueError(f"logger.backends must hold 'tensorboard', 'wandb' or TorchRL loggers, got {backend!r}.")


def _open(
    backend: str | Logger, folder: Path, config: Mapping[str, Any] | None, wandb: dict[str, Any], resume_at: int | None
) -> Logger:
    logger = _open_wandb(folder, config, wandb) if backend == "wandb" else backend
    if backend == "tensorboard":
        logger = TensorboardLogger(exp_name="tensorboard", log_dir=str(folder))
    if isinstance(logger, TensorboardLogger) and resume_at is not None:  # what lies beyond will be logged again
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        start = SessionLog(status=SessionLog.START)
        logger.experiment.file_writer.add_event(Event(step=resume_at + 1, session_log=start))
    return logger  # pyright: ignore[reportReturnType]


def _open_wandb(folder: Path, config: Mapping[str, Any] | None, arguments: dict[str, Any]) -> Logger:
    import wandb

    id_file = folder / ".wandb_id"  # one wandb run for each run folder, also when the run is resumed
    if not id_file.exists():
        id_file.write_text(uuid.uuid4().hex[:12], encoding="utf-8")
    mode = arguments.pop("mode", None) or os.environ.get("WANDB_MODE")
    mode = mode or ("online" if wandb.login(prompt=False, verify=False) else "offline")
    settings = {"config": dict(config or {}), "log_env_packages": False, **arguments}

    def start(mode: str) -> WandbLogger:
        run_id = id_file.read_text(encoding="utf-8").strip()
        return WandbLogger(exp_name=folder.name, save_dir=str(folder), mode=mode, id=run_id, **settings)

    try:
        logger = start(mode)
    except Exception:
        if mode != "online":
            raise
        wandb.teardown()  # no network, or a key that is refused; the id of the failed start counts as in use
        id_file.write_text(uuid.uuid4().hex[:12], encoding="utf-8")
        logger = start("offline")
    logger.experiment.define_metric(STEP)
    logger.experiment.define_metric("*", step_metric=STEP)
    return logger


def _as_number(name: str, value: Any) -> int | float:
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic)) and np.prod(value.shape) == 1:
        value = value.item()
    if isinstance(value, (int, float)):
        return int(value) if isinstance(value, bool) else value
    shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
    raise ValueError(f"a logged value must be one number: got {type(value).__name__}{shape} for {name!r}.")


class _Table:
    """A CSV file with one header line, appended to row by row; a new column rewrites it once."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path, self.columns = path, list(columns)
        if rows := read_csv(path) if path.exists() else []:
            self.columns = list(rows[0])
            write_csv(path, self.columns, rows)  # without the unfinished line of a process that was killed
        else:
            path.unlink(missing_ok=True)

    def append(self, row: Mapping[str, Any]) -> None:
        """Writes one row; columns it does not name stay empty."""
        columns = [*self.columns, *(name for name in row if name not in self.columns)]
        if columns != self.columns or not self.path.exists():
            write_csv(self.path, columns, read_csv(self.path) if self.path.exists() else [])
            self.columns = columns
        size = self.path.stat().st_size
        try:
            with open(self.path, "a", encoding="utf-8", newline="") as file:
                csv.DictWriter(file, self.columns, lineterminator="\n").writerow(row)
        except OSError:  # a full disk takes a part of a line
            os.truncate(self.path, size)
            raise
