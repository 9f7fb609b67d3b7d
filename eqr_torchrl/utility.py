"""Utilities: what the policy wants of the distribution over values.

Each maps the quantiles of the posterior over values, shape ``[..., N]``, to the scalar that the actor ascends, shape
``[...]``. All are differentiable and do not depend on the order of the quantiles, so crossing quantiles do no harm.
Any other module with that contract can take their place.
"""

from __future__ import annotations

import math

from torch import Tensor, nn

from eqr_torchrl import functional as F

__all__ = ["CVaRUtility", "EntropicUtility", "MeanUtility", "OptimisticUtility", "QuantileUtility"]


class MeanUtility(nn.Module):
    r"""Risk-neutral: the mean of the value distribution.

    .. math:: f(q) = \tfrac1N \sum_i q_i

    Examples:
        >>> MeanUtility()(torch.tensor([1.0, 2.0, 6.0]))
        tensor(3.)
    """

    def forward(self, quantiles: Tensor) -> Tensor:
        """Value of quantiles of shape ``[..., N]``, in units of return, shape ``[...]``."""
        return quantiles.mean(-1)


class OptimisticUtility(nn.Module):
    r"""Optimism in the face of uncertainty: mean plus standard deviation.

    See :func:`~eqr_torchrl.functional.mean_plus_std` (eq. 23 of `Luis et al. (2024)
    <https://arxiv.org/abs/2308.06590>`_). A negative scale is pessimism.

    Args:
        scale: number of standard deviations, dimensionless.

    Raises:
        ValueError: if ``scale`` is not finite.

    Examples:
        >>> OptimisticUtility(scale=2.0)(torch.tensor([1.0, 3.0]))  # 2 + 2 sqrt(2)
        tensor(4.8284)
    """

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        if not math.isfinite(scale):
            raise ValueError(f"scale must be finite, got {scale}.")
        self.scale = scale

    def forward(self, quantiles: Tensor) -> Tensor:
        """Value of quantiles of shape ``[..., N]``, in units of return, shape ``[...]``."""
        return F.mean_plus_std(quantiles, self.scale)

    def extra_repr(self) -> str:
        return f"scale={self.scale}"


class QuantileUtility(nn.Module):
    r"""One quantile of the value distribution: above one half optimistic, below pessimistic.

    The atom of the nearest midpoint level, see :func:`~eqr_torchrl.functional.quantile_value`.

    Args:
        level: a probability in ``(0, 1)``, not a percentage.

    Raises:
        ValueError: if ``level`` is not inside ``(0, 1)``.

    Examples:
        >>> QuantileUtility(level=0.9)(torch.arange(21.0))  # midpoint 18.5 / 21 = 0.881
        tensor(18.)
    """

    def __init__(self, level: float = 0.5) -> None:
        super().__init__()
        if not 0 < level < 1:
            raise ValueError(f"level must be a probability in (0, 1), got {level}.")
        self.level = level

    def forward(self, quantiles: Tensor) -> Tensor:
        """Value of quantiles of shape ``[..., N]``, in units of return, shape ``[...]``."""
        return F.quantile_value(quantiles, self.level)

    def extra_repr(self) -> str:
        return f"level={self.level}"


class CVaRUtility(nn.Module):
    r"""Risk-averse: mean of the worst ``tail_mass`` of the value distribution.

    See :func:`~eqr_torchrl.functional.conditional_value_at_risk`. ``tail_mass=1`` is the mean.

    Args:
        tail_mass: probability of the lower tail, in ``(0, 1]``.

    Raises:
        ValueError: if ``tail_mass`` is not inside ``(0, 1]``.

    Examples:
        >>> CVaRUtility(tail_mass=0.5)(torch.tensor([4.0, 1.0, 2.0, 3.0]))
        tensor(1.5000)
    """

    def __init__(self, tail_mass: float = 0.25) -> None:
        super().__init__()
        if not 0 < tail_mass <= 1:
            raise ValueError(f"tail_mass must be a probability in (0, 1], got {tail_mass}.")
        self.tail_mass = tail_mass

    def forward(self, quantiles: Tensor) -> Tensor:
        """Value of quantiles of shape ``[..., N]``, in units of return, shape ``[...]``."""
        return F.conditional_value_at_risk(quantiles, self.tail_mass)

    def extra_repr(self) -> str:
        return f"tail_mass={self.tail_mass}"


class EntropicUtility(nn.Module):
    r"""Exponential utility: averse for positive, seeking for negative, neutral for zero ``risk_aversion``.

    See :func:`~eqr_torchrl.functional.entropic_value`.

    Args:
        risk_aversion: coefficient in inverse units of return.

    Raises:
        ValueError: if ``risk_aversion`` is not finite.

    Examples:
        >>> EntropicUtility(risk_aversion=0.0)(torch.tensor([0.0, 2.0]))
        tensor(1.)
    """

    def __init__(self, risk_aversion: float = 1.0) -> None:
        super().__init__()
        if not math.isfinite(risk_aversion):
            raise ValueError(f"risk_aversion must be finite, got {risk_aversion}.")
        self.risk_aversion = risk_aversion

    def forward(self, quantiles: Tensor) -> Tensor:
        """Value of quantiles of shape ``[..., N]``, in units of return, shape ``[...]``."""
        return F.entropic_value(quantiles, self.risk_aversion)

    def extra_repr(self) -> str:
        return f"risk_aversion={self.risk_aversion}"
