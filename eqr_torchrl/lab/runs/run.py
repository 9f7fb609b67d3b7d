"""The recorder of a training run: everything between two steps of a loop, and nothing of the algorithm."""

from __future__ import annotations

import math
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import nn
from torchrl.envs import EnvBase
from tqdm import tqdm

from eqr_torchrl.lab.runs.agent import save_policy
from eqr_torchrl.lab.runs.checkpoint import checkpoint_path, latest_checkpoint, load_checkpoint, save_checkpoint
from eqr_torchrl.lab.runs.folder import RunPlan, carry_out, plan_run
from eqr_torchrl.lab.runs.loggers import RunLogger, check_backends
from eqr_torchrl.lab.runs.settings import LoopSettings, read_settings, save_settings, versions
from eqr_torchrl.lab.runs.state import capture_state, restore_state
from eqr_torchrl.lab.runs.status import RunStatus

if TYPE_CHECKING:
    from omegaconf import DictConfig

_SECONDS_BETWEEN_LINES = 60  # of the progress bar where it cannot be redrawn in place


class Run:
    """Records a training loop: its folder, lock, status, logs, timers, progress bar, evaluations and checkpoints.

    It is passive: it never calls the algorithm, and a loop from which every use of it is deleted still learns. A step
    is one environment step, counted from the end of the warm-up, so that those of the warm-up are not positive.
    Between two steps the run writes a row of metrics every ``log_every`` steps (means since the last row, and seconds
    under ``time/``), evaluates every ``eval_every`` and at the last, and saves a checkpoint: at the first end of an
    episode that is ``checkpoint_every`` steps or more after the last checkpoint, at the latest after twice as many, and
    at the last step. After a checkpoint the environment is seeded anew and reset, so that a resumed run continues bit
    for bit with the run that was never stopped (on a CPU, with an environment whose reset forgets what came before).

    Ctrl-C stops between two steps. If a loss is not finite, the run stops at that update: the environment is not
    stepped and nothing is saved, as after any other error.

    Args:
        cfg: settings of the loop, :class:`~eqr_torchrl.lab.runs.LoopSettings`; ``labels``, what ``evaluations.csv``
            calls the run; and ``logger``, arguments of :class:`~eqr_torchrl.lab.runs.RunLogger`. The rest is written to
            ``config.yaml`` unread.

    Raises:
        ValueError: if a setting has the wrong type or is out of its range. Nothing is on the disk then.

    Examples:
        >>> import tempfile
        >>> from omegaconf import OmegaConf
        >>> cfg = {"env_steps": 3, "warmup_steps": 1, "eval_every": 3, "log_every": 1, "progress": False}
        >>> cfg |= {"run_dir": tempfile.mkdtemp(), "labels": {"algorithm": "none", "utility": ""}, "logger": {}}
        >>> run = Run(OmegaConf.create(cfg))
        >>> run.keep(env=toy_env(), policy=toy_actor())
        >>> run.evaluate_with(lambda num_episodes, seed: [{"episode": 0, "episode_return": 1.0, "episode_length": 9}])
        >>> with run:
        ...     for step in run.steps():
        ...         if step > 0:
        ...             run.log("train", {"loss": 0.5 * step})
        /...: return 1.0 after 3 env steps, ... s
        >>> from eqr_torchrl.lab.runs import read_csv
        >>> [row["train/loss"] for row in read_csv(run.folder / "metrics.csv")], run.last_return
        (['0.5', '1.0', '1.5'], 1.0)
    """

    def __init__(self, cfg: DictConfig) -> None:
        self.cfg, self.settings = cfg, read_settings(LoopSettings, cfg)
        labels = cfg.get("labels")
        for name in ("algorithm", "utility"):
            if not isinstance(labels, Mapping) or labels.get(name) is None:
                raise ValueError(f"labels must have text for {name}, got {labels}.")
        check_backends(cfg.logger.get("backends", ()))
        if self.settings.num_threads is not None:
            torch.set_num_threads(self.settings.num_threads)
        torch.manual_seed(self.settings.seed)
        np.random.seed(self.settings.seed % 2**32)  # noqa: NPY002 - environments may draw from the global generator
        random.seed(self.settings.seed)
        self.step, self.last_return = -self.settings.warmup_steps, None
        self.folder = Path()
        self._parts: dict[str, Any] = {}
        self._env: EnvBase | None = None
        self._policy: nn.Module | None = None
        self._evaluate: Callable[..., Sequence[Mapping[str, Any]]] | None = None
        self._plan = RunPlan(Path())
        self._sums: dict[str, list[Any]] = {}  # since the last row: sum and count
        self._seconds: dict[str, float] = {}
        self._saved_at, self._episode_ended, self._restart = 0, False, False
        self._interrupted, self._old_handler = False, None
        self._begin = self._lap_begin = time.perf_counter()

    def keep(self, *, env: EnvBase, policy: nn.Module, **parts: Any) -> None:
        """Names what the run is about, and what its checkpoints hold.

        Args:
            env: the real environment, which gives the run its name and is reset at checkpoints.
            policy: saved alone beside each checkpoint, for :func:`~eqr_torchrl.lab.runs.load_agent`.
            **parts: everything with a state, see :func:`~eqr_torchrl.lab.runs.capture_state`; restored on entry if the
                run is resumed.

        Raises:
            ValueError: if a part has no state that can be restored.
        """
        for name, part in parts.items():
            known = isinstance(part, torch.Generator) or hasattr(part, "state_parts")
            if not known and not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
                raise ValueError(
                    f"{name} must have state_dict and load_state_dict (of an empty dictionary if it has no state) to "
                    f"be saved in checkpoints, got {type(part).__name__}."
                )
        self._env, self._policy, self._parts = env, policy, parts

    def evaluate_with(self, function: Callable[..., Sequence[Mapping[str, Any]]]) -> None:
        """Sets what evaluates the policy: called with ``num_episodes`` and ``seed``, it returns one row an episode.

        The rows are those of :func:`~eqr_torchrl.lab.evaluation.evaluate`, which leaves the training state as it was.
        """
        self._evaluate = function

    def watch(self, transitions: Iterable[TensorDictBase]) -> Iterator[TensorDictBase]:
        """Passes on what a collector yields, and records where episodes end and how long it takes.

        Args:
            transitions: a TorchRL collector of the environment, with ``frames_per_batch=1``.

        Raises:
            RuntimeError: if the environment or the policy fails; the message names the environment and the step.
        """
        iterator = iter(transitions)
        while True:
            self._lap(None)
            try:
                if self._restart and self._env is not None:
                    entropy = np.random.SeedSequence((self.settings.seed, self._saved_at))
                    self._env.set_seed(int(entropy.generate_state(1)[0]) % 2**31)
                    transitions.reset()  # pyright: ignore[reportAttributeAccessIssue]
                    self._restart = False
                transition = next(iterator)
            except StopIteration:
                return
            except Exception as error:
                raise RuntimeError(f"{self._name} failed at env step {self.step}: {error}") from error
            self._episode_ended = bool(transition["next", "done"].any())
            self._lap("collect")
            yield transition

    def steps(self) -> Iterator[int]:
        """Records between the steps, and yields the number of each that is left, up to ``env_steps``.

        The first is ``1 - warmup_steps``, or in a resumed run the one after its checkpoint; a finished run has none.
        """
        if self._plan.finished:
            return
        last, seconds = self.settings.env_steps, 0.1 if sys.stderr.isatty() else _SECONDS_BETWEEN_LINES
        bar = tqdm(
            total=last, initial=max(self.step, 0), disable=not self.settings.progress, unit="step",
            dynamic_ncols=True, mininterval=seconds, miniters=1,
        )  # fmt: skip
        with bar:
            while self.step < last:
                self.step += 1
                if self.step == 1:
                    self._seconds = {}
                if self.step <= 1:  # the rate of the warm-up does not predict the remaining time
                    bar.set_description(
                        f"warm-up, {1 - self.step} steps left" if self.step < 1 else None, refresh=False
                    )
                    bar.update(0) if self.step < 1 else bar.unpause()
                yield self.step
                if self.step > 0:
                    self._record(final=self.step == last)
                    if self.last_return is not None:
                        bar.set_postfix_str(f"return {self.last_return:.1f}", refresh=False)
                    bar.update()
                if self._interrupted:
                    raise KeyboardInterrupt

    def log(self, group: str, values: Mapping[str, Any]) -> None:
        """Adds numbers to the next row of metrics, where their mean will be ``group/name``.

        The seconds since the last call of :meth:`log` or :meth:`watch` are added to ``time/group``.

        Args:
            group: first part of the names: ``train``, ``model``, ``rollout``.
            values: numbers, one-element tensors, lists of numbers (``name_0``, ``name_1``, ...), or nested mappings.

        Raises:
            RuntimeError: if an entry whose name begins with ``loss`` is not finite.
        """
        for name, value in _flatten(group, values):
            if isinstance(value, torch.Tensor):  # read once a step on a GPU: reading waits
                value = value.detach().clone() if value.device.type == "cuda" else value.item()
            total = self._sums.setdefault(name, [0.0, 0])
            total[0], total[1] = total[0] + value, total[1] + 1
        self._check_losses(float)
        self._lap(group)

    def __enter__(self) -> Run:
        if self._env is None or self._policy is None:
            raise RuntimeError("a run needs keep(env=..., policy=...) before it starts.")
        settings, algorithm = self.settings, self.cfg.labels.algorithm
        name = f"{algorithm}-{self._name}-seed{settings.seed}"
        self._plan = plan_run(settings.runs_root, name, run_dir=settings.run_dir, resume=settings.resume)
        self.folder = self._plan.folder
        if self._plan.finished:
            print(f"{self.folder}: already finished; to train longer: {_resume_words(self.folder)} env_steps=N")
            return self
        sizes = [self._env.observation_spec["observation"].shape[-1], self._env.action_spec.shape[-1]]
        self._fingerprint = {"env": self._name, "algorithm": algorithm, "seed": settings.seed, "sizes": sizes}
        if self._plan.checkpoint is not None:
            saved = load_checkpoint(self._plan.checkpoint, fingerprint=self._fingerprint)
            self.step = self._saved_at = saved["step"]
            self._sums, self._restart = saved["sums"], True
            restore_state(saved["parts"], **self._parts)
        self._status = RunStatus(self.folder, env_steps=max(self.step, 0)).__enter__()
        try:
            carry_out(self._plan)
            self._config = save_settings(self.cfg, self.folder, **self._resolved())
            resume_at = None if self._plan.checkpoint is None else self.step
            self._logger = RunLogger(self.folder, config=self._config, resume_at=resume_at, **self.cfg.logger)
        except BaseException:
            self._status.__exit__(*sys.exc_info())
            raise
        if threading.current_thread() is threading.main_thread():
            self._old_handler = signal.signal(signal.SIGINT, self._interrupt)
        self._begin = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._plan.finished:
            return
        try:
            self._logger.close()
        except KeyboardInterrupt as again:  # a second Ctrl-C, while a logger closes
            error, trace = again, again.__traceback__
        if self._old_handler is not None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the state is written in a moment
        cause, self._status.env_steps = error, max(self.step, 0)
        stopped = error is not None and (self._interrupted or isinstance(error, KeyboardInterrupt))
        if stopped:  # a second Ctrl-C inside a network can come out of tensordict as another error
            error = KeyboardInterrupt(self._how_to_resume())
        self._status.__exit__(None if error is None else type(error), error, trace)
        if self._old_handler is not None:
            signal.signal(signal.SIGINT, self._old_handler)
        if stopped:
            raise cast(KeyboardInterrupt, error) from cause
        if error is None and self.last_return is not None:
            seconds = time.perf_counter() - self._begin
            print(f"{self.folder}: return {self.last_return:.1f} after {self.step} env steps, {seconds:.0f} s")

    @property
    def _name(self) -> str:
        return getattr(self._env, "env_name", type(self._env).__name__)

    def _record(self, *, final: bool) -> None:
        settings, step = self.settings, self.step
        self._check_losses(torch.Tensor)
        if step % settings.log_every == 0:
            means = {name: total / count for name, (total, count) in self._sums.items()}
            self._logger.log(means | self._seconds, step)
            self._status.update(step)
            self._sums, self._seconds = {}, {}
        if self._evaluate is not None and (step % settings.eval_every == 0 or final):
            self._lap(None)
            episodes = settings.final_episodes if final else settings.eval_episodes
            rows = self._evaluate(num_episodes=episodes, seed=settings.seed + 1_000_003 * (step + 1))
            labels = {"env": self._name, **self.cfg.labels, "seed": settings.seed}
            labels["warmup_steps"] = settings.warmup_steps
            self._logger.log_evaluation(rows, step, **labels)
            self.last_return = sum(row["episode_return"] for row in rows) / len(rows)
        since = step - self._saved_at
        every = settings.checkpoint_every or math.inf
        if final or (since >= every and self._episode_ended) or since >= 2 * every:
            self._save()

    def _save(self) -> None:
        self._saved_at, self._restart = self.step, True
        state = {"step": self.step, "sums": self._sums, "parts": capture_state(**self._parts)}
        keep = self.settings.keep_checkpoints
        save_checkpoint(checkpoint_path(self.folder, self.step), state, fingerprint=self._fingerprint, keep_last=keep)
        if self._policy is not None:
            save_policy(self.folder, self._policy, self._config, self.step)

    def _resolved(self) -> dict[str, Any]:
        """What the settings resolved to, for the record."""
        entropy = getattr(self._parts.get("loss"), "target_entropy", None)
        return {
            "versions": versions(),
            "device": str(torch.device(self.settings.device)),
            "seeds": {"torch, numpy, python, environment": self.settings.seed},
            "num_threads": torch.get_num_threads(),
            "target_entropy": None if entropy is None else float(entropy),
        }

    def _check_losses(self, kind: type) -> None:
        sums = {name: total for name, (total, _) in self._sums.items() if isinstance(total, kind)}
        bad = [name for name in sums if name.rsplit("/", 1)[-1][:4] == "loss" and not math.isfinite(sums[name])]
        if bad:
            raise RuntimeError(
                f"{' and '.join(bad)} not finite at env step {self.step}: training has diverged and was stopped; "
                f"last checkpoint: {latest_checkpoint(self.folder) or 'none'}."
            )

    def _lap(self, group: str | None) -> None:
        now = time.perf_counter()
        if group is not None:
            name = f"time/{group}"
            self._seconds[name] = self._seconds.get(name, 0.0) + now - self._lap_begin
        self._lap_begin = now

    def _interrupt(self, number: int, frame: Any) -> None:
        if self._interrupted:
            raise KeyboardInterrupt
        self._interrupted = True
        print("\nstopping after this step; Ctrl-C again stops at once", file=sys.stderr, flush=True)

    def _how_to_resume(self) -> str:
        last = latest_checkpoint(self.folder)
        if last is None:
            return f"interrupted at env step {self.step}, before the first checkpoint, in {self.folder}"
        return (
            f"interrupted at env step {self.step}; resume with {_resume_words(self.folder)} "
            f"(continues from env step {int(last.stem.rsplit('_', 1)[-1])})"
        )


def _resume_words(folder: Path) -> str:
    return f"resume={folder}" if "=" not in str(folder) else f"'resume=\"{folder}\"'"


def _flatten(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if key == "seconds":  # a part's own measure of what is under time/ already
            continue
        name = f"{prefix}/{key}"
        if isinstance(value, (Mapping, TensorDictBase)):
            yield from _flatten(name, value)
        elif isinstance(value, list):
            yield from ((f"{name}_{i}", entry) for i, entry in enumerate(value))
        else:
            yield name, value
