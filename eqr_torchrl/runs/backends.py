"""TensorBoard and wandb, through TorchRL's loggers, with environment steps as their one horizontal axis."""

from __future__ import annotations

import netrc
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from torchrl.record.loggers import Logger, TensorboardLogger, WandbLogger

_WANDB_ID_FILE = ".wandb_id"


def open_backend(
    backend: str | Logger, folder: Path, config: Mapping[str, Any] | None, wandb: Mapping[str, Any] | None
) -> Logger:
    """Open a logger by name (``"tensorboard"``, ``"wandb"``) that writes into ``folder``; a TorchRL logger is kept.

    Args:
        backend: name or logger.
        folder: the run folder.
        config: settings of the run, shown by wandb.
        wandb: keyword arguments of ``wandb.init``.

    Returns:
        The open logger.

    Raises:
        Exception: what TensorBoard or wandb raise; the caller decides what a missing logger means.
    """
    if isinstance(backend, Logger):
        return backend
    if backend == "tensorboard":
        return TensorboardLogger(exp_name="tensorboard", log_dir=str(folder))
    return _open_wandb(folder, config, dict(wandb or {}))


def send(backend: Logger, values: Mapping[str, float], env_steps: int) -> None:
    """Log numbers at ``env_steps``, which may be smaller than at the last call."""
    if isinstance(backend, WandbLogger):
        # wandb drops rows whose own step goes back; as a column that metrics are drawn against, env_steps may
        backend.log_metrics({"env_steps": env_steps, **values}, override_global_step=True)
    else:
        backend.log_metrics(dict(values), step=env_steps)


def drop_after(backend: Logger, env_steps: int) -> None:
    """Mark what TensorBoard holds beyond ``env_steps`` as void: it will be logged again. Others cannot take back."""
    if isinstance(backend, TensorboardLogger):
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        backend.experiment.file_writer.add_event(
            Event(step=env_steps + 1, session_log=SessionLog(status=SessionLog.START))
        )


def close_backend(backend: Logger) -> None:
    """Write out what is still in memory and end the run, so that the next run in this process starts its own."""
    for name in ("finish", "close"):  # wandb; TensorBoard
        end = getattr(backend.experiment, name, None)
        if callable(end):
            end()
            return


def _open_wandb(folder: Path, config: Mapping[str, Any] | None, arguments: dict[str, Any]) -> Logger:
    mode = arguments.pop("mode", None) or os.environ.get("WANDB_MODE") or ("online" if _has_wandb_key() else "offline")
    arguments = {"id": _wandb_id(folder), "config": dict(config or {}), "log_env_packages": False, **arguments}

    def start(mode: str) -> WandbLogger:
        return WandbLogger(exp_name=folder.name, save_dir=folder, mode=mode, **arguments)

    try:
        logger = start(mode)
    except Exception:
        if mode != "online":
            raise
        logger = start("offline")  # no network, or a key that is not accepted: upload later with `wandb sync`
    logger.experiment.define_metric("env_steps")
    logger.experiment.define_metric("*", step_metric="env_steps")
    return logger


def _wandb_id(folder: Path) -> str:
    """One wandb run for each run folder, also when the run is resumed."""
    file = folder / _WANDB_ID_FILE
    if not file.exists():
        file.write_text(uuid.uuid4().hex[:12], encoding="utf-8")
    return file.read_text(encoding="utf-8").strip()


def _has_wandb_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
