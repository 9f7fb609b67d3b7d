"""Diagnostics of the world model: errors on held-out data, drift of rollouts, and where its variance comes from."""

from __future__ import annotations

import math
from typing import NamedTuple, cast

import torch
from tensordict import TensorDictBase
from torch import Tensor

from eqr_torchrl.envs import ModelBasedEnv
from eqr_torchrl.evaluation.evaluate import evaluation_mode
from eqr_torchrl.functional import gaussian_nll
from eqr_torchrl.world_models import WorldModel


class ModelErrors(NamedTuple):
    """Errors of each member on data that it was not fitted to; see :func:`held_out_errors`."""

    mse: Tensor
    explained: Tensor
    standardised: Tensor
    nll: Tensor


def held_out_errors(world_model: WorldModel, data: TensorDictBase, *, chunk_size: int = 4096) -> ModelErrors:
    r"""One-step errors of each member on transitions.

    Args:
        world_model: M members that predict D entries: the next observation, and the reward last if they predict it.
        data: transitions with ``observation``, ``action``, ``next`` ``observation`` (and ``reward``), batch size
            ``[n]``, in units of the environment.
        chunk_size: transitions evaluated at once.

    Returns:
        ``mse``, mean squared errors in squared units of the environment, shape ``[M, D]``; ``explained``, the share of
        the variance of the *change* of each entry (of the reward itself) that is explained, 1 at best, NaN where
        nothing varies, shape ``[M, D]``; ``standardised``, root mean square of the error in predicted standard
        deviations, 1 if the predicted noise is right, shape ``[M, D]``; ``nll``, negative log-likelihood in nats per
        transition, shape ``[M]``.

    Raises:
        ValueError: if ``data`` is not of batch size ``[n]`` with n > 0, or the targets are not finite.

    Examples:
        >>> from eqr_torchrl.world_models import GaussianEnsemble
        >>> model = GaussianEnsemble(3, 1, num_members=5, num_cells=(8,))
        >>> held_out_errors(model, toy_batch(B=10)).mse.shape
        torch.Size([5, 4])
    """
    if data.batch_dims != 1 or not len(data):
        raise ValueError(f"data must have batch size [n], n > 0: got {list(data.batch_size)}.")
    target = data["next", "observation"]
    change = target - data["observation"]
    if world_model.predicts_reward:
        reward = data["next", "reward"]
        target, change = torch.cat([target, reward], -1), torch.cat([change, reward], -1)
    if not torch.isfinite(target).all():
        raise ValueError(f"data must be finite: got {int((~torch.isfinite(target)).sum())} entries that are not.")

    loc, scale = member_predictions(
        world_model, data["observation"], data["action"], chunk_size=chunk_size
    )  # [M, n, D]
    target = target.to(loc)
    squared = (loc - target).square()
    mse = squared.mean(1)
    nll = 0.5 * (gaussian_nll(loc, 2 * scale.log(), target) + math.log(2 * math.pi))
    variance = change.to(loc).var(0, correction=0)
    explained = torch.where(variance > 0, 1 - mse / variance, torch.nan)
    return ModelErrors(mse, explained, (squared / scale.square()).mean(1).sqrt(), nll.sum(-1).mean(1))


class VarianceParts(NamedTuple):
    """Epistemic and aleatoric parts of a variance; see :func:`variance_parts` and :func:`rollout_drift`."""

    epistemic: Tensor
    aleatoric: Tensor


def variance_parts(world_model: WorldModel, observation: Tensor, action: Tensor) -> VarianceParts:
    r"""Splits the variance of one-step predictions of the ensemble by the law of total variance.

    .. math:: \mathrm{Var}[y] = \underbrace{\mathrm{Var}_m[\mu_m]}_{\text{epistemic}}
        + \underbrace{\mathrm{E}_m[\sigma_m^2]}_{\text{aleatoric}}

    Args:
        world_model: M members, equally likely.
        observation: states, in units of the environment, shape ``[n, S]``.
        action: actions, in units of the environment, shape ``[n, A]``.

    Returns:
        Both parts, in squared units of the environment, shape ``[n, D]``.

    Examples:
        >>> from eqr_torchrl.world_models import GaussianEnsemble
        >>> model = GaussianEnsemble(3, 1, num_members=5, num_cells=(8,))
        >>> variance_parts(model, torch.zeros(7, 3), torch.zeros(7, 1)).epistemic.shape
        torch.Size([7, 4])
    """
    loc, scale = member_predictions(world_model, observation, action)
    return VarianceParts(loc.var(0, correction=0), scale.square().mean(0))


class RolloutDrift(NamedTuple):
    """How imagined rollouts leave real ones; see :func:`rollout_drift`."""

    error: Tensor
    epistemic: Tensor
    aleatoric: Tensor
    scale: Tensor


