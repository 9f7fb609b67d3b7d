r"""
From a posterior over MDPs to a posterior over values
=====================================================

**What you will learn**

- why a policy has a *distribution* of values when the environment is uncertain,
- how it differs from the distribution of returns,
- how the value-distributional Bellman operator finds it without solving a single MDP, and where it stops being exact.
"""

# %%
# An uncertain environment
# ------------------------
#
# Four states. From ``s0`` the environment goes to ``s2`` with probability :math:`X`, otherwise to ``s1``. Leaving
# ``s1`` earns 1, leaving ``s2`` costs 1. From ``s2`` it returns to ``s0`` with probability :math:`\beta`. Only
# :math:`X` is uncertain, with mean 0.4 and standard deviation 0.1.

import matplotlib.pyplot as plt
import torch

from eqr_torchrl.functional import quantile_midpoints, quantile_projection, wasserstein_distance
from eqr_torchrl.tabular import (
    policy_values,
    sample_toy_parameter,
    toy_mdp,
    value_distribution_iteration,
)

BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"  # for all kinds of colour vision
plt.rcParams.update({"font.size": 9, "legend.frameon": False})
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
generator = torch.Generator().manual_seed(0)

x = sample_toy_parameter("example", 5000, generator=generator)
mdps = toy_mdp(beta=0.9, x=x)  # 5000 MDPs that the posterior allows, as one batch
policy = torch.zeros(4, dtype=torch.long)  # there is one action

# %%
# One MDP, one value
# ------------------
#
# In each of these MDPs the value of ``s0`` is a number: the solution of a linear system. 5000 MDPs give 5000 draws of
# the random value :math:`V(s_0)`.

values = policy_values(mdps, policy)[:, 0]

figure, (left, right) = plt.subplots(1, 2, figsize=(6.4, 2.5), layout="constrained")
left.hist(x, bins=60, density=True, color=BLUE)
left.set(xlabel="$X$, probability of going to $s_2$", ylabel="density", xlim=(0, 1))
left.set_title("posterior over MDPs")
right.hist(values, bins=60, density=True, color=ORANGE)
right.set(xlabel="value of $s_0$", title="posterior over values", xlim=(-1, 1))

# %%
# The map from MDP to value is nonlinear, so a symmetric posterior over MDPs becomes a skewed one over values, and the
# value of the average MDP is not the average value.

of_average = policy_values(toy_mdp(0.9, x.mean()), policy)[0]
print(f"average value {values.mean():.3f}, value of the average MDP {of_average:.3f}")

# %%
# Values are not returns
# ----------------------
#
# A return is the outcome of one noisy episode. In the single MDP with :math:`X = 0.4`, returns vary widely although
# nothing is unknown. The value distribution averages this variation out; the remaining spread shrinks as :math:`X`
# becomes better known.


def sample_returns(
    x: torch.Tensor, beta: float = 0.9, gamma: float = 0.99, horizon: int = 200
) -> torch.Tensor:
    """Discounted return of one episode for each ``x``."""
    at_start, total, discount = torch.ones(len(x), dtype=torch.bool), torch.zeros(len(x)), 1.0
    for _ in range(horizon):
        down = at_start & (torch.rand(len(x), generator=generator) < x)
        total += discount * gamma * (at_start & ~down) - discount * gamma * down
        at_start = down & (torch.rand(len(x), generator=generator) < beta)
        discount = discount * gamma**2
    return total


returns = sample_returns(torch.full((5000,), 0.4))
nearly_known = toy_mdp(beta=0.9, x=0.4 + 0.1 * (x - 0.4))  # a tenth of the uncertainty
precise = policy_values(nearly_known, policy)[:, 0]

figure, axes = plt.subplots(1, 3, figsize=(6.4, 2.3), sharex=True, layout="constrained")
for axis, data, title, colour in zip(
    axes,
    (returns, values, precise),
    ("returns, $X=0.4$ known", "values, $X$ uncertain", "values, after more data"),
    (GREEN, ORANGE, ORANGE),
    strict=True,
):
    axis.hist(data, bins=torch.linspace(-3, 1.05, 80), density=True, color=colour)
    axis.set(title=title, xlabel="return" if colour == GREEN else "value of $s_0$", yticks=[])

# %%
# Without solving MDPs
# --------------------
#
# Solving every MDP works for four states. The Bellman operator of value distributions works with quantiles of the
# next states' values instead: for each drawn MDP it forms :math:`r + \gamma \sum_{s'} p(s'|s)\, q_j(s')`, and it
# keeps the quantiles of the result. Repeated, it converges from any start.

num_quantiles = 20
levels = quantile_midpoints(num_quantiles)
truth = quantile_projection(values, num_quantiles)
fixed_point = value_distribution_iteration(mdps.under(policy), num_quantiles=num_quantiles)[0]

figure, axis = plt.subplots(figsize=(4.2, 2.7), layout="constrained")
axis.plot(
    values.sort().values, torch.linspace(0, 1, len(values)), color=ORANGE, label="5000 solved MDPs"
)
axis.plot(fixed_point, levels, "o", ms=4, color=BLUE, label="fixed point, 20 quantiles")
axis.set(xlabel="value of $s_0$", ylabel="cumulative probability", xlim=(-1, 1))
axis.legend(loc="upper left")

# %%
# Close, but not the same: the lower tail of the fixed point is too short. The operator assumes that the transition
# out of ``s0`` and the value of the next state are independent. Here the chain returns to ``s0``, whose value depends
# on the same :math:`X`.
#
# How large is the error?
# -----------------------
#
# Without the cycle (:math:`\beta = 0`) the assumption holds and the error is that of 20 quantiles. It grows with the
# cycle.

betas = torch.linspace(0, 1, 11)
errors = []
for beta in betas:
    mdps = toy_mdp(beta=float(beta), x=x[::5])
    truth = quantile_projection(policy_values(mdps, policy)[:, 0], num_quantiles)
    estimate = value_distribution_iteration(mdps.under(policy), num_quantiles=num_quantiles)[0]
    errors.append(float(wasserstein_distance(truth, estimate)))

figure, axis = plt.subplots(figsize=(4.2, 2.5), layout="constrained")
axis.plot(betas, errors, "o-", color=BLUE)
axis.set(xlabel=r"$\beta$, strength of the cycle", ylabel="1-Wasserstein error", ylim=(0, None))

# %%
# Conclusion
# ----------
#
# A posterior over MDPs *is* a posterior over values, and quantiles of it obey a Bellman recursion: exactly without
# cycles, approximately with them.
#
# Further reading: :doc:`/concepts/value_distribution`; the next tutorial learns the same quantiles from one sampled
# MDP at a time.
