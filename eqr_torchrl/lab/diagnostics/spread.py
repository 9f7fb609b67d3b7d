"""The critic's spread relative to that of the values in the members, and what to do about it."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from eqr_torchrl.imagination import ModelBasedEnv
from eqr_torchrl.lab.diagnostics.critic_values import value_quantiles
from eqr_torchrl.lab.diagnostics.returns import member_returns
from eqr_torchrl.lab.evaluation import evaluation_mode

_NUM_ACTIONS = 32  # over which the critic is averaged at each state


class ValueSpread(NamedTuple):
    """The critic's spread beside that of the members; see :func:`value_spread`."""

    horizon: int
    left_out: float
    memberwise: bool
    critic_std: float
    member_std: float
    error: float
    atoms: Tensor | None = None
    members: Tensor | None = None

    @property
    def ratio(self) -> float:
        """Spread of the critic relative to that of the members: 1 if calibrated, infinite if the members have none."""
        return self.critic_std / self.member_std if self.member_std else math.inf


@torch.no_grad()
def value_spread(
    model_env: ModelBasedEnv,
    policy: TensorDictModuleBase,
    critic: TensorDictModuleBase,
    observation: Tensor,
    *,
    horizon: int,
    gamma: float,
    alpha: float = 0.0,
    memberwise: bool = False,
    num_rollouts: int = 50,
    seed: int = 0,
) -> ValueSpread:
    r"""Compares the critic's spread with that of Monte-Carlo values in the members of the world model.

    The value in member m is the mean of rollouts of ``horizon`` steps, completed by atom m of a ``memberwise`` critic.
    The atoms of other critics (EQR) belong to no member; their mean completes all rollouts. The members' spread then
    lacks what comes later, and the ratio is an upper bound. The variance of a mean of P rollouts is subtracted,

    .. math:: \sigma^2 = \mathrm{Var}_m[\bar G_m] - \tfrac{M - 1}{M P}\, \mathrm{E}_m[\mathrm{Var}[G_m]]

    Args:
        model_env: the world model as an environment, M members.
        policy: acts; its actions are sampled.
        critic: as in :func:`value_quantiles`.
        observation: states, in units of the environment, shape ``[R, S]``.
        horizon: steps for which the models can be trusted: :func:`trusted_horizon`.
        gamma: discount, in [0, 1].
        alpha: entropy temperature, as in :func:`sample_episodes`.
        memberwise: whether atom m is the value in member m: member values, or one critic for each member. N is then M.
        num_rollouts: rollouts from each state in each member, P; at least 2.
        seed: of the noise and the actions; the global generators are untouched.

    Returns:
        ``horizon`` and ``memberwise`` as given; ``left_out``, the mean weight of what comes after the horizon, in
        [0, 1]; ``critic_std`` and ``member_std``, standard deviations over atoms and over members (without Bessel's
        correction), root mean square over the states, in units of return, and their ``ratio``; ``error``, the root mean
        square distance of the critic from the members' values, in units of return, member by member if ``memberwise``,
        else of the means; in both cases divided by ``1 - left_out``, as only steps before the horizon show it;
        ``atoms`` of the critic, ``[R, N]``, and values in the ``members``, ``[R, M]``, that were compared.

    Raises:
        ValueError: if ``memberwise`` and the critic does not have M atoms, or a number is out of its range.

    Examples:
        >>> from eqr_torchrl.imagination import never_terminates
        >>> from eqr_torchrl.world_models import GaussianEnsemble
        >>> model_env = ModelBasedEnv(GaussianEnsemble(3, 1, num_members=5), toy_env(), termination_fn=never_terminates)
        >>> states = torch.zeros(4, 3)
        >>> round(value_spread(model_env, toy_actor(), toy_critic(), states, horizon=3, gamma=0.9).left_out, 3)
        0.729
    """
    if num_rollouts < 2:
        raise ValueError(f"num_rollouts must be at least 2, to see the noise within a member, got {num_rollouts}.")
    atoms = value_quantiles(critic, policy, observation, num_actions=_NUM_ACTIONS, seed=seed)  # [R, N]
    M = model_env.world_model.num_members
    if memberwise and atoms.shape[-1] != M:
        raise ValueError(f"critic must have one atom for each of {M} members if memberwise, got {atoms.shape[-1]}.")

    def final_value(tensordict: TensorDictBase) -> Tensor:  # [M, R*P]
        values = critic(tensordict)["state_action_value"]  # [M, R*P, N]
        return values.diagonal(dim1=0, dim2=-1).T if memberwise else values.mean(-1)

    with evaluation_mode(critic):
        returns, tail_weight, _ = member_returns(
            model_env, policy, observation, horizon=horizon, gamma=gamma, num_rollouts=num_rollouts, alpha=alpha,
            final_value=final_value, seed=seed,
        )  # fmt: skip
    members = returns.mean(-1)  # [R, M]
    noise = returns.var(-1).mean(-1) / num_rollouts  # [R], variance that P rollouts leave in a member's mean
    variance = members.var(-1, correction=0) - (M - 1) / M * noise
    if memberwise:
        squared_error = (members - atoms).square().mean(-1) - noise
    else:
        squared_error = (members.mean(-1) - atoms.mean(-1)).square() - noise / M
    left_out = float(tail_weight.mean())
    critic_std, member_std, error = (
        float(squares.mean().clamp_min(0).sqrt()) for squares in (atoms.var(-1, correction=0), variance, squared_error)
    )
    error /= max(1 - left_out, 1e-6)
    return ValueSpread(horizon, left_out, memberwise, critic_std, member_std, error, atoms, members)


