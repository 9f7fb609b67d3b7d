"""Pessimism where a log has no data: disagreement of the members, rollouts that stop there, and two baselines."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tensordict import TensorDictBase
from torch import Tensor

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
) -> Callable[[Tensor, Tensor], Tensor] | None:
    """A rule that ends imagined rollouts where members disagree more than they do on held-out data.

    The last transition is still imagined: the members' values differ there, which a cautious utility avoids.

    Args:
        world_model: fitted members.
        held_out: transitions that it was not fitted to, batch size ``[n]``.
        level: share of the held-out transitions with less disagreement; 0 for no rule.

    Returns:
        A function of observation ``[*B, S]`` and action ``[*B, A]`` to bool ``[*B, 1]``, with an attribute
        ``threshold``, for ``stop_fn`` of :func:`~eqr_torchrl.imagination.branched_rollout`; ``None`` if ``level`` is 0.

    Examples:
        >>> from eqr_torchrl import GaussianEnsemble
        >>> stop = uncertainty_stop(GaussianEnsemble(3, 1, num_cells=(8,)), toy_batch(B=50), level=0.9)
        >>> int(stop(torch.randn(4, 3), torch.zeros(4, 1)).numel())
        4
    """
    if not level:
        return None
    found = disagreement(world_model, held_out["observation"], held_out["action"])
    threshold = float(found.quantile(level))

    def stop(observation: Tensor, action: Tensor) -> Tensor:
        return disagreement(world_model, observation, action) > 1.001 * threshold  # and not by rounding

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
