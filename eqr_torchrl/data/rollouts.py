"""Imagined transitions, branched off the states that were really visited."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor
from torchrl.data import ReplayBuffer
from torchrl.envs.utils import ExplorationType, set_exploration_type

from eqr_torchrl.envs.model_based import ModelBasedEnv
from eqr_torchrl.functional import onednn_products

TRANSITION_KEYS = (
    "observation",
    "action",
    ("next", "observation"),
    ("next", "reward"),
    ("next", "terminated"),
    ("next", "done"),
)


@torch.no_grad()
@onednn_products()
def branched_rollout(
    model_env: ModelBasedEnv,
    policy: Callable[[TensorDictBase], TensorDictBase],
    states: Tensor,
    model_buffer: ReplayBuffer,
    *,
    num_starts: int,
    horizon: int,
    keys: Sequence[NestedKey] = TRANSITION_KEYS,
    chunk_size: int = 4096,
) -> dict[str, float]:
    r"""Rolls the policy out in every member, from states drawn uniformly with replacement, into the model buffer.

    Lines 9 to 12 of Algorithm 2 of `Luis et al. (2024) <https://arxiv.org/abs/2308.06590>`_; branched rollouts are due
    to `Janner et al. (2019) <https://arxiv.org/abs/1906.08253>`_. A row ends with the transition that terminates.
    Transitions whose prediction is not finite are dropped with the rest of their row.

    Args:
        model_env: the world model as an environment of ``M`` members.
        policy: writes ``action``; sampled, not its mode.
        states: real states, in environment units, shape ``[n, S]``.
        model_buffer: where the transitions go.
        num_starts: start states of each member. In ``"resampled"`` mode rows are not bound to a member, and the total
            of ``M * num_starts`` rows counts.
        horizon: steps of each rollout, ``T``.
        keys: what to store. A loss that draws its own successors reads ``("observation", "action")`` alone, which is
            half the memory. ``"member"``, int64, is available too: the member that a row stays in, or ``-1`` in
            ``"resampled"`` mode.
        chunk_size: rows of each member that are simulated at once, which bounds the memory.

    Returns:
        ``rows`` written, ``dropped`` rows that were not finite, and the mean ``reward`` of the written ones.

    Raises:
        ValueError: if ``states`` is empty, a number is not positive, or a key is unknown.

    Examples:
        >>> from eqr_torchrl.data import make_model_buffer
        >>> from eqr_torchrl.envs import ModelBasedEnv, never_terminates
        >>> from eqr_torchrl.world_models import GaussianEnsemble
        >>> model = GaussianEnsemble(3, 1, num_members=5, num_cells=(8,))
        >>> model_env = ModelBasedEnv(model, toy_env(), termination_fn=never_terminates)
        >>> buffer = make_model_buffer(1000, batch_size=4)
        >>> branched_rollout(model_env, toy_actor(), torch.zeros(7, 3), buffer, num_starts=10, horizon=3)["rows"]
        150
    """
    for name, value in (("num_starts", num_starts), ("horizon", horizon), ("chunk_size", chunk_size)):
        if value < 1:
            raise ValueError(f"{name} must be positive, got {value}.")
    if states.ndim != 2 or not len(states):
        raise ValueError(f"states must be of shape [n, S] with n > 0, got {tuple(states.shape)}.")
    unknown = [key for key in keys if key not in (*TRANSITION_KEYS, "member")]
    if unknown:
        raise ValueError(f"keys must be among {(*TRANSITION_KEYS, 'member')}, got {unknown}.")
    keys, num_members, device = list(keys), model_env.world_model.num_members, model_env.device
    fixed = model_env.member == "fixed"
    rows, dropped, reward_sum = 0, 0, torch.zeros((), device=device, dtype=torch.float64)
    for begin in range(0, num_starts, chunk_size):
        size = (num_members, min(chunk_size, num_starts - begin))
        index = torch.randint(len(states), size, device=states.device, generator=model_env.generator)
        observation = states[index].to(device)
        member = torch.arange(num_members, device=device) if fixed else torch.full((num_members,), -1, device=device)
        member = member[:, None, None].expand(*size, 1)
        alive = torch.ones(size, dtype=torch.bool, device=device)
        for _ in range(horizon):
            with set_exploration_type(ExplorationType.RANDOM):
                action = policy(TensorDict({"observation": observation}, size)).get("action")
            next_observation, reward, terminated = model_env.advance(observation, action)
            step = {
                "observation": observation,
                "action": action,
                ("next", "observation"): next_observation,
                ("next", "reward"): reward,
                ("next", "terminated"): terminated,
                ("next", "done"): terminated,
                "member": member,
            }
            finite = torch.isfinite(next_observation).all(-1) & torch.isfinite(reward).all(-1)
            stored = alive & finite
            transitions = TensorDict({}, size)
            for key in keys:
                transitions.set(key, step[key])
            transitions = transitions.reshape(-1) if stored.all() else transitions[stored]
            count = transitions.batch_size.numel()
            if count:
                model_buffer.extend(transitions)  # pyright: ignore[reportArgumentType]
            rows, dropped = rows + count, dropped + int((alive & ~finite).sum())
            reward_sum += torch.where(stored, reward.squeeze(-1), 0.0).sum()
            alive = stored & ~terminated.squeeze(-1)
            if not alive.any():
                break
            # rows that are over go on from harmless states, so that their predictions stay finite
            observation = torch.where(alive.unsqueeze(-1), next_observation, observation)
    return {"rows": rows, "dropped": dropped, "reward": float(reward_sum) / max(rows, 1)}
