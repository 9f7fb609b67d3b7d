"""Checks on the transitions of a real environment, before they reach the simulator or a replay buffer."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Sequence

import torch
from tensordict import TensorDictBase
from torchrl.data import Composite
from torchrl.envs.transforms import Transform

from eqr_torchrl.imagination.terminations import TerminationFn, checked, never_terminates
from eqr_torchrl.lab.envs.transforms import with_unbounded_reward

_MACHINERY = {"eqr_torchrl", "tensordict", "torch", "torchrl", "contextlib"}  # packages that call a guard in between

NOISE = "or, where sensors are noisy, expect this near the threshold"


class NonFiniteGuard(Transform):
    """Truncates the episode when the simulator returns non-finite values; raises an error when the policy does.

    If the next observation or the reward is NaN or infinite (a physics error, an overflow), a warning names the
    environment, the step is marked ``truncated``, its observation is replaced by the last finite one, and its reward is
    NaN: :func:`~eqr_torchrl.imagination.make_replay_buffer` leaves such transitions out. A non-finite *action* means
    that learning has diverged: an error, raised before the simulator is stepped.

    Args:
        env_name: named in the messages.

    Raises:
        RuntimeError: in a step, if the action is not finite; in a reset, if the observation is not.

    Examples:
        >>> env = toy_env().append_transform(NonFiniteGuard("toy"))
        >>> env.step(env.reset().set("action", torch.tensor([float("nan")])))
        Traceback (most recent call last):
        RuntimeError: the action for toy must be finite: the policy returned [nan].
    """

    def __init__(self, env_name: str = "the environment") -> None:
        super().__init__(in_keys=["observation", "reward"], out_keys=["observation", "reward"])
        self.env_name = env_name

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        observation = tensordict_reset.get("observation")
        if not torch.isfinite(observation).all():
            raise RuntimeError(f"the first observation of {self.env_name} must be finite: got {observation.tolist()}.")
        return tensordict_reset

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = tensordict.get("action", None)  # a reset has none
        if action is not None and not torch.isfinite(action).all():
            raise RuntimeError(f"the action for {self.env_name} must be finite: the policy returned {action.tolist()}.")
        return tensordict

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        observation, reward = next_tensordict.get("observation"), next_tensordict.get("reward")
        # One cheap number for the common case: a sum is finite only if every term is.
        if math.isfinite((observation.sum() + reward.sum()).item()):
            return next_tensordict
        bad = ~(torch.isfinite(observation).all(-1, keepdim=True) & torch.isfinite(reward))  # [*B, 1]
        if not bad.any():
            return next_tensordict
        _warn(f"{self.env_name} produced a non-finite observation or reward; the episode is truncated there.")
        last = tensordict.get("observation", torch.zeros_like(observation))
        next_tensordict.set("observation", torch.where(bad, last, observation))
        next_tensordict.set("reward", torch.where(bad, torch.nan, reward))
        next_tensordict.set("done", next_tensordict.get("done") | bad)
        truncated = next_tensordict.get("truncated", None)
        if truncated is not None:
            next_tensordict.set("truncated", truncated | (bad & ~next_tensordict.get("terminated")))
        return next_tensordict

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        return with_unbounded_reward(reward_spec)  # NaN is outside of all bounds


class TerminationGuard(Transform):
    """Checks in every real step that the termination rule of the world model agrees with the real environment.

    A wrong rule teaches wrong values, and no loss shows it. Each real step costs one call of the rule;
    :func:`~eqr_torchrl.lab.envs.check_env` counts disagreements beforehand.

    Args:
        termination_fn: the function the model environment uses, see :data:`~eqr_torchrl.imagination.TerminationFn`.
        env_name: named in the messages.

    Raises:
        ValueError: in a step, if ``termination_fn`` does not return bool of shape ``[*B, 1]``.
        RuntimeError: in a step, if the environment terminates and ``termination_fn`` is ``never_terminates``. Any other
            disagreement is a warning, once.

    Examples:
        >>> from eqr_torchrl.imagination import never_terminates
        >>> toy_env().append_transform(TerminationGuard(never_terminates)).rollout(5).shape
        torch.Size([5])
    """

    def __init__(self, termination_fn: TerminationFn, env_name: str = "the environment") -> None:
        super().__init__(in_keys=["terminated"], out_keys=["terminated"])
        self.termination_fn, self.env_name, self._warned = termination_fn, env_name, False

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        terminated = next_tensordict.get("terminated")
        never = self.termination_fn is never_terminates
        if self._warned or (never and not terminated.any()):
            return next_tensordict
        state, action = next_tensordict.get("observation"), tensordict.get("action")
        predicted = checked("termination_fn", self.termination_fn, state, action)
        if not (terminated ^ predicted).any():
            return next_tensordict
        missed = bool((terminated & ~predicted).any())
        real, rule = ("terminated", "no end") if missed else ("continued", "an end")
        message = (
            f"{self.env_name} {real} where termination_fn predicted {rule}: pass the rule of this environment "
            f"(termination_for(env), or your own) as termination_fn{'' if never else f', {NOISE}'}."
        )
        if missed:
            message += " If a time limit ended the episode, the environment must report it as truncated only."
        if never:
            raise RuntimeError(message)
        _warn(message)
        self._warned = True
        return next_tensordict


class RewardGuard(Transform):
    """Checks in every real step that the reward lies within the bounds to which imagined rewards are clipped.

    A bound that is too tight changes what is learned, and no loss shows it. The first reward outside is a warning.

    Args:
        bounds: smallest and largest reward of a step, in units of what the environment returns at this place.
        env_name: named in the message.

    Examples:
        >>> env = toy_env().append_transform(RewardGuard((-100.0, 0.0)))
        >>> env.rollout(5).shape
        torch.Size([5])
    """

    def __init__(self, bounds: Sequence[float], env_name: str = "the environment") -> None:
        super().__init__(in_keys=["reward"], out_keys=["reward"])
        low, high = bounds
        self.bounds, self.slack = (low, high), 1e-5 * (high - low)  # what float32 loses
        self.env_name, self._warned = env_name, False

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        reward, (low, high) = next_tensordict.get("reward"), self.bounds
        outside = (reward < low - self.slack) | (reward > high + self.slack)  # NaN, a truncated episode, is not
        if not self._warned and outside.any():
            given = f"{self.env_name} gave a reward of {reward[outside][0].item():.4g}"
            advice = "imagined rewards are clipped to these. Correct them, or reward_space of the environment"
            _warn(f"{given}, outside reward_bounds, {low:.4g} to {high:.4g}: {advice}.")
            self._warned = True
        return next_tensordict


def _warn(message: str) -> None:
    """Warns at the line of the user's code that is nearest to the guard, rather than at one of TorchRL's."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and str(frame.f_globals.get("__name__")).split(".")[0] in _MACHINERY:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, RuntimeWarning, stacklevel=level)
