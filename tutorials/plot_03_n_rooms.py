r"""
Exploration in N rooms: PSRL and EQR
====================================

**What you will learn**

- how a posterior over MDPs is updated from episodes of a TorchRL environment,
- how posterior sampling (PSRL) explores by acting optimally in a sampled MDP,
- how the posterior of values narrows as data are collected, and how well EQR learns it.
"""

# %%
# Three rooms
# -----------
#
# The environment is a grid of three rooms joined by doorways. Leaving the start cell earns 0.01, leaving the centre of
# the left room 0.1, leaving the centre of the right room 1. The agent knows nothing of the layout: any move may lead
# anywhere.

import matplotlib.pyplot as plt
import torch

from eqr_torchrl.functional import quantile_midpoints, quantile_projection, wasserstein_distance
from eqr_torchrl.tabular import (
    MDPEnv,
    count_transitions,
    epistemic_quantile_regression,
    nroom_cells,
    nroom_mdp,
    nroom_prior,
    policy_iteration,
    policy_values,
    process_values,
    psrl,
)

BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"  # for all kinds of colour vision
plt.rcParams.update({"font.size": 9, "legend.frameon": False})
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
generator = torch.Generator().manual_seed(0)
torch.manual_seed(0)

env = MDPEnv(nroom_mdp(left_prize_ends_episode=True))
policy, values = policy_iteration(env.mdp)
start = env.mdp.initial_state

grid = torch.full((5, 17), float("nan"))
for state, (row, column) in enumerate(nroom_cells()):
    grid[row, column] = values[state]
figure, axis = plt.subplots(figsize=(6.0, 2.2), layout="constrained")
axis.set_facecolor("0.3")
image = axis.imshow(grid.numpy(), cmap="cividis")
for (row, column), name in (((2, 2), "0.1"), ((2, 8), "start"), ((2, 14), "1")):
    colour = "black" if name == "1" else "white"
    axis.text(column, row, name, ha="center", va="center", color=colour, fontsize=8)
axis.set(xticks=[], yticks=[], title="value of the optimal policy")
figure.colorbar(image, ax=axis, label="discounted return")

# %%
# Posterior sampling
# ------------------
#
# PSRL draws an MDP, follows its optimal policy for an episode, and updates the posterior. Where nothing is known, some
# draws have high rewards, so the agent goes there; where enough is known, none do. The figure shows four independent
# agents in rooms of three by three cells. At first every draw has a reward nearby, so it takes hundreds of episodes
# until the layout is known well enough. Then the regret falls.

runs = MDPEnv(nroom_mdp(room_size=3, left_prize_ends_episode=True), batch_size=(4,))
prior = nroom_prior(room_size=3)
result = psrl(runs, prior, num_episodes=400, horizon=10, true_mdp=runs.mdp, generator=generator)
recent = result.regret.unfold(0, 25, 1).mean(-1)  # mean of the last 25 episodes

figure, axis = plt.subplots(figsize=(4.6, 2.6), layout="constrained")
axis.plot(range(25, 401), recent, color=BLUE, lw=0.8)
axis.set(xlabel="episode", ylabel="regret per episode", ylim=(0, None))

# %%
# What the policy might be worth
# ------------------------------
#
# Now fix the optimal policy, and find the posterior of its value after 1, 10 and 100 of its episodes. The true
# posterior comes from drawing MDPs and solving them. EQR learns 100 quantiles from one sampled MDP per iteration. (The
# paper takes 10,000 iterations; a fifth of that is enough here.)


def act(tensordict):
    """The optimal policy as a TorchRL policy."""
    return tensordict.set("action", policy[tensordict["observation"]])


posterior, episode = nroom_prior(), 0
snapshots = {}
for episodes in (1, 10, 100):
    while episode < episodes:
        rollout = env.rollout(20, act)
        posterior = posterior.update(
            count_transitions(rollout, posterior.num_states, posterior.num_actions)
        )
        episode += 1
    truth = process_values(posterior.sample_process(policy, (500,), generator=generator))[:, start]
    estimate = epistemic_quantile_regression(
        posterior,
        policy,
        num_quantiles=100,
        num_iterations=2000,
        step_size=0.5,
        final_step_size=0.05,
        record_states=[start],
        record_every=20,
        generator=generator,
    )
    snapshots[episodes] = truth, estimate

figure, axes = plt.subplots(2, 3, figsize=(6.6, 3.9), layout="constrained")
for column, (episodes, (truth, estimate)) in enumerate(snapshots.items()):
    top, bottom = axes[:, column]
    top.plot(
        truth.sort().values, torch.linspace(0, 1, len(truth)), color=ORANGE, label="500 solved MDPs"
    )
    top.plot(
        estimate.quantiles[start].sort().values, quantile_midpoints(100), color=BLUE, label="EQR"
    )
    known = float(policy_values(env.mdp, policy)[start])
    top.axvline(known, color="black", ls=":", lw=1, label="true value")
    top.set(xlim=(-12, 12), xlabel="value of the start")
    top.set_title(f"{episodes} episode{'s' if episodes > 1 else ''}")
    quantiles = estimate.history[:, 0].sort(-1).values
    projected = quantile_projection(truth, 100).expand_as(quantiles)
    bottom.plot(estimate.history_iterations, wasserstein_distance(quantiles, projected), color=BLUE)
    bottom.set(xlabel="iteration", ylim=(0, 3))
axes[0, 0].set_ylabel("cumulative probability")
axes[1, 0].set_ylabel("1-Wasserstein error")
axes[0, 0].legend(fontsize=6.5, loc="upper left", handlelength=1.2)

# %%
# After one episode the posterior allows almost anything: prior rewards in unknown rooms may be worth ten. After a
# hundred the policy's own path is known, and the value is known with it, though most of the grid has never been seen.
# Its value depends only on the policy's path.
#
# The remaining error has two parts: the truth is a finite sample here, and moves between cells form cycles, for which
# the operator is an approximation.
#
# Conclusion
# ----------
#
# The same three parts serve continuous tasks: a posterior over dynamics, a policy, and quantiles of the value.
# There the posterior becomes an ensemble of networks, which is the next tutorial.
#
# Further reading: :cite:t:`osband2013more`; :func:`~eqr_torchrl.tabular.psrl`; :doc:`/reproduce/tabular`.
