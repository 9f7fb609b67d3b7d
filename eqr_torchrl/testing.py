"""Small parts for tests, docstring examples and first experiments."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor
from torchrl.data import Bounded, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase
from torchrl.modules import ProbabilisticActor

from eqr_torchrl.networks import make_actor, make_critic

__all__ = ["ToyEnv", "toy_actor", "toy_batch", "toy_critic", "toy_env"]


class ToyEnv(EnvBase):
    r"""A noisy point that the action pushes: :math:`s' = 0.9 s + 0.1 a + \sigma \epsilon`, reward :math:`-\|s\|^2`.

    Each entry of the action pushes the entry of the state of the same index modulo ``S``. Episodes are truncated after
    ``max_steps``; ``noise`` is the standard deviation of the transition noise.

    Examples:
        >>> ToyEnv().rollout(3)["next", "reward"].shape
        torch.Size([3, 1])
    """

    def __init__(self, observation_dim: int = 3, action_dim: int = 1, *, max_steps: int = 20, noise=0.01) -> None:
        super().__init__()
        self.observation_spec = Composite(observation=Unbounded(torch.Size([observation_dim])))
        self.action_spec = Bounded(-1.0, 1.0, torch.Size([action_dim]))
        self.reward_spec = Unbounded(torch.Size([1]))
        flag = Categorical(2, torch.Size([1]), dtype=torch.bool)
        self.full_done_spec = Composite(done=flag, terminated=flag.clone(), truncated=flag.clone())
        self.push = torch.zeros(action_dim, observation_dim)
        self.push[range(action_dim), [i % observation_dim for i in range(action_dim)]] = 0.1
        self.max_steps, self.noise, self.env_name = max_steps, noise, "toy"
        self._generator = torch.Generator().manual_seed(0)

    def _flags(self) -> dict[str, Tensor]:
        truncated = torch.tensor([self._steps >= self.max_steps])
        return {"done": truncated, "truncated": truncated.clone(), "terminated": torch.zeros(1, dtype=torch.bool)}

    def _reset(self, tensordict=None, **kwargs) -> TensorDict:
        self._steps = 0
        state = torch.randn(self.observation_spec["observation"].shape, generator=self._generator)
        return TensorDict({"observation": state, **self._flags()}, [])

    def _step(self, tensordict) -> TensorDict:
        self._steps += 1
        state = tensordict["observation"]
        noise = self.noise * torch.randn(state.shape, generator=self._generator)
        after = 0.9 * state + tensordict["action"] @ self.push + noise
        return TensorDict({"observation": after, "reward": -state.square().sum(-1, keepdim=True), **self._flags()}, [])

    def _set_seed(self, seed: int | None) -> None:
        self._generator.manual_seed(0 if seed is None else seed)


toy_env = ToyEnv  # a function like the other parts


def toy_actor(observation_dim: int = 3, action_dim: int = 1, *, num_cells=(16, 16)) -> ProbabilisticActor:
    """A small squashed Gaussian policy on ``[-1, 1]``.

    Examples:
        >>> toy_actor()(toy_env().reset())["action"].shape
        torch.Size([1])
    """
    return _with_biases(make_actor(ToyEnv(observation_dim, action_dim), num_cells=num_cells))


def toy_critic(
    observation_dim: int = 3, action_dim: int = 1, *, num_quantiles: int = 5, num_cells=(16, 16)
) -> TensorDictModule:
    """A small quantile critic.

    Examples:
        >>> toy_critic(num_quantiles=7)(toy_batch(B=4))["state_action_value"].shape
        torch.Size([4, 7])
    """
    env = ToyEnv(observation_dim, action_dim)
    return _with_biases(make_critic(env, num_quantiles=num_quantiles, num_cells=num_cells))


def _with_biases(network):
    """Draws biases, whose zeros would hide a mistake from a test."""
    for name, parameter in network.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.uniform_(parameter, -0.5, 0.5)
    return network


def toy_batch(
    B: int = 4, M: int | None = None, K: int | None = None, *, observation_dim: int = 3, action_dim: int = 1
) -> TensorDict:
    """A random batch of transitions, with ``"next"`` of batch size ``[B]`` or ``[B, M, K]``.

    Examples:
        >>> toy_batch(B=4, M=5, K=3)["next", "observation"].shape
        torch.Size([4, 5, 3, 3])
    """
    if (M is None) != (K is None):
        raise ValueError(f"M and K must both be given, or neither: got {M} and {K}.")
    size = (B,) if M is None or K is None else (B, M, K)
    flag = torch.zeros(*size, 1, dtype=torch.bool)
    after = {"observation": torch.randn(*size, observation_dim), "reward": torch.randn(*size, 1)}
    successors = TensorDict({**after, "terminated": flag, "done": flag.clone()}, size)
    observation, action = torch.randn(B, observation_dim), torch.rand(B, action_dim) * 2 - 1
    return TensorDict({"observation": observation, "action": action, "next": successors}, [B])