def spread_verdict(spread: ValueSpread, *, coverage: float | None = None) -> str:
    """One sentence on the critic's spread, and what to do about it.

    Args:
        spread: from :func:`value_spread`.
        coverage: share of real returns inside the critic's central 50 % intervals, from
            :func:`central_interval_coverage`; ``None`` if not measured.

    Returns:
        The first that applies: the models cannot be trusted for long enough (more than 90 % of the value comes later,
        or more than 50 % where the members' spread lacks what comes later); the critic has not converged (its error is
        more than twice the larger of the two spreads); too narrow (ratio below 1/2); too wide (above 2); in agreement
        with the models, with or without the coverage of real returns (below 20 %).

    Examples:
        >>> spread_verdict(ValueSpread(200, 0.1, memberwise=False, critic_std=0.1, member_std=1.0, error=0.0))
        "Too narrow: the critic's standard deviation is at most 10% of the members'; use algorithm=member_values."
    """
    ratio, narrow = spread.ratio, spread.ratio < 0.5
    relative = f"{ratio:.0%} of the members'" if math.isfinite(ratio) else "positive, and the members' is 0"
    if spread.left_out > (0.9 if spread.memberwise or narrow else 0.5):
        return (
            f"Not judged: the models can be trusted for {spread.horizon} steps, and {spread.left_out:.0%} of the value "
            "comes later; collect more data or fit the models better."
        )
    if spread.critic_std == spread.member_std == 0:
        return "No spread: the members agree and so does the critic; raise world_model.prior_scale if they should not."
    if spread.error > 2 * max(spread.critic_std, spread.member_std):
        seen = spread.error * (1 - spread.left_out)
        return (
            f"Not converged: the critic is off by {seen:.3g} from its own models over {spread.horizon} steps, in all "
            f"by about {spread.error:.3g}, more than twice the spread; train with more updates before judging it."
        )
    if narrow and spread.memberwise:
        return f"Too narrow: the critic's standard deviation is {relative}; train with more updates."
    if narrow:
        return f"Too narrow: the critic's standard deviation is at most {relative}; use algorithm=member_values."
    if ratio > 2:
        return (
            f"Too wide: the critic's standard deviation is {relative}; its atoms have not converged, train with more "
            "updates."
        )
    agrees = f"the critic's standard deviation is {relative}"
    if coverage is not None and coverage < 0.2:
        return (
            f"Spread agrees with the models, not with the environment: {agrees}, but {coverage:.0%} of real returns "
            "lie in its central 50 % intervals; unless returns are mostly noise, collect more data or raise "
            "world_model.prior_scale."
        )
    return f"Spread agrees with the models: {agrees}."
