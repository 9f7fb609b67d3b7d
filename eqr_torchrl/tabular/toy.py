"""The toy MDP of the paper: one uncertain transition, and a cycle whose strength can be chosen."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from eqr_torchrl.tabular.mdp import MDP

_POSTERIORS = {  # mean and standard deviation of the equally weighted components of X
    "gaussian": ((0.5, 0.1),),
    "bimodal": ((0.3, 0.03), (0.6, 0.05)),
    "heavy_tailed": ((0.3, 0.03), (0.5, 0.15)),
    "example": ((0.4, 0.1),),
}


def toy_mdp(beta: float | Tensor, x: float | Tensor, *, gamma: float = 0.99) -> MDP:
    r"""The toy MDP of Figure 2 and Example 1.

    From ``s0`` to ``s2`` with probability ``x``, else to ``s1``; from ``s2`` back to ``s0`` with probability ``beta``,
    else to the terminal ``s3``; from ``s1`` always to ``s3``. Leaving ``s1`` earns 1, leaving ``s2`` costs 1. There is
    one action. The value of ``s0`` is :math:`\gamma (1 - 2x) / (1 - \gamma^2 \beta x)`.

    Args:
        beta: probability of the cycle; with 0 the MDP is acyclic.
        x: the uncertain transition probability. Its shape, broadcast with that of ``beta``, is the batch shape.
        gamma: discount.

    Raises:
        ValueError: if ``beta`` or ``x`` is no probability.

    Examples:
        >>> toy_mdp(beta=0.9, x=torch.tensor([0.2, 0.4])).transitions[:, 0, 0]
        tensor([[0.0000, 0.8000, 0.2000, 0.0000],
                [0.0000, 0.6000, 0.4000, 0.0000]], dtype=torch.float64)
    """
    beta, x = torch.broadcast_tensors(
        torch.as_tensor(beta, dtype=torch.float64), torch.as_tensor(x, dtype=torch.float64)
    )
    for name, value in (("beta", beta), ("x", x)):
        if not bool(((value >= 0) & (value <= 1)).all()):
            raise ValueError(f"{name} must lie in [0, 1]: got {float(value.min())}..{float(value.max())}.")
    transitions = x.new_zeros((*x.shape, 4, 1, 4))
    transitions[..., 0, 0, 1], transitions[..., 0, 0, 2] = 1 - x, x
    transitions[..., 1, 0, 3] = 1.0
    transitions[..., 2, 0, 0], transitions[..., 2, 0, 3] = beta, 1 - beta
    transitions[..., 3, 0, 3] = 1.0
    rewards = x.new_tensor([0.0, 1.0, -1.0, 0.0]).unsqueeze(-1).expand(*x.shape, 4, 1)
    return MDP(transitions, rewards, gamma, terminal_states=(3,))


def sample_toy_parameter(
    posterior: str,
    num_samples: int,
    *,
    truncation: Literal["clipped", "truncated"] = "clipped",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Samples of the uncertain probability ``X`` of :func:`toy_mdp` under one of the paper's posteriors.

    Args:
        posterior: ``"gaussian"``, ``"bimodal"``, ``"heavy_tailed"`` (left, middle and right column of Figure 5) or
            ``"example"`` (Figures 2 and 4).
        num_samples: number of samples; a mixture gives each component the same number of them.
        truncation: ``"clipped"`` clips samples to [0, 1], as in the published study;
            ``"truncated"`` draws from the normal distribution restricted to [0, 1], as its text says.
        generator: random generator.

    Returns:
        Samples in [0, 1], component by component, float64, shape ``[num_samples]``.

    Raises:
        ValueError: if ``posterior`` or ``truncation`` is unknown, or the components cannot share ``num_samples``.

    Examples:
        >>> x = sample_toy_parameter("bimodal", 5000, generator=torch.Generator().manual_seed(0))
        >>> x.unflatten(0, (2, 2500)).mean(-1)
        tensor([0.3001, 0.5987], dtype=torch.float64)
    """
    if posterior not in _POSTERIORS:
        raise ValueError(f"posterior must be one of {', '.join(_POSTERIORS)}: got {posterior!r}.")
    components = torch.tensor(_POSTERIORS[posterior], dtype=torch.float64)
    if num_samples < 1 or num_samples % len(components):
        raise ValueError(f"num_samples must be a positive multiple of {len(components)}, got {num_samples}.")
    mean, std = components.unsqueeze(-1).unbind(1)  # [components, 1]
    shape = (len(components), num_samples // len(components))
    if truncation == "clipped":
        draws = torch.randn(shape, generator=generator, dtype=torch.float64)
        return (mean + std * draws).clamp(0, 1).flatten()
    if truncation == "truncated":
        low, high = torch.special.ndtr(-mean / std), torch.special.ndtr((1 - mean) / std)
        levels = low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)
        return (mean + std * torch.special.ndtri(levels)).clamp(0, 1).flatten()
    raise ValueError(f"truncation must be 'clipped' or 'truncated', got {truncation!r}.")
