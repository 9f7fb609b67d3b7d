"""How many steps the members can be trusted, by what they had predicted for transitions that came later."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor

from eqr_torchrl.world_models.gaussian import GaussianEnsemble


@torch.no_grad()
def open_loop_errors(world_model: GaussianEnsemble, data: TensorDictBase, steps: int) -> Tensor:
    """Median error after 1 to ``steps`` steps of open-loop prediction, in standard deviations of the observations.

    Every member predicts from every real state with the real actions; an error is the root mean square over entries.

    Args:
        world_model: an ensemble that has not been fitted to ``data``.
        data: transitions in the order in which they came, batch size ``[n]``.
        steps: most steps.

    Returns:
        Shape ``[steps]``; infinite where no episode is so long.
    """
    observation, action, done = data["observation"], data["action"], data["next", "done"].flatten()
    real = data["next", "observation"]
    varying = world_model.normalizer.std[: observation.shape[-1]]
    num_rows, state = len(observation), observation.expand(world_model.num_members, *observation.shape)
    start = torch.arange(num_rows)
    errors = torch.full((steps,), torch.inf)
    for step in range(min(steps, num_rows)):
        if step:  # rows whose episode went on
            goes_on = (start + step < num_rows) & ~done[(start + step - 1).clamp(max=num_rows - 1)]
            start, state = start[goes_on], state[:, goes_on]
            if not len(start):
                break
        now = start + step
        loc, _ = world_model(state, action[now].expand(world_model.num_members, -1, -1))
        state = loc[..., : observation.shape[-1]]
        errors[step] = ((state - real[now]) / varying).square().mean(-1).sqrt().median()
    return errors


class TrustedHorizon:
    """Length of the next rollouts: as long as the newest transitions were predicted within ``threshold``.

    Args:
        threshold: largest median error, in standard deviations of the observations.
        shortest: fewest steps.
        longest: most steps.
    """

    def __init__(self, threshold: float = 0.5, shortest: int = 1, longest: int = 25) -> None:
        self.threshold, self.shortest, self.longest = threshold, shortest, longest

    def __call__(self, world_model: GaussianEnsemble, data: TensorDictBase) -> tuple[int, Tensor]:
        """Horizon, and the errors after 1 to ``longest`` steps."""
        errors = open_loop_errors(world_model, data, self.longest)
        trusted = int((errors > self.threshold).float().cumsum(0).eq(0).sum())
        return min(max(trusted, self.shortest), self.longest), errors
