"""What :func:`~eqr_torchrl.envs.make_env` puts between a simulator and the agent."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torchrl.data import Bounded, Composite, TensorSpec, Unbounded
from torchrl.envs.transforms import Transform


class VectorObservation(Transform):
    r"""One float32 vector in, one float32 vector out: joins observation entries and casts rewards and actions.

    Does the work of TorchRL's ``CatTensors`` followed by ``DoubleToFloat`` in one pass, at a fraction of their time.
    The entries are joined in alphabetical order of their keys, the published order for the DeepMind Control tasks.
    The result is always a copy, so a simulator that writes each observation into the same array is harmless.

    Args:
        in_keys: observation entries to join, each of shape ``[*B, n]`` and in the simulator's own units; they are
            sorted, and removed from the output unless one of them is ``out_key``.
        out_key: entry that receives the vector, shape ``[*B, S]``, ``float32``. Defaults to ``"observation"``.
        reward_key: entry that is cast with it, shape ``[*B, 1]``. Defaults to ``"reward"``.

    Raises:
        ValueError: if ``in_keys`` is empty.

    Examples:
        >>> from tensordict import TensorDict
        >>> td = TensorDict({"velocity": torch.ones(2).double(), "position": torch.zeros(1).double()})
        >>> VectorObservation(["velocity", "position"])(td)["observation"]
        tensor([0., 1., 1.])
    """

    def __init__(
        self, in_keys: Sequence[NestedKey], out_key: NestedKey = "observation", *, reward_key: NestedKey = "reward"
    ) -> None:
        if not in_keys:
            raise ValueError("in_keys must name at least one observation entry: got none.")
        super().__init__(in_keys=sorted(in_keys, key=_dotted), out_keys=[out_key])
        self._keys, self._out_key, self._reward_key = list(self.in_keys or ()), out_key, reward_key
        self._drop = [key for key in self._keys if key != out_key]

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        parts = [next_tensordict.get(key) for key in self._keys]
        next_tensordict.set(self._out_key, torch.cat(parts, -1).to(torch.float32))
        for key in self._drop:
            next_tensordict.pop(key)
        return next_tensordict

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._call(tensordict)

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return self._call(tensordict_reset)

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        reward = next_tensordict.get(self._reward_key)
        if reward.dtype != torch.float32:
            next_tensordict.set(self._reward_key, reward.to(torch.float32))
        return self._call(next_tensordict)

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        spec = observation_spec.clone()
        parts = [spec[key] for key in self._keys]
        size = sum(part.shape[-1] for part in parts)
        for key in self._drop:
            del spec[key]
        # Unbounded: rounding, or a world model's prediction, may leave a simulator's box.
        spec[self._out_key] = Unbounded((*spec.shape, size), device=parts[0].device, dtype=torch.float32)
        return spec

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        spec = reward_spec.clone()
        old = spec[self._reward_key]
        spec[self._reward_key] = Unbounded(old.shape, device=old.device, dtype=torch.float32)
        return spec

    def transform_action_spec(self, action_spec: TensorSpec) -> TensorSpec:
        spec = action_spec.clone()
        for key, leaf in list(spec.items(True, True)):
            spec[key] = _float32_bounds(leaf)
        return spec


class ActionCost(Transform):
    r"""Charges for effort: :math:`r \leftarrow r - \rho \sum_i a_i^2`, with the action of that step.

    The wrapper of the paper's action-cost study (Luis et al., 2024, `arXiv:2308.06590
    <https://arxiv.org/abs/2308.06590>`_), where :math:`\rho` is 0.001 or 0.003 on cartpole-swingup_sparse and 0.01 or
    0.03 on pendulum-swingup.

    Args:
        cost: :math:`\rho \ge 0`, in units of reward per squared unit of action.
        action_key: entry with the action in environment units, shape ``[*B, A]``.
        reward_key: entry that is charged, shape ``[*B, 1]``.

    Raises:
        ValueError: if ``cost`` is negative or not finite.

    Examples:
        >>> from torchrl.envs import GymEnv, TransformedEnv
        >>> env = TransformedEnv(GymEnv("Pendulum-v1"), ActionCost(0.5))
        >>> td = env.reset().set("action", torch.tensor([2.0]))
        >>> charged = env.step(td)["next", "reward"]
    """

    def __init__(self, cost: float, *, action_key: NestedKey = "action", reward_key: NestedKey = "reward") -> None:
        if not 0.0 <= cost < float("inf"):
            raise ValueError(f"cost must be a finite number of at least 0: got {cost}.")
        super().__init__(in_keys=[reward_key], out_keys=[reward_key])
        self.cost, self._action_key, self._reward_key = float(cost), action_key, reward_key

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        reward = next_tensordict.get(self._reward_key)
        effort = tensordict.get(self._action_key).to(reward.dtype).square().sum(-1, keepdim=True)
        return next_tensordict.set(self._reward_key, reward - self.cost * effort)

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        spec = reward_spec.clone()
        old = spec[self._reward_key]
        spec[self._reward_key] = Unbounded(old.shape, device=old.device, dtype=old.dtype)
        return spec


def _dotted(key: NestedKey) -> str:
    return key if isinstance(key, str) else ".".join(key)


def _float32_bounds(spec: TensorSpec) -> TensorSpec:
    """The same box in float32, rounded inwards: an action on our bound must lie inside the simulator's."""
    if spec.dtype == torch.float32:
        return spec
    low, high = spec.space.low, spec.space.high
    low32, high32 = low.to(torch.float32), high.to(torch.float32)
    up, down = torch.full_like(low32, float("inf")), torch.full_like(high32, float("-inf"))
    low32 = torch.where(low32.to(low.dtype) < low, torch.nextafter(low32, up), low32)
    high32 = torch.where(high32.to(high.dtype) > high, torch.nextafter(high32, down), high32)
    return Bounded(low32, high32, shape=spec.shape, device=spec.device, dtype=torch.float32)
