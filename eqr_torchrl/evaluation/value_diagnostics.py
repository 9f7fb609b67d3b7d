"""Diagnostics of the value posterior: what the critic says, what the models say, and what really comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, set_exploration_type

from eqr_torchrl.envs import ModelBasedEnv
from eqr_torchrl.evaluation.evaluate import evaluation_mode, isolated_rng


@torch.no_grad()
def value_quantiles(
    critic: TensorDictModuleBase,
    policy: TensorDictModuleBase,
    observation: Tensor,
    *,
    num_actions: int | None = None,
    seed: int = 0,
) -> Tensor:
    """Quantiles of a critic's value posterior at given states under a policy.

    Args:
        critic: reads ``observation`` and ``action``, writes ``state_action_value``, shape ``[..., N]``.
        policy: reads ``observation``, writes ``action``.
        observation: states, in units of the environment, shape ``[..., S]``.
        num_actions: actions sampled at each state, whose quantiles are averaged level by level. Defaults to ``None``:
            the deterministic action, squashed into its bounds (the paper's maps used unsquashed ones).
        seed: of the sampled actions; the global generators are untouched.

    Returns:
        Quantiles in units of return, as the critic orders them, shape ``[..., N]``.

    Raises:
        ValueError: if ``num_actions`` is not positive.

    Examples:
        >>> value_quantiles(toy_critic(num_quantiles=7), toy_actor(), torch.zeros(4, 3), num_actions=5).shape
        torch.Size([4, 7])
    """
    if num_actions is not None and num_actions < 1:
        raise ValueError(f"num_actions must be positive or None: got {num_actions}.")
    observation = observation.to(_device(critic) or observation.device)
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
        >>> mean, std = value_map(
        ...     toy_critic(), toy_actor(), torch.linspace(-1, 1, 6), torch.zeros(4), observation=torch.zeros(3)
        ... )
        >>> mean.shape
        torch.Size([4, 6])
    """
    base = torch.zeros(2, device=x.device) if observation is None else observation
    states = base.expand(len(y), len(x), -1).clone()
    states[..., entries[0]] = x
    states[..., entries[1]] = y.unsqueeze(-1)
    quantiles = value_quantiles(critic, policy, states)
    return quantiles.mean(-1), quantiles.std(-1, correction=min(1, quantiles.shape[-1] - 1))


class Episodes(NamedTuple):
    """Real episodes, with what their rewards were worth; see :func:`sample_episodes`."""

    transitions: list[TensorDictBase]
    returns: list[Tensor]
    tail_weight: list[Tensor]


@torch.no_grad()
def sample_episodes(
    env: EnvBase,
    policy: TensorDictModuleBase,
    *,
    num_episodes: int,
    max_steps: int,
    gamma: float,
    alpha: float = 0.0,
    deterministic: bool = False,
    seed: int = 0,
    reset_fn: Callable[[EnvBase], TensorDictBase] | None = None,
) -> Episodes:
    r"""Runs a policy in the real environment and discounts the rewards from every visited state on.

    .. math:: G_t = r_t + \gamma \left( G_{t+1} - \alpha \log \pi(a_{t+1} | s_{t+1}) \right)

    Training state is untouched, as by :func:`~eqr_torchrl.evaluation.evaluate`.

    Args:
        env: one environment, batch size ``[]``.
        policy: acts; its actions are sampled unless ``deterministic``.
        num_episodes: episodes to run.
        max_steps: steps at which an episode is cut.
        gamma: discount, in [0, 1].
        alpha: entropy temperature, in units of reward: a soft critic's values contain this bonus. Needs a policy with
            ``get_dist``.
        deterministic: take the deterministic actions.
        seed: of the environment and the actions.
        reset_fn: starts an episode, for instance in a given state: ``lambda env: env.reset(options=...)``. Defaults to
            ``env.reset``.

    Returns:
        For each episode of length T: ``transitions``, batch size ``[T]``; ``returns``, G from each of its states,
        in units of reward, shape ``[T]``; ``tail_weight``, shape ``[T]``: how much the value of the state where the
        episode was cut would count in them, 0 if it terminated. Compare with a critic where this is small.

    Raises:
        ValueError: if a number is out of its range, or an entropy bonus is asked of deterministic actions.

    Examples:
        >>> episodes = sample_episodes(toy_env(), toy_actor(), num_episodes=2, max_steps=20, gamma=0.9)
        >>> episodes.returns[0].shape, round(float(episodes.tail_weight[0][0]), 4)
        (torch.Size([20]), 0.1216)
    """
    _check(num_episodes=num_episodes, max_steps=max_steps, gamma=gamma, alpha=alpha, deterministic=deterministic)
    transitions, returns, tail_weights = [], [], []
    mode = ExplorationType.DETERMINISTIC if deterministic else ExplorationType.RANDOM
    with isolated_rng(seed), evaluation_mode(env, policy), set_exploration_type(mode):
        env.set_seed(seed)
        for _ in range(num_episodes):
            start = env.reset() if reset_fn is None else reset_fn(env)
            episode = env.rollout(max_steps, policy, auto_cast_to_device=True, auto_reset=False, tensordict=start)
            reward = episode["next", "reward"].squeeze(-1).double()  # [T]
            bonus = (
                -alpha * _log_prob(policy, episode).double().to(reward.device) if alpha else torch.zeros_like(reward)
            )
            cut = 1.0 - episode["next", "terminated"][-1].double().squeeze(-1)
            total, weight = torch.zeros_like(cut), cut
            values, weights = [], []
            for t in reversed(range(len(reward))):
                total, weight = reward[t] + gamma * total, gamma * weight
                values.append(total)
                weights.append(weight)
                total = total + bonus[t]  # belongs to the state before, whose successor this one is
            transitions.append(episode)
            returns.append(torch.stack(values[::-1]).float())
            tail_weights.append(torch.stack(weights[::-1]).float())
    return Episodes(transitions, returns, tail_weights)


@torch.no_grad()
def member_values(
    model_env: ModelBasedEnv,
    policy: TensorDictModuleBase,
    observation: Tensor,
    *,
    horizon: int,
    gamma: float,
    num_rollouts: int = 10,
    alpha: float = 0.0,
    deterministic: bool = False,
    seed: int = 0,
) -> Tensor:
    r"""Monte-Carlo value of a policy at given states in each member: samples of the posterior that the critic learns.

    Args:
        model_env: the world model as an environment, M members. Each rollout stays in its member.
        policy: acts; its actions are sampled unless ``deterministic``.
        observation: states, in units of the environment, shape ``[R, S]``.
        horizon: steps of each rollout; what comes later, a share of ``gamma**horizon`` of the value, is left out.
        gamma: discount, in [0, 1].
        num_rollouts: rollouts averaged for each state and member. Their noise adds the variance of a return, divided
            by this number, to the spread between members.
        alpha: entropy temperature, as in :func:`sample_episodes`.
        deterministic: take the deterministic actions.
        seed: of the noise and the actions; the global generators are untouched.

    Returns:
        Values in units of return, shape ``[R, M]``.

    Raises:
        ValueError: if ``observation`` is not ``[R, S]``, or a number is out of its range.

    Examples:
        >>> from eqr_torchrl.envs import ModelBasedEnv, never_terminates
        >>> from eqr_torchrl.world_models import GaussianEnsemble
        >>> model = GaussianEnsemble(3, 1, num_members=5, num_cells=(8,))
        >>> model_env = ModelBasedEnv(model, toy_env(), termination_fn=never_terminates)
        >>> member_values(model_env, toy_actor(), torch.zeros(4, 3), horizon=3, gamma=0.9).shape
        torch.Size([4, 5])
    """
    if observation.ndim != 2:
        raise ValueError(f"observation must have shape [R, S]: got {tuple(observation.shape)}.")
    _check(num_rollouts=num_rollouts, horizon=horizon, gamma=gamma, alpha=alpha, deterministic=deterministic)
    world_model, device = model_env.world_model, model_env.device
    M, rows = world_model.num_members, len(observation) * num_rollouts
    state = observation.to(device).repeat_interleave(num_rollouts, 0).expand(M, -1, -1)  # [M, R*rollouts, S]
    value = torch.zeros(M, rows, 1, device=device, dtype=torch.float64)
    alive = torch.ones(M, rows, 1, device=device, dtype=torch.bool)
    mode = ExplorationType.DETERMINISTIC if deterministic else ExplorationType.RANDOM
    with isolated_rng(seed), evaluation_mode(world_model, policy), set_exploration_type(mode):
        for t in range(horizon):
            tensordict = policy(TensorDict({"observation": state}, [M, rows]))
            noise = torch.randn(M, rows, 1, world_model.noise_dim, device=device, dtype=state.dtype)
            next_state, reward, terminated = (
                x.squeeze(2) for x in model_env.transition(state, tensordict["action"], noise)
            )
            if alpha and t > 0:
                reward = reward - alpha * _log_prob(policy, tensordict).unsqueeze(-1)
            value += gamma**t * torch.where(alive, reward, 0.0)
            alive = alive & ~terminated
            state = torch.where(alive, next_state, state)  # what is over stays where it is, finite
    return value.squeeze(-1).unflatten(1, (-1, num_rollouts)).mean(-1).T.float()


def _log_prob(policy: TensorDictModuleBase, tensordict: TensorDictBase) -> Tensor:
    get_dist = getattr(policy, "get_dist", None)
    if get_dist is None:
        raise ValueError(f"policy must have get_dist for an entropy bonus (alpha > 0): got {type(policy).__name__}.")
    tensordict = tensordict.select("observation", "action").to(_device(policy) or tensordict.device)
    return get_dist(tensordict).log_prob(tensordict["action"])


def _device(module: TensorDictModuleBase) -> torch.device | None:
    return next((parameter.device for parameter in module.parameters()), None)


def _check(*, gamma: float, alpha: float, deterministic: bool, **counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} must be positive: got {count}.")
    if not 0.0 <= gamma <= 1.0:
        raise ValueError(f"gamma must lie in [0, 1]: got {gamma}.")
    if alpha < 0 or (alpha and deterministic):
        raise ValueError(f"alpha must be positive, and 0 for deterministic actions: got {alpha}.")
