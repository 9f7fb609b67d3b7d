from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.envs import SerialEnv, TransformedEnv
from torchrl.envs.transforms import VecNormV2
from torchrl.modules import ProbabilisticActor, TanhNormal
from toy_env import WalkEnv

from eqr_torchrl.lab.envs import make_env
from eqr_torchrl.lab.evaluation import evaluate


def constant_policy(action: float):
    return lambda tensordict: tensordict.set("action", torch.full((*tensordict.batch_size, 1), action))


def draw_from_global_generators():
    return torch.randn(4).tolist(), np.random.randn(4).tolist(), random.random()  # noqa: NPY002


def network_policy() -> TensorDictModule:
    network = nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 1), nn.Tanh())
    unbatched = nn.Sequential(nn.Unflatten(0, (1, 1)), network, nn.Flatten(0, 1))
    return TensorDictModule(unbatched, in_keys=["observation"], out_keys=["action"])


def test_episode_ends_on_termination():
    # starts at 0, moves by 1/2: reaches 2 after 4 steps and has then collected 4 * 1/2
    rows = evaluate(WalkEnv(goal=2.0), constant_policy(0.5), num_episodes=2)
    assert rows == [{"episode": e, "episode_return": 2.0, "episode_length": 4, "terminated": 1} for e in (0, 1)]


def test_episode_ends_on_truncation():
    assert evaluate(WalkEnv(time_limit=3), constant_policy(0.5))[0] == {
        "episode": 0,
        "episode_return": 1.5,
        "episode_length": 3,
        "terminated": 0,
    }


def test_a_batch_runs_its_episodes_side_by_side():
    # 4 steps of 1/2 to the goal, and 7 steps of 1/2 to the time limit; the shorter one waits for the longer
    env = SerialEnv(2, [lambda: WalkEnv(goal=2.0), lambda: WalkEnv(time_limit=7)])
    rows = evaluate(env, constant_policy(0.5), num_episodes=3)
    assert [tuple(row.values()) for row in rows] == [(0, 2.0, 4, 1), (1, 3.5, 7, 0), (2, 2.0, 4, 1)]
    one = evaluate(SerialEnv(1, lambda: WalkEnv(goal=2.0)), constant_policy(0.5), max_steps=3)
    assert [tuple(row.values()) for row in one] == [(0, 1.5, 3, 0)]


def test_max_steps_cuts_an_endless_episode():
    assert evaluate(WalkEnv(), constant_policy(-1.0), max_steps=7)[0]["episode_return"] == -7.0


def test_endless_episode_is_an_error_that_names_the_limit(monkeypatch):
    monkeypatch.setitem(evaluate.__globals__, "_ENDLESS", 50)
    with pytest.raises(
        RuntimeError, match=r"not ended after 50 steps: pass max_episode_steps .*or max_steps"
    ) as caught:
        evaluate(WalkEnv(time_limit=51), constant_policy(0.0))
    assert "\n" not in str(caught.value)
    assert evaluate(WalkEnv(time_limit=50), constant_policy(0.0))[0]["episode_length"] == 50
    assert evaluate(WalkEnv(), constant_policy(0.0), max_steps=60)[0]["episode_length"] == 60


@pytest.mark.parametrize("terminated", [0, 1])  # MuJoCo tasks of Gymnasium call a state of NaN unhealthy, and terminate
def test_episode_that_diverges_has_the_return_up_to_there(terminated):
    class Diverging(WalkEnv):
        def _step(self, tensordict):
            out = super()._step(tensordict)
            if self.steps < 4:
                return out
            out["terminated"] |= bool(terminated)
            out["done"] |= bool(terminated)
            return out.apply(lambda entry: entry * torch.nan if entry.is_floating_point() else entry)

    with pytest.warns(RuntimeWarning, match="non-finite"):
        (row,) = evaluate(make_env(Diverging()), constant_policy(0.5))
    assert row == {"episode": 0, "episode_return": 1.5, "episode_length": 4, "terminated": terminated}


