"""Behaviour cloning: a first policy inside the data, and what keeps a policy near the log while it improves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn

from eqr_torchrl.lab.logs.episodes import spread_of_returns


def clone_behaviour(
    actor: Any, data: TensorDictBase, *, num_steps: int = 1000, lr: float = 1e-3, batch_size: int = 256
) -> dict[str, float]:
    """Fits a policy to the actions of a log by maximum likelihood: a baseline, and a first policy inside the data.

    Args:
        actor: policy with ``get_dist``, such as that of :func:`~eqr_torchrl.networks.make_actor`.
        data: transitions, batch size ``[n]``.
        num_steps: gradient steps of Adam.
        lr: its step size.
        batch_size: transitions in a step.

    Returns:
        ``nll``, the mean negative log-likelihood of the last hundred steps, in nats.

    Examples:
        >>> clone_behaviour(toy_actor(), toy_batch(B=50), num_steps=5)["nll"] > -10
        True
    """
    optimizer, losses = torch.optim.Adam(actor.parameters(), lr=lr), []
    for _ in range(num_steps):
        loss = clone_loss(actor, data, batch_size)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"nll": sum(losses[-100:]) / max(len(losses[-100:]), 1)}


def clone_loss(
    actor: Any, data: TensorDictBase, batch_size: int = 256, value: Callable[[Tensor, Tensor], Tensor] | None = None
) -> Tensor:
    r"""Negative log-likelihood of logged actions under a policy, which keeps it near the log while it improves.

    .. math:: L_{clone} = -\frac{\sum_b w_b \ln \pi(a_b \mid s_b)}{\sum_b w_b}, \qquad (s_b, a_b) \sim D

    Without ``value`` all :math:`w_b` are 1. With it, a logged action counts only if it is worth as much as one that the
    policy draws: :math:`w_b = 1` if :math:`Q(s_b, a_b) \ge Q(s_b, a'_b)` with :math:`a'_b \sim \pi(\cdot \mid s_b)`,
    else 0. The policy then stays near what is good in the log, as in critic regularised regression
    (`Wang et al. (2020) <https://arxiv.org/abs/2006.15134>`_).

    Args:
        actor: policy with ``get_dist``, such as that of :func:`~eqr_torchrl.networks.make_actor`.
        data: transitions, batch size ``[n]``.
        batch_size: transitions drawn, ``B``.
        value: maps observations ``[B, S]`` and actions ``[B, A]`` to values :math:`Q`, ``[B]``.

    Returns:
        In nats, with the gradient of the policy's parameters.

    Examples:
        >>> clone_loss(toy_actor(), toy_batch(B=50)).requires_grad
        True
    """
    space = actor.spec["action"].space
    inside = 1e-3 * (space.high - space.low)  # no squashed Gaussian reaches a bound
    rows: Any = data[torch.randint(len(data), (batch_size,))]
    dist = actor.get_dist(TensorDict({"observation": rows["observation"].to(space.low.device)}, [batch_size]))
    log_prob = dist.log_prob(rows["action"].to(space.low.device).clamp(space.low + inside, space.high - inside))
    if value is None:
        return -log_prob.mean()
    with torch.no_grad():
        good = value(rows["observation"], rows["action"]) >= value(rows["observation"], dist.sample())
    return -(good * log_prob).sum() / good.sum().clamp(min=1)


class NearTheLog:
    r"""Adds :func:`clone_loss` to a policy's loss, so that the policy improves near what is good in the log.

    .. math:: L_\pi + \frac wu\, \mathrm{std}_D\Big[\sum_i \gamma^i r_{t+i}\Big] L_{clone}

    As `Fujimoto and Gu (2021) <https://arxiv.org/abs/2106.06860>`_ do, with the standard deviation of the log's returns
    as the scale of values, which does not change while a critic learns. :math:`u` is the unit of the loss
    (:attr:`~eqr_torchrl.objectives.SoftActorCriticLoss.value_unit`), so that the unit of the reward changes nothing.

    Args:
        actor: the policy.
        critic: reads ``observation`` and ``action``, writes ``state_action_value``, ``[..., M]``.
        utility: maps these values to the scalar by which actions are compared, ``[..., M]`` to ``[...]``.
        data: transitions, batch size ``[n]``.
        weight: :math:`w`, for a nat by which the policy leaves the log.
        gamma: discount.

    Examples:
        >>> from eqr_torchrl import MeanUtility
        >>> near = NearTheLog(toy_actor(), toy_critic(), MeanUtility(), toy_batch(B=50), weight=0.0, gamma=0.99)
        >>> near(TensorDict({"loss_actor": torch.tensor(2.0)}), improve=True)["loss_actor"].item()
        2.0
    """

    def __init__(
        self,
        actor: Any,
        critic: TensorDictModuleBase,
        utility: nn.Module,
        data: TensorDictBase,
        *,
        weight: float,
        gamma: float,
    ) -> None:
        if not (isinstance(weight, (int, float)) and 0 <= weight < float("inf")):
            raise ValueError(f"weight must be a finite number of at least 0, got {weight!r}.")
        self.actor, self.critic, self.utility = actor, critic, utility
        self.data, self.weight = data, weight * spread_of_returns(data, gamma)

    def __call__(self, losses: TensorDictBase, *, improve: bool, unit: Tensor | float = 1.0) -> TensorDictBase:
        """The same losses with another ``loss_actor``: of a clone whose values are learned, if not to ``improve``."""
        own = losses["loss_actor"] if improve else torch.zeros_like(losses["loss_actor"])
        if self.weight:
            near = clone_loss(self.actor, self.data, value=self._value if improve else None)
            own = own + self.weight / unit * near
        return losses.set("loss_actor", own)

    def _value(self, observation: Tensor, action: Tensor) -> Tensor:
        row = TensorDict({"observation": observation, "action": action}, observation.shape[:-1])
        return self.utility(self.critic(row)["state_action_value"])
