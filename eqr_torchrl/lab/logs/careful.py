"""Pessimism where a log has no data: disagreement of the members, rollouts that stop there, and two baselines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from eqr_torchrl.lab.logs.episodes import spread_of_returns
from eqr_torchrl.world_models import WorldModel


@torch.no_grad()
def disagreement(world_model: WorldModel, observation: Tensor, action: Tensor) -> Tensor:
    r"""How far the members' predictions differ: root mean square over entries of their standard deviation.

    .. math:: u(s, a) = \sqrt{\tfrac1D \sum_d \mathrm{Var}_m[\mu_{md}(s, a)] / \sigma_d^2}

    Args:
        world_model: M members that predict D entries.
        observation: states, in units of the environment, shape ``[*B, S]``.
        action: actions, in units of the environment, shape ``[*B, A]``.

    Returns:
        Disagreement, shape ``[*B, 1]``, in standard deviations :math:`\sigma` of the targets where the model knows them
        (:attr:`GaussianEnsemble.target_scale`), else in units of the environment.

    Examples:
        >>> from eqr_torchrl import GaussianEnsemble
        >>> disagreement(GaussianEnsemble(3, 1, num_cells=(8,)), torch.zeros(4, 3), torch.zeros(4, 1)).shape
        torch.Size([4, 1])
    """
    size, M = observation.shape[:-1], world_model.num_members
    rows = (value.reshape(-1, value.shape[-1]).expand(M, -1, -1) for value in (observation, action))
    loc = world_model(*rows)[0]  # [M, rows, D]
    scale = getattr(world_model, "target_scale", torch.ones(loc.shape[-1], device=loc.device))
    variance = loc.var(0, correction=0)[:, scale > 0] / scale[scale > 0].square()
    return variance.mean(-1).sqrt().view(*size, 1)


def uncertainty_stop(
    world_model: WorldModel, held_out: TensorDictBase, *, level: float = 0.99
) -> Callable[[Tensor, Tensor], Tensor]:
    """A rule that ends imagined rollouts where members disagree more than they do on held-out data.

    The last transition is still imagined: the members' values differ there, which a cautious utility avoids.

    Args:
        world_model: fitted members.
        held_out: transitions that it was not fitted to, batch size ``[n]``.
        level: share of the held-out transitions with less disagreement.

    Returns:
        A function of observation ``[*B, S]`` and action ``[*B, A]`` to bool ``[*B, 1]``, with an attribute
        ``threshold``, for ``stop_fn`` of :func:`~eqr_torchrl.imagination.branched_rollout`.

    Examples:
        >>> from eqr_torchrl import GaussianEnsemble
        >>> stop = uncertainty_stop(GaussianEnsemble(3, 1, num_cells=(8,)), toy_batch(B=50), level=0.9)
        >>> int(stop(torch.randn(4, 3), torch.zeros(4, 1)).numel())
        4
    """
    found = disagreement(world_model, held_out["observation"], held_out["action"])
    threshold = float(found.quantile(level))

    def stop(observation: Tensor, action: Tensor) -> Tensor:
        return disagreement(world_model, observation, action) > threshold

    stop.threshold = threshold
    return stop


class PenalizedModel(WorldModel):
    r"""A world model whose reward is lower where its members disagree: the baseline of penalised rewards.

    .. math:: \tilde r_m(s, a) = r_m(s, a) - \lambda\, u(s, a)

    As MOPO (`Yu et al. (2020) <https://arxiv.org/abs/2005.13239>`_), with the :func:`disagreement` of the members for
    :math:`u`. Fit the inner model, and imagine in this one, without bounds of the reward.

    Args:
        world_model: predicts rewards.
        penalty: :math:`\lambda`, in units of reward.

    Examples:
        >>> from eqr_torchrl import GaussianEnsemble
        >>> model = GaussianEnsemble(3, 1, num_cells=(8,))
        >>> rows = torch.randn(5, 4, 3), torch.zeros(5, 4, 1)
        >>> bool((PenalizedModel(model, 2.0)(*rows)[0][..., -1] < model(*rows)[0][..., -1]).all())
        True
    """

    def __init__(self, world_model: WorldModel, penalty: float) -> None:
        if not world_model.predicts_reward:
            raise ValueError("world_model must predict rewards, which are penalised: set learn_reward=true.")
        super().__init__(world_model.observation_dim, num_members=world_model.num_members)
        self.predicts_termination = world_model.predicts_termination
        self.world_model, self.penalty = world_model, penalty
        self.terminal_reward = world_model.terminal_reward

    def forward(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Prediction of the model inside, with the penalised reward."""
        loc, scale = self.world_model(observation, action)
        if observation.stride(0) == action.stride(0) == 0:  # the same rows in every member, as successors ask for them
            found = disagreement(self.world_model, observation[0], action[0]).expand(len(loc), -1, -1)
        else:
            found = disagreement(self.world_model, observation, action)
        return torch.cat([loc[..., :-1], loc[..., -1:] - self.penalty * found], -1), scale

    def termination_probability(self, next_observation: Tensor, action: Tensor) -> Tensor:
        """That of the model inside."""
        return self.world_model.termination_probability(next_observation, action)  # pyright: ignore[reportCallIssue]


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