def test_actions_are_the_deterministic_ones():
    parameters = TensorDictModule(
        lambda s: (0 * s + 0.3, 0 * s + 1.0), in_keys=["observation"], out_keys=["loc", "scale"]
    )
    actor = ProbabilisticActor(parameters, in_keys=["loc", "scale"], distribution_class=TanhNormal)
    row = evaluate(WalkEnv(), actor, max_steps=4)[0]
    assert row["episode_return"] == pytest.approx(4 * np.tanh(0.3), rel=1e-5)


def test_same_seed_gives_the_same_rows_whatever_came_before():
    env, policy = WalkEnv(noise=1.0), network_policy()
    first = evaluate(env, policy, num_episodes=3, max_steps=5, seed=7)
    evaluate(env, policy, num_episodes=2, max_steps=5)
    draw_from_global_generators()
    assert evaluate(env, policy, num_episodes=3, max_steps=5, seed=7) == first
    assert env.seed_seen == 7
    assert evaluate(env, policy, num_episodes=3, max_steps=5, seed=8) != first


@pytest.mark.parametrize("seed", [2**32 - 1, 2**32, 250_001_000_753 + 2**33])
def test_seeds_late_in_a_long_run_are_taken_by_every_simulator(seed):
    pytest.importorskip("dm_control")
    env = make_env("dmc/pendulum-swingup", max_episode_steps=3)  # numpy's seeds end at 2^32
    (row,) = evaluate(env, lambda td: td.set("action", torch.zeros(1)), seed=seed)
    assert row["episode_length"] == 3


@pytest.mark.parametrize("seed", [None, 3])
def test_global_generators_are_untouched(seed):
    def reseed():
        torch.manual_seed(1)
        np.random.seed(1)  # noqa: NPY002
        random.seed(1)

    reseed()
    expected = draw_from_global_generators()
    reseed()
    evaluate(WalkEnv(noise=1.0), network_policy_without_draw_from_global_generators(), max_steps=5, seed=seed)
    assert draw_from_global_generators() == expected


def network_policy_without_draw_from_global_generators():
    with torch.random.fork_rng(devices=[]):
        return network_policy()


def test_running_statistics_and_modes_are_untouched():
    env = TransformedEnv(WalkEnv(noise=1.0), VecNormV2(in_keys=["observation"]))
    policy = network_policy()
    policy.module[1][1].eval()  # a mixture of modes must come back as a mixture
    evaluate_modes = [module.training for module in policy.modules()]
    env.rollout(5)
    before = state_of(env, policy)
    evaluate(env, policy, num_episodes=5, max_steps=5, seed=0)
    assert [module.training for module in policy.modules()] == evaluate_modes
    assert env.transform.frozen is False
    for key, value in state_of(env, policy).items():
        torch.testing.assert_close(value, before[key], rtol=0, atol=0)


def state_of(env, policy) -> dict[str, torch.Tensor]:
    state = {f"policy.{k}": v.clone() for k, v in policy.state_dict().items()}
    state |= {f"loc.{k}": v.clone() for k, v in env.transform._loc.items()}
    return state | {f"var.{k}": v.clone() for k, v in env.transform._var.items()}


def test_training_state_comes_back_after_an_error():
    def broken(tensordict):
        raise RuntimeError("policy failed")

    env = WalkEnv()
    env.train()
    torch.manual_seed(0)
    expected = torch.randn(2)
    torch.manual_seed(0)
    with pytest.raises(RuntimeError, match="policy failed"):
        evaluate(env, broken, max_steps=2, seed=5)
    assert env.training
    torch.testing.assert_close(torch.randn(2), expected)


def test_no_gradient_is_recorded():
    seen = []

    def policy(tensordict):
        seen.append(torch.is_grad_enabled())
        return tensordict.set("action", torch.zeros(1))

    evaluate(WalkEnv(), policy, max_steps=2)
    assert seen == [False, False]
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [({"num_episodes": 0}, "num_episodes must be positive: got 0"), ({"max_steps": 0}, "max_steps must be positive")],
)
def test_bad_arguments_are_named(kwargs, message):
    with pytest.raises(ValueError, match=message):
        evaluate(WalkEnv(), constant_policy(0.0), **kwargs)
