"""The paper's update, written down literally in plain eager torch: the yardstick of these benchmarks.

Five next states and five actions at each for every member, a loop over separate member networks, one tiled row for
every pair, the pairwise quantile-Huber table, and separate optimiser steps of critic, policy and temperature.
"""

from __future__ import annotations

import copy
from itertools import pairwise

import torch
from torch import Tensor, nn


def network(sizes: list[int], activation: type[nn.Module]) -> nn.Sequential:
    """A plain MLP."""
    layers: list[nn.Module] = []
    for size_in, size_out in pairwise(sizes):
        layers += [nn.Linear(size_in, size_out), activation()]
    return nn.Sequential(*layers[:-1])


class LiteralUpdate(nn.Module):
    """One update of critic, policy and temperature as the paper's algorithm reads."""

    def __init__(
        self, observation_dim: int, action_dim: int, *, members: int = 5, quantiles: int = 51, states: int = 5,
        actions: int = 5, gamma: float = 0.99, tau: float = 0.005, kappa: float = 1.0
    ) -> None:  # fmt: skip
        super().__init__()
        s, a = observation_dim, action_dim
        self.models = nn.ModuleList(network([s + a, 200, 200, 200, 200, 2 * (s + 1)], nn.SiLU) for _ in range(members))
        self.actor = network([s, 128, 128, 2 * a], nn.Tanh)
        self.critic = network([s + a, 256, 256, quantiles], nn.Tanh)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.log_alpha = nn.Parameter(torch.zeros(()))
        self.shift, self.scale = torch.zeros(s + a), torch.ones(s + a)
        self.members, self.quantiles, self.states, self.actions = members, quantiles, states, actions
        self.gamma, self.tau, self.kappa, self.target_entropy = gamma, tau, kappa, -float(a)
        self.levels = (torch.arange(quantiles) + 0.5) / quantiles
        self.optimizers = [
            torch.optim.Adam(parameters, lr=3e-4)
            for parameters in (self.critic.parameters(), self.actor.parameters(), [self.log_alpha])
        ]

    def act(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Squashed Gaussian actions and their log-density."""
        mean, log_std = self.actor(observation).chunk(2, -1)
        std = log_std.clamp(-20, 2).exp()
        normal = torch.distributions.Normal(mean, std)
        u = normal.rsample()
        y = torch.tanh(u)
        log_prob = normal.log_prob(u) - torch.log(1 - y.square() + 1e-6)
        return y, log_prob.sum(-1, keepdim=True)

    @torch.no_grad()
    def targets(self, observation: Tensor, action: Tensor) -> Tensor:
        """Pooled target atoms, ``[B, members * quantiles]``."""
        size, x, y, n, m = len(observation), self.states, self.actions, self.members, self.quantiles
        observation, action = observation.repeat(x, 1), action.repeat(x, 1)
        inputs = (torch.cat([observation, action], -1) - self.shift) / self.scale
        outputs = torch.stack([model(inputs) for model in self.models])
        mean, log_var = outputs.chunk(2, -1)
        log_var = 0.5 - nn.functional.softplus(0.5 - log_var)
        log_var = -10 + nn.functional.softplus(log_var + 10)
        sample = torch.normal(mean, log_var.exp().sqrt())
        reward, next_observation = sample[..., -1:], observation + sample[..., :-1]
        next_observation = next_observation.repeat(1, y, 1).flatten(0, 1)
        next_action, log_prob = self.act(next_observation)
        q = self.target(torch.cat([next_observation, next_action], -1))
        soft = self.gamma * (q - self.log_alpha.exp() * log_prob)
        soft = soft.view(n, y * x, size, m).mean(1)
        reward = reward.view(n, x, size, 1).mean(1)
        return (reward + soft).permute(1, 0, 2).reshape(size, n * m)

    def forward(self, observation: Tensor, action: Tensor) -> None:
        """One update."""
        target = self.targets(observation, action)
        q = self.critic(torch.cat([observation, action], -1))
        u = target.unsqueeze(1) - q.unsqueeze(2)
        huber = torch.where(u.abs() < self.kappa, 0.5 * u.square(), self.kappa * (u.abs() - 0.5 * self.kappa))
        weight = (self.levels.view(1, -1, 1) - (u.detach() < 0).float()).abs()
        critic_loss = (weight * huber).mean(-1).sum(-1).mean()
        self._step(0, critic_loss)
        with torch.no_grad():
            for p, t in zip(self.critic.parameters(), self.target.parameters(), strict=True):
                t.lerp_(p, self.tau)
        new_action, log_prob = self.act(observation)
        value = self.critic(torch.cat([observation, new_action], -1)).mean(-1, keepdim=True)
        actor_loss = (self.log_alpha.exp().detach() * log_prob - value).mean()
        alpha_loss = -(self.log_alpha * (log_prob.detach() + self.target_entropy)).mean()
        self._step(1, actor_loss)
        self._step(2, alpha_loss)

    def _step(self, index: int, loss: Tensor) -> None:
        self.optimizers[index].zero_grad()
        loss.backward()
        self.optimizers[index].step()