def clone_loss(actor: Any, data: TensorDictBase, batch_size: int = 256) -> Tensor:
    r"""Negative log-likelihood of logged actions under a policy, which keeps it near the log while it improves.

    .. math:: L_{clone} = -\tfrac1B \sum_b \ln \pi(a_b \mid s_b), \qquad (s_b, a_b) \sim D

    Args:
        actor: policy with ``get_dist``, such as that of :func:`~eqr_torchrl.networks.make_actor`.
        data: transitions, batch size ``[n]``.
        batch_size: transitions drawn, ``B``.

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
    return -dist.log_prob(rows["action"].to(space.low.device).clamp(space.low + inside, space.high - inside)).mean()


class NearTheLog:
    r"""Adds :func:`clone_loss` to a policy's loss, so that the policy improves where the log lets it.

    .. math:: L_\pi + \frac wu\, \mathrm{std}_D\Big[\sum_i \gamma^i r_{t+i}\Big] L_{clone}

    As `Fujimoto and Gu (2021) <https://arxiv.org/abs/2106.06860>`_ do, with the standard deviation of the log's returns
    as the scale of values, which does not change while a critic learns. :math:`u` is the unit of the loss
    (:attr:`~eqr_torchrl.objectives.SoftActorCriticLoss.value_unit`), so that the unit of the reward changes nothing.

    Args:
        actor: the policy.
        data: transitions, batch size ``[n]``.
        weight: :math:`w`, for a nat by which the policy leaves the log.
        gamma: discount.

    Examples:
        >>> near = NearTheLog(toy_actor(), toy_batch(B=50), weight=0.0, gamma=0.99)
        >>> near(TensorDict({"loss_actor": torch.tensor(2.0)}), improve=True)["loss_actor"].item()
        2.0
    """

    def __init__(self, actor: Any, data: TensorDictBase, *, weight: float, gamma: float) -> None:
        if not (isinstance(weight, (int, float)) and 0 <= weight < float("inf")):
            raise ValueError(f"weight must be a finite number of at least 0, got {weight!r}.")
        self.actor, self.data, self.weight = actor, data, weight * spread_of_returns(data, gamma)

    def __call__(self, losses: TensorDictBase, *, improve: bool, unit: Tensor | float = 1.0) -> TensorDictBase:
        """The same losses with another ``loss_actor``: of a clone whose values are learned, if not to ``improve``."""
        own = losses["loss_actor"] if improve else torch.zeros_like(losses["loss_actor"])
        if self.weight:
            own = own + self.weight / unit * clone_loss(self.actor, self.data)
        return losses.set("loss_actor", own)
