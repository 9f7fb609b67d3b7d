"""Acting in a process of its own, for an environment that does not wait while the learner computes."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl.collectors import AsyncCollector, Collector
from torchrl.envs import EnvBase
from torchrl.envs.utils import set_exploration_type, step_mdp

from eqr_torchrl.lab.evaluation import seed_everything

__all__ = ["ActingProcess"]

_TO_CLOSE = 60.0  # seconds, for an environment that has to come to rest


class ActingProcess:
    """Transitions of an environment that is acted in by another process, while learning goes on in this one.

    The process is TorchRL's ``AsyncCollector`` of whole episodes: while the loop learns from one, the process acts in
    the next. The process then waits, before it resets the environment, until the loop asks for the episode that is
    ready. Pauses between episodes, never within one, keep the ratio of updates to steps. The weights are sent in the
    pause: an episode has one policy, trained on all episodes except the previous one. The loop iterates over single
    transitions, as over those of a TorchRL ``Collector``.

    The environment, its time limit and its guards live in the process, which opens it when the iteration begins and
    closes it when that ends. Warnings appear on the error stream; an error is raised where the loop asks for the next
    transition. If the learner is killed, the process ends the episode at its next step and closes the environment.
    Ctrl-C and SIGTERM are left to the learner. Garbage is collected only between episodes, and the process has
    real-time priority where the system allows it (``CAP_SYS_NICE`` of Linux): it sleeps for most of the time.

    Args:
        open_env: opens the environment, a single one whose episodes end. Close the same plant first if it is already
            open.
        policy: the policy that learns, on any device; the process acts with a copy on one thread of the CPU.
        prepare: called with the opened environment, such as :func:`~eqr_torchrl.lab.envs.add_guards`. Defaults to
            ``None``.

    Examples:
        >>> acting = ActingProcess(toy_env, toy_actor())
        >>> acting.running  # before the iteration begins
        False
    """

    def __init__(
        self,
        open_env: Callable[[], EnvBase],
        policy: TensorDictModuleBase,
        *,
        prepare: Callable[[EnvBase], None] | None = None,
    ) -> None:
        self._open_env = functools.partial(_open, open_env, prepare)
        self._policy, self._seed, self.running = policy, None, False

    def set_seed(self, seed: int) -> None:
        """Seeds environment and actions of the next iteration; a running iteration does not change."""
        self._seed = seed

    def reset(self) -> None:
        """Does nothing: every episode begins with a reset, and none is truncated."""

    def __iter__(self) -> Iterator[TensorDictBase]:
        control, theirs = multiprocessing.Pipe()
        threads, collector = torch.get_num_threads(), None
        try:
            collector = _Process(self._open_env, self._policy, theirs, self._seed)
            self.running = True
            for episode in collector:
                yield from episode.split(1)
        except Exception as error:
            text = str(error).partition("\n")[0]
            with contextlib.suppress(EOFError, OSError):  # the process has ended without a word
                text = control.recv() if control.poll() else text
            raise RuntimeError(text) from error
        finally:
            control.close()  # ends the episode at its next step
            if collector is not None:
                collector.shutdown(_TO_CLOSE, raise_on_error=False)
            torch.set_num_threads(threads)  # TorchRL leaves others
            self.running = False


class _Process(AsyncCollector):
    def __init__(
        self, open_env: Callable[[], EnvBase], policy: TensorDictModuleBase, control: Connection, seed: int | None
    ) -> None:
        self._learner = policy
        super().__init__(
            open_env,
            # a copy: TorchRL would share the memory of the learner's own weights, which change with every update
            copy.deepcopy(policy).requires_grad_(False).to("cpu"),
            frames_per_batch=1,
            collector_class=functools.partial(_Episodes, control=control, seed=seed),  # pyright: ignore
            init_fn=functools.partial(_prepare, (torch.initial_seed() + 1 if seed is None else seed) % 2**31),
            update_at_each_batch=True,
            use_buffers=False,  # episodes differ in length
            env_device="cpu",
            policy_device="cpu",
            storing_device="cpu",
            auto_register_policy_transforms=False,
        )
        control.close()  # the other process has its own; one of them closed shows that the other process has ended

    def update_policy_weights_(self, policy_or_weights: Any = None, **kwargs: Any) -> None:
        super().update_policy_weights_(self._learner if policy_or_weights is None else policy_or_weights, **kwargs)


class _Episodes(Collector):
    """In the process: an episode at a time, from a reset that happens when the learner has asked for it."""

    def __init__(self, *args: Any, control: Connection, seed: int | None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.env.batch_size:
            raise ValueError(f"one environment is needed to act while learning: got {self.env.batch_size.numel()}.")
        self._control = control
        if seed is not None:
            self.env.set_seed(seed)
        self.policy(self.env.fake_tensordict())  # the first call takes much longer than a step

    @torch.no_grad()
    def rollout(self) -> TensorDictBase:
        gc.collect()  # takes longer than a step
        gc.disable()
        try:
            with set_exploration_type(self.exploration_type):
                return TensorDict.stack(list(self._steps()))  # pyright: ignore[reportReturnType]
        except Exception as error:
            self._control.send(str(error))
            raise SystemExit(1) from None

    def _steps(self) -> Iterator[TensorDictBase]:
        tensordict, done = self.env.reset(), False
        while not done:
            tensordict = self.env.step(self.policy(tensordict))
            yield tensordict
            # there is something to read when the other end is closed
            done = bool(tensordict["next", "done"].any()) or self._control.poll()
            tensordict = step_mdp(tensordict)


def _open(open_env: Callable[[], EnvBase], prepare: Callable[[EnvBase], None] | None) -> EnvBase:
    env = open_env()
    if prepare is not None:
        prepare(env)
    return env


def _prepare(seed: int) -> None:
    """At the start of the process."""
    for name in ("SIGINT", "SIGTERM", "SIGUSR2"):  # sent to all processes of a job: the learner says when to end
        if (number := getattr(signal, name, None)) is not None:
            signal.signal(number, signal.SIG_IGN)
    warnings.filterwarnings("default", category=RuntimeWarning)  # those of guards, which TorchRL would hide
    torch.set_num_threads(1)
    seed_everything(seed)
    with contextlib.suppress(AttributeError, OSError):  # another system, or no permission
        # before the learner and everything else: it sleeps for most of the time
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
