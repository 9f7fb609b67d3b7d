"""Member values with few calls: the same mathematics as the losses, written on tensors. A prototype for research."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.nn.functional import softplus

from eqr_torchrl.modules.critic import ScaledCritic
from eqr_torchrl.modules.normalizer import Normalizer


class RingBuffer:
    """Observations and actions of imagined transitions, first in, first out."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.size, self.cursor = capacity, 0, 0
        self.rows: tuple[Tensor, Tensor] | None = None

    def extend(self, tensordict: TensorDictBase) -> None:
        values = tensordict["observation"], tensordict["action"]
        if self.rows is None:
            self.rows = tuple(torch.empty(self.capacity, value.shape[-1]) for value in values)  # pyright: ignore
        count = len(values[0])
        index = (self.cursor + torch.arange(count)) % self.capacity
        for rows, value in zip(self.rows, values, strict=True):  # pyright: ignore
            rows[index] = value
        self.cursor, self.size = (self.cursor + count) % self.capacity, min(self.size + count, self.capacity)

    def sample(self, size: int) -> tuple[Tensor, Tensor]:
        index = torch.randint(self.size, (size,))
        return self.rows[0][index], self.rows[1][index]  # pyright: ignore

    def state_dict(self) -> dict:
        return {}

    def load_state_dict(self, state: dict) -> None:
        raise NotImplementedError


