"""Functionals of a value distribution, given as equal-weight atoms."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def mean_plus_std(quantiles: Tensor, scale: float = 1.0) -> Tensor:
    r"""Mean plus ``scale`` unbiased standard deviations of the atoms: optimism in the face of uncertainty.

    .. math:: f(q) = \bar q + c \sqrt{\tfrac{1}{N - 1} \sum_i (q_i - \bar q)^2}

    Eq. 23 of `Luis et al. (2024) <https://arxiv.org/abs/2308.06590>`_ with ``c = 1``. Where all atoms are equal (so
    also for ``N = 1``) the deviation is zero and so is its gradient.

    Args:
        quantiles: atoms in any order, in units of return, shape ``[..., N]``.
        scale: number of standard deviations; negative for pessimism.

    Returns:
        Values, in units of return, shape ``[...]``.

    Examples:
        >>> mean_plus_std(torch.tensor([1.0, 3.0]))  # 2 + sqrt(2)
        tensor(3.4142)
    """
    mean = quantiles.mean(-1, keepdim=True)
    variance = (quantiles - mean).square().sum(-1) / max(quantiles.shape[-1] - 1, 1)
    # sqrt has no gradient at zero: substitute one there, and drop the result
    positive = variance > 0
    std = torch.where(positive, torch.where(positive, variance, 1.0).sqrt(), 0.0)
    return mean.squeeze(-1) + scale * std


def quantile_value(quantiles: Tensor, level: float) -> Tensor:
    r"""The atom whose midpoint level is nearest to ``level``, the lower one on ties.

    Args:
        quantiles: atoms in any order, in units of return, shape ``[..., N]``.
        level: a probability in ``(0, 1)``; ``0.5`` is the median.

    Returns:
        Values, in units of return, shape ``[...]``.

    Raises:
        ValueError: if ``level`` is not inside ``(0, 1)`` (it is a probability, not a percentage).

    Examples:
        >>> quantile_value(torch.tensor([5.0, 1.0, 3.0]), 0.5)
        tensor(3.)
    """
    if not 0 < level < 1:
        raise ValueError(f"level must be a probability in (0, 1), got {level}.")
    num_quantiles = quantiles.shape[-1]
    index = min(max(math.ceil(level * num_quantiles - 1 - 1e-9), 0), num_quantiles - 1)
    return quantiles.sort(dim=-1).values[..., index]


def conditional_value_at_risk(quantiles: Tensor, tail_mass: float) -> Tensor:
    r"""Mean of the lowest ``tail_mass`` of the distribution (lower-tail CVaR, expected shortfall).

    .. math:: f(q) = \frac{1}{\beta} \int_0^\beta F^{-1}(u)\, du

    The atom at the edge of the tail counts with the fraction of it that lies inside. See `Rockafellar and Uryasev
    (2000) <https://doi.org/10.21314/JOR.2000.038>`_.

    Args:
        quantiles: atoms in any order, in units of return, shape ``[..., N]``.
        tail_mass: probability of the tail, :math:`\beta`, in ``(0, 1]``; ``1`` is the mean.

    Returns:
        Values, in units of return, shape ``[...]``.

    Raises:
        ValueError: if ``tail_mass`` is not inside ``(0, 1]``.

    Examples:
        >>> conditional_value_at_risk(torch.tensor([4.0, 1.0, 2.0, 3.0]), 0.375)  # (1 + 2 / 2) / 1.5
        tensor(1.3333)
    """
    if not 0 < tail_mass <= 1:
        raise ValueError(f"tail_mass must be a probability in (0, 1], got {tail_mass}.")
    num_quantiles = quantiles.shape[-1]
    edge = tail_mass * num_quantiles
    position = torch.arange(num_quantiles, device=quantiles.device, dtype=quantiles.dtype)
    weight = (edge - position).clamp(0, 1) / edge
    return (quantiles.sort(dim=-1).values * weight).sum(-1)


def entropic_value(quantiles: Tensor, risk_aversion: float) -> Tensor:
    r"""Certainty equivalent under exponential utility.

    .. math:: f(q) = -\tfrac1c \log \tfrac1N \sum_i e^{-c q_i}

    Stable for any scale of the atoms. ``c > 0`` is risk-averse (below the mean), ``c < 0`` risk-seeking, and
    ``c = 0`` the mean. See `Howard and Matheson (1972) <https://doi.org/10.1287/mnsc.18.7.356>`_.

    Args:
        quantiles: atoms in any order, in units of return, shape ``[..., N]``.
        risk_aversion: coefficient ``c``, in inverse units of return.

    Returns:
        Values, in units of return, shape ``[...]``.

    Raises:
        ValueError: if ``risk_aversion`` is not finite.

    Examples:
        >>> entropic_value(torch.tensor([0.0, 2.0]), 1.0)  # -log((1 + e^-2) / 2)
        tensor(0.5662)
    """
    if not math.isfinite(risk_aversion):
        raise ValueError(f"risk_aversion must be finite, got {risk_aversion}.")
    mean = quantiles.mean(-1, keepdim=True)
    if risk_aversion == 0:
        return mean.squeeze(-1)
    # log-mean-exp of centred atoms x as a shift plus log1p(mean(expm1)): accurate also where c x is tiny
    exponent = -risk_aversion * (quantiles - mean)
    shift = exponent.detach().amax(-1, keepdim=True).clamp_min(1.0) - 1.0
    log_mean = torch.expm1(exponent - shift).mean(-1).log1p() + shift.squeeze(-1)
    return mean.squeeze(-1) - log_mean / risk_aversion
