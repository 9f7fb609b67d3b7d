"""The critic's value posterior at given states and over a plane of states."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.envs.utils import ExplorationType, set_exploration_type

from eqr_torchrl.lab.evaluation import device_of, evaluation_mode, isolated_rng


@torch.no_grad()
def value_quantiles(
    critic: TensorDictModuleBase,
    policy: TensorDictModuleBase,
    observation: Tensor,
    *,
    num_actions: int | None = None,
    seed: int = 0,
) -> Tensor:
    """Quantiles of a critic's value posterior at given states under a policy, in units of return, shape ``[..., N]``.

    Args:
        critic: reads ``observation`` and ``action``, writes ``state_action_value``, shape ``[..., N]``.
        policy: reads ``observation``, writes ``action``.
        observation: states, in units of the environment, shape ``[..., S]``.
        num_actions: actions sampled at each state, whose quantiles are averaged level by level. Defaults to ``None``:
            the deterministic action.
        seed: of the sampled actions; the global generators are untouched.

    Raises:
        ValueError: if ``num_actions`` is not positive.

    Examples:
        >>> value_quantiles(toy_critic(num_quantiles=7), toy_actor(), torch.zeros(4, 3), num_actions=5).shape
        torch.Size([4, 7])
    """
    if num_actions is not None and num_actions < 1:
        raise ValueError(f"num_actions must be positive or None, got {num_actions}.")
    observation = observation.to(device_of(critic) or observation.device)
    states = observation.unsqueeze(-2).expand(*observation.shape[:-1], num_actions or 1, observation.shape[-1])
    mode = ExplorationType.DETERMINISTIC if num_actions is None else ExplorationType.RANDOM
    with isolated_rng(seed), evaluation_mode(critic, policy), set_exploration_type(mode):
        tensordict = policy(TensorDict({"observation": states}, states.shape[:-1]))
        return critic(tensordict)["state_action_value"].mean(-2)


def value_map(
    critic: TensorDictModuleBase,
    policy: TensorDictModuleBase,
    x: Tensor,
    y: Tensor,
    *,
    observation: Tensor | None = None,
    entries: tuple[int, int] = (0, 1),
) -> tuple[Tensor, Tensor]:
    """Mean and epistemic standard deviation of the value on a plane of states, under the deterministic policy.

    Args:
        critic: as in :func:`value_quantiles`.
        policy: as in :func:`value_quantiles`.
        x: values of the first varied state entry, shape ``[X]``.
        y: values of the second, shape ``[Y]``.
        observation: the rest of the state, shape ``[S]``. Defaults to ``None``, for states of two entries.
        entries: which entries of the state ``x`` and ``y`` are.

    Returns:
        Mean and standard deviation (unbiased over the quantiles; 0 for a single one), each ``[Y, X]``.

    Examples:
        >>> critic, policy, x, y = toy_critic(), toy_actor(), torch.linspace(-1, 1, 6), torch.zeros(4)
        >>> value_map(critic, policy, x, y, observation=torch.zeros(3))[0].shape
        torch.Size([4, 6])
    """
    base = torch.zeros(2, device=x.device) if observation is None else observation
    states = base.expand(len(y), len(x), -1).clone()
    states[..., entries[0]] = x
    states[..., entries[1]] = y.unsqueeze(-1)
    quantiles = value_quantiles(critic, policy, states)
    return quantiles.mean(-1), quantiles.std(-1, correction=min(1, quantiles.shape[-1] - 1))
