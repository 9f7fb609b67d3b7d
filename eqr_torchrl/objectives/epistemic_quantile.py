"""Epistemic quantile regression with soft actor-critic: the loss of EQR-SAC and of QR-MBPO."""

from __future__ import annotations

from typing import Any, Literal

import torch
from tensordict import TensorDictBase
from tensordict.nn import ProbabilisticTensorDictSequential, TensorDictModule
from tensordict.utils import NestedKey
from torch import Tensor, nn
from torchrl.modules import TanhNormal
from torchrl.modules.distributions.utils import rsample_and_log_prob

from eqr_torchrl import functional as F
from eqr_torchrl.networks.layers import check_counts
from eqr_torchrl.objectives._soft_actor_critic import SoftActorCriticLoss


class EpistemicQuantileLoss(SoftActorCriticLoss):
    r"""Soft actor-critic whose critic represents the posterior over *values*, not over returns.

    The target averages transition and policy noise out inside each member, then pools the members' atoms:

    .. math:: y_{mn} = \tfrac1K \sum_k r_{mk}
              + \gamma (1 - d_{mk}) [q_n(s'_{mk}, a'_{mk}) - \alpha \log \pi(a'_{mk} | s'_{mk})]

    Critic update of Algorithm 2 of `Luis et al. (2024) <https://arxiv.org/abs/2308.06590>`_. The critic's quantiles
    regress onto these atoms with the quantile-Huber loss; the policy ascends ``utility`` of the quantiles plus
    ``alpha`` times its entropy; ``alpha`` keeps the entropy at its target.

    ``"next"`` may hold one replayed successor per transition, its entries of shape ``[*B, ...]``, which is the loss of
    quantile-regression SAC and QR-MBPO: the quantiles then keep the transition noise. Or it holds ``K`` draws from
    each of ``M`` members, ``[*B, M, K, ...]``, as :class:`~eqr_torchrl.imagination.EnsembleSuccessors` writes them
    (:ref:`batches`).

    Args:
        actor_network: stochastic policy, ``observation`` to ``action``.
        qvalue_network: critic writing ``state_action_value``, shape ``[..., N]``, in units of return. Of several ones,
            or of ``num_qvalue_nets``, the minimum, quantile by quantile, forms target and policy value.
        utility: maps ``[..., N]`` to the scalar ``[...]`` that the actor ascends.
        num_next_actions: actions drawn at each next state and averaged over with it. Defaults to ``1``.
        action_sampling: ``"stratified"`` draws the actions of one batch element and member as a Latin hypercube over
            its next states (for :class:`~torchrl.modules.TanhNormal` policies; others are drawn independently);
            ``"iid"`` always independently, as in the paper.
        kappa: of :func:`~eqr_torchrl.functional.quantile_huber_loss`, in units of return, or of ``value_unit``
            (:meth:`~eqr_torchrl.objectives.SoftActorCriticLoss.set_scales`).
        **options: those of :class:`~eqr_torchrl.objectives.SoftActorCriticLoss`.

    Examples:
        >>> loss = EpistemicQuantileLoss(toy_actor(), toy_critic(num_quantiles=7))
        >>> _ = loss.make_value_estimator(gamma=0.99)
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
        num_next_actions: int = 1,
        action_sampling: Literal["stratified", "iid"] = "stratified",
        kappa: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(actor_network, qvalue_network, utility=utility, num_qvalue_nets=num_qvalue_nets, **options)
        check_counts(num_next_actions=num_next_actions)
        if action_sampling not in ("stratified", "iid"):
            raise ValueError(f'action_sampling must be "stratified" or "iid", got {action_sampling!r}.')
        if not 0 <= kappa < float("inf"):
            raise ValueError(f"kappa must be finite and not negative, got {kappa}.")
        self.num_next_actions, self.action_sampling, self.kappa = num_next_actions, action_sampling, kappa

    def compute_target(self, tensordict: TensorDictBase) -> Tensor:
        """Target atoms ``[*B, M * N]`` of transitions ``[*B]``, without gradient; ``M = 1`` for replayed successors."""
        batch, successors = self._batch_size(tensordict), tensordict["next"]
        reward, terminated = self._outcome(successors, batch, ("B", "B, M, K"))
        replayed = reward.ndim == len(batch)
        with torch.no_grad():
            action, log_prob = self._next_actions(successors, reward.shape, stratify=not replayed)
            states = {  # repeated for each action: entries [..., S] to [..., Y, S]
                key: value.unsqueeze(reward.ndim).expand(*action.shape[:-1], *value.shape[reward.ndim :])
                for key, value in self._states(self.qvalue_network, successors, reward.shape).items()
            }
            quantiles = _minimum(self._values("target", states, action))  # [..., Y, C, N] -> [..., Y, N]
            if replayed:
                reward, terminated = reward[..., None, None], terminated[..., None, None]
                quantiles, log_prob = quantiles.unsqueeze(-3), log_prob.unsqueeze(-2)  # [*B, 1, Y(, N)]
            else:
                quantiles, log_prob = quantiles.flatten(-3, -2), log_prob.flatten(-2)  # [*B, M, K * Y(, N)]
            terminated = terminated.repeat_interleave(self.num_next_actions, -1)
            gamma, log_prob = self._discount(tensordict, (*batch, 1)), log_prob + self._log_half_range
            return F.epistemic_quantile_target(reward, terminated, quantiles, log_prob, gamma=gamma, alpha=self._alpha)

    def _next_actions(self, successors, shape: torch.Size, *, stratify: bool) -> tuple[Tensor, Tensor]:
        """Actions ``[*shape, Y, A]`` at each next state and their log-densities ``[*shape, Y]``."""
        states, num_actions = self._states(self.actor_network, successors, shape), self.num_next_actions
        policy = self._policy(states, shape, target=True)
        if self.action_sampling == "iid" or type(policy) is not TanhNormal:
            action, log_prob = rsample_and_log_prob(policy, (num_actions,))
            return action.movedim(0, len(shape)), log_prob.movedim(0, -1)
        loc, scale = torch.broadcast_tensors(policy.loc, policy.scale)
        draws = (*shape[:-1], shape[-1] * num_actions) if stratify else (*shape, num_actions)
        noise = F.stratified_normal((*draws, loc.shape[-1]), dim=-2, device=loc.device, dtype=loc.dtype)
        noise = noise.view(*shape, num_actions, loc.shape[-1])
        return F.tanh_normal(loc.unsqueeze(-2), scale.unsqueeze(-2), noise, policy.low, policy.high)

    def _critic_losses(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        target, action = self.compute_target(tensordict), tensordict[self.tensor_keys.action]
        states = self._states(self.qvalue_network, tensordict, action.shape[:-1])
        quantiles = self._values("online", states, action)  # [*B, C, N]
        levels = F.quantile_midpoints(quantiles.shape[-1], device=quantiles.device, dtype=torch.float64)
        levels, unit = levels.repeat(quantiles.shape[-2]), self.value_unit  # the losses of all critics add up
        losses = F.quantile_huber_loss(quantiles.flatten(-2) / unit, target / unit, levels, kappa=self.kappa)
        prediction = quantiles.detach()
        td_error = (prediction.mean(-1) - target.mean(-1, keepdim=True)).abs().amax(-1)
        spread = prediction.std(-1, correction=min(1, prediction.shape[-1] - 1)).mean()
        return losses, td_error, {"epistemic_std": spread, "target_value": target.mean()}

    def _policy_value(self, quantiles: Tensor) -> Tensor:
        return self.utility(_minimum(quantiles))

    def _batch_size(self, tensordict: TensorDictBase) -> torch.Size:
        return tensordict[self.tensor_keys.action].shape[:-1]

    def _batch_keys(self) -> tuple[list[NestedKey], list[NestedKey], list[NestedKey]]:
        return *self._transition_keys(), ["epistemic_std", "target_value"]


def _minimum(quantiles: Tensor) -> Tensor:
    """Minimum over critics, quantile by quantile: ``[..., C, N]`` to ``[..., N]``."""
    return quantiles.amin(-2) if quantiles.shape[-2] > 1 else quantiles.squeeze(-2)
