"""Posterior sampling for reinforcement learning: explore by acting optimally in a sampled MDP."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.envs import EnvBase

from eqr_torchrl.tabular.mdp import MDP
from eqr_torchrl.tabular.posterior import ConjugatePosterior
from eqr_torchrl.tabular.solve import policy_iteration, policy_values
from eqr_torchrl.tabular.statistics import count_transitions


class PSRLResult(NamedTuple):
    """What :func:`psrl` returns."""

    policy: Tensor
    posterior: ConjugatePosterior
    episode_returns: Tensor
    regret: Tensor | None


def psrl(
    env: EnvBase,
    posterior: ConjugatePosterior,
    *,
    num_episodes: int,
    horizon: int,
    true_mdp: MDP | None = None,
    progress: Callable[[int], object] | None = None,
    generator: torch.Generator | None = None,
) -> PSRLResult:
    r"""Runs PSRL, once for each element of the batch of ``env``, independently.

    Each episode draws an MDP from the posterior, follows its optimal policy for ``horizon`` steps or until the
    episode ends, and updates the posterior. `Osband et al. (2013) <https://arxiv.org/abs/1306.0940>`_.

    Args:
        env: environment with integer ``observation`` and ``action``, batch size ``[*R]``.
        posterior: prior over MDPs, batch shape ``[]`` or ``[*R]``, over the states that ``env`` observes.
        num_episodes: number of episodes.
        horizon: longest episode, in steps.
        true_mdp: what the regret is measured in; ``env.mdp`` of a :class:`MDPEnv`.
        progress: called after each episode with the number of episodes made, 1, as ``tqdm.update``.
        generator: random generator for the posterior; the environment has its own.

    Returns:
        ``policy``, actions of the last sampled MDP's optimal policy, int64, shape ``[*R, S]``; ``posterior`` after the
        last episode, batch shape ``[*R]``; ``episode_returns``, undiscounted, shape ``[episodes, *R]``; ``regret``,
        :math:`v^*(s_0) - v^{\pi_k}(s_0)` under ``true_mdp``, in units of return, shape ``[episodes, *R]``, or ``None``.

    Raises:
        ValueError: if ``num_episodes`` or ``horizon`` is not positive.

    Examples:
        >>> from eqr_torchrl.tabular import MDPEnv, nroom_mdp, nroom_prior
        >>> env = MDPEnv(nroom_mdp(left_prize_ends_episode=True), batch_size=(2,))
        >>> result = psrl(env, nroom_prior(), num_episodes=3, horizon=15, true_mdp=env.mdp)
        >>> result.regret.shape
        torch.Size([3, 2])
    """
    for name, value in (("num_episodes", num_episodes), ("horizon", horizon)):
        if value < 1:
            raise ValueError(f"{name} must be positive, got {value}.")
    runs = tuple(env.batch_size)
    best = torch.zeros(()) if true_mdp is None else policy_iteration(true_mdp)[1][..., true_mdp.initial_state]
    returns, regret = [], []
    for _ in range(num_episodes):
        sample_shape = () if tuple(posterior.batch_shape) == runs else runs
        policy, _ = policy_iteration(posterior.sample(sample_shape, generator=generator))
        rollout = env.rollout(horizon, partial(_follow, policy), break_when_any_done=not runs)
        statistics = count_transitions(rollout, posterior.num_states, posterior.num_actions)
        posterior = posterior.update(statistics)
        returns.append(statistics.reward_sums.sum((-1, -2)))
        if true_mdp is not None:
            regret.append(best - policy_values(true_mdp, policy)[..., true_mdp.initial_state])
        if progress is not None:
            progress(1)
    return PSRLResult(policy, posterior, torch.stack(returns), torch.stack(regret) if regret else None)


def _follow(policy: Tensor, tensordict: TensorDictBase) -> TensorDictBase:
    action = policy.gather(-1, tensordict["observation"].unsqueeze(-1))  # of a table [*R, S]
    return tensordict.set("action", action.squeeze(-1))
