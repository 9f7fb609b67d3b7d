"""Quantile levels, the quantile-Huber loss, and distances between quantile functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def quantile_midpoints(num_quantiles: int, *, device=None, dtype: torch.dtype | None = None) -> Tensor:
    r"""Midpoint levels :math:`\hat\tau_i = (2i - 1) / 2N` of ``N`` equal-mass quantiles, shape ``[N]``.

    The atoms at these levels minimise the 1-Wasserstein distance to a distribution among all uniform
    mixtures of ``N`` Diracs (Lemma 2 of `Dabney et al. (2018) <https://arxiv.org/abs/1710.10044>`_).

    Examples:
        >>> quantile_midpoints(4)
        tensor([0.1250, 0.3750, 0.6250, 0.8750])
    """
    return (torch.arange(num_quantiles, device=device, dtype=dtype or torch.get_default_dtype()) + 0.5) / num_quantiles


def _loss_and_derivatives(
    quantiles: Tensor, targets: Tensor, levels: Tensor, kappa: float
) -> tuple[Tensor, Tensor, Tensor]:
    """By sorting the targets, in O((N + N') log N'): losses ``[*B]``, and derivatives in each quantile, ``[*B, N]``."""
    # For one quantile theta, the targets fall into four intervals, cut at theta - kappa, theta, theta + kappa.
    # In each the loss is a polynomial in the count, sum and sum of squares of its targets, all of which are
    # differences of prefix sums. Centred float64 sums keep float32 inputs exact whatever their offset.
    dtype = quantiles.dtype
    precision = torch.promote_types(torch.promote_types(dtype, targets.dtype), torch.float32)
    quantiles, targets = quantiles.to(precision), targets.to(precision)
    if targets.device.type != "cpu" or torch.compiler.is_compiling():
        sorted_targets = targets.sort(dim=-1).values
    else:  # vectorised: up to 50 times faster
        sorted_targets = torch.from_numpy(np.sort(targets.contiguous().numpy(), axis=-1))
    centre = sorted_targets[..., sorted_targets.shape[-1] // 2, None].double()
    y, theta = sorted_targets.double() - centre, quantiles.double() - centre
    num_targets, levels = y.shape[-1], levels.double()
    cuts = torch.cat([quantiles - kappa, quantiles, quantiles + kappa], -1) if kappa > 0 else quantiles
    # Number of targets strictly below each cut. A target within rounding of theta +- kappa may fall to either side:
    # value and slope are continuous there.
    index = _count_below(sorted_targets, cuts)
    first = torch.nn.functional.pad(y.cumsum(-1), (1, 0))
    total, sums, counts = first[..., -1:], first.gather(-1, index), index.double()
    if kappa > 0:
        second = torch.nn.functional.pad(y.square().cumsum(-1), (1, 0)).gather(-1, index)
        count_low, count_mid, count_high = counts.chunk(3, -1)
        sum_low, sum_mid, sum_high = sums.chunk(3, -1)
        square_low, square_mid, square_high = second.chunk(3, -1)
        near_below, near_above = count_mid - count_low, count_high - count_mid
        # sum of (theta - y) over each quadratic interval, and of its square
        below = theta * near_below - (sum_mid - sum_low)
        above = theta * near_above - (sum_high - sum_mid)
        below_square = theta * below - theta * (sum_mid - sum_low) + (square_mid - square_low)
        above_square = theta * above - theta * (sum_high - sum_mid) + (square_high - square_mid)
        tail_below = kappa * (count_low * (theta - 0.5 * kappa) - sum_low)
        tail_above = kappa * ((total - sum_high) - (num_targets - count_high) * (theta + 0.5 * kappa))
        loss_below, loss_above = 0.5 * below_square + tail_below, 0.5 * above_square + tail_above
        slope_below, slope_above = below + kappa * count_low, above - kappa * (num_targets - count_high)
        curvature = torch.lerp(near_below, near_above, levels) / num_targets
    else:
        loss_below, loss_above = theta * counts - sums, (total - sums) - theta * (num_targets - counts)
        slope_below, slope_above = counts, counts - num_targets
        curvature = torch.zeros_like(counts)
    gradient = ((1 - levels) * slope_below + levels * slope_above) / num_targets
    loss = ((1 - levels) * loss_below + levels * loss_above).sum(-1) / num_targets
    return loss.to(dtype), gradient.to(dtype), curvature.to(dtype)


class _SortedQuantileHuber(torch.autograd.Function):
    """Loss, first and second derivative of every predicted quantile, none of which is differentiated further here."""

    forward = staticmethod(_loss_and_derivatives)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def vmap(info, in_dims, quantiles: Tensor, targets: Tensor, levels: Tensor, kappa: float):
        # all of it is batched over leading dimensions already; NumPy cannot see the wrappers of vmap
        quantiles, targets, levels = (
            value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)
            for value, dim in zip((quantiles, targets, levels), in_dims, strict=False)
        )
        levels = levels.view(len(levels), *(1,) * (quantiles.ndim - 2), -1)
        return _SortedQuantileHuber.apply(quantiles, targets, levels, kappa), (0, 0, 0)


def _count_below(increasing: Tensor, cuts: Tensor) -> Tensor:
    """How many of the increasing values, shape ``[*B, J]``, are below each of the cuts, shape ``[*B, C]``."""
    if torch.compiler.is_compiling() or increasing.device.type != "cpu":
        return torch.searchsorted(increasing, cuts)
    # the same bisection for all cuts at once, which the CPU does not have to predict: up to four times faster
    num_values = increasing.shape[-1]
    step = 1 << num_values.bit_length() >> 1
    padded = torch.nn.functional.pad(increasing, (0, 2 * step - 1 - num_values), value=float("inf"))
    values, cut = padded.flatten().numpy(), cuts.reshape(-1, cuts.shape[-1]).numpy()
    first = np.arange(0, values.size, padded.shape[-1])[:, None]  # place of each row's first value
    place = np.broadcast_to(first, cut.shape).copy()
    while step:
        place += step * (values[step - 1 :].take(place, mode="clip") < cut)
        step >>= 1
    return torch.from_numpy(place - first).view(cuts.shape)


def quantile_huber_loss(quantiles: Tensor, targets: Tensor, levels: Tensor, *, kappa: float = 1.0) -> Tensor:
    r"""Quantile-Huber regression loss ``[*B]`` of ``quantiles`` onto samples ``targets``.

    .. math:: \ell = \sum_i \tfrac{1}{N'} \sum_j |\tau_i - \mathbb{1}\{u_{ij} < 0\}|\, L_\kappa(u_{ij}),
              \quad u_{ij} = y_j - \theta_i

    Eq. 10 of `Dabney et al. (2018) <https://arxiv.org/abs/1710.10044>`_, where :math:`L_\kappa(u)` is
    :math:`u^2 / 2` for :math:`|u| < \kappa` and :math:`\kappa (|u| - \kappa / 2)` beyond; N' need not equal N.
    Value and gradient are exact, from sorted targets and prefix sums: no tensor of shape ``[*B, N, N']`` exists. A
    ``kappa`` that is large against the spread of the targets biases the extreme quantiles towards the expectile. Losses
    are not divided by it: gradients shrink with a small one.

    Args:
        quantiles: predicted atoms, in units of return, shape ``[*B, N]``; differentiable, also by ``torch.func``.
        targets: target atoms, in units of return, shape ``[*B, N']``; no gradient flows into them.
        levels: quantile levels in ``(0, 1)``, shape ``[N]``.
        kappa: Huber threshold, in units of return; ``0`` gives the pinball loss :math:`|\tau - 1\{u<0\}|\,|u|`,
            where a target equal to its quantile counts as not below it.

    Examples:
        >>> theta, y = torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 1.0, 4.0]])
        >>> quantile_huber_loss(theta, y, quantile_midpoints(2), kappa=0.0)
        tensor([1.2500])
    """
    batch, last = targets.shape[:-1], levels.shape
    if quantiles.shape != (*batch, *last) or len(last) != 1 or not targets.shape[-1]:
        found = ", ".join(str(tuple(value.shape)) for value in (quantiles, targets, levels))
        raise ValueError(f"the shapes of quantiles [*B, N], targets [*B, N'], levels [N] must agree: got {found}.")
    fixed = quantiles.detach()
    compute: Any = _loss_and_derivatives if torch.compiler.is_compiling() else _SortedQuantileHuber.apply
    loss, gradient, curvature = compute(fixed, targets.detach(), levels.detach(), kappa)
    # the Taylor series at the quantiles themselves: zero, but with these derivatives in every mode of differentiation
    step = quantiles - fixed
    return loss + (step * torch.addcmul(gradient, curvature, step, value=0.5)).sum(-1)


def quantile_projection(samples: Tensor, num_quantiles: int) -> Tensor:
    r"""Quantile projection of an empirical distribution: the order statistics nearest to the midpoint levels.

    Maps samples ``[*B, J]`` to increasing quantiles ``[*B, N]``. Sample ``j`` of ``J`` sorted samples has the level
    ``(2j - 1) / 2J``; each midpoint takes the one of the nearest level, the lower on ties, without interpolation.

    Examples:
        >>> quantile_projection(torch.tensor([3.0, 1.0, 2.0, 4.0]), 2)
        tensor([1., 3.])
    """
    num_samples = samples.shape[-1]
    position = quantile_midpoints(num_quantiles, device=samples.device, dtype=torch.float64) * num_samples - 0.5
    # ceil(x - 1/2) rounds to the nearest index, halves down; the small term absorbs rounding of the product itself
    index = (position - 0.5 - 1e-9).ceil().long().clamp_(0, num_samples - 1)
    return samples.sort(dim=-1).values[..., index]


def wasserstein_distance(quantiles: Tensor, other: Tensor, *, p: float = 1.0) -> Tensor:
    r"""p-Wasserstein distance between two uniform mixtures of ``N`` Diracs.

    .. math:: W_p = \Big(\tfrac1N \sum_i |F^{-1}(\hat\tau_i) - G^{-1}(\hat\tau_i)|^p\Big)^{1/p}

    Takes two sets of atoms ``[*B, N]``, in any order, that broadcast. Returns distances ``[*B]`` in their units. The
    order ``p`` is at least 1; ``float("inf")`` gives the largest gap.

    Examples:
        >>> wasserstein_distance(torch.tensor([0.0, 1.0]), torch.tensor([3.0, 2.0]))
        tensor(2.)
    """
    if quantiles.shape[-1] != other.shape[-1]:
        raise ValueError(f"other must have as many atoms as quantiles, {quantiles.shape[-1]}: got {other.shape[-1]}.")
    if not p >= 1:
        raise ValueError(f"p must be at least 1, got {p}.")
    gap = quantiles.sort(dim=-1).values - other.sort(dim=-1).values
    return torch.linalg.vector_norm(gap, p, -1) / gap.shape[-1] ** (1 / p)
