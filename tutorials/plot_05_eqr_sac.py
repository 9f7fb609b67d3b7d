r"""
EQR-SAC from its parts
======================

**What you will learn**

- every line of Algorithm 2 of the paper, as code that you can change,
- how the epistemic spread of the critic changes as data are collected.

``examples/eqr_sac.py`` is the same loop with logs, checkpoints and evaluation.
"""

# %%
# The task
# --------
#
# A point in the plane drifts slowly to the origin and can be pushed; the reward is minus its squared distance from the
# origin. Doing nothing is acceptable, pushing to the origin is better. An episode has 20 steps.

import matplotlib.pyplot as plt
import torch
from tensordict import TensorDict
from torchrl.objectives import SoftUpdate

from eqr_torchrl.imagination import (
    EnsembleSuccessors,
    ModelBasedEnv,
    branched_rollout,
    make_model_buffer,
    make_replay_buffer,
    never_terminates,
)
from eqr_torchrl.lab.evaluation import evaluate
from eqr_torchrl.networks import make_actor, make_critic
from eqr_torchrl.objectives import EpistemicQuantileLoss, make_optimizer, make_update
from eqr_torchrl.testing import toy_env
from eqr_torchrl.utility import MeanUtility
from eqr_torchrl.world_models import FixedStepsFit, GaussianEnsemble

BLUE, ORANGE = "#0072B2", "#D55E00"  # for all kinds of colour vision
plt.rcParams.update({"font.size": 9, "legend.frameon": False})
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
torch.manual_seed(0)
torch.set_num_threads(1)  # small tensors

env, eval_env = (toy_env(2, 2, noise=0.02, max_steps=20) for _ in range(2))

# %%
# The parts
# ---------
#
# The parts are the policy and the critic, the posterior over MDPs and its imagined environment, the two buffers, the
# successors that the targets average over, and the loss. The utility sets the policy's attitude to epistemic
# uncertainty.

actor = make_actor(env, num_cells=(32, 32))
critic = make_critic(env, num_quantiles=15, num_cells=(64, 64))
world_model = GaussianEnsemble(2, 2, num_members=5, num_cells=(32, 32))
fit = FixedStepsFit(world_model, num_steps=60, lr=3e-3, batch_size=64)
model_env = ModelBasedEnv(world_model, env, termination_fn=never_terminates)
replay = make_replay_buffer(10_000)
model_buffer = make_model_buffer(10_000, batch_size=128)
successors = EnsembleSuccessors(model_env, num_next_states=4)

loss = EpistemicQuantileLoss(
    actor, critic, utility=MeanUtility(), kappa=0.1, target_entropy=-2.0, alpha_init=0.1
)
loss.make_value_estimator(gamma=0.9)
optimizer = make_optimizer(loss, lr_actor=3e-3, lr_critic=3e-3, lr_alpha=3e-3)
update = make_update(lambda batch: loss(successors(batch)), optimizer, SoftUpdate(loss, tau=0.02))

# %%
# The loop
# --------
#
# Act one episode, learn the models, imagine, learn values and improve the policy.

history = {"env_steps": [], "return": [], "epistemic_std": []}
for episode in range(1, 21):
    with torch.no_grad():  # act
        replay.extend(env.rollout(20, actor))
    fit(replay[:])
    states = replay[:]["observation"]
    keys = ["observation", "action"]  # all that the loss reads: it draws its own successors
    branched_rollout(model_env, actor, states, model_buffer, num_starts=100, horizon=3, keys=keys)
    losses = torch.stack([update(model_buffer.sample()) for _ in range(40)]).mean()
    returns = [row["episode_return"] for row in evaluate(eval_env, actor, num_episodes=5, seed=1)]
    history["env_steps"].append(20 * episode)
    history["return"].append(sum(returns) / len(returns))
    history["epistemic_std"].append(losses["epistemic_std"].item())
print(f"return {history['return'][0]:.1f} -> {history['return'][-1]:.1f}")

# %%
# What happened
# -------------
#
# For the first hundred steps the values are guesses, and the policy follows them away from the origin. Then returns
# rise to about those of pushing to the origin at full force from the same starts, and the epistemic spread of the
# values falls as the members come to agree. The transition noise is still there; the critic has averaged it out.


def push_home(tensordict):
    """Full force towards the origin, less when close."""
    return tensordict.set("action", (-9.0 * tensordict["observation"]).clamp(-1, 1))


def do_nothing(tensordict):
    """No force."""
    return tensordict.set("action", torch.zeros(2))


def mean_return(policy):
    """Mean over the evaluation episodes of the loop."""
    rows = evaluate(eval_env, policy, num_episodes=5, seed=1)
    return sum(row["episode_return"] for row in rows) / len(rows)


figure, (left, right) = plt.subplots(1, 2, figsize=(6.6, 2.6), layout="constrained")
left.plot(history["env_steps"], history["return"], "o-", ms=3, color=BLUE, label="EQR-SAC")
left.axhline(mean_return(push_home), color="black", ls="--", lw=0.9, label="push home")
left.axhline(mean_return(do_nothing), color="0.5", ls=":", lw=1.2, label="do nothing")
left.set(xlabel="environment steps", ylabel="return of 20 steps")
left.legend(loc="lower right")
right.semilogy(history["env_steps"], history["epistemic_std"], "o-", ms=3, color=ORANGE)
right.set(xlabel="environment steps", ylabel="epistemic std of the value")

# %%
# The value posterior
# -------------------
#
# The critic's quantiles at three states, for the policy's own action: further from the origin the value is lower, and
# less certain.

states = torch.tensor([[0.0, 0.0], [1.0, 0.0], [2.0, 1.0]])
with torch.no_grad():
    values = critic(actor(TensorDict({"observation": states}, [3])))["state_action_value"]
    quantiles = values.sort(-1).values
levels = (torch.arange(15) + 0.5) / 15

figure, axis = plt.subplots(figsize=(4.4, 2.6), layout="constrained")
for state, row, colour in zip(states.tolist(), quantiles, ("#009E73", BLUE, ORANGE), strict=True):
    axis.plot(row, levels, "o-", ms=3, color=colour, label=f"({state[0]:g}, {state[1]:g})")
axis.set(xlabel="value (discounted return with entropy)", ylabel="cumulative probability")
axis.legend(title="position", loc="upper left")

# %%
# Conclusion
# ----------
#
# The algorithm is five lines in a loop. To get QR-MBPO, store full transitions, let rollouts change member, and leave
# the successors out. To get another attitude to risk, change the utility, which is the topic of the next tutorial.
#
# Further reading: :doc:`/concepts/data_flow`, :doc:`/concepts/baselines`.
