r"""
A world model as an environment
===============================

**What you will learn**

- how to fit an ensemble of probabilistic networks to real transitions,
- how :class:`~eqr_torchrl.imagination.ModelBasedEnv` makes it a TorchRL environment with one imagined MDP in each row,
- how the members' disagreement grows along a rollout and away from the data.
"""

# %%
# Real data
# ---------
#
# The data are 1000 steps of a random policy on Gymnasium's pendulum. Random pushes hardly lift the pendulum, so the
# data cover hanging positions, but no upright ones.

import matplotlib.pyplot as plt
import torch
from torchrl.envs.utils import check_env_specs

from eqr_torchrl.imagination import ModelBasedEnv, make_replay_buffer
from eqr_torchrl.lab.envs import make_env, termination_for
from eqr_torchrl.world_models import FixedStepsFit, GaussianEnsemble

BLUE, ORANGE = "#0072B2", "#D55E00"  # for all kinds of colour vision
plt.rcParams.update({"font.size": 9, "legend.frameon": False})
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
torch.manual_seed(0)

env = make_env("Pendulum-v1", seed=0)
replay = make_replay_buffer(10_000)
replay.extend(env.rollout(1000, break_when_any_done=False))
shape = env.observation_spec["observation"].shape
print(len(replay), "transitions; angle cosine, sine, speed:", shape)

# %%
# A posterior over dynamics
# -------------------------
#
# Five networks predict the change of the observation and the reward, each with its own initial weights and its
# own bootstrap sample. They train as one batched network.

world_model = GaussianEnsemble(3, 1, num_members=5, num_cells=(100, 100))
report = FixedStepsFit(world_model, num_steps=400)(replay[:])
print({name: value for name, value in report.items() if not isinstance(value, list)})

# %%
# An environment
# --------------
#
# The environment needs a rule for the end of an episode, since it has no simulator. Pendulum episodes never terminate.
# Row ``m`` acts in member ``m``; the batch size is ``[M, rows]``. It passes TorchRL's own check.

starts = replay[:]["observation"]
model_env = ModelBasedEnv(
    world_model, env, termination_fn=termination_for(env), start_states=starts
)
check_env_specs(model_env)
print(model_env.rollout(10)["next", "reward"].shape, "members, rows, steps, 1")

# %%
# Same start, same actions
# ------------------------
#
# A real episode, and the prediction of each member: the first state and the actions are real, everything else is
# imagined. Members that agree at first diverge as their errors compound. Some end far from the real episode, even with
# actions like those in the data. (The model's noise is off here, to show the members alone.)


def imagine(trajectory):
    """Predicted observations ``[M, T, 3]`` from the first state and the actions of a real trajectory."""
    state, predicted = trajectory["observation"][0].expand(5, 1, 3), []
    for action in trajectory["action"]:
        noise = torch.zeros(5, 1, 1, world_model.noise_dim)
        with torch.no_grad():
            state = model_env.sample_next(state, action.expand(5, 1, 1), noise)[0].squeeze(2)
        predicted.append(state[:, 0])
    return torch.stack(predicted, 1)


def push_hard(tensordict):
    """Pumps energy in: pushes along the direction of motion."""
    return tensordict.set("action", 2.0 * tensordict["observation"][..., 2:3].sign())


figure, axes = plt.subplots(1, 2, figsize=(6.6, 2.6), sharey=True, layout="constrained")
for axis, (title, policy) in zip(
    axes,
    {"random pushes, as in the data": None, "pumping, unlike the data": push_hard}.items(),
    strict=True,
):
    real = env.rollout(40, policy)
    axis.plot(imagine(real)[..., 2].T, color=BLUE, lw=0.9)
    axis.plot(real["next", "observation"][:, 2], color="black", lw=1.4)
    axis.set(title=title, xlabel="step")
axes[0].set(ylabel="angular speed (rad/s)", ylim=(-10, 18))
axes[0].plot([], [], color=BLUE, label="members")
axes[0].plot([], [], color="black", label="real")
axes[0].legend(loc="upper left")

# %%
# Where there are no data
# -----------------------
#
# The spread between the members' mean predictions is the epistemic part of the uncertainty; each member's own standard
# deviation is the aleatoric part. The pendulum is deterministic, so all uncertainty should be epistemic, and large
# where there are no data (the dots are the data).

angle, speed = torch.meshgrid(
    torch.linspace(-torch.pi, torch.pi, 80), torch.linspace(-8, 8, 80), indexing="ij"
)
grid = torch.stack([angle.cos(), angle.sin(), speed], -1).reshape(-1, 3)
with torch.no_grad():
    loc, scale = world_model(grid.expand(5, -1, -1), torch.zeros(5, len(grid), 1))
between = loc[..., 2].std(0).view(80, 80)

figure, axis = plt.subplots(figsize=(4.8, 3.0), layout="constrained")
image = axis.pcolormesh(
    angle.numpy(), speed.numpy(), between.numpy(), cmap="cividis", shading="auto", rasterized=True
)
axis.plot(torch.atan2(starts[:, 1], starts[:, 0]), starts[:, 2], ".", ms=2, color="white")
axis.set(xlabel="angle from upright (rad)", ylabel="angular speed (rad/s)")
figure.colorbar(image, ax=axis, label="spread of predicted speed (rad/s)")

# %%
# Conclusion
# ----------
#
# The ensemble trains as one network, and is wrapped as an environment whose rows are draws from the posterior. Rollouts
# that stay in one member turn disagreement about *one step* into disagreement about *values*, which is what the critic
# will learn next.
#
# Further reading: :doc:`/how_to/write_a_world_model`, :doc:`/how_to/read_the_diagnostics`; ensembles as posteriors:
# :cite:t:`lakshminarayanan2017simple`, :cite:t:`chua2018deep`.
