from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule

from eqr_torchrl import CVaRUtility
from eqr_torchrl.lab.logs import NearTheLog, clone_behaviour, clone_loss
from eqr_torchrl.testing import toy_actor, toy_batch


def near_the_log(actor, data, value=torch.zeros_like, **options):
    """With a critic whose two values of an action are ``value`` of it: one as it is, and one that is 9 more."""

    def values(action):
        return torch.cat([value(action), value(action) + 9], -1)

    critic = TensorDictModule(values, in_keys=["action"], out_keys=["state_action_value"])
    return NearTheLog(actor, critic, CVaRUtility(0.5), data, **options)


def test_only_what_is_good_in_the_log_is_cloned():
    """Actions near 0.6 and -0.6, half each, and values that grow with the action: the mean, 0, is not what is good."""
    data = toy_batch(B=200)
    data["action"] = 0.05 * torch.randn(200, 1) + torch.where(torch.arange(200)[:, None] % 2 == 0, 0.6, -0.6)
    data["next", "reward"], data["next", "done"] = torch.randn(200, 1), torch.ones(200, 1, dtype=torch.bool)
    found = {}
    for name, value in {"larger": lambda a: a, "smaller": lambda a: -a, "equal": torch.zeros_like}.items():
        torch.manual_seed(0)
        actor = toy_actor()
        near = near_the_log(actor, data, value, weight=1.0, gamma=0.9)
        optimizer = torch.optim.Adam(actor.parameters(), 1e-2)
        for _ in range(300):
            optimizer.zero_grad()
            near(TensorDict({"loss_actor": torch.zeros(())}), improve=True)["loss_actor"].backward()
            optimizer.step()
        with torch.no_grad():
            found[name] = actor.get_dist(data.select("observation")).deterministic_sample.mean().item()
    assert found["larger"] > 0.5 and found["smaller"] < -0.5 and abs(found["equal"]) < 0.3


def test_a_log_in_which_nothing_is_good_leaves_the_policy_its_own_loss():
    data = toy_batch(B=50)
    data["action"] = torch.zeros(50, 1)
    near = near_the_log(toy_actor(), data, lambda action: (action != 0).float(), weight=1.0, gamma=0.9)
    assert near(TensorDict({"loss_actor": torch.tensor(7.0)}), improve=True)["loss_actor"].item() == 7.0


def test_cloning_repeats_the_logged_actions_also_at_their_bounds():
    data, actor = toy_batch(B=200), toy_actor()
    data["observation"] = data["observation"].sign()
    data["action"] = torch.where(data["observation"][:, :1] > 0, 1.0, -0.5)
    assert clone_behaviour(actor, data, num_steps=300, lr=1e-2)["nll"] < 0
    states = torch.tensor([[1.0, 1.0, 1.0], [-1.0, 1.0, 1.0]])
    with torch.no_grad():
        found = actor.get_dist(TensorDict({"observation": states}, [2])).deterministic_sample
    assert found[0] > 0.9 and -0.6 < found[1] < -0.4


def test_the_clone_loss_counts_in_standard_deviations_of_the_logs_returns():
    data, actor = toy_batch(B=3), toy_actor()
    data["next", "reward"] = torch.tensor([[1.0], [2.0], [4.0]])
    data["next", "done"] = torch.tensor([[False], [False], [True]])
    data["next", "observation"][:2] = data["observation"][1:]
    spread = ((4 / 9 + 1 / 9 + 1 / 9) / 3) ** 0.5  # of 1 + 0.5 (2 + 0.5 4) = 3, 2 + 0.5 4 = 4 and 4, whose mean is 11/3
    losses = TensorDict({"loss_actor": torch.tensor(7.0)})
    for improve, own in ((True, 7.0), (False, 0.0)):
        torch.manual_seed(0)
        found = near_the_log(actor, data, weight=0.1, gamma=0.5)(losses.clone(), improve=improve)["loss_actor"]
        torch.manual_seed(0)
        assert found.item() == pytest.approx(own + 0.1 * spread * clone_loss(actor, data).item(), rel=1e-5)


def test_the_unit_of_the_reward_does_not_change_how_near_to_the_log_a_policy_stays():
    """Of rewards of another unit, losses of critics that learn in it are the same numbers: so is the clone's share."""
    data, actor, found = toy_batch(B=50), toy_actor(), []
    for unit in (1.0, 1000.0):
        log = data.clone()
        log["next", "reward"] *= unit
        near = near_the_log(actor, log, weight=0.1, gamma=0.9)
        torch.manual_seed(0)
        found.append(near(TensorDict({"loss_actor": torch.tensor(7.0)}), improve=True, unit=unit)["loss_actor"].item())
    assert found[0] == pytest.approx(found[1], rel=1e-5) and found[0] != 7.0


def test_a_policy_near_the_log_does_not_follow_values_that_no_action_of_the_log_supports():
    """Values that promise more the larger the action is: alone they lead to 1, with the log's actions near to 0.2."""
    data = toy_batch(B=200)
    data["action"] = 0.2 + 0.05 * torch.randn(200, 1)
    data["next", "reward"], data["next", "done"] = torch.randn(200, 1), torch.ones(200, 1, dtype=torch.bool)
    found = []
    for weight in (0.0, 1.0):
        torch.manual_seed(0)
        actor = toy_actor()
        near, optimizer = (
            near_the_log(actor, data, weight=weight, gamma=0.9),
            torch.optim.Adam(actor.parameters(), 1e-2),
        )
        for _ in range(200):
            dist = actor.get_dist(data.select("observation"))
            losses = near(TensorDict({"loss_actor": -dist.deterministic_sample.mean()}), improve=True)
            optimizer.zero_grad()
            losses["loss_actor"].backward()
            optimizer.step()
        with torch.no_grad():
            found.append(actor.get_dist(data.select("observation")).deterministic_sample.mean().item())
    assert found[0] > 0.9 and 0.1 < found[1] < 0.4


@pytest.mark.parametrize("weight", [-1.0, "two", float("nan")])
def test_a_weight_that_is_none_is_named(weight):
    with pytest.raises(ValueError, match="weight must be a finite number of at least 0, got"):
        near_the_log(toy_actor(), toy_batch(B=5), weight=weight, gamma=0.9)
