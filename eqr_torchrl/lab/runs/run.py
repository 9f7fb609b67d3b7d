"""The recorder of a training run: everything between two steps of a loop, and nothing of the algorithm."""

from __future__ import annotations

import copy
import math
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import nn
from torchrl.envs import EnvBase
from torchrl.objectives import LossModule, SACLoss
from tqdm import tqdm

from eqr_torchrl.lab._command import short
from eqr_torchrl.lab.memory import release_memory
from eqr_torchrl.lab.runs.agent import describe_actor, policy_content, save_policy, space_of
from eqr_torchrl.lab.runs.checkpoint import (
    CHECKPOINT_FOLDER,
    capture_state,
    checkpoint_path,
    latest_checkpoint,
    load_checkpoint,
    restore_state,
    save_checkpoint,
    versions,
)
from eqr_torchrl.lab.runs.folder import (
    BEST_POLICY_FILE,
    POLICY_FILE,
    RunPlan,
    RunStatus,
    check_types,
    flat,
    plan_run,
    prepare_folder,
    save_settings,
)
from eqr_torchrl.lab.runs.logger import RunLogger, check_backends
from eqr_torchrl.networks._cpu import uses_bf16
from eqr_torchrl.networks.critic import StateActionNetwork
from eqr_torchrl.networks.layers import Normalizer
from eqr_torchrl.objectives import SoftActorCriticLoss

_SECONDS_BETWEEN_LINES = 60  # of the progress bar where it cannot be redrawn in place
_CPU = "time/cpu"  # seconds of the process, between two rows of metrics
# stored rows mean the same without them
_ENV_MAY_CHANGE = ("_target_", "name", "max_episode_steps", "num_envs", "parallel", "render_mode")


