"""Soft actor-critic with one value for each member of the posterior: member values, and the loss of QU-SAC."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import ProbabilisticTensorDictSequential, TensorDictModule
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor, nn
from torchrl.modules.distributions.utils import rsample_and_log_prob

from eqr_torchrl import functional as F
from eqr_torchrl.objectives._soft_actor_critic import SoftActorCriticLoss

_MEMBERS = "members"


class MemberwiseSACLoss(SoftActorCriticLoss):
    r"""Soft actor-critic with one value for each of the ``M`` members of the posterior.

    Value ``m`` bootstraps in member ``m`` alone, so that each trajectory is consistent with one member:

    .. math:: y_m &= \tfrac1K \sum_k r_{mk}
              + \gamma (1 - d_{mk}) [\bar Q_m(s'_{mk}, a'_{mk}) - \alpha \log \pi(a'_{mk} | s'_{mk})] \\
              L_Q &= \sum_m \big(Q_m(s, a) - y_m\big)^2

    Each :math:`Q_m` is the policy's value in one draw from the posterior, so the values are samples of the posterior
    over values (definition 3 of `Luis et al. (2024) <https://arxiv.org/abs/2308.06590>`_), whether or not a state can
    be visited twice. The policy ascends ``utility`` of the values plus ``alpha`` times its entropy. Losses are averaged
    over the batch. Two kinds of batches are taken:

    - ``"next"`` of batch size ``[*B, M, K]``, as :class:`~eqr_torchrl.imagination.EnsembleSuccessors` writes it: member
      values. All values learn at the same states. The critic is one network of ``M`` outputs, or ``M`` scalar ones.
    - ``"members"`` of batch size ``[*B, M]``, as :class:`~eqr_torchrl.imagination.MemberReplayBuffers` samples it:
      transitions of each member with ``observation``, ``action`` and ``"next"``; the policy is improved at the
      batch's own ``observation``, ``[*B, S]``. Critic ``m`` sees the transitions of member ``m`` alone. This is QU-SAC
      as the baseline of Luis et al. (2024), whose implementation sums the critics' loss over the batch.

    Args:
        actor_network: stochastic policy, ``observation`` to ``action``.
        qvalue_network: one critic of ``M`` outputs, or one scalar critic for each member, which may differ in build;
            writing ``state_action_value``, shape ``[..., M]`` or ``[..., 1]``, in units of return.
        utility: maps ``[..., M]`` to the scalar ``[...]`` that the actor ascends.
        reward_bounds: smallest and largest reward of a step where they are known. Targets are clipped to the values
            that these bounds, and the bonus at the target entropy, allow for episodes that may end at any time.
        **options: those of :class:`~eqr_torchrl.objectives.SoftActorCriticLoss`.

    Examples:
        >>> loss = MemberwiseSACLoss(toy_actor(), toy_critic(num_quantiles=5)).make_value_estimator(gamma=0.99)
        >>> target_updater = SoftUpdate(loss, tau=0.005)
        >>> loss(toy_batch(B=4, M=5, K=3))["loss_qvalue"].shape
        torch.Size([])
    """

    def __init__(
        self,
        actor_network: ProbabilisticTensorDictSequential,
        qvalue_network: TensorDictModule | list[TensorDictModule],
        *,
        utility: nn.Module | None = None,
        num_qvalue_nets: int | None = None,
        reward_bounds: tuple[float, float] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(actor_network, qvalue_network, utility=utility, num_qvalue_nets=num_qvalue_nets, **options)
        if reward_bounds is not None and not reward_bounds[0] < reward_bounds[1]:
            raise ValueError(f"reward_bounds must increase, got {tuple(reward_bounds)}.")
        self.reward_bounds = reward_bounds

    def compute_target(self, tensordict: TensorDictBase) -> Tensor:
        """Target ``[*B, M]`` of each member's value on a batch ``[*B]`` of either kind, without gradient."""
        transitions, own_rows = self._transitions(tensordict)
        batch, successors = self._batch_size(tensordict), transitions["next"]
        reward, terminated = self._outcome(successors, batch, ("B, M",) if own_rows else ("B, M, K",))
        if own_rows:  # one draw: K = 1
            successors, reward, terminated = successors.unsqueeze(-1), reward.unsqueeze(-1), terminated.unsqueeze(-1)
        gamma = self._discount(transitions, (*batch, reward.shape[-2] if own_rows else 1))
        with torch.no_grad():
            states = self._states(self.actor_network, successors, reward.shape)
            action, log_prob = rsample_and_log_prob(self._policy(states, reward.shape, target=True))
            states = self._states(self.qvalue_network, successors, reward.shape)
            values = self._member_values(states, action)  # [*B, M, K]
            values, log_prob = values.unsqueeze(-1), log_prob + self._log_half_range
            target = F.epistemic_quantile_target(reward, terminated, values, log_prob, gamma=gamma, alpha=self._alpha)
            return target if self.reward_bounds is None else target.clamp(*self._value_bounds(*self.reward_bounds))

    def _value_bounds(self, smallest: float, largest: float) -> tuple[Tensor, Tensor]:
        """Values of episodes of one step to infinitely many with the smallest and the largest reward, and entropy."""
        steps = 1 / (1 - self.gamma).clamp(min=1e-9)  # finite for a discount of 1, so that 0 stays 0
        entropy = self._alpha * (self.target_entropy - self._log_half_range).abs() * steps
        return (smallest * steps).clamp(max=smallest) - entropy, (largest * steps).clamp(min=largest) + entropy

    def _member_values(self, states: dict[NestedKey, Tensor], action: Tensor) -> Tensor:
        """Target value ``m`` at the draws of member ``m``, ``[*B, M, K]``."""
        member_dim = action.ndim - 3
        M = action.shape[member_dim]
        if self.num_qvalue_nets == 1:
            values = self._values("target", states, action).squeeze(-2)  # [*B, M, K, N]
            if values.shape[-1] != M:
                raise RuntimeError(f"the critic must give one value for each of {M} members: got {values.shape[-1]}.")
            return values.diagonal(dim1=-3, dim2=-1).transpose(-1, -2)
        if self.num_qvalue_nets != M:
            raise RuntimeError(f"there must be one critic for each of {M} members: got {self.num_qvalue_nets}.")
        states = {key: value.transpose(member_dim, member_dim + 1) for key, value in states.items()}  # [*B, K, M, S]
        values = self._values("target", states, action.transpose(-3, -2), own_rows=True)
        if values.shape[-1] != 1:
            raise RuntimeError(f"critics must be scalar, [..., 1]: got {values.shape[-1]} values from each.")
        return values.squeeze(-1).transpose(-1, -2)

    def _critic_losses(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        inputs, own_rows = self._transitions(tensordict)
        action = inputs[self.tensor_keys.action]
        if own_rows and action.shape[-2] != self.num_qvalue_nets:
            raise RuntimeError(
                f'"members" must hold one row for each of {self.num_qvalue_nets} critics, batch size [*B, M]: got an '
                f"action of shape {tuple(action.shape)}."
            )
        target = self.compute_target(tensordict)  # [*B, M]
        states = self._states(self.qvalue_network, inputs, action.shape[:-1])
        values = self._values("online", states, action, own_rows=own_rows).flatten(-2)
        error = values - target
        report = {"target_value": target.mean()}
        if not own_rows:
            report["epistemic_std"] = values.detach().std(-1, correction=min(1, values.shape[-1] - 1)).mean()
        return (error / self.value_unit).square().sum(-1), error.detach().abs().amax(-1), report

    def _policy_value(self, quantiles: Tensor) -> Tensor:
        return self.utility(quantiles.flatten(-2))  # [*B, M]: one equally likely value from each member

    def _transitions(self, tensordict: TensorDictBase) -> tuple[Any, bool]:
        """What the critics learn from, and whether each has rows of its own."""
        members = tensordict.get(_MEMBERS, None)
        if members is None and self.num_qvalue_nets > 1 and tensordict.get("next", None) is None:
            members = tensordict[_MEMBERS]
        return (tensordict, False) if members is None else (members, True)

    def _batch_size(self, tensordict: TensorDictBase) -> torch.Size:
        transitions, own_rows = self._transitions(tensordict)
        return transitions[self.tensor_keys.action].shape[: -2 if own_rows else -1]

    def _batch_keys(self) -> tuple[list[NestedKey], list[NestedKey], list[NestedKey]]:
        needed, optional = self._transition_keys()
        members = [unravel_key((_MEMBERS, key)) for key in (*needed, *optional)]  # of a batch of the other kind
        if self.num_qvalue_nets == 1:
            return needed, [*optional, *members], ["epistemic_std", "target_value"]
        # members with rows of their own have no common state at which their spread means anything
        states, count = self.actor_network.in_keys, len(needed)
        return [*states, *members[:count]], [*members[count:], *needed, *optional], ["target_value"]
