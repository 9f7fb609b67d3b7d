"""Next states from every member of the posterior."""

from __future__ import annotations

from typing import Literal

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.envs.transforms import Transform

from eqr_torchrl.functional import stratified_normal
from eqr_torchrl.imagination.buffers import check_counts
from eqr_torchrl.imagination.model_based import ModelBasedEnv, check_model_env


class EnsembleSuccessors(Transform):
    r"""Replaces a batch's ``"next"`` by ``K`` draws from each of the ``M`` members of a world model.

    A batch of size ``[*B]`` gets a ``"next"`` of batch size ``[*B, M, K]``, which
    :class:`~eqr_torchrl.objectives.EpistemicQuantileLoss` averages over ``K`` and pools over ``M``. Only observation
    and action are read; what the batch held under ``"next"`` is dropped, and so is ``steps_to_next_obs``, since a
    model's successor is one step away. It is a TorchRL transform: call it, or append it to a replay buffer. (Batches
    with other keys: append a ``RenameTransform`` before it.)

    The paper draws ``K = 5`` independent next states. Stratified draws (a Latin hypercube over ``K`` in every noise
    dimension) give unbiased averages of less variance. Each then has the mean of the predicted reward, whose noise is
    independent of the next state's: a sample would only add variance and, where rewards are clipped, bias.

    Args:
        model_env: the world model as an environment. It is not registered as a submodule.
        num_next_states: ``K``, draws from each member.
        sampling: ``"stratified"`` or ``"iid"``.
        num_members: size of the random subset of members that each batch element keeps (then ``M`` is this number),
            which makes the loss cheaper and noisier, and is unbiased in expectation. Defaults to all.

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
    ) -> None:
        super().__init__(in_keys=["observation", "action"], out_keys=["next"])
        check_model_env(model_env)
        check_counts(num_next_states=num_next_states)
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
        observation, action = (self._read(tensordict, key) for key in ("observation", "action"))
        batch, model_env, total = observation.shape[:-1], self.model_env, self.model_env.world_model.num_members
        if action.shape[:-1] != batch:
            shapes = f"{tuple(observation.shape)} and {tuple(action.shape)}"
            raise RuntimeError(f"observation and action must have one batch size: got shapes {shapes}.")
        observation, action = (v.reshape(-1, v.shape[-1]).expand(total, -1, -1) for v in (observation, action))
        outcome = model_env.sample_next(observation, action, self._noise(observation))
        outcome = [value.transpose(0, 1) for value in outcome]  # [M, B, K, .] -> [B, M, K, .]
        if self.num_members < total:
            subset = model_env.draw(torch.rand, outcome[0].shape[:2]).argsort(-1)[:, : self.num_members]
            outcome = [
                value[torch.arange(len(subset), device=subset.device).unsqueeze(-1), subset] for value in outcome
            ]
        size = (*batch, self.num_members, self.num_next_states)
        next_observation, reward, terminated = (value.reshape(*size, value.shape[-1]) for value in outcome)
        entries = {"observation": next_observation, "reward": reward, "terminated": terminated, "done": terminated}
        tensordict.pop("steps_to_next_obs", None)
        return tensordict.set("next", TensorDict(entries, size))

    @staticmethod
    def _read(tensordict: TensorDictBase, key: str) -> Tensor:
        value = tensordict.get(key, None)
        if value is None:
            found = ", ".join(map(repr, tensordict.keys())) or "nothing"
            raise RuntimeError(f"the batch must hold {key!r}, got {found}.")
        return value

    def _noise(self, observation: Tensor) -> Tensor:
        world_model = self.model_env.world_model
        size = (*observation.shape[:2], self.num_next_states, world_model.noise_dim)
        if self.sampling == "iid":
            return self.model_env.draw(torch.randn, size, dtype=observation.dtype)
        noise = self.model_env.draw(stratified_normal, size, dim=2, dtype=observation.dtype)
        if world_model.predicts_reward:
            noise[..., -1] = 0.0
        return noise