@dataclass
class LoopSettings:
    """Settings at the top level of the training scripts, as ``configs/eqr_sac.yaml`` explains them one by one.

    The constructor checks types and ranges.

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
    act_while_learning: bool = False
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
    eval_every: int | None = 1_000
    eval_episodes: int = 1
    final_episodes: int = 10
    log_every: int = 250
    checkpoint_every: int = 10_000
    keep_checkpoints: int = 1
    run_dir: str | None = None
    runs_root: str = "runs"
    resume: str | None = None
    progress: bool = True

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> LoopSettings:
        """The settings of the loop among others, such as those of a whole ``config.yaml``."""
        return cls(**{field.name: config[field.name] for field in fields(cls) if field.name in config})

    def __post_init__(self) -> None:
        check_types(self.__annotations__, vars(self))
        self.gamma, self.tau = float(self.gamma), float(self.tau)
        for name, value in vars(self).items():
            least = int(name not in ("seed", "checkpoint_every"))
            if type(value) is int and value < least and name != "reward_bounds":
                raise ValueError(f"{name} must be at least {least}, got {value}.")
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


class Run:
    """Records a training loop: its folder, lock, status, logs, timers, progress bar, evaluations and checkpoints.

    It is passive: it never calls the algorithm, and a loop from which every use of it is deleted still learns. A step
    is one environment step, counted from the end of the warm-up, so that those of the warm-up are not positive.
    Between two steps the run writes a row of metrics every ``log_every`` steps (means since the last row, and seconds
    under ``time/``), evaluates every ``eval_every`` and at the last, and saves a checkpoint: at the first end of an
    episode that is ``checkpoint_every`` steps or more after the last checkpoint, at the latest after twice as many, and
    at the last step. After a checkpoint the environment is seeded anew and reset, so that a resumed run continues bit
    for bit with the run that was never stopped (on a CPU, with an environment whose reset forgets what came before).

    Ctrl-C and SIGTERM stop at the next boundary between two steps and save a checkpoint there, which loses only the
    rest of the episode; a second signal ends at once. A loop that is left early saves a checkpoint too. If a loss is
    not finite, the run stops at that update: the environment is not stepped and nothing is saved, as after any other
    error.

    Args:
        settings: of the loop.
        labels: what ``evaluations.csv`` calls the run: text for ``algorithm`` and ``utility``, and others.
        logger: arguments of :class:`~eqr_torchrl.lab.runs.RunLogger`.
        config: all settings of the script, plain values, for ``config.yaml``; of them ``env`` is compared at a resume.
            Defaults to ``None``: what is above.

    Examples:
        >>> import tempfile
        >>> settings = LoopSettings(env_steps=3, warmup_steps=1, eval_every=3, log_every=1, progress=False)
        >>> settings.run_dir = tempfile.mkdtemp()
        >>> run = Run(settings, labels={"algorithm": "none", "utility": ""})
        >>> run.keep(env=toy_env(), policy=toy_actor())
        >>> run.evaluate_with(lambda num_episodes, seed: [{"episode": 0, "episode_return": 1.0, "episode_length": 9}])
        >>> with run:
        ...     for step in run.steps():
        ...         if step > 0:
        ...             run.log("train", {"loss": 0.5 * step})
        /...: return 1 after 3 steps, ... s
        >>> from eqr_torchrl.lab.runs import read_csv
        >>> [row["train/loss"] for row in read_csv(run.folder / "metrics.csv")], run.last_return
        (['0.5', '1.0', '1.5'], 1.0)
    """

    def __init__(
        self,
        settings: LoopSettings,
        *,
        labels: Mapping[str, str],
        logger: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        for name in ("algorithm", "utility"):
            if not isinstance(labels, Mapping) or labels.get(name) is None:
                raise ValueError(f"labels must have text for {name}, got {labels}.")
        self.settings, self._labels, self._log_options = settings, dict(labels), dict(logger or {})
        check_backends(self._log_options.get("backends", ()))
        options = {key: value for key, value in self._log_options.items() if key != "backends"}
        self._config = dict(config or {**asdict(settings), "labels": self._labels, "logger": options})
        if settings.num_threads is not None:
            torch.set_num_threads(settings.num_threads)
        self.step, self.last_return = -settings.warmup_steps, None
        self.folder = Path()
        self._parts: dict[str, Any] = {}
        self._env: EnvBase | None = None
        self._policy: nn.Module | None = None
        self._evaluate: Callable[..., Sequence[Mapping[str, Any]]] | None = None
        self._iterator: Iterator[TensorDictBase] | None = None  # of the collector
        self._plan = RunPlan(Path())
        self._status: RunStatus | None = None
        self._evaluation: dict[str, Any] | None = None  # of the policy as it is
        self._best: dict[str, Any] | None = None  # content of the policy file of the best one
        self._sums: dict[str, list[Any]] = {}  # since the last row: sum and count
        self._seconds: dict[str, float] = {}
        self._episodes: dict[int, tuple[float, int]] = {}  # return and length so far, of each environment
        self._saved_at, self._episode_ended, self._restart, self._complete = 0, True, False, False
        self._signal: int | None = None
        self._old_handlers: dict[int, Any] = {}
        self._begin = self._lap_begin = time.perf_counter()
        self._cpu_begin = time.process_time()

    @classmethod
    def of(cls, config: Any) -> Run:
        """Makes a run from all settings of a script, a mapping that has ``labels`` and ``logger`` too."""
        return cls(LoopSettings.of(config), labels=config["labels"], logger=config["logger"], config=config)

    def keep(self, *, env: EnvBase, policy: nn.Module, **parts: Any) -> None:
        """Sets the environment and the policy of the run, and the parts that its checkpoints hold.

        Args:
            env: the real environment, which gives the run its name and is reset at checkpoints.
            policy: saved alone beside each checkpoint, for :func:`~eqr_torchrl.lab.runs.load_agent`.
            **parts: everything with a state, see :func:`~eqr_torchrl.lab.runs.capture_state`; restored on entry if the
                run is resumed.
        """
        for name, part in parts.items():
            known = isinstance(part, torch.Generator) or hasattr(part, "state_parts")
            if not known and not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
                needed = "state_dict and load_state_dict (of an empty dictionary if it has no state)"
                kind = type(part).__name__
                raise ValueError(f"{name} must have {needed} to be saved in checkpoints, got {kind}.")
        _check_networks(parts.get("loss"))
        self._env, self._policy, self._parts = env, policy, parts

    def evaluate_with(self, function: Callable[..., Sequence[Mapping[str, Any]]]) -> None:
        """Sets what evaluates the policy: called with ``num_episodes`` and ``seed``, it returns one row an episode.

        The rows are those of :func:`~eqr_torchrl.lab.evaluation.evaluate`, which leaves the training state as it was.
        """
        self._evaluate = function

    def watch(self, transitions: Iterable[TensorDictBase]) -> Iterator[TensorDictBase]:
        """Iterates over a collector, and records collection time and the returns and lengths of episodes.

        These are ``collect/episode_return`` and ``collect/episode_length`` of the episodes that ended since the last
        row, under the sampled policy; an episode that a checkpoint truncates is not among them. An error of the
        environment or the policy is a RuntimeError that names the environment and the step.

        Args:
            transitions: a TorchRL collector of the environment whose ``frames_per_batch`` is the number of environments
                that step together: 1, or ``env.batch_size.numel()``. Their transitions are yielded one by one, so that
                each counts as a step. A collector of another process, such as
                :class:`~eqr_torchrl.lab.acting.ActingProcess`, continues after a checkpoint, without a reset.
        """
        collector: Any = transitions
        iterator = self._iterator = iter(transitions)
        waiting = []
        while True:
            self._lap(None)
            try:
                if self._restart and not getattr(collector, "running", False):  # if so, another process acts on
                    entropy = np.random.SeedSequence((self.settings.seed, self.settings.warmup_steps + self._saved_at))
                    collector.set_seed(int(entropy.generate_state(1)[0]) % 2**31)
                    collector.reset()
                    self._restart, self._episodes, waiting = False, {}, []
                if not waiting:
                    waiting = list(enumerate(next(iterator).reshape(-1).split(1)))
                row, transition = waiting.pop(0)
            except StopIteration:
                return
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"  # the text of a KeyError is the key alone
                raise RuntimeError(f"{self._name} failed at env step {self.step}: {reason}") from error
            self._episode_ended = bool(transition["next", "done"].any())
            reward = transition["next", "reward"].sum().item()
            episode_return, length = self._episodes.get(row, (0.0, 0))
            self._episodes[row] = (episode_return + (reward if math.isfinite(reward) else 0.0), length + 1)
            if self._episode_ended:
                for name, value in zip(("return", "length"), self._episodes.pop(row), strict=True):
                    self._add(f"collect/episode_{name}", value)
            self._lap("collect")
            yield transition

    def steps(self) -> Iterator[int]:
        """Yields the number of each step that is left, up to ``env_steps``, and records between the steps.

        The first is ``1 - warmup_steps``, or in a resumed run the one after its checkpoint; a finished run has none.
        """
        if self._plan.finished:
            return
        if self._status is None:
            raise RuntimeError("steps() must be called inside `with run:`, which opens the folder of the run.")
        last, seconds = self.settings.env_steps, 0.1 if sys.stderr.isatty() else _SECONDS_BETWEEN_LINES
        self._cpu_begin = time.process_time() - self._seconds.pop(_CPU, 0.0)
        bar = tqdm(
            total=last, initial=max(self.step, 0), disable=not self.settings.progress, unit="step",
            dynamic_ncols=True, mininterval=seconds, miniters=1,
        )  # fmt: skip
        with bar:
            while self.step < last:
                self.step, self._evaluation = self.step + 1, None
                if self.step == 1:
                    self._seconds = {}
                if self.step < 1:
                    bar.set_description(f"warm-up, {1 - self.step} steps left", refresh=False)
                    bar.update(0)
                elif self.step == 1:  # the rate of the warm-up does not predict the remaining time
                    bar.set_description(None, refresh=False)
                    bar.unpause()
                yield self.step
                if self.step > 0:
                    self._record(final=self.step == last)
                    if self.last_return is not None:
                        bar.set_postfix_str(f"return {short(self.last_return)}", refresh=False)
                    bar.update()
                if self._signal is not None:
                    self._stop(self._signal)

    def log(self, group: str, values: Mapping[str, Any]) -> None:
        """Adds numbers to the next row of metrics, where their mean will be ``group/name``.

        The seconds since the last call of :meth:`log` or :meth:`watch` are added to ``time/group``. An entry whose name
        begins with ``loss`` and that is not finite is a RuntimeError.

        Args:
            group: first part of the names: ``train``, ``model``, ``rollout``.
            values: numbers, one-element tensors, lists of numbers (``name_0``, ``name_1``, ...), or nested mappings;
                an entry ``seconds`` is left out, since ``time/group`` has them.
        """
        for name, value in _flatten(group, values):
            if isinstance(value, torch.Tensor):  # read once a step on a GPU: reading waits
                value = value.detach().clone() if value.device.type == "cuda" else value.item()
            self._add(name, value)
        self._check_losses(float)
        self._lap(group)

    def __enter__(self) -> Run:
        if self._env is None or self._policy is None:
            raise RuntimeError("a run needs keep(env=..., policy=...) before it starts.")
        settings, labels = self.settings, self._labels
        name = "-".join(filter(None, [labels["algorithm"], labels["utility"], self._name, f"seed{settings.seed}"]))
        self._plan = plan_run(settings.runs_root, name, run_dir=settings.run_dir, resume=settings.resume)
        self.folder = self._plan.folder
        finished = f"{self.folder}: already finished; to train longer: {_resume_option(self.folder)} env_steps=N"
        if self._plan.finished:
            print(finished)
            return self
        self._space = space_of(self._env)
        self._network = describe_actor(self._policy, self._space)
        if self._plan.checkpoint is not None:
            self._restore(self._plan.checkpoint)
        if self._complete:
            print(finished)
        resume_at = None if self._plan.checkpoint is None else max(self.step, 0)
        entropy = getattr(self._parts.get("loss"), "target_entropy", None)
        record = {
            "versions": versions(),
            "device": settings.device,
            "num_threads": torch.get_num_threads(),
            "target_entropy": None if entropy is None else float(entropy),
        }
        with ExitStack() as opened:  # an error in here ends the status as failed
            self._status = opened.enter_context(RunStatus(self.folder, env_steps=max(self.step, 0)))
            prepare_folder(self._plan, -1 if resume_at is None else resume_at)
            save_settings(self._config, self.folder, **record)
            if resume_at is not None:
                self._save_policies()
            self._logger = RunLogger(self.folder, config=self._config, resume_at=resume_at, **self._log_options)
            opened.pop_all()
        self._take_signals()
        self._begin = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is None:
            return
        late = None
        try:
            if hasattr(self._iterator, "close"):
                self._iterator.close()  # pyright: ignore  # ends a process that acts
            if error is None and not self._complete:  # the loop was left
                self._save()
            self._logger.close()
        except BaseException as again:  # a full disk, or a second signal
            error = late = again
        for number in self._old_handlers:
            signal.signal(number, signal.SIG_IGN)  # the state is written in a moment
        stopped = error is not None and (self._signal is not None or isinstance(error, KeyboardInterrupt))
        ended = "interrupted" if stopped else "stopped"
        message = f"{ended} at env step {self.step}, before the first checkpoint, in {self.folder}"
        if latest_checkpoint(self.folder) is not None:
            until = f"(continues from env step {self._saved_at})"
            message = f"{ended} at env step {self.step}; resume with {_resume_option(self.folder)} {until}"
        if stopped or error is None:
            self._status.ending = ("finished", None) if self._complete else (ended, message)
        self._status.env_steps = max(self.step, 0)
        self._status.__exit__(None if error is None else type(error), error, getattr(error, "__traceback__", None))
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        if stopped and self._signal in (None, signal.SIGINT):
            # a second Ctrl-C inside a network can come out of tensordict as another error
            raise KeyboardInterrupt(message) from error
        if stopped:
            print(message, file=sys.stderr, flush=True)
            if not isinstance(error, SystemExit):
                raise SystemExit(128 + self._signal) from error  # pyright: ignore[reportOperatorIssue]
        if late is not None:
            raise late
        if error is None and not self._complete:
            print(f"{self.folder}: {message}")
        elif error is None and self.last_return is not None:
            seconds = time.perf_counter() - self._begin
            print(f"{self.folder}: return {short(self.last_return)} after {self.step} steps, {seconds:.0f} s")

    @property
    def best_return(self) -> float:
        """Mean return of the evaluation whose policy is kept, ``-inf`` before the first."""
        return -math.inf if self._best is None else self._best["evaluation"]["mean_return"]

    @property
    def _name(self) -> str:
        return getattr(self._env, "env_name", type(self._env).__name__)

    @property
    def _fingerprint(self) -> dict[str, Any]:
        """What a run must share with the checkpoint that it resumes: it cannot take effect any more."""
        fixed = flat({name: self._config[name] for name in ("env", "data", "held_out") if self._config.get(name)})
        return {
            **self._space,
            "algorithm": self._labels["algorithm"],
            "seed": self.settings.seed,
            "warmup_steps": self.settings.warmup_steps,
            **{name: value for name, value in fixed.items() if name.removeprefix("env.") not in _ENV_MAY_CHANGE},
        }

    def _restore(self, checkpoint: Path) -> None:
        saved = load_checkpoint(checkpoint, fingerprint=self._fingerprint)
        self.step = self._saved_at = saved["step"]
        if self.step > (given := self.settings.env_steps):
            raise ValueError(f"env_steps must be at least {self.step}, as in {checkpoint}: got {given}.")
        self._complete = self.step == given
        self._sums, self._seconds, self._restart = saved["sums"], dict(saved.get("seconds", {})), True
        self._best, self._evaluation = copy.deepcopy((saved["best"], saved["evaluation"]))
        restore_state(saved["parts"], **self._parts)

    def _add(self, name: str, value: Any) -> None:
        total = self._sums.setdefault(name, [0.0, 0])
        total[0], total[1] = total[0] + value, total[1] + 1

    def _record(self, *, final: bool) -> None:
        settings, step = self.settings, self.step
        self._check_losses(torch.Tensor)
        if step % settings.log_every == 0 or final:
            means = {name: total / count for name, (total, count) in self._sums.items()}
            cpu = time.process_time()
            self._logger.log(means | self._seconds | {_CPU: cpu - self._cpu_begin}, step)
            self._cpu_begin = cpu
            self._status.update(step)  # pyright: ignore[reportOptionalMemberAccess]
            self._sums, self._seconds = {}, {}
            release_memory()
        every = settings.eval_every
        if self._evaluate is not None and every is not None and (step % every == 0 or final):
            self._lap(None)
            self._evaluate_policy(settings.final_episodes if final else settings.eval_episodes)
        since, every = step - self._saved_at, settings.checkpoint_every or math.inf
        if final or (since >= every and self._episode_ended) or since >= 2 * every:
            self._save()
        self._complete = final

    def _evaluate_policy(self, num_episodes: int) -> None:
        seed = self.settings.seed + 1_000_003 * (self.step + 1)
        rows = self._evaluate(num_episodes=num_episodes, seed=seed)  # pyright: ignore[reportOptionalCall]
        labels = {"env": self._name, **self._labels, "seed": self.settings.seed}
        self._logger.log_evaluation(rows, self.step, **labels, warmup_steps=self.settings.warmup_steps)
        self.last_return = float(sum(row["episode_return"] for row in rows) / len(rows))
        self._evaluation = {"mean_return": self.last_return, "num_episodes": len(rows), "env_steps": self.step}
        if self.last_return > self.best_return:
            self._best = self._policy_content()
            save_policy(self.folder / CHECKPOINT_FOLDER / BEST_POLICY_FILE, self._best)

    def _save(self) -> None:
        self._saved_at, self._restart = self.step, True
        state = {
            "step": self.step,
            "sums": self._sums,
            "seconds": {**self._seconds, _CPU: time.process_time() - self._cpu_begin},
            "space": self._space,
            "evaluation": self._evaluation,
            "best": self._best,
            "parts": capture_state(**self._parts),
        }
        keep = self.settings.keep_checkpoints
        save_checkpoint(checkpoint_path(self.folder, self.step), state, fingerprint=self._fingerprint, keep_last=keep)
        self._save_policies()

    def _save_policies(self) -> None:
        for file, content in ((POLICY_FILE, self._policy_content()), (BEST_POLICY_FILE, self._best)):
            if content is not None:
                save_policy(self.folder / CHECKPOINT_FOLDER / file, content)

    def _policy_content(self) -> dict[str, Any]:
        policy: Any = self._policy
        return policy_content(policy, self._network, self._space, self._config, self.step, self._evaluation)

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

    def _take_signals(self) -> None:
        """Handles Ctrl-C, SIGTERM, and where a launcher such as submitit handles it, its signal of a time limit."""
        if threading.current_thread() is not threading.main_thread():
            return
        for name in ("SIGINT", "SIGTERM", "SIGUSR2"):
            if (number := getattr(signal, name, None)) is None:  # Windows has no SIGUSR2
                continue
            before = signal.getsignal(number)
            # None is a handler that Python did not install and cannot restore; one for SIGTERM knows what to do
            ours = {"SIGINT": before is not None, "SIGTERM": before == signal.SIG_DFL, "SIGUSR2": callable(before)}
            if ours[name]:
                self._old_handlers[number] = signal.signal(number, self._interrupt)

    def _interrupt(self, number: int, frame: Any) -> None:
        again, self._signal = self._signal is not None, number
        if again:
            raise (KeyboardInterrupt if number == signal.SIGINT else SystemExit)(128 + number)
        print("\nstopping after this step; a second signal stops at once", file=sys.stderr, flush=True)

    def _stop(self, number: int) -> None:
        """Saves between two steps, and ends the loop as the signal asks."""
        if not self._complete and (self._saved_at != self.step or latest_checkpoint(self.folder) is None):
            self._save()
        if number not in (signal.SIGINT, signal.SIGTERM):
            self._old_handlers[number](number, None)  # queues the job again, and exits
            self._signal = None
            return
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)


def _resume_option(folder: Path) -> str:
    return f"resume={folder}" if re.fullmatch(r"[\w./\\:~-]+", str(folder)) else f"'resume=\"{folder}\"'"


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


def _check_networks(loss: Any) -> None:
    """Losses of TorchRL set no scales, and SACLoss learns one value from each critic."""
    if not isinstance(loss, LossModule) or isinstance(loss, SoftActorCriticLoss):
        return
    kind = type(loss).__name__
    for name in ("actor_network", "qvalue_network"):  # not among its children
        for module in (getattr(loss, name, None) or nn.Module()).modules():
            if isinstance(module, Normalizer):
                raise ValueError(f"normalize must be False for networks of {kind}, which sets no scales: got True.")
            count = module.network[-1].out_features if isinstance(module, StateActionNetwork) else 1
            if count != 1 and isinstance(loss, SACLoss):
                raise ValueError(f"num_quantiles must be 1 for critics of {kind}: got {count}.")
