"""The toy parts are what they say: tests and documentation lean on them."""

from __future__ import annotations

import pytest
import torch
from torchrl.envs.utils import check_env_specs

from eqr_torchrl.testing import toy_batch, toy_env


@pytest.mark.filterwarnings("ignore::UserWarning")  # check_env_specs seeds the environment twice and says so
@pytest.mark.parametrize(("observation_dim", "action_dim"), [(3, 1), (2, 4)])
def test_the_toy_environment_keeps_torchrls_rules(observation_dim, action_dim):
    check_env_specs(toy_env(observation_dim, action_dim))


def test_its_dynamics_reward_and_time_limit():
    env = toy_env(2, 3, noise=0.0, max_steps=4)
    rollout = env.rollout(10)
    assert len(rollout) == 4
    state, action = rollout["observation"], rollout["action"]
    push = torch.stack([action[:, 0] + action[:, 2], action[:, 1]], -1)  # the third pushes the first entry again
    torch.testing.assert_close(rollout["next", "observation"], 0.9 * state + 0.1 * push)
    torch.testing.assert_close(rollout["next", "reward"], -state.square().sum(-1, keepdim=True))
    assert rollout["next", "truncated"].flatten().tolist() == [False, False, False, True]
    assert not rollout["next", "terminated"].any()


def test_a_seed_makes_it_reproducible_and_episodes_differ():
    rollouts = []
    for seed in (1, 1, 2):
        env = toy_env()
        env.set_seed(seed)
        torch.manual_seed(0)
        rollouts.append(env.rollout(5)["observation"])
    assert torch.equal(rollouts[0], rollouts[1]) and not torch.equal(rollouts[0], rollouts[2])
    assert not torch.equal(env.reset()["observation"], env.reset()["observation"])


def test_a_batch_of_members_has_draws():
    with pytest.raises(ValueError, match="M and K must both be given, or neither: got 5 and None"):
        toy_batch(4, 5)
