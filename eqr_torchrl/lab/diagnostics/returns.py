"""Returns of a policy from given states: in the real environment, and in each member of the world model."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules.distributions.utils import rsample_and_log_prob
from torchrl.objectives.value.functional import reward2go

from eqr_torchrl.imagination import ModelBasedEnv
from eqr_torchrl.lab.evaluation import device_of, evaluation_mode, isolated_rng
from eqr_torchrl.networks.actor import log_half_range

_LOG_PROB = "action_log_prob"


class Episodes(NamedTuple):
    """Real episodes and their discounted returns; see :func:`sample_episodes`."""

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

    Training state is untouched, as by :func:`~eqr_torchrl.lab.evaluation.evaluate`.

    Args:
        env: one environment, batch size ``[]``.
        policy: acts; its actions are sampled unless ``deterministic``.
        num_episodes: number of episodes.
        max_steps: steps at which an episode is truncated.
        gamma: discount, in [0, 1].
        alpha: entropy temperature, in units of reward: a soft critic's values contain this bonus. Needs a policy with
            ``get_dist``.
        deterministic: take the deterministic actions.
        seed: of the environment and the actions.
        reset_fn: starts an episode, such as ``lambda env: env.reset(options=...)``. Defaults to ``env.reset``.

    Returns:
        For each episode of length T: ``transitions``, batch size ``[T]``; ``returns``, G from each of its states, in
        units of reward, shape ``[T]``; ``tail_weight``, the weight in them of the value where it was truncated, 0 if it
        terminated, shape ``[T]``.

    Raises:
        ValueError: if a number is out of its range, or an entropy bonus is asked of deterministic actions.

    Examples:
        >>> episodes = sample_episodes(toy_env(), toy_actor(), num_episodes=2, max_steps=20, gamma=0.9)
        >>> episodes.returns[0].shape, round(float(episodes.tail_weight[0][0]), 4)
        (torch.Size([20]), 0.1216)
    """
    _check(num_episodes=num_episodes, max_steps=max_steps, gamma=gamma, alpha=alpha, deterministic=deterministic)
    act = _with_log_prob(policy) if alpha else policy
    transitions, returns, tail_weights = [], [], []
    mode = ExplorationType.DETERMINISTIC if deterministic else ExplorationType.RANDOM
    with isolated_rng(seed), evaluation_mode(env, policy), set_exploration_type(mode):
        env.set_seed(seed)
        for _ in range(num_episodes):
            start = env.reset() if reset_fn is None else reset_fn(env)
            episode = env.rollout(max_steps, act, auto_cast_to_device=True, auto_reset=False, tensordict=start)
            reward = episode["next", "reward"].squeeze(-1).to(torch.float64)  # [T]
            reward = torch.where(reward.isnan(), 0.0, reward)  # of a step that diverged, as in evaluate
            if alpha:  # the entropy of an action belongs to the state before
                reward[:-1] -= gamma * alpha * episode[_LOG_PROB][1:].to(reward)
            steps_left = torch.arange(len(reward), 0, -1).to(reward)
            truncated = ~episode["next", "terminated"][-1]
            transitions.append(episode)
            returns.append(reward2go(reward.unsqueeze(-1), (steps_left == 1).unsqueeze(-1), gamma).flatten().float())
            tail_weights.append((truncated * gamma**steps_left).float())
    return Episodes(transitions, returns, tail_weights)


class MemberReturns(NamedTuple):
    """Imagined returns in each member; see :func:`member_returns`."""

    returns: Tensor
    tail_weight: Tensor
    num_steps: Tensor


