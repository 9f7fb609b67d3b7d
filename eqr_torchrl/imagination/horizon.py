"""How many steps members predict well, on transitions that they have not been fitted to."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import ReplayBuffer

from eqr_torchrl.world_models import WorldModel

_FEWEST = 10  # real trajectories of a length that say something about it


def predict_open_loop(
    world_model: WorldModel, observation: Tensor, actions: Tensor, noise: Iterator[Tensor] | None = None
) -> Iterator[Tensor]:
    """Yields the observations ``[M, N, S]`` that members predict from ``[N, S]`` after each of actions ``[N, T, A]``.

    With standard normal ``noise`` ``[M, N, D]`` of each step, or along the means.
    """
    state = observation.expand(world_model.num_members, *observation.shape)
    for action in actions.unbind(1):
        loc, scale = world_model(state, action.expand(world_model.num_members, *action.shape))
        state = (loc if noise is None else loc + scale * next(noise))[..., : observation.shape[-1]]
        yield state


@torch.no_grad()
def open_loop_errors(
    world_model: WorldModel, newest: TensorDictBase, *, longest: int, scale: Tensor | None = None
) -> Tensor:
    """Median error after 1 to ``longest`` steps of open-loop prediction, in standard deviations of the observations.

    Every member predicts from every real state with the real actions that followed. An error is the root mean square
    over entries; the median is over starts and members. Shape ``[longest]``; infinite where fewer than ten trajectories
    are that long.

    Args:
        world_model: members that have not been fitted to ``newest``.
        newest: transitions in their order, batch size ``[n]``, with ``("next", "done")``. Trajectories end where an
            episode does, and where an observation is not the next one of the transition before.
        longest: largest number of steps.
        scale: standard deviations of the observations, shape ``[S]``. Defaults to those of ``newest``.

    Examples:
        >>> data = toy_env().rollout(20, break_when_any_done=False)
        >>> open_loop_errors(GaussianEnsemble(3, 1, num_members=5, num_cells=(8,)), data, longest=15).isfinite().sum()
        tensor(11)
    """
    like = world_model.terminal_reward
    observation, action, real = (newest.get(key).to(like) for key in ("observation", "action", ("next", "observation")))
    done = newest.get(("next", "done")).to(like.device)
    scale = observation.std(0, correction=0) if scale is None else scale.to(observation)
    scale = torch.where(scale > 1e-6, scale, 1.0)
    follows = ~done[:-1].squeeze(-1) & (real[:-1] == observation[1:]).all(-1)
    breaks = torch.cat([~follows, follows.new_ones(1)]).nonzero().squeeze(-1)  # last rows of the trajectories
    row = torch.arange(len(observation), device=like.device)
    length = breaks[torch.searchsorted(breaks, row)] - row + 1
    steps = (row.unsqueeze(-1) + torch.arange(longest, device=like.device)).clamp(max=len(row) - 1)  # [n, T]
    errors = observation.new_full((longest,), torch.inf)
    for step, state in enumerate(predict_open_loop(world_model, observation, action[steps])):
        so_long = length > step
        if so_long.sum() < _FEWEST:
            break
        error = (state[:, so_long] - real[steps[so_long, step]]) / scale
        errors[step] = error.square().mean(-1).sqrt().median()
    return errors


def steps_within(errors: Tensor, threshold: float) -> int:
    """Number of steps, from the first on, at all of which ``errors``, shape ``[T]``, are at most ``threshold``.

    Examples:
        >>> steps_within(torch.tensor([0.1, 0.4, 0.6, 0.2]), 0.5)
        2
    """
    return int((errors <= threshold).cumprod(0).sum())


def newest_transitions(replay: ReplayBuffer, count: int, *, num_envs: int = 1) -> TensorDictBase:
    """The last ``count`` transitions, or as many as there are, in their order.

    If ``num_envs`` simulators were written in turn, it has equally many of each, one simulator after another.

    Examples:
        >>> replay = make_replay_buffer(4)
        >>> _ = replay.extend(toy_batch(B=6).set("number", torch.arange(6).unsqueeze(-1)))
        >>> newest_transitions(replay, 3)["number"].flatten()
        tensor([3, 4, 5])
    """
    size = len(replay)
    end = replay.write_count  # rows are written in turn
    back = torch.arange(min(count, size) // num_envs * num_envs, 0, -1).view(-1, num_envs).T.reshape(-1)
    return replay[(end - back) % size]