@torch.no_grad()
def rollout_drift(
    model_env: ModelBasedEnv, trajectories: TensorDictBase, *, num_particles: int = 20, seed: int = 0
) -> RolloutDrift:
    r"""Compares imagined with real trajectories, from the same starts with the same actions.

    Each member imagines every trajectory ``num_particles`` times. The spread of particles within a member is aleatoric;
    the spread of the members' means, less what the finite number of particles contributes, is epistemic. A useful
    model has an error of about the root of their sum. Imagined rollouts go on where the termination function would end
    them.

    Args:
        model_env: the world model as an environment, M members.
        trajectories: real transitions, batch size ``[B, T]``, no episode ending before the last step: see
            :func:`trajectory_windows`.
        num_particles: imagined rollouts of each member for each trajectory.
        seed: of the predicted noise.

    Returns:
        ``error``, root mean square distance of each member's mean from the real state, shape ``[T, M]``; ``epistemic``
        and ``aleatoric`` standard deviations, root mean square, shape ``[T]``. All are in units of ``scale``, the
        standard deviation of each state entry in the trajectories (1 for entries that do not vary), shape ``[S]``.

    Raises:
        ValueError: if ``trajectories`` is not of batch size ``[B, T]``, or ``num_particles`` is below 2.

    Examples:
        >>> from eqr_torchrl.envs import ModelBasedEnv, never_terminates
        >>> from eqr_torchrl.world_models import GaussianEnsemble
        >>> model = GaussianEnsemble(3, 1, num_members=5, num_cells=(8,))
        >>> model_env = ModelBasedEnv(model, toy_env(), termination_fn=never_terminates)
        >>> trajectories = trajectory_windows(toy_env().rollout(20, toy_actor()), 10)
        >>> rollout_drift(model_env, trajectories).error.shape
        torch.Size([10, 5])
    """
    if trajectories.batch_dims != 2 or not trajectories.numel():
        raise ValueError(f"trajectories must have batch size [B, T]: got {list(trajectories.batch_size)}.")
    if num_particles < 2:
        raise ValueError(f"num_particles must be at least 2, to see the spread within a member: got {num_particles}.")
    world_model, device = model_env.world_model, model_env.device
    generator = torch.Generator(device or "cpu").manual_seed(seed)
    real = trajectories["next", "observation"].to(device)
    actions = trajectories["action"].to(device)
    (B, T), M, P = trajectories.batch_size, world_model.num_members, num_particles
    scale = trajectories["observation"].to(device).flatten(0, 1).std(0, correction=0)
    scale = torch.where(scale > 1e-6, scale, 1.0)

    observation = trajectories["observation"][:, 0].to(device).repeat_interleave(P, 0).expand(M, -1, -1)  # [M, B*P, S]
    errors, epistemic, aleatoric = [], [], []
    with evaluation_mode(world_model):
        for t in range(T):
            action = actions[:, t].repeat_interleave(P, 0).expand(M, -1, -1)
            noise = torch.randn(
                (M, B * P, 1, world_model.noise_dim), device=device, dtype=observation.dtype, generator=generator
            )
            observation = model_env.transition(observation, action, noise)[0].squeeze(2)
            particles = (observation / scale).unflatten(1, (B, P))  # [M, B, P, S]
            means, within = particles.mean(2), particles.var(2)  # [M, B, S]
            errors.append((means - real[:, t] / scale).square().mean((1, 2)).sqrt())
            aleatoric.append(within.mean().sqrt())
            between = means.var(0, correction=0).mean() - (M - 1) / M * within.mean() / P
            epistemic.append(between.clamp_min(0).sqrt())
    return RolloutDrift(torch.stack(errors), torch.stack(epistemic), torch.stack(aleatoric), scale)


def trajectory_windows(trajectory: TensorDictBase, length: int) -> TensorDictBase:
    """Cuts a trajectory into windows of equal length, without those that an episode ends inside.

    Args:
        trajectory: consecutive transitions of one environment, batch size ``[L]``; episodes may follow each other.
        length: transitions in a window, T.

    Returns:
        Windows, batch size ``[B, T]``. Left-over transitions at the end are dropped.

    Raises:
        ValueError: if no window fits.

    Examples:
        >>> trajectory_windows(toy_env(max_steps=7).rollout(7), 3).batch_size
        torch.Size([2, 3])
    """
    if trajectory.batch_dims != 1 or not 1 <= length <= len(trajectory):
        raise ValueError(f"length must be from 1 to that of trajectory, {list(trajectory.batch_size)}: got {length}.")
    count = len(trajectory) // length
    windows = cast(TensorDictBase, trajectory[: count * length].reshape(count, length))
    whole = ~windows.get(("next", "done"))[:, :-1].flatten(1).any(1)
    if not whole.any():
        raise ValueError(f"length must leave at least one window without an end of episode inside: got {length}.")
    return cast(TensorDictBase, windows[whole])


@torch.no_grad()
def member_predictions(
    world_model: WorldModel, observation: Tensor, action: Tensor, *, chunk_size: int = 4096
) -> tuple[Tensor, Tensor]:
    """Predictions of every member for the same states and actions, in eval mode and without gradients.

    Args:
        world_model: M members.
        observation: states, shape ``[n, S]``.
        action: actions, shape ``[n, A]``.
        chunk_size: states evaluated at once.

    Returns:
        Means and standard deviations, in units of the environment, each ``[M, n, D]``.

    Examples:
        >>> from eqr_torchrl.world_models import GaussianEnsemble
        >>> model = GaussianEnsemble(3, 1, num_members=5, num_cells=(8,))
        >>> loc, scale = member_predictions(model, torch.zeros(7, 3), torch.zeros(7, 1))
        >>> loc.shape
        torch.Size([5, 7, 4])
    """
    device = next((p.device for p in world_model.parameters()), observation.device)
    chunks = []
    with evaluation_mode(world_model):
        for s, a in zip(observation.split(chunk_size), action.split(chunk_size), strict=True):
            inputs = (x.to(device).expand(world_model.num_members, *x.shape) for x in (s, a))
            chunks.append(world_model(*inputs))
    loc, scale = (torch.cat(parts, 1) for parts in zip(*chunks, strict=True))
    return loc, scale
