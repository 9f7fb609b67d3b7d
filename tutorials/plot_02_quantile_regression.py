r"""
Epistemic quantile regression by hand
=====================================

**What you will learn**

- what loss a quantile minimises, and why its gradient needs only a comparison,
- how Algorithm 1 of the paper learns all quantiles of all states from one sampled MDP at a time,
- what the step size, the number of quantiles and the Huber threshold do.
"""

# %%
# The loss of one quantile
# ------------------------
#
# The pinball loss charges :math:`\tau` for every unit by which a guess is too low and :math:`1 - \tau` for every unit
# by which it is too high. Its minimum over guesses is the :math:`\tau`-quantile. Below, the loss for five levels on
# the value distribution of the previous tutorial; dots mark the minima, dashed lines the true quantiles.

import matplotlib.pyplot as plt
import torch

from eqr_torchrl import functional as F
from eqr_torchrl.tabular import (
    EmpiricalPosterior,
    epistemic_quantile_regression,
    policy_values,
    sample_toy_parameter,
    toy_mdp,
)

COLOURS = ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00")  # for all kinds of colour vision
plt.rcParams.update({"font.size": 9, "legend.frameon": False})
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
generator = torch.Generator().manual_seed(0)
policy = torch.zeros(4, dtype=torch.long)

x = sample_toy_parameter("example", 5000, generator=generator)
values = policy_values(toy_mdp(beta=0.9, x=x), policy)[:, 0]
guesses = torch.linspace(-0.6, 0.9, 301, dtype=torch.float64)

figure, axis = plt.subplots(figsize=(4.6, 3.0), layout="constrained")
for level, colour in zip((0.1, 0.25, 0.5, 0.75, 0.9), COLOURS, strict=True):
    gap = values - guesses.unsqueeze(-1)
    loss = (gap.abs() * torch.where(gap >= 0, level, 1 - level)).mean(-1)
    axis.plot(guesses, loss, color=colour, label=f"{level:.2f}")
    axis.plot(guesses[loss.argmin()], loss.min(), "o", color=colour)
    axis.axvline(values.quantile(level), color=colour, ls="--", lw=0.8)
axis.set(xlabel="guess", ylabel="pinball loss", ylim=(0, 0.5))
axis.legend(title=r"level $\tau$", loc="center left", bbox_to_anchor=(1.0, 0.5))

# %%
# The gradient is a comparison
# ----------------------------
#
# The derivative of the expected loss is the share of values below the guess, minus :math:`\tau`. So the update of a
# quantile does not need the size of an error, only whether a sample lies below the quantile: the quantile moves up by
# :math:`\alpha \tau`, and down by :math:`\alpha` if the sample lies below it. ``quantile_huber_loss`` with ``kappa=0``
# is this loss for all midpoint levels at once, and autograd agrees:

levels = F.quantile_midpoints(5, dtype=torch.float64)
guess = torch.zeros(1, 5, dtype=torch.float64, requires_grad=True)
F.quantile_huber_loss(guess, values[None], levels, kappa=0.0).sum().backward()
print("gradient    ", guess.grad[0].tolist())
print("share - tau ", ((values < 0).double().mean() - levels).tolist())

# %%
# Algorithm 1
# -----------
#
# Epistemic quantile regression draws one MDP, forms for each state the targets
# :math:`r + \gamma \sum_{s'} p(s'|s) q_j(s')` from its own quantiles, and moves every quantile by that rule. Without
# the cycle, the quantiles settle around the true quantiles and fluctuate by about the step size.

num_quantiles, num_iterations = 10, 6000
posterior = EmpiricalPosterior(toy_mdp(beta=0.0, x=x))
truth = F.quantile_projection(policy_values(toy_mdp(beta=0.0, x=x), policy)[:, 0], num_quantiles)
estimate = epistemic_quantile_regression(
    posterior,
    policy,
    num_quantiles=num_quantiles,
    num_iterations=num_iterations,
    step_size=5e-3,
    record_states=[0],
    record_every=10,
    generator=generator,
)

figure, axis = plt.subplots(figsize=(5.2, 2.9), layout="constrained")
axis.plot(estimate.history_iterations, estimate.history[:, 0], color=COLOURS[0], lw=0.7)
axis.hlines(truth, 0, num_iterations, color=COLOURS[4], ls="--", lw=0.8)
axis.set(xlabel="iteration (one sampled MDP each)", ylabel="quantiles of $V(s_0)$")
axis.plot([], [], color=COLOURS[0], label="learned")
axis.plot([], [], color=COLOURS[4], ls="--", label="true")
axis.legend(loc="lower right", ncols=2)

# %%
# Step size
# ---------
#
# A large step converges fast and stays noisy; a small one is slow and less noisy. A decaying step is fast and
# accurate.

figure, axis = plt.subplots(figsize=(5.2, 2.7), layout="constrained")
for (label, steps), colour in zip(
    {"0.05": (0.05, None), "0.001": (0.001, None), "0.05 to 0.001": (0.05, 0.001)}.items(),
    COLOURS[::2],
    strict=True,
):
    history = epistemic_quantile_regression(
        posterior,
        policy,
        num_quantiles=num_quantiles,
        num_iterations=num_iterations,
        step_size=steps[0],
        final_step_size=steps[1],
        record_states=[0],
        record_every=20,
        generator=generator,
    ).history[:, 0]
    error = F.wasserstein_distance(history, truth.expand_as(history))
    axis.semilogy(torch.arange(1, len(error) + 1) * 20, error, color=colour, label=label)
axis.set(xlabel="iteration", ylabel="1-Wasserstein error")
axis.legend(title="step size", loc="center left", bbox_to_anchor=(1.0, 0.5))

# %%
# Huber threshold
# ---------------
#
# Networks are trained with the quantile-*Huber* loss, which is smooth within ``kappa`` of a target. The price is a
# bias: where values differ by less than ``kappa``, quantiles are pulled together. With ``kappa`` far below the spread
# of the values there is no bias.

targets = values[None]
figure, axis = plt.subplots(figsize=(4.2, 2.7), layout="constrained")
for kappa, colour in zip((0.0, 0.1, 1.0), COLOURS[::2], strict=True):
    q = torch.zeros(1, num_quantiles, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([q], lr=0.02)
    for step in range(400):
        optimizer.param_groups[0]["lr"] = 0.02 * (1 - step / 400)
        optimizer.zero_grad()
        F.quantile_huber_loss(
            q, targets, F.quantile_midpoints(num_quantiles, dtype=torch.float64), kappa=kappa
        ).sum().backward()
        optimizer.step()
    levels, label = F.quantile_midpoints(num_quantiles), f"kappa = {kappa:g}"
    axis.plot(q[0].detach(), levels, "o-", ms=3, color=colour, label=label)
axis.plot(
    values.sort().values, torch.linspace(0, 1, len(values)), color="black", lw=0.8, label="truth"
)
axis.set(xlabel="value of $s_0$", ylabel="cumulative probability")
axis.legend(loc="upper left")

# %%
# Conclusion
# ----------
#
# Quantile regression needs samples and comparisons; epistemic quantile regression takes the samples from one MDP at a
# time and bootstraps. Everything that EQR-SAC does with networks is this update with an optimiser in place of the
# fixed step.
#
# Further reading: :func:`~eqr_torchrl.functional.quantile_huber_loss`,
# :func:`~eqr_torchrl.tabular.epistemic_quantile_regression`.
