"""The interface of a posterior over MDPs."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from eqr_torchrl.networks.layers import check_counts


class WorldModel(nn.Module, ABC):
    r"""A posterior over MDPs, represented by ``M`` members.

    Each member is one MDP: a Gaussian over the next observation and, if ``predicts_reward``, the reward. Noise within a
    member is aleatoric; differences between members are epistemic. For a model of your own, write ``forward``.

    Args:
        observation_dim: number of entries of an observation, ``S``.
        num_members: number of members, ``M``.
        predicts_reward: whether the last predicted entry is the reward; if not, the imagined environment needs a
            function for it.
        predicts_termination: whether there is a :meth:`termination_probability`; if not, the environment needs a rule.

    Attributes:
        terminal_reward: what an end earns beyond the predicted reward, shape ``[]``: it is paid where an end is drawn.

    Examples:
        >>> class RandomDrift(WorldModel):
        ...     def forward(self, observation, action):
        ...         drift = torch.arange(self.num_members).view(-1, 1, 1)  # each member has its own drift
        ...         return observation + drift, torch.full_like(observation, 0.1)
        >>> RandomDrift(3, num_members=2, predicts_reward=False)(torch.zeros(2, 4, 3), torch.zeros(2, 4, 1))[0][:, 0, 0]
        tensor([0., 1.])
    """

    terminal_reward: Tensor

    def __init__(
        self,
        observation_dim: int,
        *,
        num_members: int = 5,
        predicts_reward: bool = True,
        predicts_termination: bool = False,
    ) -> None:
        super().__init__()
        check_counts(observation_dim=observation_dim, num_members=num_members)
        self.observation_dim, self.num_members = observation_dim, num_members
        self.predicts_reward, self.predicts_termination = predicts_reward, predicts_termination
        self.register_buffer("terminal_reward", torch.zeros(()))

    @property
    def noise_dim(self) -> int:
        """Number of predicted entries, ``D``: ``S``, and one for the reward if the model predicts it."""
        return self.observation_dim + int(self.predicts_reward)

    @abstractmethod
    def forward(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Predicts the next observation, and the reward as last entry if ``predicts_reward``.

        Takes observations ``[M, B, S]`` and actions ``[M, B, A]``, in units of the environment; row ``m`` is of member
        ``m``. They may be expanded views: do not write to them. Returns mean and standard deviation of independent
        Gaussians, in units of the environment, each ``[M, B, D]``.
        """

    def termination_probability(self, next_observation: Tensor, action: Tensor) -> Tensor:
        """Probability ``[M, B, 1]`` that the episode ends with a transition; only for ``predicts_termination``.

        Takes next observations ``[M, B, S]`` and actions ``[M, B, A]``, in units of the environment.
        """
        raise NotImplementedError(f"{type(self).__name__} must define termination_probability.")
