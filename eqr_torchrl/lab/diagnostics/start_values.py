"""The figure at the end of a run: the critic's posterior beside the values in its own models."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from tensordict.nn import TensorDictModuleBase
from torchrl.envs import EnvBase

from eqr_torchrl.imagination import ModelBasedEnv
from eqr_torchrl.lab.diagnostics.critic_values import value_quantiles
from eqr_torchrl.lab.diagnostics.plots import plot_value_distribution
from eqr_torchrl.lab.diagnostics.spread import value_spread

TAIL = 0.01  # share of a value that may lie beyond the end of a rollout
_STATES, _ROLLOUTS = 3, 10  # start states, and rollouts from each in each member


def tail_steps(gamma: float) -> int:
    """Steps after which 1 % of a value of discount ``gamma`` is left; without discount 1,000.

    Examples:
        >>> tail_steps(0.99), tail_steps(0.0), tail_steps(1.0)
        (459, 1, 1000)
    """
    return math.ceil(math.log(TAIL) / math.log(gamma)) if 0 < gamma < 1 else int(1 + 999 * gamma)


def plot_start_values(
    env: EnvBase,
    policy: TensorDictModuleBase,
    critic: TensorDictModuleBase,
    model_env: ModelBasedEnv,
    path: str | Path,
    *,
    gamma: float,
    alpha: float = 0.0,
) -> str | None:
    """Draws the critic's posterior at a few start states beside the values of the members; the title compares them.

    No real episode is run, so the title never states that a critic is calibrated: ``examples/diagnose.py`` judges that.
    Rollouts end where 1 % of the value is left, or after 1,000 steps.

    Args:
        env: the real environment; reset three times.
        policy: acts; its actions are sampled.
        critic: as in :func:`value_quantiles`.
        model_env: the world model as an environment, M members.
        path: file to write.
        gamma: discount.
        alpha: entropy temperature, as in :func:`sample_episodes`.

    Returns:
        The title; ``None``, and no figure, for a critic of a single atom, which is no distribution.

    Examples:
        >>> from eqr_torchrl.imagination import never_terminates
        >>> from eqr_torchrl.world_models import GaussianEnsemble
        >>> model_env = ModelBasedEnv(GaussianEnsemble(3, 1, num_members=5), toy_env(), termination_fn=never_terminates)
        >>> plot_start_values(toy_env(), toy_actor(), toy_critic(), model_env, folder / "start.png", gamma=0.5)[:6]
        'The cr'
    """
    observations = [env.reset()["observation"] for _ in range(_STATES)]
    observation = torch.stack(observations).flatten(0, -2)[:_STATES]  # of several environments, one after the other
    if value_quantiles(critic, policy, observation[:1]).shape[-1] < 2:
        return None
    horizon = min(tail_steps(gamma), 1000)
    spread = value_spread(
        model_env, policy, critic, observation, horizon=horizon, gamma=gamma, alpha=alpha, num_rollouts=_ROLLOUTS
    )
    verdict = "Not converged: the" if spread.error > 2 * max(spread.critic_std, spread.member_std) else "The"
    title = (
        f"{verdict} critic is {spread.error:.3g} from its models; standard deviation {spread.critic_std:.3g}, of its "
        f"models {spread.member_std:.3g}; not compared with real episodes"
    )
    atoms: Any = spread.atoms
    labels = [f"start state {i + 1}" for i in range(_STATES)]
    plot_value_distribution(atoms, labels, path, member_values=spread.members, title=title)
    return title
