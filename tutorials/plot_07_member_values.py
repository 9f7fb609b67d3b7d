r"""
Values that are true in each member
===================================

**What you will learn**

- why pooling all members' targets narrows the posterior over values along a trajectory,
- how member values keep the predictions of each member together,
- what a randomised prior adds where there are no data.
"""

# %%
# A road of which only one half was seen
# --------------------------------------
#
# A car on a road, position in [-1, 1], moves by a twentieth of its action. All data come from the left half, where
# every reward is zero. Nothing is known about the right half, where rewards of about one are plausible.
# ``reward_prior_scale=1`` states this: members agree where there are data, and differ by about one elsewhere.

import matplotlib.pyplot as plt
import torch
from tensordict import TensorDict
from torchrl.objectives import SoftUpdate

from eqr_torchrl import (
    EnsembleSuccessors,
    EpistemicQuantileLoss,
    FixedStepsFit,
    GaussianEnsemble,
    ModelBasedEnv,
)
from eqr_torchrl.imagination import never_terminates
from eqr_torchrl.objectives import MemberwiseSACLoss
from eqr_torchrl.testing import toy_actor, toy_critic, toy_env

plt.rcParams.update({"font.size": 10, "legend.frameon": False})
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
torch.manual_seed(1)
torch.set_num_threads(1)  # small tensors
GAMMA, MEMBERS = 0.95, 8

position, action = torch.rand(1000, 1) - 1, torch.rand(1000, 1) * 2 - 1
after = {"observation": position + 0.05 * action, "reward": torch.zeros(1000, 1)}
data = TensorDict({"observation": position, "action": action, "next": after}, [1000])

world_model = GaussianEnsemble(
    1, 1, num_members=MEMBERS, num_cells=(64, 64), reward_prior_scale=1.0
)
FixedStepsFit(world_model, num_steps=400, lr=3e-3, batch_size=128)(data)

road = torch.linspace(-1, 1, 81).unsqueeze(-1)
with torch.no_grad():
    predicted, _ = world_model(road.expand(MEMBERS, -1, -1), torch.zeros(MEMBERS, 81, 1))
figure, axis = plt.subplots(figsize=(5.4, 2.6), layout="constrained")
axis.plot(road, predicted[..., -1].T, lw=1)
axis.axvspan(-1, 0, color="0.92", zorder=0)
axis.set(xlabel="position (data in the grey half)", ylabel="predicted reward")

# %%
# The truth: what the policy is worth in each member
# --------------------------------------------------
#
# The policy hardly moves the car. In each member, rollouts of the policy give its value. These values are samples of
# the posterior over values, and the posterior of a critic should be as wide.

actor = toy_actor(1)
model_env = ModelBasedEnv(world_model, toy_env(1), termination_fn=never_terminates)
with torch.no_grad():
    state = road.expand(MEMBERS, -1, -1).repeat(1, 20, 1)  # twenty rollouts of each state
    truth = torch.zeros(MEMBERS, state.shape[1], 1)
    for t in range(80):
        moves = actor(TensorDict({"observation": state}, state.shape[:2]))["action"]
        state, reward, _ = model_env.step_rows(state, moves)
        state = state.clamp(-1, 1)
        truth += GAMMA**t * reward
    truth = truth.view(MEMBERS, 20, 81).mean(1)
print(f"deviation of the value at position 0.8: {truth[:, 72].std():.1f}")

# %%
# Two critics on the same batches
# -------------------------------
#
# EQR pools the atoms of all members in every target, so each step of a trajectory draws a new member, and differences
# that persist within a member average out like noise. ``MemberwiseSACLoss`` lets output ``m`` bootstrap in member ``m``
# alone.


class Clamped(torch.nn.Module):
    """Keeps imagined positions on the road."""

    def forward(self, batch):
        batch["next", "observation"] = batch["next", "observation"].clamp(-1, 1)
        return batch


successors, on_road = EnsembleSuccessors(model_env, num_next_states=2), Clamped()


def learn(loss, critic) -> None:
    """Evaluates the policy: only the critic learns."""
    loss.make_value_estimator(gamma=GAMMA)
    updater, adam = SoftUpdate(loss, tau=0.05), torch.optim.Adam(critic.parameters(), lr=3e-3)
    for _ in range(1200):
        states, moves = torch.rand(128, 1) * 2 - 1, torch.rand(128, 1) * 2 - 1
        batch = TensorDict({"observation": states, "action": moves}, [128])
        loss.qvalue_v2_loss(on_road(successors(batch)))[0].backward()
        adam.step()
        adam.zero_grad()
        updater.step()


def values(critic):
    """Values at the road's positions, averaged over the policy's actions."""
    with torch.no_grad():
        states = road.expand(20, 81, 1)
        moves = actor(TensorDict({"observation": states}, [20, 81]))["action"]
        batch = TensorDict({"observation": states, "action": moves}, [20, 81])
        return critic(batch)["state_action_value"].mean(0)


fixed = {"alpha_init": 1e-8, "fixed_alpha": True}
pooled, memberwise = (
    toy_critic(1, num_quantiles=21, num_cells=(64, 64)),
    toy_critic(1, num_quantiles=MEMBERS, num_cells=(64, 64)),
)
learn(EpistemicQuantileLoss(actor, pooled, kappa=0.1, **fixed), pooled)
learn(MemberwiseSACLoss(actor, memberwise, **fixed), memberwise)

figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.0), sharey=True, layout="constrained")
for axis, (name, critic) in zip(
    axes, {"EQR, pooled": pooled, "member values": memberwise}.items(), strict=True
):
    q = values(critic)
    mean, std = q.mean(-1), q.std(-1)
    axis.axvspan(-1, 0, color="0.92", zorder=0)
    axis.plot(road, truth.T, color="0.6", lw=0.8)
    axis.fill_between(road[:, 0], mean - std, mean + std, color="#0072B2", alpha=0.4)
    axis.plot(road, mean, color="#0072B2")
    axis.set(title=name, xlabel="position")
    print(
        f"{name}: deviation at position 0.8 {std[72]:.1f}, "
        f"of the members' values {truth[:, 72].std():.1f}"
    )
axes[0].set_ylabel("value")

# %%
# Grey lines are the values in the members, the blue band is one standard deviation of the critic. The pooled critic is
# too narrow where members disagree for many steps; member values are as wide as the members' values.
#
# **Try next:** :doc:`../concepts/member_values`, and
# ``python examples/eqr_sac.py experiment=exploration/mountain_car``.