@torch.no_grad()
def member_returns(
    model_env: ModelBasedEnv,
    policy: TensorDictModuleBase,
    observation: Tensor,
    *,
    horizon: int,
    gamma: float,
    num_rollouts: int = 10,
    alpha: float = 0.0,
    deterministic: bool = False,
    stop_fn: Callable[[Tensor, Tensor], Tensor] | None = None,
    final_value: Callable[[TensorDictBase], Tensor] | None = None,
    seed: int = 0,
) -> MemberReturns:
    r"""Monte-Carlo returns of a policy from given states in each member of the world model.

    .. math:: G_m = r_0 + \sum_{t=1}^{h-1} \gamma^t (r_t - \alpha \log \pi_t) + \gamma^h (v_m - \alpha \log \pi_h)

    Their mean over rollouts is the value in member m, a sample of the posterior that the critic learns.

    Args:
        model_env: the world model as an environment, M members. Each rollout stays in its member.
        policy: as for :func:`sample_episodes`, as are ``gamma``, ``alpha`` and ``deterministic``.
        observation: states, in units of the environment, shape ``[R, S]``.
        horizon: steps of each rollout, h.
        gamma: discount.
        num_rollouts: rollouts from each state in each member, P.
        alpha: entropy temperature.
        deterministic: take the deterministic actions.
        stop_fn: maps observations ``[M, R * P, S]`` and actions ``[M, R * P, A]`` to bool ``[M, R * P, 1]``: where
            true, the rollout stops before this action, and the rest is :math:`v_m`.
        final_value: :math:`v_m`, the value after the last step: maps a tensordict with ``observation``, ``action`` and
            ``step_count``, the steps before it, batch size ``[M, R * P]``, to values of the same shape in member m.
            Defaults to 0.
        seed: of the noise and the actions; the global generators are untouched.

    Returns:
        ``returns``, shape ``[R, M, P]``; ``tail_weight``, the weight in them of what comes after the last step:
        ``gamma**num_steps``, or 0 for a rollout that terminated; ``num_steps``, the steps imagined, of the same shape.

    Raises:
        ValueError: if ``observation`` is not ``[R, S]``, or a number is out of its range.

    Examples:
        >>> from eqr_torchrl.imagination import never_terminates
        >>> from eqr_torchrl.world_models import GaussianEnsemble
        >>> model_env = ModelBasedEnv(GaussianEnsemble(3, 1, num_members=5), toy_env(), termination_fn=never_terminates)
        >>> member_returns(model_env, toy_actor(), torch.zeros(4, 3), horizon=3, gamma=0.9).returns.shape
        torch.Size([4, 5, 10])
    """
    if observation.ndim != 2:
        raise ValueError(f"observation must have shape [R, S], got {tuple(observation.shape)}.")
    if horizon < 0:
        raise ValueError(f"horizon must not be negative, got {horizon}.")
    _check(num_rollouts=num_rollouts, gamma=gamma, alpha=alpha, deterministic=deterministic)
    world_model, device = model_env.world_model, model_env.device
    M, rows = world_model.num_members, len(observation) * num_rollouts
    state = observation.to(device).repeat_interleave(num_rollouts, 0).expand(M, -1, -1)  # [M, R*P, S]
    value = torch.zeros(M, rows, 1, device=device, dtype=torch.float64)
    weight, num_steps = torch.zeros_like(value), torch.zeros_like(value)
    alive = torch.ones(M, rows, 1, device=device, dtype=torch.bool)
    act = _with_log_prob(policy) if alpha else policy
    mode = ExplorationType.DETERMINISTIC if deterministic else ExplorationType.RANDOM

    def add(t: int, reward: Tensor, tensordict: TensorDictBase, where: Tensor) -> None:
        if alpha and t > 0:
            reward = reward - alpha * tensordict[_LOG_PROB].unsqueeze(-1)
        value.add_(gamma**t * torch.where(where, reward, 0.0))

    def leave(t: int, tensordict: TensorDictBase, where: Tensor) -> None:
        weight.add_(gamma**t * where)
        if final_value is not None:
            tensordict["step_count"] = torch.full((M, rows), t, device=device)
            add(t, final_value(tensordict).unsqueeze(-1), tensordict, where)

    with isolated_rng(seed), evaluation_mode(world_model, policy), set_exploration_type(mode):
        for t in range(horizon):
            tensordict = act(TensorDict({"observation": state}, [M, rows]))
            noise = torch.randn(M, rows, 1, world_model.noise_dim, device=device, dtype=state.dtype)
            if stop_fn is not None and bool((stopped := alive & stop_fn(state, tensordict["action"])).any()):
                leave(t, tensordict, stopped)
                alive = alive & ~stopped
            next_state, reward, terminated = (
                x.squeeze(2) for x in model_env.sample_next(state, tensordict["action"], noise)
            )
            add(t, reward, tensordict, alive)
            num_steps += alive
            alive = alive & ~terminated
            if not alive.any():
                break
            state = torch.where(alive, next_state, state)  # a finished row stays where it is, finite
        leave(horizon, act(TensorDict({"observation": state}, [M, rows])), alive)
    found = (x.squeeze(-1).unflatten(1, (-1, num_rollouts)).movedim(0, 1).float() for x in (value, weight, num_steps))
    return MemberReturns(*found)


def _with_log_prob(policy: TensorDictModuleBase) -> Callable[[TensorDictBase], TensorDictBase]:
    """The policy, which also writes the log-density of its action as one in [-1, 1], shape ``[*B]``."""
    get_dist, device = getattr(policy, "get_dist", None), device_of(policy)
    if get_dist is None:
        raise ValueError(f"policy must have get_dist for an entropy bonus (alpha > 0), got {type(policy).__name__}.")

    spec = getattr(policy, "spec", None)
    to_unit_range = 0.0 if spec is None else log_half_range(spec["action"])  # the losses' bonus: of actions in [-1, 1]

    def act(tensordict: TensorDictBase) -> TensorDictBase:
        inputs = tensordict.select(*policy.in_keys)
        # together, as in the losses: a saturated action, which float32 rounds to its bound, has lost its log-density
        action, log_prob = rsample_and_log_prob(get_dist(inputs if device is None else inputs.to(device)))
        return tensordict.update({"action": action, _LOG_PROB: log_prob + to_unit_range})

    return act


def _check(*, gamma: float, alpha: float, deterministic: bool, **counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} must be positive, got {count}.")
    if not 0.0 <= gamma <= 1.0:
        raise ValueError(f"gamma must lie in [0, 1], got {gamma}.")
    if alpha < 0 or (alpha and deterministic):
        raise ValueError(f"alpha must be positive, and 0 for deterministic actions, got {alpha}.")
