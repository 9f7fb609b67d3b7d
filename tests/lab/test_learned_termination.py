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
    data = random_episodes(name, 8000, seed=1)
    held_out = torch.cat([random_episodes(name, 2000, seed=seed) for seed in (1001, 1002, 1003)])  # other episodes
    sizes = data["observation"].shape[-1], data["action"].shape[-1]
    model = GaussianEnsemble(*sizes, num_members=3, num_cells=(32, 32), learn_termination=True)
    fit = FixedStepsFit(model, num_steps=800, lr=3e-3)
    for rows in (data[:4000], data):
        fit(rows)
    env = make_env(name)
    imagined = ModelBasedEnv(model, env, termination_fn=None)
    state, action, after = (
        held_out[key].expand(3, -1, -1) for key in ("observation", "action", ("next", "observation"))
    )
    with torch.no_grad():
        stated = model.termination_probability(after, action)
        next_state, _, ended = imagined.step_rows(state, action)
    real = held_out["next", "terminated"]
    assert real.float().mean() > 0.02  # who never sees an end is right only there
    assert (((stated > 0.5) == real).float().mean(1) > 0.98).all()  # each from a bootstrap sample of its own
    together = stated.mean(0) > 0.5
    assert (together == real).float().mean() > 0.99
    assert (together & real).sum() > 0.85 * real.sum()  # most ends are found
    assert abs(stated.mean() - real.float().mean()) < 0.02  # and their number is right
    by_rule = termination_for(env, None)(next_state, action)
    assert (ended == by_rule).float().mean() > 0.97  # drawn ends, in imagined states
