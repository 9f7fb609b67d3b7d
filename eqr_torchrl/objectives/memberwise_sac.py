"""Soft actor-critic with one scalar critic for each member of the posterior: the loss of QU-SAC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from tensordict import TensorDictBase
from tensordict.nn import ProbabilisticTensorDictSequential, TensorDictModule
from tensordict.utils import NestedKey
from torch import Tensor, nn
from torchrl.modules.distributions.utils import rsample_and_log_prob

from eqr_torchrl import functional as F
from eqr_torchrl.objectives._soft_actor_critic import SoftActorCriticLoss, nested
from eqr_torchrl.utility import MeanUtility

_MEMBERS = "members"


class MemberwiseSACLoss(SoftActorCriticLoss):
    r"""Soft actor-critic whose ``M`` scalar critics are the policy's values in ``M`` members of the posterior.

    Critic ``i`` sees the transitions of member ``i`` alone, and its own target network:

    .. math:: L_Q = \sum_i \big(Q_i(s_i, a_i) - r_i - \gamma (1 - d_i) [\bar Q_i(s'_i, a'_i)
              - \alpha \log \pi(a'_i | s'_i)]\big)^2, \qquad
              L_\pi = \alpha \log \pi(a | s) - \tfrac1M \sum_i Q_i(s, a)

    Both are averaged over the batch. This is QU-SAC as the baseline of `Luis et al. (2024)
    <https://arxiv.org/abs/2308.06590>`_; the reference implementation sums the critics' loss over the batch instead of
    averaging it, a constant factor that Adam all but divides out.

    A batch, as :class:`~eqr_torchrl.data.MemberReplayBuffers` samples it, carries two things: ``observation``,
    ``[*B, S]``, where the policy is improved; and ``"members"``, batch size ``[*B, M]``, transitions of each member,
    with ``observation``, ``action`` and ``"next"`` (``reward``, ``terminated``, ``observation``).

    Args:
        actor_network: stochastic policy, ``observation`` to ``action``.
        qvalue_network: one critic for each member, writing ``state_action_value``, shape ``[..., 1]``, in units of
            return; they may differ in build.
        utility: maps the members' values ``[..., M]`` to the scalar ``[...]`` that the actor ascends. Defaults to
            :class:`~eqr_torchrl.utility.MeanUtility`, as published.
        num_qvalue_nets: number of critics, ``M``. Defaults to the number given.
        alpha_init: initial entropy temperature, in units of reward per nat.
        min_alpha: smallest temperature, or ``None``.
        max_alpha: largest temperature, or ``None``.
        fixed_alpha: whether the temperature stays at ``alpha_init``.
        target_entropy: in nats; ``"auto"`` is minus the action dimension.
        action_spec: spec of the action, where the policy has none and ``target_entropy="auto"``.
        delay_qvalue: whether targets use parameters that a ``SoftUpdate`` or ``HardUpdate`` moves.
        separate_losses: whether parameters shared with the policy get no gradient from the critics' loss.
        reduction: ``"mean"`` (default), ``"sum"`` or ``"none"``.
        scalar_output_mode: with ``reduction="none"``, ``"non_tensor"`` keeps the scalar outputs as non-tensor data and
            ``"exclude"`` or ``None`` drops them.
        use_prioritized_weights: whether the losses are weighted by ``priority_weight``; ``"auto"`` where it is there.

    Raises:
        ValueError: if an argument is out of its range.
        RuntimeError: in ``forward``, if ``"members"`` does not hold one row for each critic, or a critic is not scalar.

    Examples:
        >>> loss = MemberwiseSACLoss(toy_actor(), [toy_critic(num_quantiles=1) for _ in range(5)])
        >>> _ = loss.make_value_estimator(gamma=0.99)
        >>> target_updater = SoftUpdate(loss, tau=0.005)
        >>> batch = toy_batch(B=4).select("observation")
        >>> batch["members"] = torch.stack([toy_batch(B=4) for _ in range(5)], dim=1)  # [B, M]
        >>> loss(batch)["loss_qvalue"].shape
        torch.Size([])
    """

    utility: nn.Module

    def __init__(
        self,
        actor_network: ProbabilisticTensorDictSequential,
        qvalue_network: Sequence[TensorDictModule],
        *,
        utility: nn.Module | None = None,
        num_qvalue_nets: int | None = None,
        alpha_init: float = 1.0,
        min_alpha: float | None = None,
        max_alpha: float | None = None,
        fixed_alpha: bool = False,
        target_entropy: float | Literal["auto"] = "auto",
        action_spec=None,
        delay_qvalue: bool = True,
        separate_losses: bool = False,
        reduction: Literal["none", "mean", "sum"] | None = None,
        scalar_output_mode: Literal["exclude", "non_tensor"] | None = None,
        use_prioritized_weights: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(
            actor_network,
            qvalue_network,
            num_qvalue_nets=num_qvalue_nets,
            alpha_init=alpha_init,
            min_alpha=min_alpha,
            max_alpha=max_alpha,
            fixed_alpha=fixed_alpha,
            target_entropy=target_entropy,
            action_spec=action_spec,
            delay_qvalue=delay_qvalue,
            separate_losses=separate_losses,
            reduction=reduction,
            scalar_output_mode=scalar_output_mode,
            use_prioritized_weights=use_prioritized_weights,
        )
        self.utility = MeanUtility() if utility is None else utility

    def compute_target(self, tensordict: TensorDictBase) -> Tensor:
        """Target of each member's critic, without gradient.

        Args:
            tensordict: a batch of size ``[*B]`` with ``"members"`` of ``[*B, M]``.

        Returns:
            Targets, in units of return, shape ``[*B, M]``.
        """
        successors = tensordict.get(_MEMBERS).get("next")
        reward = successors.get(self.tensor_keys.reward)
        terminated = successors.get(self.tensor_keys.terminated)
        with torch.no_grad():
            action, log_prob = rsample_and_log_prob(self._policy(successors, reward.shape[:-1]))
            values = self._values(self.target_qvalue_network_params, successors, action, own_rows=True)  # [*B, M, 1]
            # the members are part of the batch here: one sampled successor, pooled over nobody
            target = F.epistemic_quantile_target(
                reward.unsqueeze(-1),
                terminated.unsqueeze(-1),
                values[..., None, None, :],
                log_prob[..., None, None],
                gamma=self.gamma,
                alpha=self._alpha,
            )
        return target.squeeze(-1)

    def _critic_losses(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        members = tensordict.get(_MEMBERS)
        action = members.get(self.tensor_keys.action)
        if action.ndim < 2 or action.shape[-2] != self.num_qvalue_nets:
            raise RuntimeError(
                f'"members" must hold one row for each of {self.num_qvalue_nets} critics, batch size [*B, M]: got an '
                f"action of shape {tuple(action.shape)}."
            )
        values = self._values(self.qvalue_network_params, members, action, own_rows=True)  # [*B, M, 1]
        if values.shape[-1] != 1:
            raise RuntimeError(f"critics must be scalar, [..., 1]: got {values.shape[-1]} values from each.")
        target = self.compute_target(tensordict)
        error = values.squeeze(-1) - target
        return error.square().sum(-1), error.detach().abs().amax(-1), {"target_value": target.mean()}

    def _policy_value(self, quantiles: Tensor) -> Tensor:
        return self.utility(quantiles.squeeze(-1))  # [*B, M, 1]: one equally likely value from each member

    def _batch_size(self, tensordict: TensorDictBase) -> torch.Size:
        return tensordict.get(_MEMBERS).get(self.tensor_keys.action).shape[:-2]

    def _batch_keys(self) -> list[NestedKey]:
        return [*self.actor_network.in_keys, *(nested(_MEMBERS, key) for key in self._transition_keys())]
