"""The world model as an environment: M imagined MDPs side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Categorical, Composite, Unbounded
from torchrl.envs import EnvBase, ModelBasedEnvBase

from eqr_torchrl.functional._generator import drawn_from
from eqr_torchrl.imagination._user_functions import try_on_zeros
from eqr_torchrl.imagination.terminations import TerminationFn
from eqr_torchrl.world_models import WorldModel

RewardFn = Callable[[Tensor, Tensor, Tensor], Tensor]


class ModelBasedEnv(ModelBasedEnvBase):
    r"""An ensemble world model as a TorchRL environment of batch size ``[M, B]``.

    Row ``i`` of the first dimension acts in member ``i``: each member is one MDP drawn from the posterior, and a
    rollout stays in it (``member="fixed"``, line 9 of Algorithm 2 of `Luis et al. (2024) <https://arxiv.org/abs/2308.06590>`_).
    With ``member="resampled"`` every row gets a random member at every step, as in MBPO (`Janner et al. (2019)
    <https://arxiv.org/abs/1906.08253>`_): the rows are shuffled and split evenly.

    Args:
        world_model: posterior over MDPs.
        env: the real environment; its ``observation`` and ``action`` specs are taken over. It is never stepped.
        termination_fn: end of an episode, see :data:`TerminationFn`. Required, since no default is right everywhere.
        reward_fn: maps observations, actions and next observations to rewards ``[..., 1]``. Required if, and only if,
            the world model does not predict rewards.
        reward_bounds: smallest and largest reward, to which predicted rewards are clipped, if known.
        member: ``"fixed"`` or ``"resampled"``.
        rows_per_member: ``B``, rows of every reset, step and rollout in each member.
        start_states: states ``[n, S]`` from which a reset without a given observation draws.
        generator: source of randomness. Defaults to torch's global one.

    Raises:
        ValueError: if an argument is out of its range, sizes do not fit, ``reward_fn`` is missing or superfluous, or
            a function or the world model, tried once on zeros, returns another shape or type than it must.
        RuntimeError: on a reset that neither has an observation nor ``start_states``.

    Examples:
        >>> from eqr_torchrl.world_models import GaussianEnsemble
        >>> from eqr_torchrl.imagination import never_terminates
        >>> env = ModelBasedEnv(
        ...     GaussianEnsemble(3, 1, num_members=5, num_cells=(8,)), toy_env(), termination_fn=never_terminates,
        ...     rows_per_member=2, start_states=torch.zeros(1, 3),
        ... )
        >>> env.rollout(4, toy_actor()).batch_size
        torch.Size([5, 2, 4])
    """

    world_model: WorldModel

    def __init__(
        self,
        world_model: WorldModel,
        env: EnvBase,
        *,
        termination_fn: TerminationFn,
        reward_fn: RewardFn | None = None,
        reward_bounds: tuple[float, float] | None = None,
        member: Literal["fixed", "resampled"] = "fixed",
        rows_per_member: int = 1,
        start_states: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        if member not in ("fixed", "resampled"):
            raise ValueError(f'member must be "fixed" or "resampled", got {member!r}.')
        if rows_per_member < 1:
            raise ValueError(f"rows_per_member must be positive, got {rows_per_member}.")
        if world_model.predicts_reward == (reward_fn is not None):
            needed, instead = ("must be None", "False") if world_model.predicts_reward else ("is required", "True")
            raise ValueError(
                f"reward_fn {needed} for a world model with predicts_reward={world_model.predicts_reward}, "
                f"got {getattr(reward_fn, '__name__', reward_fn)}; or build the model with learn_reward={instead} "
                f"(on a command line, world_model.learn_reward={instead.lower()})."
            )
        if reward_bounds is not None and not reward_bounds[0] < reward_bounds[1]:
            raise ValueError(f"reward_bounds must increase, got {tuple(reward_bounds)}.")
        observation_spec, action_spec = env.observation_spec["observation"], env.action_spec_unbatched
        if observation_spec.shape[-1] != world_model.observation_dim:
            raise ValueError(
                f"world_model must have the observation_dim of env, {observation_spec.shape[-1]}: "
                f"got {world_model.observation_dim}."
            )
        zeros = next(world_model.parameters(), torch.empty(0)).new_zeros(
            world_model.num_members, 2, action_spec.shape[-1]
        )
        try_on_zeros(world_model, termination_fn, reward_fn, zeros)
        device = zeros.device
        size = torch.Size([world_model.num_members, rows_per_member])
        super().__init__(world_model, device=device, batch_size=size)  # pyright: ignore[reportArgumentType]
        self.termination_fn, self.reward_fn, self.member, self.generator = termination_fn, reward_fn, member, generator
        self.start_states, self.reward_bounds = start_states, reward_bounds
        # predictions may leave any bounds
        state = Unbounded(torch.Size([*size, world_model.observation_dim]), device=device)
        self.observation_spec = Composite(observation=state, shape=size)
        self.state_spec = Composite(observation=state.clone(), shape=size)
        self.action_spec = action_spec.to(device).expand(torch.Size([*size, *action_spec.shape]))
        self.reward_spec = Unbounded(torch.Size([*size, 1]), device=device)
        flag = Categorical(2, torch.Size([*size, 1]), dtype=torch.bool, device=device)
        self.full_done_spec = Composite(done=flag, terminated=flag.clone(), truncated=flag.clone(), shape=size)

    def transition(
        self, observation: Tensor, action: Tensor, noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        r"""Next states in given members: row ``i`` of the first dimension in member ``i``.

        .. math:: (s', r) = \mu_m(s, a) + \sigma_m(s, a) \epsilon

        Args:
            observation: states, in environment units, shape ``[M, B, S]``.
            action: actions, in environment units, shape ``[M, B, A]``.
            noise: standard normal draws, shape ``[M, B, K, D]`` with the ``noise_dim`` of the world model. Drawn here,
                with ``K = 1``, if ``None``.

        Returns:
            Next observations ``[M, B, K, S]``, rewards ``[M, B, K, 1]`` and terminations, bool ``[M, B, K, 1]``.
        """
        loc, scale = self.world_model(observation, action)
        if noise is None:
            size = (*loc.shape[:2], 1, loc.shape[2])
            noise = torch.randn(size, device=loc.device, dtype=loc.dtype, **drawn_from(self.generator))
        sample = torch.addcmul(loc.unsqueeze(2), scale.unsqueeze(2), noise)
        # what the user's functions get has the shape of the next observations, so that they may concatenate
        observation, action = (v.unsqueeze(2).expand(*sample.shape[:-1], v.shape[-1]) for v in (observation, action))
        if self.reward_fn is None:
            next_observation, reward = sample.split([self.world_model.observation_dim, 1], -1)
        else:
            next_observation, reward = sample, self.reward_fn(observation, action, sample)
        if self.reward_bounds is not None:
            reward = reward.clamp(*self.reward_bounds)
        terminated = self.termination_fn(next_observation, action)
        return next_observation, reward, terminated

    def advance(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One step of every row under the member rule: :meth:`transition` without the dimension ``K``."""
        if self.member == "fixed":
            return tuple(value.squeeze(2) for value in self.transition(observation, action))  # pyright: ignore
        size = observation.shape[:2]
        order = torch.randperm(size.numel(), device=observation.device, **drawn_from(self.generator))
        shuffled = (value.flatten(0, 1)[order].view(*size, -1) for value in (observation, action))
        outcome = self.transition(*shuffled)
        return tuple(_unshuffle(value.flatten(0, 2), order).view(*size, -1) for value in outcome)  # pyright: ignore

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        observation, action = tensordict.get("observation"), tensordict.get("action")
        next_observation, reward, terminated = self.advance(observation, action)
        entries = {"observation": next_observation, "reward": reward, **_flags(terminated)}
        return TensorDict(entries, tensordict.batch_size, device=self.device)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs) -> TensorDict:
        observation = None if tensordict is None else tensordict.get("observation", None)
        if observation is None:
            if self.start_states is None:
                raise RuntimeError(
                    "ModelBasedEnv.reset needs start_states, or a tensordict with an observation: got neither."
                )
            states = self.start_states
            rows = torch.randint(len(states), self.batch_size, device=states.device, **drawn_from(self.generator))
            observation = states[rows].to(self.device)
        flags = _flags(torch.zeros(*observation.shape[:-1], 1, dtype=torch.bool, device=self.device))
        return TensorDict({"observation": observation, **flags}, self.batch_size, device=self.device)

    def _set_seed(self, seed: int | None) -> None:
        if seed is not None:
            (self.generator.manual_seed if self.generator is not None else torch.manual_seed)(seed)


def _flags(terminated: Tensor) -> dict[str, Tensor]:
    return {"terminated": terminated, "done": terminated.clone(), "truncated": torch.zeros_like(terminated)}


def _unshuffle(rows: Tensor, order: Tensor) -> Tensor:
    out = torch.empty_like(rows)
    out[order] = rows
    return out