class LeanMemberValues:
    """Soft actor-critic on member values, for a family of policies indexed by optimism in {0, 1}.

    Everything is without units: observations are normalised, actions lie in [-1, 1] where entropies and the critic see
    them, values and temperature are in units of ``unit``, a scale of the rewards.
    """

    def __init__(
        self,
        actor: nn.Module,
        critic: nn.Module,
        model_env,
        buffer: RingBuffer,
        utility: nn.Module,
        *,
        action_spec,
        batch_size: int,
        gamma: float,
        tau: float,
        alpha_init: float,
        lr_actor: float,
        lr_critic: float,
        lr_alpha: float,
        reward_bounds: Sequence[float] | None = None,
        explore_bounds: tuple[float, float] = (0.1, 0.75),
        average_decay: float = 0.002,
    ) -> None:
        self.head = next(module for module in actor.modules() if type(module).__name__ == "GaussianHead")
        self.critic: ScaledCritic = critic.module  # pyright: ignore
        self.target: ScaledCritic = copy.deepcopy(self.critic).requires_grad_(False)
        self.model_env, self.buffer, self.utility = model_env, buffer, utility
        low, high = action_spec.space.low.float(), action_spec.space.high.float()
        self.mid, self.half, self.num_actions = (low + high) / 2, (high - low) / 2, action_spec.shape[-1]
        self.batch_size, self.gamma, self.tau, self.unit = batch_size, gamma, tau, 1.0
        self.log_alpha = nn.Parameter(torch.tensor(math.log(alpha_init)))
        self.reward_bounds, self.explore_bounds = reward_bounds, explore_bounds
        self.unknown, self.known, self.debt = 0.0, 0.0, 0.0  # spread and size of values; see explores
        self.average = copy.deepcopy(actor).requires_grad_(False)  # weights averaged over updates
        self.average_decay = average_decay
        self.average_pairs = list(self.average.parameters()), list(actor.parameters())
        self.critic_parameters = list(self.critic.parameters())
        self.target_parameters = list(self.target.parameters())
        self.optimizer = torch.optim.Adam(
            [
                {"params": list(self.head.parameters()), "lr": lr_actor},
                {"params": self.critic_parameters, "lr": lr_critic},
                {"params": [self.log_alpha], "lr": lr_alpha},
            ],
            fused=True,
        )

    @torch.no_grad()
    def update_units(self, observations: Tensor, unit: float) -> None:
        """Normalises observations by the statistics of the data, and learns values in ``unit``; values stay."""
        self.unit = unit
        for network in (self.head, self.critic, self.target, self.average):
            for module in network.modules():
                if isinstance(module, Normalizer):
                    module.update(observations)
                if isinstance(module, ScaledCritic):
                    module.set_unit(unit)

    @property
    def explore_fraction(self) -> float:
        """Share of episodes and of rows of a batch for the exploring policy.

        What is unknown about values, their spread over members, against that and what is known, their size.
        """
        smallest, largest = self.explore_bounds
        total = self.unknown + self.known
        return min(max(self.unknown / total if total else 1.0, smallest), largest)

    def explores(self) -> bool:
        """Whether the next episode explores: as many as :attr:`explore_fraction` asks for, evenly spread."""
        self.debt += self.explore_fraction
        explores = self.debt >= 0.5
        self.debt -= float(explores)
        return explores

    def draw(self, observation: Tensor, optimism: Tensor) -> tuple[Tensor, Tensor]:
        """Actions in units of the environment, and the log-density ``[..., 1]`` of the same actions in [-1, 1]."""
        loc, scale = self.head(observation, optimism)
        noise = torch.randn_like(loc)
        raw = torch.addcmul(loc, scale, noise)
        # log of the derivative of tanh: 2 (log 2 - x - softplus(-2 x))
        log_prob = -0.5 * noise.square() - scale.log() - (0.5 * math.log(2 * math.pi) + 2 * math.log(2))
        log_prob = (log_prob + 2 * (raw + softplus(-2 * raw))).sum(-1, keepdim=True)
        return torch.addcmul(self.mid, self.half, raw.tanh()), log_prob

    @torch.no_grad()
    def targets(self, observation: Tensor, action: Tensor, optimism: Tensor, alpha: float) -> Tensor:
        """Targets of the members' values, ``[B, M]``."""
        num_members = self.model_env.world_model.num_members
        observation, action, optimism = (
            value.expand(num_members, *value.shape) for value in (observation, action, optimism)
        )
        size = (*observation.shape[:2], 1, self.model_env.world_model.noise_dim)
        noise = torch.randn(size)
        noise[..., -1] = 0.0  # the mean of the reward
        outcome = self.model_env.transition(observation, action, noise)
        following, reward, terminated = (value.squeeze(2) for value in outcome)
        following_action, log_prob = self.draw(following, optimism)
        values = self.target(following, following_action, optimism)  # [M, B, M]
        values = values.diagonal(dim1=0, dim2=2) - alpha * log_prob.squeeze(-1).T  # [B, M]
        target = reward.squeeze(-1).T + self.gamma * torch.where(terminated.squeeze(-1).T, 0.0, values)
        if self.reward_bounds is not None:
            smallest, largest = self.reward_bounds
            steps = 1 / (1 - self.gamma)
            entropy = alpha * self.num_actions * steps
            target = target.clamp(min(smallest * steps, smallest) - entropy, max(largest * steps, largest) + entropy)
        return target

    def update(self) -> dict[str, Tensor]:
        """One step of critic, policy, temperature and target."""
        observation, action = self.buffer.sample(self.batch_size)
        optimism = (torch.rand(len(observation), 1) < self.explore_fraction).float()
        alpha = float(self.log_alpha.detach().exp()) * self.unit
        target = self.targets(observation, action, optimism, alpha)
        values = self.critic(observation, action, optimism)
        loss_critic = ((values - target) / self.unit).square().sum(-1).mean()
        loss_critic.backward()
        for parameter in self.critic_parameters:
            parameter.requires_grad_(False)
        action, log_prob = self.draw(observation, optimism)
        ascended = self.critic(observation, action, optimism)
        utility = ascended.mean(-1).lerp(self.utility(ascended), optimism.squeeze(-1))
        loss_actor = (alpha * log_prob.squeeze(-1) - utility).mean() / self.unit
        loss_alpha = -self.log_alpha * (log_prob.detach().mean() - self.num_actions)
        (loss_actor + loss_alpha).backward()
        for parameter in self.critic_parameters:
            parameter.requires_grad_(True)
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            torch._foreach_lerp_(self.target_parameters, self.critic_parameters, self.tau)
            torch._foreach_lerp_(*self.average_pairs, self.average_decay)
            values = values.detach()
            spread, size = values.std(-1).mean(), values.mean(-1).abs().mean()
            self.unknown += 0.002 * (float(spread) - self.unknown)
            self.known += 0.002 * (float(size) - self.known)
            return {
                "loss_qvalue": loss_critic.detach(),
                "loss_actor": loss_actor.detach(),
                "loss_alpha": loss_alpha.detach(),
                "alpha": torch.tensor(alpha),
                "entropy": -log_prob.detach().mean(),
                "target_value": target.mean(),
                "epistemic_std": spread,
                "explore_fraction": torch.tensor(self.explore_fraction),
            }
