"""Gaussian likelihoods, squashed Gaussians and stratified standard normal draws."""

from __future__ import annotations

import itertools
import math
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

_LARGEST_TABLE = 6  # 720 permutations


def soft_clamp(value: Tensor, low: float | Tensor, high: float | Tensor) -> Tensor:
    r"""Smooth clamp into ``(low, high)`` by two softplus functions, as used for log-variances.

    .. math:: \ell \leftarrow \ell_{max} - \mathrm{softplus}(\ell_{max} - \ell), \quad
              \ell \leftarrow \ell_{min} + \mathrm{softplus}(\ell - \ell_{min})

    Takes values ``[...]`` and bounds that broadcast. Stays within softplus(low - high) of the bounds, and is almost the
    identity far from them. Appendix A.1 of `Chua et al. (2018) <https://arxiv.org/abs/1805.12114>`_.

    Examples:
        >>> soft_clamp(torch.tensor([-1e6, 0.0, 1e6]), -10.0, 0.5)
        tensor([-10.0000,  -0.4740,   0.5000])
    """
    value = high - softplus(high - value)
    return low + softplus(value - low)


def gaussian_nll(mean: Tensor, log_var: Tensor, target: Tensor) -> Tensor:
    r"""Twice the negative log-likelihood of a Gaussian, without its constant.

    .. math:: (\mu - y)^2 e^{-\ell} + \ell, \quad \ell = \log \sigma^2

    One value per entry of tensors ``[...]``: the training loss of probabilistic ensembles (eq. 1 of `Chua et al. (2018)
    <https://arxiv.org/abs/1805.12114>`_).

    Examples:
        >>> gaussian_nll(torch.zeros(1), torch.zeros(1), torch.full((1,), 2.0))
        tensor([4.])
    """
    return (mean - target).square() * (-log_var).exp() + log_var


def stratified_normal(
    shape: tuple[int, ...] | torch.Size, *, dim: int, device=None, dtype: torch.dtype | None = None
) -> Tensor:
    r"""Standard normal draws, a Latin hypercube along ``dim``.

    The normal distribution is divided into as many equal-probability bins as there are samples along ``dim``. One
    sample falls into each bin, uniformly, in an independent random order for every other index. Each sample is exactly
    standard normal, so averages over ``dim`` stay unbiased (`McKay et al. (1979) <https://doi.org/10.2307/1268522>`_).

    Examples:
        >>> noise = stratified_normal((2, 4, 3), dim=1)
        >>> bins = (torch.special.ndtr(noise) * 4).floor()
        >>> bins.sort(dim=1).values[0, :, 0]
        tensor([0., 1., 2., 3.])
    """
    dtype, shape = dtype or torch.get_default_dtype(), torch.Size(shape)
    num_strata = shape[dim]
    if num_strata == 1:
        return torch.randn(shape, device=device, dtype=dtype)
    exact = torch.promote_types(dtype, torch.float32)  # half precision has too few levels for the tails
    before, after = shape[:dim].numel(), shape[dim:][1:].numel()
    order = _random_permutations(before, num_strata, after, device).to(exact)
    offset = torch.rand(order.shape, device=device, dtype=exact)
    # erfinv(2 u - 1) sqrt(2) is the inverse CDF; it is infinite at -1 and 1, which rounding could reach
    edge = 1 - torch.finfo(exact).eps
    uniform = offset.add_(order).mul_(2 / num_strata).sub_(1).clamp_(-edge, edge)
    return uniform.erfinv_().mul_(math.sqrt(2)).view(shape).to(dtype)


def _random_permutations(before: int, size: int, after: int, device) -> Tensor:
    """Shape ``[before, size, after]``: uniformly random permutations of ``range(size)`` along the middle dimension."""
    if size > _LARGEST_TABLE:
        return torch.rand((before, after, size), device=device).argsort(-1).transpose(1, 2)
    table = _all_permutations(size, device)  # a look-up is several times cheaper than a sort
    column = torch.randint(table.shape[1], (before, 1, after), device=device)
    return table.expand(before, *table.shape).gather(-1, column.expand(-1, size, -1))


@lru_cache
def _all_permutations(size: int, device) -> Tensor:
    """Shape ``[size, size!]``, as floating numbers, which are cheaper to add."""
    return torch.tensor(list(itertools.permutations(range(size))), device=device, dtype=torch.float32).T.contiguous()


def tanh_normal(loc: Tensor, scale: Tensor, noise: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    r"""Squashed Gaussian draws ``[..., A]`` and their log-densities ``[...]`` in nats, from base noise.

    .. math:: u = \mu + \sigma \epsilon, \quad a = \tfrac{h + l}{2} + \tfrac{h - l}{2} \tanh u, \quad
              \log \pi(a) = \sum_d \log \mathcal N(u_d) - \log \tfrac{h_d - l_d}{2} - \log(1 - \tanh^2 u_d)

    The density is that of the action in environment units. The last term is computed as
    :math:`2 (\log 2 - u + \log \sigma(2u))`, which stays exact where tanh saturates (appendix C of
    `Haarnoja et al. (2018) <https://arxiv.org/abs/1801.01290>`_).

    Args:
        loc: means before squashing, shape ``[..., A]``.
        scale: standard deviations before squashing, shape ``[..., A]``.
        noise: standard normal draws, shape ``[..., A]``, which broadcast.
        low: lower bounds of the action, shape ``[A]``.
        high: upper bounds of the action, shape ``[A]``.

    Examples:
        >>> loc, scale, noise = torch.zeros(1), torch.ones(1), torch.zeros(1)
        >>> tanh_normal(loc, scale, noise, torch.tensor([-2.0]), torch.tensor([2.0]))  # log N(0) - log 2
        (tensor([0.]), tensor(-1.6121))
    """
    twice = 2 * torch.addcmul(loc, scale, noise)
    low, high = low.to(twice.dtype), high.to(twice.dtype)  # bounds of a spec must not promote half precision
    half_range = (high - low) / 2
    action = torch.addcmul(low, high - low, twice.sigmoid())  # tanh(u) = 2 sigmoid(2u) - 1
    log_slope = 2 * logsigmoid(twice) - twice  # without its constant 2 log 2
    log_density = torch.addcmul(-scale.log() - log_slope, noise, noise, value=-0.5)
    constant = 0.5 * math.log(2 * math.pi) + 2 * math.log(2) + half_range.log()
    return action, log_density.sum(-1) - constant.expand(log_density.shape[-1:]).sum()
