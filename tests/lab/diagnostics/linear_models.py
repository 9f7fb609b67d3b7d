"""World models and a policy about which everything is known in closed form."""

from __future__ import annotations

import torch
from tensordict.nn import TensorDictModule
from torch.distributions import Independent, Normal
from torchrl.modules import ProbabilisticActor
from toy_env import WalkEnv

from eqr_torchrl.imagination import ModelBasedEnv
from eqr_torchrl.world_models import WorldModel

GAINS = (0.5, 1.0, 0.8)


class LinearModel(WorldModel):
    """``s' = g_m s + a + noise``, reward ``s``: everything about it is known in closed form."""

    def __init__(self, gains=GAINS, noise: float = 0.0) -> None:
        super().__init__(1, num_members=len(gains))
        self.gains, self.noise = torch.tensor(gains).view(-1, 1, 1), noise

    def forward(self, observation, action):
        loc = torch.cat([self.gains * observation + action, observation], -1)
        return loc, torch.tensor([self.noise, 0.0]).clamp_min(1e-12).expand_as(loc)


def never(next_observation, action):
    return torch.zeros_like(next_observation[..., :1], dtype=torch.bool)


def model_env(gains=GAINS, noise=0.0, termination_fn=never) -> ModelBasedEnv:
    return ModelBasedEnv(LinearModel(gains, noise), WalkEnv(), termination_fn=termination_fn)


def gaussian_policy(mean: float = 0.0, std: float = 1.0) -> ProbabilisticActor:
    parameters = TensorDictModule(
        lambda s: (0 * s + mean, 0 * s + std), in_keys=["observation"], out_keys=["loc", "scale"]
    )
    return ProbabilisticActor(
        parameters,
        in_keys=["loc", "scale"],
        distribution_class=lambda loc, scale: Independent(Normal(loc, scale), 1),
    )
