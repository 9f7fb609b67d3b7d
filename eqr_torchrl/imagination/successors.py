"""Next states from every member of the posterior, or from the real environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import ReplayBuffer
from torchrl.envs.transforms import Transform

from eqr_torchrl.functional import stratified_normal
from eqr_torchrl.imagination.model_based import ModelBasedEnv, check_model_env
from eqr_torchrl.networks.layers import check_counts


class EnsembleSuccessors(Transform):
    r"""Replaces a batch's ``"next"`` by ``K`` draws from each of the ``M`` members of a world model.

    A batch of size ``[*B]`` gets a ``"next"`` of batch size ``[*B, M, K]``, which
    :class:`~eqr_torchrl.objectives.EpistemicQuantileLoss` averages over ``K`` and pools over ``M``. Only observation
    and action are read; the batch's own ``"next"`` and ``steps_to_next_obs`` are dropped. It is a TorchRL transform:
    call it, or append it to a replay buffer.

    The paper draws ``K = 5`` independent next states. Stratified draws (a Latin hypercube over ``K`` in every noise
    dimension) give unbiased averages of less variance. The reward is then its predicted mean: its noise is independent
    of the next state's, and would only add variance and, where rewards are clipped, bias.

    Args:
        model_env: the world model as an environment. It is not registered as a submodule.
        num_next_states: ``K``, draws from each member.
        sampling: ``"stratified"`` or ``"iid"``.

    Examples:
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
    ) -> None:
        super().__init__(in_keys=["observation", "action"], out_keys=["next"])
        check_model_env(model_env)
        check_counts(num_next_states=num_next_states)
        if sampling not in ("stratified", "iid"):
            raise ValueError(f'sampling must be "stratified" or "iid", got {sampling!r}.')
        self.model_env: ModelBasedEnv
        self.__dict__["model_env"] = model_env  # no submodule: buffers and losses must not take over its parameters
        self.num_next_states, self.sampling = num_next_states, sampling

    @torch.no_grad()
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes ``"next"``, batch size ``[*B, M, K]``, into a batch of size ``[*B]`` and returns it."""
        observation, action = tensordict["observation"], tensordict["action"]
        batch, model_env, num_members = observation.shape[:-1], self.model_env, self.model_env.world_model.num_members
        observation, action = (v.reshape(-1, v.shape[-1]).expand(num_members, -1, -1) for v in (observation, action))
        shape = (*observation.shape[:2], self.num_next_states, model_env.world_model.noise_dim)
        if self.sampling == "iid":
            noise = torch.randn(shape, dtype=observation.dtype, device=model_env.device)
        else:
            noise = stratified_normal(shape, dim=2, dtype=observation.dtype, device=model_env.device)
            if model_env.world_model.predicts_reward:
                noise[..., -1] = 0.0
        outcome = model_env.sample_next(observation, action, noise)
        size = (*batch, num_members, self.num_next_states)  # [M, B, K, .] -> [*B, M, K, .]
        next_observation, reward, terminated = (v.transpose(0, 1).reshape(*size, v.shape[-1]) for v in outcome)
        entries = {"observation": next_observation, "reward": reward, "terminated": terminated, "done": terminated}
        tensordict.pop("steps_to_next_obs", None)
        return tensordict.set("next", TensorDict(entries, size))


class RealSuccessors:
    r"""Replaces a share of an imagined batch by real transitions, whose outcome all members share.

    Members need not disagree about outcomes that were observed. A value that only imagined transitions support can rest
    on an error that all members share: in imagination, a robot on its back that moves a little further in each step
    gets up in the end. Real transitions show that it stays on its back.

    Args:
        successors: writes ``"next"``, batch size ``[B]`` or ``[B, M, K]``, into a batch of observations and actions,
            such as :class:`EnsembleSuccessors`.
        replay: real transitions.
        share: of the batch, in ``[0, 1)``.

    Examples:
        >>> model = GaussianEnsemble(3, 1, num_members=5, num_cells=(8,))
        >>> imagined = EnsembleSuccessors(ModelBasedEnv(model, toy_env(), termination_fn=never_terminates))
        >>> replay = make_replay_buffer(100)
        >>> _ = replay.extend(toy_batch(B=20))
        >>> RealSuccessors(imagined, replay, share=0.5)(toy_batch(B=8))["next", "reward"].shape
        torch.Size([8, 5, 4, 1])
    """

    def __init__(
        self, successors: Callable[[TensorDictBase], TensorDictBase], replay: ReplayBuffer, *, share: float = 0.5
    ) -> None:
        if not 0 <= share < 1:
            raise ValueError(f"share must be in [0, 1), got {share}.")
        self.successors, self.replay, self.share = successors, replay, share

    def __call__(self, batch: TensorDictBase) -> TensorDictBase:
        """A batch of the same size, real transitions first."""
        count = round(self.share * len(batch))
        if not count:
            return self.successors(batch)
        rest: Any = batch[count:]
        imagined = self.successors(rest)
        if imagined.get("next", None) is None:
            raise ValueError(f'share must be 0 for batches without "next", of members\' buffers: got {self.share}.')
        real: Any = self.replay[torch.randint(len(self.replay), (count,))].to(imagined.device)
        if real.get("steps_to_next_obs", None) is not None:
            raise ValueError("replay must hold transitions of one step, got steps_to_next_obs.")
        size = (count, *imagined["next"].shape[1:])
        outcome = real["next"].select("observation", "reward", "terminated", "done").view(count, *[1] * (len(size) - 1))
        rows = {"observation": real["observation"], "action": real["action"], "next": outcome.expand(size)}
        return torch.cat([TensorDict(rows, [count]), imagined.select(*rows)])  # pyright: ignore
