r"""
From logs: a corridor with an unexplored side
=============================================

**What you will learn**

- that a log contains nothing about places that it never visited, and that the members of the posterior differ there,
- how a neutral, an optimistic and a careful policy behave there, with everything else equal.
"""

# %%
# The log
# -------
#
# The environment is a corridor from -1 to 1; a step out of it ends the episode. The policy that wrote the log stayed
# around 0.6, where there is a small reward, and turned back at 0. The log does not show that there is nothing on the
# left.

import matplotlib.pyplot as plt
import torch
from tensordict import TensorDict
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.objectives import SoftUpdate

from eqr_torchrl import (
    EnsembleSuccessors,
    FixedStepsFit,
    GaussianEnsemble,
    MemberwiseSACLoss,
    ModelBasedEnv,
    branched_rollout,
    make_actor,
    make_critic,
    make_model_buffer,
)
from eqr_torchrl.lab.logs import (
    check_transitions,
    disagreement,
    specs_of,
    split_episodes,
    transitions_from,
)
from eqr_torchrl.objectives import make_optimizer, make_update
from eqr_torchrl.utility import CVaRUtility, MeanUtility, OptimisticUtility

# for all kinds of colour vision
COLOURS = {"mean": "#000000", "optimistic": "#D55E00", "careful": "#0072B2"}
plt.rcParams.update({"font.size": 9, "legend.frameon": False})
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
torch.manual_seed(0)
torch.set_num_threads(1)  # small tensors


def move(x, action):
    """Where an action leads, and what that earns."""
    x = x + 0.15 * action
    return x, 0.5 * torch.exp(-(((x - 0.6) / 0.25) ** 2))


def outside(next_observation, action):
    """The rule that ends an episode."""
    return next_observation.abs() > 1


rows = {
    name: []
    for name in ("observation", "action", "reward", "next_observation", "terminated", "episode")
}
for episode in range(25):
    x = torch.rand(1)
    for _ in range(20):
        action = 2 * torch.rand(1) - 1
        action = action.abs() if x < 0.15 else action  # turns back
        following, reward = move(x, action)
        ended = outside(following, action)
        for name, value in zip(
            rows, (x, action, reward, following, ended, torch.tensor(episode)), strict=True
        ):
            rows[name].append(value)
        if ended:
            break
        x = following
log = transitions_from({name: torch.stack(values).numpy() for name, values in rows.items()})
print(*check_transitions(log, action_low=-1.0, action_high=1.0), sep="\n")

# %%
# What the members say
# --------------------
#
# The posterior has five members with randomised priors. They agree where there are data, and differ on the left. There
# the disagreement is many times as large as on held-out episodes.

env = specs_of(log, action_low=-1.0, action_high=1.0, name="corridor")
train, held_out = split_episodes(log)
model = GaussianEnsemble(1, 1, num_members=5, num_cells=(32, 32), reward_prior_scale=2.0)
FixedStepsFit(model, num_steps=400, lr=3e-3)(train)
model_env = ModelBasedEnv(model, env, termination_fn=outside)

grid = torch.linspace(-1, 1, 81).unsqueeze(-1)
still = torch.zeros_like(grid)
with torch.no_grad():
    rewards = model(grid.expand(5, -1, -1), still.expand(5, -1, -1))[0][..., -1]
typical = disagreement(model, held_out["observation"], held_out["action"]).quantile(0.99)
there = float(disagreement(model, grid[:1], still[:1]) / typical)
print(f"left end: {there:.0f} times the held-out disagreement")

# %%
# One line that differs
# ---------------------
#
# Each policy gets a value for each member, learned from the same log in the same models; it ascends their mean, their
# mean plus a deviation, or the mean of the worst two fifths.


def train_policy(utility, num_rounds=6, num_updates=50):
    """A policy from the log, under a utility."""
    torch.manual_seed(1)
    actor = make_actor(env, num_cells=(32,))
    critic = make_critic(env, num_quantiles=5, num_cells=(64, 64))
    loss = MemberwiseSACLoss(actor, critic, utility=utility, alpha_init=0.01, fixed_alpha=True)
    loss.make_value_estimator(gamma=0.9)
    successors = EnsembleSuccessors(model_env, num_next_states=1)
    buffer = make_model_buffer(20_000, batch_size=128)
    optimizer = make_optimizer(loss, lr_actor=3e-3, lr_critic=5e-3)
    update = make_update(
        lambda batch: loss(successors(batch)), optimizer, SoftUpdate(loss, tau=0.05)
    )
    for _ in range(num_rounds):
        branched_rollout(model_env, actor, train["observation"], buffer, num_starts=60, horizon=8)
        for _ in range(num_updates):
            update(buffer.sample())
    return actor


utilities = {
    "mean": MeanUtility(),
    "optimistic": OptimisticUtility(1.0),
    "careful": CVaRUtility(0.4),
}
policies = {name: train_policy(utility) for name, utility in utilities.items()}

# %%
# Where they go
# -------------
#
# Left: the log (ticks), the members' rewards, and the true reward (dashed). Right: the policies in the real corridor,
# from 0.1, near the edge of the logged positions.


def walk(actor, num_steps=20):
    """Positions under a policy's deterministic actions in the real corridor, and what they earn."""
    x, path, earned = torch.full((1, 1), 0.1), [0.1], 0.0
    for _ in range(num_steps):
        with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
            action = actor(TensorDict({"observation": x}, [1]))["action"]
        x, reward = move(x, action)
        path.append(float(x))
        earned += float(reward)
        if outside(x, action):
            break
    return path, earned


figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 2.9), layout="constrained")
left.plot(grid, rewards.T, color="0.6", lw=0.8)
left.plot(grid, move(grid, still)[1], "k--", lw=1.2)
visited = log["observation"]
left.plot(visited, torch.full_like(visited, -0.9), "|", color="#0072B2", ms=4, alpha=0.3)
left.set(xlabel="position", ylabel="reward of a step", xlim=(-1, 1))
for name, actor in policies.items():
    path, earned = walk(actor)
    right.plot(path, color=COLOURS[name], lw=1.6, label=f"{name}: earns {earned:.1f}")
right.axhspan(-1, 0, color="0.93")
right.set(xlabel="step", ylabel="position", ylim=(-1.05, 1.05))
figure.legend(loc="outside upper center", ncols=3, fontsize=8)

# %%
# Conclusion
# ----------
#
# The careful policy stays where the log contains rewards. The optimistic policy goes to the left: online it would learn
# from this, but with a log alone it is a mistake. The policy of the mean depends on what the five members happen to
# predict.
#
# Further reading: :doc:`/how_to/learn_from_logs`, :doc:`/concepts/pessimism`, :doc:`/how_to/explore_then_be_careful`.
