"""Finite MDPs as TorchRL environments."""

from __future__ import annotations

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Categorical, Composite
from torchrl.envs import EnvBase

from eqr_torchrl.tabular.mdp import MDP


class MDPEnv(EnvBase):
    """Episodes of a finite MDP, many at once.

    Keys: ``observation`` and ``action`` are indices, int64 of shape ``[*batch_size]``; ``reward`` is the mean reward
    of the pair, float32 ``[*batch_size, 1]``; ``terminated`` and ``done`` become true in a terminal state.
    The environment holds no state between steps, and no time limit.

    Args:
        mdp: a single MDP, or a batch of them that becomes the batch size of the environment.
        batch_size: number of episodes at once, if ``mdp`` is a single MDP.

    Raises:
        ValueError: if ``mdp`` is a batch and ``batch_size`` is given, or the initial state is terminal.

    Examples:
        >>> from eqr_torchrl.tabular import nroom_mdp
        >>> env = MDPEnv(nroom_mdp(), batch_size=(3,))
        >>> to_the_right = lambda td: td.set("action", torch.ones(3, dtype=torch.long))
        >>> env.rollout(20, to_the_right)["next", "reward"][0].flatten()
        tensor([0.0100, 0.0000, 0.0000, 0.0000, 0.0000, 0.0000, 1.0000])
    """

    def __init__(self, mdp: MDP, *, batch_size: tuple[int, ...] = ()) -> None:
        if mdp.batch_shape and batch_size:
            raise ValueError(f"batch_size must be left out for MDPs of batch shape {tuple(mdp.batch_shape)}.")
        if mdp.initial_state in mdp.terminal_states:
            raise ValueError(f"initial_state must not be terminal: state {mdp.initial_state} is.")
        super().__init__(device=mdp.rewards.device, batch_size=mdp.batch_shape or batch_size)
        self.mdp = mdp
        self._generator = torch.Generator(device=mdp.rewards.device)
        self._generator.manual_seed(int(torch.randint(2**62, ())))
        cumulative = mdp.transitions.cumsum(-1)
        self._cumulative = cumulative / cumulative[..., -1:]
        self._batch = torch.from_numpy(np.indices(mdp.batch_shape)).to(self.device).unbind()
        self._terminal = torch.zeros(mdp.num_states, dtype=torch.bool, device=self.device)
        self._terminal[list(mdp.terminal_states)] = True
        shape = self.batch_size
        self.observation_spec = Composite(observation=Categorical(mdp.num_states, shape), shape=shape).to(self.device)
        self.action_spec = Categorical(mdp.num_actions, shape, device=self.device)

    def _reset(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        return self._output(torch.full(self.batch_size, self.mdp.initial_state, dtype=torch.long, device=self.device))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        pair = (*self._batch, tensordict["observation"], tensordict["action"])
        cumulative = self._cumulative[pair]  # [*batch_size, S]
        level = torch.rand(
            (*self.batch_size, 1), generator=self._generator, dtype=cumulative.dtype, device=cumulative.device
        )
        output = self._output((cumulative <= level).sum(-1))
        return output.set("reward", self.mdp.rewards[pair].float().unsqueeze(-1))

    def _output(self, state: Tensor) -> TensorDictBase:
        ended = self._terminal[state].unsqueeze(-1)
        flags = {"done": ended, "terminated": ended.clone()}
        return TensorDict({"observation": state, **flags}, self.batch_size, device=self.device)

    def _set_seed(self, seed: int | None) -> None:
        if seed is not None:
            self._generator.manual_seed(seed)
