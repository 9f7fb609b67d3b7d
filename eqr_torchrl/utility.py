"""Utilities: functions of the distribution over values that the policy maximises.

Each maps the quantiles of the posterior over values, shape ``[..., N]``, to the scalar that the actor ascends, shape
``[...]``, whatever the order of the quantiles. Any other differentiable module of this form can replace them; one with
trainable parameters is trained with the policy.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

__all__ = ["CVaRUtility", "EntropicUtility", "MeanUtility", "OptimisticUtility", "QuantileUtility"]


class _Utility(nn.Module):
    def extra_repr(self) -> str:
        names = [name for name in vars(self) if name[0] != "_" and name != "training"]
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)


class MeanUtility(_Utility):
    r"""Risk-neutral: the mean of the value distribution.

    .. math:: f(q) = \tfrac1N \sum_i q_i

    Examples:
        >>> MeanUtility()(torch.tensor([1.0, 2.0, 6.0]))
        tensor(3.)
    """

    def forward(self, quantiles: Tensor) -> Tensor:
        return quantiles.mean(-1)


class OptimisticUtility(_Utility):
    r"""Optimism in the face of uncertainty: mean plus ``scale`` unbiased standard deviations.

    .. math:: f(q) = \bar q + c \sqrt{\tfrac{1}{N - 1} \sum_i (q_i - \bar q)^2}

    That of `Luis et al. (2024) <https://arxiv.org/abs/2308.06590>`_ with ``c = 1``. Where all quantiles are equal (so
    also for ``N = 1``) the standard deviation is zero and so is its gradient.

    Args:
        scale: number of standard deviations, dimensionless; negative for pessimism.

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
        mean = quantiles.mean(-1, keepdim=True)
        variance = (quantiles - mean).square().sum(-1) / max(quantiles.shape[-1] - 1, 1)
        # sqrt has no gradient at zero: substitute one there, and drop the result
        positive = variance > 0
        std = torch.where(positive, torch.where(positive, variance, 1.0).sqrt(), 0.0)
        return mean.squeeze(-1) + self.scale * std


class QuantileUtility(_Utility):
    r"""One quantile of the value distribution: above one half optimistic, below pessimistic.

    The quantile whose midpoint level :math:`(2i - 1) / 2N` is nearest to ``level``, the lower one on ties.

    Args:
        level: a probability in ``(0, 1)``, not a percentage; ``0.5`` is the median.

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
        num_quantiles = quantiles.shape[-1]
        # the small term absorbs rounding of the product
        index = min(max(math.ceil(self.level * num_quantiles - 1 - 1e-9), 0), num_quantiles - 1)
        return quantiles.sort(dim=-1).values[..., index]


class CVaRUtility(_Utility):
    r"""Risk-averse: mean of the worst ``tail_mass`` of the value distribution (lower-tail CVaR, expected shortfall).

    .. math:: f(q) = \frac{1}{\beta} \int_0^\beta F^{-1}(u)\, du

    The quantile at the edge of the tail counts with the fraction of it that lies inside. See `Rockafellar and Uryasev
    (2000) <https://doi.org/10.21314/JOR.2000.038>`_.

    Args:
        tail_mass: probability of the lower tail, :math:`\beta`, in ``(0, 1]``; ``1`` is the mean.

    Examples:
        >>> CVaRUtility(tail_mass=0.375)(torch.tensor([4.0, 1.0, 2.0, 3.0]))  # (1 + 2 / 2) / 1.5
        tensor(1.3333)
    """

    def __init__(self, tail_mass: float = 0.25) -> None:
        super().__init__()
        if not 0 < tail_mass <= 1:
            raise ValueError(f"tail_mass must be a probability in (0, 1], got {tail_mass}.")
        self.tail_mass = tail_mass

    def forward(self, quantiles: Tensor) -> Tensor:
        edge = self.tail_mass * quantiles.shape[-1]
        position = torch.arange(quantiles.shape[-1], device=quantiles.device, dtype=quantiles.dtype)
        # the worst quantile alone where the tail is smaller, however small: its weight is edge / edge
        weight = (max(edge, 1.0) - position).clamp(0, 1) / max(edge, 1.0)
        return (quantiles.sort(dim=-1).values * weight).sum(-1)


class EntropicUtility(_Utility):
    r"""Certainty equivalent under exponential utility.

    .. math:: f(q) = -\tfrac1c \log \tfrac1N \sum_i e^{-c q_i}

    Averse for positive, seeking for negative ``risk_aversion``, and the mean for zero. Stable for any scale of the
    values. See `Howard and Matheson (1972) <https://doi.org/10.1287/mnsc.18.7.356>`_.

    Args:
        risk_aversion: coefficient :math:`c`, in inverse units of return.

    Examples:
        >>> EntropicUtility(risk_aversion=1.0)(torch.tensor([0.0, 2.0]))  # -log((1 + e^-2) / 2)
        tensor(0.5662)
    """

    def __init__(self, risk_aversion: float = 1.0) -> None:
        super().__init__()
        if not math.isfinite(risk_aversion):
            raise ValueError(f"risk_aversion must be finite, got {risk_aversion}.")
        self.risk_aversion = risk_aversion

    def forward(self, quantiles: Tensor) -> Tensor:
        mean, c = quantiles.mean(-1, keepdim=True), self.risk_aversion
        if c == 0:
            return mean.squeeze(-1)
        # log-mean-exp of centred values x as a shift plus log1p(mean(expm1)): accurate also where c x is tiny
        exponent = -c * (quantiles - mean)
        shift = exponent.detach().amax(-1, keepdim=True).clamp_min(1.0) - 1.0
        log_mean = torch.expm1(exponent - shift).mean(-1).log1p() + shift.squeeze(-1)
        return mean.squeeze(-1) - log_mean / c
