"""Logging: CSV always, TensorBoard and wandb on request; a logger that fails never stops training."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torchrl.record.loggers import Logger

from eqr_torchrl.runs.backends import close_backend, drop_after, open_backend, send
from eqr_torchrl.runs.csv_table import EVALUATIONS_FILE, METRICS_FILE, CsvTable

STEP = "env_steps"
EVALUATION_COLUMNS = (
    "env",
    "algorithm",
    "utility",
    "seed",
    "env_steps",
    "warmup_steps",
    "episode",
    "episode_return",
    "episode_length",
)


class RunLogger:
    """Writes a run's numbers: ``metrics.csv`` (one row a call), ``evaluations.csv`` (one row an evaluation episode).

    TorchRL's ``CSVLogger`` writes one file per metric without names or seeds, so the two tables are written here; every
    other logger is TorchRL's. Whatever a logger does wrong (no account, no network, a full disk) becomes one warning,
    and training goes on. Metrics that hold wall-clock time start with ``time/``: all other columns of two runs with the
    same seed on the same CPU are equal.

    Args:
        folder: the run folder, made if need be. Tables in it are gone on with; see :meth:`load_state_dict`.
        backends: further loggers: ``"tensorboard"``, ``"wandb"``, or objects of TorchRL's ``Logger``.
        config: settings of the run, for loggers that show them.
        wandb: keyword arguments of ``wandb.init`` (``project``, ``group``, ``mode``, ...). Without a ``mode``, and
            without a key, wandb works offline.

    Raises:
        ValueError: if a backend is none of the above.

    Examples:
        >>> import tempfile
        >>> with RunLogger(tempfile.mkdtemp()) as logger:
        ...     logger.log({"train/loss_qvalue": torch.tensor(0.5), "time/update": 0.01}, env_steps=250)
        ...     print((logger.folder / "metrics.csv").read_text())
        env_steps,train/loss_qvalue,time/update
        250,0.5,0.01
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        backends: Sequence[str | Logger] = (),
        config: Mapping[str, Any] | None = None,
        wandb: Mapping[str, Any] | None = None,
    ) -> None:
        for backend in backends:
            if not isinstance(backend, Logger) and backend not in ("tensorboard", "wandb"):
                raise ValueError(f"backends must hold 'tensorboard', 'wandb' or TorchRL loggers: got {backend!r}.")
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.num_calls = {METRICS_FILE: 0, EVALUATIONS_FILE: 0}
        self._warned: set[str] = set()
        self._tables = {
            METRICS_FILE: CsvTable(self.folder / METRICS_FILE, [STEP]),
            EVALUATIONS_FILE: CsvTable(self.folder / EVALUATIONS_FILE, EVALUATION_COLUMNS),
        }
        self._first_rows = {name: table.num_rows for name, table in self._tables.items()}
        self._lost_rows = {name: 0 for name in self._tables}
        self._backends: dict[str, Logger] = {}
        for backend in backends:
            name = backend if isinstance(backend, str) else type(backend).__name__
            opened = self._guard(name, lambda backend=backend: open_backend(backend, self.folder, config, wandb))
            if opened is not None:
                self._backends[name] = opened

    def log(self, metrics: Mapping[str, Any], env_steps: int) -> None:
        """Log one row of metrics.

        Args:
            metrics: name to number; one-element tensors become plain floats, so nothing keeps a graph alive.
            env_steps: environment steps taken so far: the horizontal axis of every logger. It may go back.

        Raises:
            ValueError: if a value is no single number.
        """
        values = {name: _as_number(name, value) for name, value in metrics.items()}
        self._append(METRICS_FILE, {STEP: int(env_steps), **values})
        for name, backend in self._backends.items():
            self._guard(name, lambda backend=backend: send(backend, values, int(env_steps)))

    def log_evaluation(self, **columns: Any) -> None:
        """Log one evaluation episode.

        Args:
            **columns: ``env``, ``algorithm``, ``utility``, ``seed``, ``env_steps`` (after the warm-up, as the paper
                counts), ``warmup_steps``, ``episode``, ``episode_return``, ``episode_length``; more are welcome.

        Raises:
            ValueError: if one of these columns is missing.
        """
        missing = [name for name in EVALUATION_COLUMNS if name not in columns]
        if missing:
            raise ValueError(f"log_evaluation needs the columns {', '.join(EVALUATION_COLUMNS)}: missing {missing}.")
        row = {
            name: value if isinstance(value, str) or value is None else _as_number(name, value)
            for name, value in columns.items()
        }
        self._append(EVALUATIONS_FILE, row)

    def truncate_after(self, env_steps: int) -> None:
        """Drop the rows whose ``env_steps`` lies beyond ``env_steps``: what was logged after that checkpoint."""
        for name, table in self._tables.items():
            self._set_rows(name, [row for row in table.rows() if float(row[STEP]) <= env_steps], table.columns)
        self._rewind()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds: how many rows each table has, and its columns. All rows are on the disk by then."""
        for name, table in self._tables.items():
            self._guard(name, table.sync)
        return {name: {"rows": table.num_rows, "columns": list(table.columns)} for name, table in self._tables.items()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Cut both tables back to the rows they had at the checkpoint, so that the run writes the same rows again.

        TensorBoard forgets what came after the checkpoint; wandb cannot, and shows those points twice.
        """
        for name, table in self._tables.items():
            saved = state_dict[name]
            rows = table.rows()
            if len(rows) < saved["rows"]:
                warnings.warn(f"{table.path} holds {len(rows)} rows, the checkpoint {saved['rows']}.", stacklevel=2)
            self._set_rows(name, rows[: saved["rows"]], saved["columns"])
        self._rewind()

    def close(self) -> None:
        """Close all loggers.

        Raises:
            RuntimeError: if a table does not hold one row for each call and no failure has been warned about.
        """
        for name, backend in self._backends.items():
            self._guard(name, lambda backend=backend: close_backend(backend))
        self._backends = {}
        for name, table in self._tables.items():
            expected = self._first_rows[name] + self.num_calls[name] - self._lost_rows[name]
            found = len(table.rows())
            if found != expected:
                raise RuntimeError(f"{table.path} must hold {expected} rows, one for each call: it holds {found}.")
            if self._lost_rows[name]:
                warnings.warn(f"{self._lost_rows[name]} rows of {table.path} could not be written.", stacklevel=2)

    def __enter__(self) -> RunLogger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:  # the error that ended the run is the one to be seen
            for name, backend in self._backends.items():
                self._guard(name, lambda backend=backend: close_backend(backend))

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        self.num_calls[name] += 1
        before = self._tables[name].num_rows
        self._guard(name, lambda: self._tables[name].append(row))
        if self._tables[name].num_rows == before:
            self._lost_rows[name] += 1

    def _set_rows(self, name: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
        if rows or self._tables[name].path.exists():
            self._tables[name].keep(rows, columns)
        self._first_rows[name] = len(rows)
        self.num_calls[name] = self._lost_rows[name] = 0

    def _rewind(self) -> None:
        rows = self._tables[METRICS_FILE].rows()
        last = int(float(rows[-1][STEP])) if rows else -1
        for name, backend in self._backends.items():
            self._guard(name, lambda backend=backend: drop_after(backend, last))

    def _guard(self, name: str, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except Exception as error:
            if name not in self._warned:
                self._warned.add(name)
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
                warnings.warn(f"logger {name} failed and training goes on without it: {reason}", stacklevel=4)
            return None


def _as_number(name: str, value: Any) -> int | float:
    if isinstance(value, (bool, int, float)):
        return int(value) if isinstance(value, bool) else value
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic)) and np.prod(value.shape) == 1:
        return _as_number(name, value.item())
    shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
    raise ValueError(f"a logged value must be one number: got {type(value).__name__}{shape} for {name!r}.")
