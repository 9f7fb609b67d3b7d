"""Terminations learned from data of simulators whose rules are known."""

from __future__ import annotations

import gymnasium
import pytest
import torch
from tensordict import TensorDict

from eqr_torchrl.imagination import ModelBasedEnv
from eqr_torchrl.lab.envs import make_env, termination_for
from eqr_torchrl.world_models import FixedStepsFit, GaussianEnsemble


def random_episodes(name: str, steps: int, seed: int) -> TensorDict:
    """Transitions of a policy that acts at random."""
    env, rows = gymnasium.make(name), []
    env.action_space.seed(seed)
    state, _ = env.reset(seed=seed)
    for _ in range(steps):
        action = env.action_space.sample()
        after, reward, terminated, truncated, _ = env.step(action)
        rows.append((state, action, after, [reward], [terminated]))
        state = env.reset()[0] if terminated or truncated else after
    state, action, after, reward, terminated = (
        torch.tensor([*map(list, column)]) for column in zip(*rows, strict=True)
    )
    successors = {"observation": after.float(), "reward": reward.float(), "terminated": terminated}
    return TensorDict({"observation": state.float(), "action": action.float(), "next": successors}, [steps])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["InvertedPendulum-v5", "Hopper-v5"])
def test_ends_are_where_the_rule_has_them(name):
    torch.manual_seed(0)
    data, held_out = random_episodes(name, 5000, seed=1), random_episodes(name, 2000, seed=2)  # other episodes
    sizes = data["observation"].shape[-1], data["action"].shape[-1]
    model = GaussianEnsemble(*sizes, num_members=3, num_cells=(64, 64), learn_termination=True)
    fit = FixedStepsFit(model, num_steps=500, lr=3e-3)
    for rows in (data[:2500], data):
        fit(rows)
    env = make_env(name)
    imagined = ModelBasedEnv(model, env, termination_fn=None)
    state, action, after = (
        held_out[key].expand(3, -1, -1) for key in ("observation", "action", ("next", "observation"))
    )
    with torch.no_grad():
        stated = model.termination_probability(after, action) > 0.5
        next_state, _, ended = imagined.step_rows(state, action)
    real = held_out["next", "terminated"]
    assert real.float().mean() > 0.02  # who never sees an end is right only there
    assert ((stated == real).float().mean(1) > 0.99).all()
    assert (stated & real).sum(1).div(real.sum()).min() > 0.9  # and most ends are found
    assert (
        ended == termination_for(env, None)(next_state, action)
    ).float().mean() > 0.98  # drawn ends, imagined states
