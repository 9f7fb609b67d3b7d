"""What :func:`~eqr_torchrl.lab.envs.make_env` puts between a simulator and the agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey, unravel_key
from torchrl.data import Bounded, Composite, TensorSpec, Unbounded
from torchrl.envs.transforms import Transform


class VectorObservation(Transform):
    r"""Joins observation entries into one float32 vector ``observation``, and makes reward and action float32 too.

    Does the work of TorchRL's ``CatTensors`` and ``DoubleToFloat`` in less time. The entries are joined in alphabetical
    order of their keys, the published order for the DeepMind Control tasks, and always copied, so that a simulator may
    reuse its array. In the specs, the observation becomes unbounded, and the action bounds are rounded inwards, so that
    an action on the float32 bound lies within the simulator's own.

    Args:
        in_keys: observation entries to join, of shape ``[*B, n]`` or ``[*B, m, n]`` (flattened) in a batch ``[*B]``;
            they are removed from the output.

    Raises:
        ValueError: if ``in_keys`` is empty.

    Examples:
        >>> from tensordict import TensorDict
        >>> td = TensorDict({"velocity": torch.ones(2).double(), "position": torch.zeros(1).double()})
        >>> VectorObservation(["velocity", "position"])(td)["observation"]
        tensor([0., 1., 1.])
    """

    def __init__(self, in_keys: Sequence[NestedKey]) -> None:
        if not in_keys:
            raise ValueError("in_keys must name at least one observation entry: got none.")
        super().__init__(in_keys=sorted(map(unravel_key, in_keys), key=_dotted), out_keys=["observation"])

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        parts = [next_tensordict.pop(key).flatten(next_tensordict.batch_dims) for key in self.in_keys]
        joined = torch.cat(parts, -1)  # copies a single part too
        return next_tensordict.set("observation", joined.to(torch.float32))

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._call(tensordict)

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return self._call(tensordict_reset)

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        next_tensordict.set("reward", next_tensordict.get("reward").to(torch.float32))
        return self._call(next_tensordict)

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        spec = observation_spec.clone()
        parts = [spec[key] for key in self.in_keys]
        for key in self.in_keys:
            del spec[key]
        size = torch.Size([*spec.shape, sum(part.shape[len(spec.shape) :].numel() for part in parts)])
        spec["observation"] = Unbounded(size, device=parts[0].device, dtype=torch.float32)
        return spec

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        return with_unbounded_reward(reward_spec, torch.float32)

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        spec = action_spec.clone()
        spec["action"] = _float32_bounds(spec["action"])
        return spec


class ActionCost(Transform):
    r"""Charges for effort: :math:`r \leftarrow r - \rho \sum_i a_i^2`, with the action of that step.

    The reward of the paper's action-cost study (Luis et al., 2024, `arXiv:2308.06590
    <https://arxiv.org/abs/2308.06590>`_), where :math:`\rho` is 0.001 or 0.003 on cartpole-swingup_sparse and 0.01 or
    0.03 on pendulum-swingup.

    Args:
        cost: :math:`\rho \ge 0`, in units of reward per squared unit of action.

    Raises:
        ValueError: if ``cost`` is negative or not finite.

    Examples:
        >>> env = toy_env().append_transform(ActionCost(0.5))  # pays minus the squared norm of the state
        >>> step = env.step(env.reset().set("action", torch.tensor([1.0])))
        >>> step["next", "reward"] + step["observation"].square().sum()
        tensor([-0.5000])
    """

    def __init__(self, cost: float) -> None:
        if not 0.0 <= cost < float("inf"):
            raise ValueError(f"cost must be a finite number of at least 0: got {cost}.")
        super().__init__(in_keys=["reward"], out_keys=["reward"])
        self.cost = float(cost)

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        reward, action = next_tensordict.get("reward"), tensordict.get("action")
        effort = action.to(reward.dtype).square().sum(-1, keepdim=True)  # [*B, A] -> [*B, 1]
        return next_tensordict.set("reward", reward - self.cost * effort)

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        return with_unbounded_reward(reward_spec)


def _dotted(key: Any) -> str:
    return key if isinstance(key, str) else ".".join(key)


def with_unbounded_reward(reward_spec: Composite, dtype: torch.dtype | None = None) -> Composite:
    """What a transform that changes the reward states of it."""
    spec = reward_spec.clone()
    old = spec["reward"]
    spec["reward"] = Unbounded(old.shape, device=old.device, dtype=dtype or old.dtype)
    return spec


def _float32_bounds(spec: TensorSpec) -> TensorSpec:
    box: Any = spec.space
    low, high = box.low.to(torch.float32), box.high.to(torch.float32)
    low = torch.where(low < box.low, low.nextafter(high), low)  # promoted to the type of the box
    high = torch.where(high > box.high, high.nextafter(low), high)
    return Bounded(low, high, shape=spec.shape, device=spec.device, dtype=torch.float32)
