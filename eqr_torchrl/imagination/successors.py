"""Next states from every member of the posterior."""

from __future__ import annotations

from typing import Literal

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor
from torchrl.envs.transforms import Transform

from eqr_torchrl.functional import stratified_normal
from eqr_torchrl.functional._generator import drawn_from
from eqr_torchrl.imagination.model_based import ModelBasedEnv


class EnsembleSuccessors(Transform):
    r"""Replaces a batch's ``"next"`` by ``K`` draws from each of the ``M`` members of a world model.

    A batch of size ``[*B]`` gets a ``"next"`` of batch size ``[*B, M, K]``, which
    :class:`~eqr_torchrl.objectives.EpistemicQuantileLoss` averages over ``K`` and pools over ``M``. Only observation
    and action are read; what the batch held under ``"next"`` is dropped, and so is ``steps_to_next_obs``, since a
    model's successor is one step away. It is a TorchRL transform: call it, or append it to a replay buffer.

    The paper draws ``K = 5`` independent next states. Stratified draws (a Latin hypercube over ``K`` in every noise
    dimension) give unbiased averages of less variance. Each then has the mean of the predicted reward, whose noise is
    independent of the next state's: a sample would only add variance and, where rewards are clipped, bias.

    Args:
        model_env: the world model as an environment. It is not registered as a submodule.
        num_next_states: ``K``, draws from each member.
        sampling: ``"stratified"`` or ``"iid"``.
        num_members: how many members to draw from, a random subset for each batch element (then ``M`` is this number),
            which is unbiased in expectation, cheaper and noisier. Defaults to all.
        observation_key: entry that is read, and written under ``"next"``.
        action_key: entry that is read.
        reward_key: entry that is written under ``"next"``.
        done_key: entry that is written under ``"next"``.
        terminated_key: entry that is written under ``"next"``.

    Raises:
        ValueError: if an argument is out of its range.

    Examples:
        >>> from eqr_torchrl.imagination import ModelBasedEnv, never_terminates
        >>> from eqr_torchrl.world_models import GaussianEnsemble
        >>> model = GaussianEnsemble(3, 1, num_members=5, num_cells=(8,))
        >>> successors = EnsembleSuccessors(ModelBasedEnv(model, toy_env(), termination_fn=never_terminates))
        >>> successors(toy_batch(B=4))["next", "observation"].shape
        torch.Size([4, 5, 4, 3])
    """

    def __init__(
        self,
        model_env: ModelBasedEnv,
        *,
        num_next_states: int = 4,
        sampling: Literal["stratified", "iid"] = "stratified",
        num_members: int | None = None,
        observation_key: NestedKey = "observation",
        action_key: NestedKey = "action",
        reward_key: NestedKey = "reward",
        done_key: NestedKey = "done",
        terminated_key: NestedKey = "terminated",
    ) -> None:
        super().__init__(in_keys=[observation_key, action_key], out_keys=["next"])
        self._next_keys = (observation_key, reward_key, terminated_key, done_key)
        if num_next_states < 1:
            raise ValueError(f"num_next_states must be positive, got {num_next_states}.")
        if sampling not in ("stratified", "iid"):
            raise ValueError(f'sampling must be "stratified" or "iid", got {sampling!r}.')
        total = model_env.world_model.num_members
        if num_members is not None and not 1 <= num_members <= total:
            raise ValueError(f"num_members must be between 1 and the {total} members of model_env, got {num_members}.")
        self._model_env = (model_env,)  # in a tuple, so that buffers and losses do not take over its parameters
        self.num_next_states, self.sampling = num_next_states, sampling
        self.num_members = total if num_members is None else num_members

    @property
    def model_env(self) -> ModelBasedEnv:
        """The world model as an environment."""
        return self._model_env[0]

    @torch.no_grad()
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes ``"next"``, batch size ``[*B, M, K]``, into a batch of size ``[*B]`` and returns it.

        Raises:
            RuntimeError: if the batch lacks observation or action, or they differ in their batch dimensions.
        """
        observation, action = (self._read(tensordict, key) for key in self.in_keys)
        batch = observation.shape[:-1]
        if action.shape[:-1] != batch:
            raise RuntimeError(
                f"{self.in_keys[0]!r} and {self.in_keys[1]!r} must have one batch size: got shapes "
                f"{tuple(observation.shape)} and {tuple(action.shape)}."
            )
        observation, action = (value.reshape(-1, value.shape[-1]) for value in (observation, action))
        total, rows = self.model_env.world_model.num_members, None
        if self.num_members == total:
            observation, action = (value.expand(total, *value.shape) for value in (observation, action))
        else:
            rows, places = self._deal(len(observation), observation.device)
            observation, action = observation[rows], action[rows]
        outcome = self.model_env.transition(observation, action, self._noise(observation))
        if rows is None:
            outcome = [value.transpose(0, 1) for value in outcome]  # [M, B, K, .] -> [B, M, K, .]
        else:
            outcome = [value.flatten(0, 1)[places] for value in outcome]
        size = (*batch, self.num_members, self.num_next_states)
        next_observation, reward, terminated = (value.reshape(*size, value.shape[-1]) for value in outcome)
        entries = zip(self._next_keys, (next_observation, reward, terminated, terminated), strict=True)
        tensordict.pop("steps_to_next_obs", None)
        return tensordict.set("next", TensorDict(dict(entries), size))

    @staticmethod
    def _read(tensordict: TensorDictBase, key: NestedKey) -> Tensor:
        value = tensordict.get(key, None)
        if value is None:
            found = ", ".join(map(repr, tensordict.keys())) or "nothing"
            raise RuntimeError(f"the batch must hold {key!r}, got {found}.")
        return value

    def _deal(self, size: int, device) -> tuple[Tensor, Tensor]:
        """Elements of the batch that each member serves, and where each element finds its members' answers.

        Elements, in random order, take ``num_members`` seats each in rounds of all members, in a random order of
        members: distinct members for each element, and loads that differ by one at most. Elements are ``[all members,
        rounds]`` (seats left over repeat element 0), places ``[size, num_members]`` into its flattened seats.
        """
        total, source = self.model_env.world_model.num_members, drawn_from(self.model_env.generator)
        rounds = -(-size * self.num_members // total)
        order = torch.randperm(size, device=device, **source)
        member = torch.randperm(total, device=device, **source)
        seat = order.argsort().unsqueeze(-1) * self.num_members + torch.arange(self.num_members, device=device)
        places = member[seat % total] * rounds + seat // total
        rows = torch.zeros(total * rounds, dtype=torch.long, device=device)
        rows[places] = torch.arange(size, device=device).unsqueeze(-1)
        return rows.view(total, rounds), places

    def _noise(self, observation: Tensor) -> Tensor:
        size = (*observation.shape[:2], self.num_next_states, self.model_env.world_model.noise_dim)
        kwargs = {"device": observation.device, "dtype": observation.dtype}
        if self.sampling == "iid":
            return torch.randn(size, **kwargs, **drawn_from(self.model_env.generator))
        noise = stratified_normal(size, dim=2, **kwargs, generator=self.model_env.generator)
        if self.model_env.world_model.predicts_reward:
            noise[..., -1] = 0.0
        return noise
