"""The world model as an environment: M imagined MDPs side by side."""

from __future__ import annotations

from typing import Any, Literal

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Categorical, Composite, Unbounded
from torchrl.envs import EnvBase, ModelBasedEnvBase

from eqr_torchrl.imagination.terminations import RewardFn, TerminationFn, checked, checked_prediction
from eqr_torchrl.networks.layers import check_counts
from eqr_torchrl.world_models import WorldModel


class ModelBasedEnv(ModelBasedEnvBase):
    r"""An ensemble world model as a TorchRL environment of batch size ``[M, B]``.

    Row ``i`` of the first dimension acts in member ``i``, one MDP drawn from the posterior (``member="fixed"``, line 8
    of Algorithm 2 of `Luis et al. (2024) <https://arxiv.org/abs/2308.06590>`_). With ``member="resampled"`` rows are
    split evenly among members at random at every step, as in MBPO (`Janner et al. (2019)
    <https://arxiv.org/abs/1906.08253>`_).

    Args:
        world_model: posterior over MDPs.
        env: the real environment; its ``observation`` and ``action`` specs are used. It is never stepped.
        termination_fn: end of an episode, see :data:`TerminationFn`. ``None`` if, and only if, the world model predicts
            terminations: an end is then drawn with the probability that the member predicts.
        reward_fn: maps observations ``[M, B, K, S]``, actions ``[M, B, K, A]`` and next observations ``[M, B, K, S]``
            to rewards ``[M, B, K, 1]``. Required if, and only if, the world model does not predict rewards.
        reward_bounds: smallest and largest reward, to which predicted rewards are clipped, if known.
        member: ``"fixed"`` or ``"resampled"``.
        rows_per_member: ``B``, rows of every reset, step and rollout.
        start_states: states ``[n, S]`` from which a reset draws.

    Examples:
        >>> model = GaussianEnsemble(3, 1, num_members=5, num_cells=(8,))
        >>> env = ModelBasedEnv(model, toy_env(), termination_fn=never_terminates, start_states=torch.zeros(1, 3))
        >>> env.rollout(4, toy_actor()).batch_size
        torch.Size([5, 1, 4])
    """

    world_model: WorldModel
    start_states: Tensor | None

    def __init__(
        self,
        world_model: WorldModel,
        env: EnvBase,
        *,
        termination_fn: TerminationFn | None,
        reward_fn: RewardFn | None = None,
        reward_bounds: tuple[float, float] | None = None,
        member: Literal["fixed", "resampled"] = "fixed",
        rows_per_member: int = 1,
        start_states: Tensor | None = None,
    ) -> None:
        if member not in ("fixed", "resampled"):
            raise ValueError(f'member must be "fixed" or "resampled", got {member!r}.')
        check_counts(rows_per_member=rows_per_member)
        for what, function in (("reward", reward_fn), ("termination", termination_fn)):
            predicted = getattr(world_model, f"predicts_{what}")
            if predicted == (function is not None):
                needed, instead = ("must be None", "False") if predicted else ("is required", "True")
                raise ValueError(
                    f"{what}_fn {needed} for a world model with predicts_{what}={predicted}, got "
                    f"{getattr(function, '__name__', function)}; or build the model with learn_{what}={instead} "
                    f"(on a command line, world_model.learn_{what}={instead.lower()})."
                )
        if reward_bounds is not None and not reward_bounds[0] < reward_bounds[1]:
            raise ValueError(f"reward_bounds must increase, got {tuple(reward_bounds)}.")
        size_of_state, action_spec = env.observation_spec["observation"].shape[-1], env.action_spec_unbatched
        if size_of_state != (size := world_model.observation_dim):
            raise ValueError(f"world_model must have the observation_dim of env, {size_of_state}: got {size}.")
        like = world_model.terminal_reward
        device, dtype, size = like.device, like.dtype, torch.Size([world_model.num_members, rows_per_member])
        super().__init__(world_model, device=device, batch_size=size)  # pyright: ignore[reportArgumentType]
        self.termination_fn, self.reward_fn, self.member = termination_fn, reward_fn, member
        starts = None if start_states is None else torch.as_tensor(start_states, dtype=dtype, device=device)
        if starts is not None and (starts.shape[1:] != (size_of_state,) or not len(starts)):
            shape = tuple(starts.shape)
            raise ValueError(f"start_states must be of shape [n, {size_of_state}] with n > 0, got {shape}.")
        if starts is not None and (bad := int((~starts.isfinite()).any(-1).sum())):
            raise ValueError(f"start_states must be finite, got NaN or infinity in {bad} of {len(starts)} rows.")
        self.reward_bounds = reward_bounds
        self.register_buffer("start_states", starts, persistent=False)
        # predictions may leave any bounds
        state = Unbounded(torch.Size([*size, size_of_state]), device=device, dtype=dtype)
        self.observation_spec = Composite(observation=state, shape=size)
        self.state_spec = Composite(observation=state.clone(), shape=size)
        self.action_spec = action_spec.to(device).to(dtype).expand(torch.Size([*size, *action_spec.shape]))
        self.reward_spec = Unbounded(torch.Size([*size, 1]), device=device, dtype=dtype)
        flag = Categorical(2, torch.Size([*size, 1]), dtype=torch.bool, device=device)
        self.full_done_spec = Composite(done=flag, terminated=flag.clone(), truncated=flag.clone(), shape=size)
        with torch.no_grad():  # a wrong function is named here, and not after the warm-up of a run
            state = like.new_zeros(world_model.num_members, 2, 1, size_of_state)
            action = like.new_zeros(*state.shape[:-1], action_spec.shape[-1])
            if reward_fn is not None:
                checked("reward_fn", reward_fn, state, action, state)
            if termination_fn is not None:
                checked("termination_fn", termination_fn, state, action)

    def sample_next(self, observation: Tensor, action: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        r"""``K`` next states of each row in given members: row ``i`` of the first dimension in member ``i``.

        .. math:: (s', r) = \mu_m(s, a) + \sigma_m(s, a) \epsilon

        Takes observations ``[M, B, S]``, actions ``[M, B, A]``, in units of the environment, and standard normal draws
        ``[M, B, K, D]``. Returns next observations ``[M, B, K, S]``, rewards ``[M, B, K, 1]`` and terminations, bool
        ``[M, B, K, 1]``.
        """
        loc, scale = checked_prediction(self.world_model, observation, action)
        sample = torch.addcmul(loc.unsqueeze(2), scale.unsqueeze(2), noise)
        # what the user's functions get has the shape of the next observations, so that they may concatenate
        observation, action = (v.unsqueeze(2).expand(*sample.shape[:-1], v.shape[-1]) for v in (observation, action))
        next_observation, reward = sample.tensor_split([observation.shape[-1]], -1)
        if self.termination_fn is not None:
            terminated = checked("termination_fn", self.termination_fn, next_observation, action)
        else:
            rows = (value.flatten(1, 2) for value in (next_observation, action))
            probability = self.world_model.termination_probability(*rows).view(*sample.shape[:-1], 1)
            terminated = torch.rand_like(probability) < probability
        reward = reward + self.world_model.terminal_reward * terminated
        if self.reward_fn is not None:
            reward = checked("reward_fn", self.reward_fn, observation, action, next_observation)
        if self.reward_bounds is not None:
            reward = reward.clamp(*self.reward_bounds)
        return next_observation, reward, terminated

    def step_rows(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One step of any number ``B`` of rows in each member, under the member rule.

        Takes observations ``[M, B, S]`` and actions ``[M, B, A]``, in units of the environment. Returns next
        observations ``[M, B, S]``, rewards ``[M, B, 1]`` and terminations, bool ``[M, B, 1]``.
        """
        size, place = observation.shape[:2], None
        if self.member == "resampled":
            order = torch.randperm(size.numel(), device=self.device)
            observation, action = (value.flatten(0, 1)[order].view(*size, -1) for value in (observation, action))
            place = order.argsort()
        noise = torch.randn((*size, 1, self.world_model.noise_dim), dtype=observation.dtype, device=self.device)
        rows = (value.flatten(0, 2) for value in self.sample_next(observation, action, noise))
        return tuple((v if place is None else v[place]).view(*size, -1) for v in rows)  # pyright: ignore

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        next_observation, reward, terminated = self.step_rows(tensordict.get("observation"), tensordict.get("action"))
        entries = {"observation": next_observation, "reward": reward, **_flags(terminated)}
        return TensorDict(entries, tensordict.batch_size, device=self.device)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs) -> TensorDict:
        observation = None if tensordict is None else tensordict.get("observation", None)
        if observation is None:
            if self.start_states is None:
                raise RuntimeError("a reset needs start_states, or a tensordict with an observation: got neither.")
            row = torch.randint(len(self.start_states), self.batch_size, device=self.device)
            observation = self.start_states[row]
        observation = observation.to(self.observation_spec["observation"].dtype)
        flags = _flags(torch.zeros(*observation.shape[:-1], 1, dtype=torch.bool, device=self.device))
        return TensorDict({"observation": observation, **flags}, self.batch_size, device=self.device)

    def _set_seed(self, seed: int | None) -> None:
        if seed is not None:
            torch.manual_seed(seed)


def check_model_env(model_env: Any) -> None:
    """Raises a ValueError for anything but a :class:`ModelBasedEnv`, such as one with transforms."""
    if not isinstance(model_env, ModelBasedEnv):
        why = "rollouts and successors bypass transforms: append them to the buffer"
        raise ValueError(f"model_env must be a ModelBasedEnv, got {type(model_env).__name__}: {why}.")


def _flags(terminated: Tensor) -> dict[str, Tensor]:
    return {"terminated": terminated, "done": terminated.clone(), "truncated": torch.zeros_like(terminated)}
