"""Drift of imagined rollouts from real ones, and how far the models can be trusted."""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from tensordict import TensorDictBase
from torch import Tensor

from eqr_torchrl.imagination import ModelBasedEnv, steps_within
from eqr_torchrl.imagination.horizon import predict_open_loop
from eqr_torchrl.lab.evaluation import evaluation_mode


class RolloutDrift(NamedTuple):
    """How imagined rollouts diverge from real ones; see :func:`rollout_drift`."""

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
    the spread of the members' means, less what the finite number of particles contributes, is epistemic. Imagined
    rollouts continue where the termination function would end them.

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
        >>> from eqr_torchrl.imagination import never_terminates
        >>> from eqr_torchrl.world_models import GaussianEnsemble
        >>> model_env = ModelBasedEnv(GaussianEnsemble(3, 1, num_members=5), toy_env(), termination_fn=never_terminates)
        >>> trajectories = trajectory_windows(toy_env().rollout(20, toy_actor()), 10)
        >>> rollout_drift(model_env, trajectories).error.shape
        torch.Size([10, 5])
    """
    if trajectories.batch_dims != 2 or not trajectories.numel():
        raise ValueError(f"trajectories must have batch size [B, T], got {list(trajectories.batch_size)}.")
    if num_particles < 2:
        raise ValueError(f"num_particles must be at least 2, to see the spread within a member, got {num_particles}.")
    world_model, device = model_env.world_model, model_env.device
    generator = torch.Generator(device or "cpu").manual_seed(seed)
    real = trajectories["next", "observation"].to(device)
    actions = trajectories["action"].to(device)
    (B, T), M, P = trajectories.batch_size, world_model.num_members, num_particles
    scale = trajectories["observation"].to(device).flatten(0, 1).std(0, correction=0)
    scale = torch.where(scale > 1e-6, scale, 1.0)

    observation = trajectories["observation"][:, 0].to(device).repeat_interleave(P, 0)  # [B*P, S]
    size = (M, B * P, world_model.noise_dim)
    noise = (torch.randn(size, device=device, dtype=observation.dtype, generator=generator) for _ in range(T))
    errors, epistemic, aleatoric = [], [], []
    with evaluation_mode(world_model):
        imagined = predict_open_loop(world_model, observation, actions.repeat_interleave(P, 0), noise)
        for t, state in enumerate(imagined):
            particles = (state / scale).unflatten(1, (B, P))  # [M, B, P, S]
            means, within = particles.mean(2), particles.var(2)  # [M, B, S]
            errors.append((means - real[:, t] / scale).square().mean((1, 2)).sqrt())
            aleatoric.append(within.mean().sqrt())
            between = means.var(0, correction=0).mean() - (M - 1) / M * within.mean() / P
            epistemic.append(between.clamp_min(0).sqrt())
    return RolloutDrift(torch.stack(errors), torch.stack(epistemic), torch.stack(aleatoric), scale)


def trajectory_windows(trajectory: TensorDictBase, length: int) -> TensorDictBase:
    """Splits a trajectory into windows of equal length, without those that an episode ends inside.

    Args:
        trajectory: consecutive transitions of one environment, batch size ``[L]``; episodes may follow each other.
        length: transitions in a window, T. The result has batch size ``[B, T]``; a shorter rest is dropped.

    Raises:
        ValueError: if no window fits.

    Examples:
        >>> trajectory_windows(toy_env(max_steps=7).rollout(7), 3).batch_size
        torch.Size([2, 3])
    """
    if trajectory.batch_dims != 1 or not 1 <= length <= len(trajectory):
        raise ValueError(f"length must be from 1 to that of trajectory, {list(trajectory.batch_size)}, got {length}.")
    count = len(trajectory) // length
    windows = cast(TensorDictBase, trajectory[: count * length].reshape(count, length))
    whole = ~windows.get(("next", "done"))[:, :-1].flatten(1).any(1)
    if not whole.any():
        raise ValueError(f"length must leave at least one window without an end of episode inside, got {length}.")
    return cast(TensorDictBase, windows[whole])


def trusted_horizon(drift: RolloutDrift) -> int:
    """Steps for which the members can be trusted: until their error reaches the spread of the states themselves.

    The largest number of steps, 0 to T, at all of which the root mean square error over the members in ``drift`` is
    below 1, that of a model that predicts the mean of all states.

    Examples:
        >>> error = torch.tensor([[0.1, 0.3], [0.6, 0.8], [0.9, 1.5], [0.5, 0.5]])
        >>> trusted_horizon(RolloutDrift(error, *[torch.zeros(4)] * 2, torch.ones(3)))
        2
    """
    return steps_within(drift.error.square().mean(1).sqrt(), 1.0)
