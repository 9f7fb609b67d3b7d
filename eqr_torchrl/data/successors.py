"""What may come next, according to every member of the posterior."""

from __future__ import annotations

from typing import Literal

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.envs.transforms import Transform

from eqr_torchrl.envs.model_based import ModelBasedEnv
from eqr_torchrl.functional import stratified_normal


class EnsembleSuccessors(Transform):
    r"""Replaces a batch's ``"next"`` by ``K`` draws from each of the ``M`` members of a world model.

    A batch of size ``[B]`` gets a ``"next"`` of batch size ``[B, M, K]``, which
    :class:`~eqr_torchrl.objectives.EpistemicQuantileLoss` averages over ``K`` and pools over ``M``. Only
    ``observation`` and ``action`` are read. It is a TorchRL transform: call it, or append it to a replay buffer.

    The paper draws ``K = 5`` independent next states and five actions at each. Stratified draws (``"stratified"``, a
    Latin hypercube over ``K`` in every noise dimension) give unbiased averages of less variance for fewer draws.

    Args:
        model_env: the world model as an environment. It is not registered as a submodule.
        num_next_states: ``K``, draws from each member.
        sampling: ``"stratified"`` or ``"iid"``.
        num_members: how many members to draw from, a random subset for each batch element (then ``M`` is this number),
            which is unbiased in expectation, cheaper and noisier. Defaults to all.

    Raises:
        ValueError: if an argument is out of its range.

    Examples:
        >>> from eqr_torchrl.envs import ModelBasedEnv, never_terminates
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
        super().__init__()
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
        """Writes ``"next"``, batch size ``[B, M, K]``, into a batch of size ``[B]`` and returns it.

        Raises:
            RuntimeError: if the batch has not exactly one dimension.
        """
        observation, action = tensordict.get("observation"), tensordict.get("action")
        if observation.ndim != 2:
            raise RuntimeError(f"the batch must be of size [B]: got an observation of {tuple(observation.shape)}.")
        world_model, size = self.model_env.world_model, len(observation)
        rows = self._rows(size, observation.device)
        if rows is None:
            observation = observation.expand(world_model.num_members, *observation.shape)
            action = action.expand(world_model.num_members, *action.shape)
        else:
            observation, action = observation[rows], action[rows]
        outcome = self.model_env.transition(observation, action, self._noise(observation))
        if rows is None:
            outcome = [value.transpose(0, 1) for value in outcome]  # [M, B, K, .] -> [B, M, K, .]
        else:
            place = rows.flatten().argsort(stable=True)  # rows of one batch element side by side
            outcome = [v.flatten(0, 1)[place].unflatten(0, (size, self.num_members)) for v in outcome]
        next_observation, reward, terminated = outcome
        successors = TensorDict(
            {
                "observation": next_observation,
                "reward": reward,
                "terminated": terminated,
                "done": terminated,
            },
            (size, self.num_members, self.num_next_states),
        )
        return tensordict.set("next", successors)

    def _rows(self, size: int, device) -> Tensor | None:
        """Batch elements that each member serves, ``[all members, rows]``, or ``None`` where each serves all."""
        total = self.model_env.world_model.num_members
        if self.num_members == total:
            return None
        if size * self.num_members % total:
            raise RuntimeError(
                f"the batch size times num_members must be a multiple of the {total} members: "
                f"got {size} x {self.num_members}."
            )
        # a random order of batch elements, dealt to the members in turn: distinct members for each element
        generator = self.model_env.generator
        order = torch.randperm(size, device=device, generator=generator)
        dealt = order.repeat_interleave(self.num_members)
        turn = torch.arange(len(dealt), device=device) % total
        member = torch.randperm(total, device=device, generator=generator)[turn]
        return dealt[member.argsort(stable=True)].view(total, -1)

    def _noise(self, observation: Tensor) -> Tensor:
        size = (*observation.shape[:2], self.num_next_states, self.model_env.world_model.noise_dim)
        kwargs = {"device": observation.device, "dtype": observation.dtype, "generator": self.model_env.generator}
        if self.sampling == "iid":
            return torch.randn(size, **kwargs)
        return stratified_normal(size, dim=2, **kwargs)
