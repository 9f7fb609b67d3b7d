r"""
Risk attitude in one line
=========================

**What you will learn**

- which number each utility assigns to the same value distribution,
- how swapping it changes what a policy does, with everything else equal.
"""

# %%
# Five numbers for one distribution
# ---------------------------------
#
# The figure shows a skewed value distribution, and its value under each utility. Each utility is differentiable in the
# quantiles, so a policy can ascend any of them.

import matplotlib.pyplot as plt
import torch
from tensordict import TensorDict
from torchrl.objectives import SoftUpdate

from eqr_torchrl import (
    EnsembleSuccessors,
    EpistemicQuantileLoss,
    ModelBasedEnv,
    WorldModel,
    make_actor,
    make_critic,
)
from eqr_torchrl.functional import quantile_midpoints
from eqr_torchrl.objectives import make_optimizer, make_update
from eqr_torchrl.testing import toy_env
from eqr_torchrl.utility import (
    CVaRUtility,
    EntropicUtility,
    MeanUtility,
    OptimisticUtility,
    QuantileUtility,
)

COLOURS = ("#000000", "#D55E00", "#E69F00", "#0072B2", "#009E73")  # for all kinds of colour vision
plt.rcParams.update({"font.size": 9, "legend.frameon": False})
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
torch.manual_seed(0)
torch.set_num_threads(1)  # small tensors

quantiles = 64 - 60 * torch.distributions.Exponential(4.0).icdf(1 - quantile_midpoints(51))
utilities = {
    "mean": MeanUtility(),
    "optimistic": OptimisticUtility(),
    "quantile 0.7": QuantileUtility(0.7),
    "CVaR 0.25": CVaRUtility(0.25),
    "entropic": EntropicUtility(0.04),
}
figure, axis = plt.subplots(figsize=(5.4, 2.7), layout="constrained")
axis.plot(quantiles, quantile_midpoints(51), color="0.6", lw=3)
for (name, utility), colour in zip(utilities.items(), COLOURS, strict=True):
    axis.axvline(float(utility(quantiles)), color=colour, lw=1.4, label=name)
axis.set(xlabel="value", ylabel="cumulative probability")
axis.legend(loc="upper left")

# %%
# How fast to drive
# -----------------
#
# The grip of a road is unknown. Driving faster earns more, up to the grip. Beyond the grip the car slides, and every
# bit of speed costs four times what it would have earned. Nine members of the posterior have nine grips. Rewards are
# also noisy, in the same way in every member: no driver can avoid this noise.


class UnknownGrip(WorldModel):
    """One decision: speed in [0, 1] from an action in [-1, 1]. Member m believes in a grip of its own."""

    def __init__(self):
        super().__init__(1, num_members=9)
        self.register_buffer("grip", torch.linspace(0.3, 0.9, 9).view(-1, 1, 1))

    def reward(self, action):
        """Mean reward of each member, ``[M, B, 1]``."""
        speed = (action + 1) / 2
        return speed - 4 * (speed - self.grip).relu()

    def forward(self, observation, action):
        loc = torch.cat([observation, self.reward(action)], -1)
        return loc, torch.full_like(loc, 0.25)  # noise: a quarter of the best reward


def always_over(next_observation, action):
    """One decision, then the episode ends."""
    return torch.ones_like(next_observation[..., :1], dtype=torch.bool)


env, world_model = toy_env(1, 1), UnknownGrip()
model_env = ModelBasedEnv(world_model, env, termination_fn=always_over)
successors = EnsembleSuccessors(model_env, num_next_states=4)

# %%
# The only line that differs
# --------------------------
#
# Critic, loss and data are the same for all five drivers. The critic learns the possible values of each speed; the
# driver chooses a speed by its utility.


def train(utility, num_updates=250):
    """Policy and critic of a driver with this utility."""
    torch.manual_seed(1)
    actor = make_actor(env, num_cells=(16,))
    critic = make_critic(env, num_quantiles=21, num_cells=(64, 64))
    loss = EpistemicQuantileLoss(
        actor,
        critic,
        utility=utility,  # this one
        kappa=0.05,
        fixed_alpha=True,
        alpha_init=0.003,
    ).make_value_estimator(gamma=0.99)
    optimizer = make_optimizer(loss, lr_actor=1e-2, lr_critic=5e-3)
    update = make_update(
        lambda batch: loss(successors(batch)), optimizer, SoftUpdate(loss, tau=0.05)
    )
    for _ in range(num_updates):
        actions = 2 * torch.rand(64, 1) - 1
        update(TensorDict({"observation": torch.zeros(64, 1), "action": actions}, [64]))
    return actor, critic


# the entropic coefficient has inverse units of reward, which is near 1 here
utilities["entropic"] = EntropicUtility(2.0)
drivers = {name: train(utility) for name, utility in utilities.items()}

# %%
# The chosen speeds
# -----------------
#
# The grey lines are the rewards of the nine members. The blue area shows the quantiles that the critic has learned,
# which follow the members and not the noise. The vertical lines are the chosen speeds.

actions = torch.linspace(-1, 1, 101).unsqueeze(-1)
with torch.no_grad():
    learned = drivers["mean"][1](
        TensorDict({"observation": torch.zeros(101, 1), "action": actions}, [101])
    )
    learned = learned["state_action_value"].sort(-1).values
    rewards = world_model.reward(actions.expand(9, -1, -1)).squeeze(-1)
speeds = ((actions + 1) / 2).squeeze(-1)

figure, axis = plt.subplots(figsize=(6.0, 3.4), layout="constrained")
style = {"color": "#56B4E9", "alpha": 0.35, "lw": 0, "label": "learned quantiles"}
axis.fill_between(speeds, learned[:, 1], learned[:, -2], **style)
axis.plot(speeds, rewards.T, color="0.55", lw=0.7)
for (name, (actor, _)), colour in zip(drivers.items(), COLOURS, strict=True):
    with torch.no_grad():
        at_start = TensorDict({"observation": torch.zeros(1, 1)}, [1])
        chosen = actor.get_dist(at_start).deterministic_sample
    speed = float((chosen + 1) / 2)
    axis.axvline(speed, color=colour, lw=1.6, label=f"{name}: {speed:.2f}")
axis.set(xlabel="speed", ylabel="reward", xlim=(0, 1), ylim=(-1.6, 1.0))
figure.legend(loc="outside upper center", ncols=3, fontsize=8)

# %%
# Conclusion
# ----------
#
# The averse drivers stay below the lowest possible grip, the neutral one risks a little, the seekers drive
# faster. All of them saw the same data, and none was misled by the noise. On the command line the same line
# is ``utility=cvar``.
#
# Further reading: :doc:`/concepts/utilities`, :doc:`/how_to/write_a_utility`.
