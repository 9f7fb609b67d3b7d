from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict
from torchrl.envs import RewardScaling, TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type

from eqr_torchrl.imagination import (
    BranchedRollouts,
    ModelBasedEnv,
    branched_rollout,
    make_model_buffer,
    never_terminates,
)
from eqr_torchrl.imagination.rollouts import TRANSITION_KEYS
from eqr_torchrl.testing import toy_actor, toy_env
from eqr_torchrl.world_models import GaussianEnsemble

ALL_KEYS = (*TRANSITION_KEYS, "member")


def still(tensordict):
    """A policy that does nothing."""
    return tensordict.set("action", torch.zeros(*tensordict.batch_size, 1))


def imagine(
    model, states, *, policy=still, termination_fn=never_terminates, capacity=100_000, member="fixed", **kwargs
):
    env = ModelBasedEnv(model, toy_env(), termination_fn=termination_fn, member=member)
    buffer = make_model_buffer(capacity)
    report = branched_rollout(env, policy, states, buffer, **({"keys": ALL_KEYS} | kwargs))
    return report, buffer[:] if len(buffer) else None


def test_chunks_lose_no_start_state(known_model):
    # 1001 starts in chunks of 250, five members, three steps; member m moves by m + 1
    model = known_model([1.0, 2.0, 3.0, 4.0, 5.0], [0.0] * 5)
    states = torch.full((7, 3), 100.0)
    report, rows = imagine(model, states, num_starts=1001, horizon=3, chunk_size=250)
    assert report["rows"] == len(rows) == 1001 * 5 * 3 and report["dropped"] == 0
    assert max(model.rows) == 250 and sum(model.rows) == 1001 * 3
    member = rows["member"].squeeze(-1)
    step = ((rows["observation"][:, 0] - 100) / (member + 1)).long()
    assert (3 * member + step).bincount().tolist() == [1001] * 15


def test_rows_are_transitions_of_their_member(known_model):
    model = known_model([1.0, 10.0], [2.0, 20.0])
    _, rows = imagine(model, torch.randn(50, 3), num_starts=20, horizon=3)
    drift = torch.tensor([1.0, 10.0])[rows["member"]]
    torch.testing.assert_close(rows["next", "observation"], rows["observation"] + drift)
    torch.testing.assert_close(rows["next", "reward"], 2 * drift)
    assert not rows["next", "terminated"].any() and not rows["next", "done"].any()


def test_starts_are_drawn_uniformly_with_replacement_for_each_member(known_model):
    states = torch.arange(4.0)[:, None].expand(4, 3)
    _, rows = imagine(known_model([0.0, 0.0], [0.0, 0.0]), states, num_starts=2000, horizon=1)
    first, second = (rows["observation"][rows["member"].squeeze(-1) == m, 0].long() for m in range(2))
    for starts in (first, second):
        assert ((starts.bincount(minlength=4) - 500).abs() < 5 * 500**0.5).all()
    assert not torch.equal(first, second)


def test_a_row_ends_with_the_transition_that_terminates(known_model):
    # from 0, member 0 reaches 1, 2, 3, 4, 5 and member 1 reaches 2, 4, ..: over beyond 3.5 after 4 and 2 steps
    def over(next_observation, action):
        return next_observation[..., :1] > 3.5

    model = known_model([1.0, 2.0], [1.0, 3.0])
    report, rows = imagine(model, torch.zeros(1, 3), termination_fn=over, num_starts=10, horizon=5)
    assert report["rows"] == 10 * (4 + 2)
    assert (rows["observation"] <= 3.5).all() and rows["next", "terminated"].sum() == 20
    assert torch.equal(rows["next", "terminated"], rows["next", "done"])
    assert report["reward"] == pytest.approx((4 * 1 + 2 * 3) / 6)
    assert len(model.rows) == 4  # nobody is left after four steps


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("entry", [0, 3])
def test_predictions_that_are_not_finite_are_dropped_with_the_rest_of_their_row(known_model, poison, entry):
    class Broken(known_model):
        def forward(self, observation, action):
            loc, scale = super().forward(observation, action)
            loc = loc.clone()
            loc[..., entry] = loc[..., entry].masked_fill(observation[..., 0] >= 2, poison)
            return loc, scale

    # member 0: 0 -> 1 -> 2 -> broken: two good rows; member 1 starts at 0 and stays there: five good rows
    report, rows = imagine(Broken([1.0, 0.0], [0.0, 0.0]), torch.zeros(1, 3), num_starts=10, horizon=5)
    assert report["rows"] == 10 * (2 + 5) and report["dropped"] == 10
    assert all(torch.isfinite(value).all() for value in rows.values(True, True) if value.is_floating_point())
    assert report["reward"] == 0


@pytest.mark.parametrize("keys", [("observation", "action"), TRANSITION_KEYS, ("member", ("next", "reward"))])
def test_only_the_keys_asked_for_are_stored(known_model, keys):
    _, rows = imagine(known_model([0.0], [0.0]), torch.zeros(1, 3), num_starts=4, horizon=1, keys=keys)
    assert set(rows.keys(True, True)) == set(keys)


def test_resampled_members_give_as_many_rows_and_mix_within_a_rollout(known_model):
    model = known_model([1.0, 10.0], [0.0, 0.0])
    report, rows = imagine(model, torch.zeros(1, 3), num_starts=500, horizon=2, member="resampled")
    assert report["rows"] == 500 * 2 * 2
    ends = rows["next", "observation"][1000:, 0].long()  # after two steps: 2, 11 or 20
    share = torch.stack([(ends == end).float().mean() for end in (2, 11, 20)])
    torch.testing.assert_close(share, torch.tensor([0.25, 0.5, 0.25]), atol=0.08, rtol=0)


def test_actions_are_drawn_from_the_policy_even_where_the_mode_was_asked_for(known_model):
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        _, rows = imagine(known_model([0.0], [0.0]), torch.zeros(1, 3), policy=toy_actor(), num_starts=50, horizon=1)
    assert len(rows["action"].unique()) > 40
    assert not any(value.requires_grad for value in rows.values(True, True))


def test_a_seed_makes_it_reproducible(known_model):
    def run(seed):
        torch.manual_seed(seed)
        model, sizes = known_model([0.0, 1.0], [0.0, 0.0], scale=1.0), {"num_starts": 7, "horizon": 3}
        _, rows = imagine(model, torch.randn(20, 3), policy=toy_actor(), member="resampled", **sizes)
        return rows["next", "observation"]

    assert torch.equal(run(1), run(1)) and not torch.equal(run(1), run(2))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_starts": 0}, "num_starts must be a positive integer, got 0"),
        ({"horizon": 0}, "horizon must be a positive integer, got 0"),
        ({"chunk_size": -4}, "chunk_size must be a positive integer, got -4"),
        ({"keys": ["observations"]}, 'key "observations" not found'),
        ({"states": torch.zeros(0, 3)}, r"states must be of shape \[n, S\] with n > 0, got \(0, 3\)"),
        ({"states": torch.zeros(3)}, r"states must be of shape \[n, S\] with n > 0, got \(3,\)"),
        ({"weights": torch.ones(3)}, r"weights must be of shape \[n\], n = 1, got \(3,\)"),
    ],
)
def test_arguments_out_of_range_are_named_before_anything_is_written(known_model, kwargs, message):
    env = ModelBasedEnv(known_model([0.0], [0.0]), toy_env(), termination_fn=never_terminates)
    buffer = make_model_buffer(10)
    arguments = {"states": torch.zeros(1, 3), "num_starts": 1, "horizon": 1} | kwargs
    with pytest.raises((ValueError, KeyError), match=message):
        branched_rollout(env, still, arguments.pop("states"), buffer, **arguments)
    assert len(buffer) == 0


RULES = [{"member": "fixed", "starts": "per_member"}, {"member": "resampled", "starts": "shared"}]


def make_rollouts(model, **changes):
    arguments = {"rules": RULES, "horizon": 2, "starts_per_step": 3, "steps_per_round": 4, "retained_rounds": 5}
    return BranchedRollouts(model, toy_env(), **(arguments | {"termination_fn": never_terminates} | changes))


def real(num_rows=1):
    """Transitions from the origin without reward."""
    entries = {"observation": torch.zeros(num_rows, 3), "next": {"reward": torch.zeros(num_rows, 1)}}
    return TensorDict(entries, [num_rows])


def test_a_round_follows_every_rule_and_the_capacity_holds_the_retained_rounds(known_model):
    # 3 x 4 = 12 start states: 5 members x 12 x 2 steps in fixed members; 12 // 5 = 2 for each, 5 x 2 x 2, in resampled
    imagine = make_rollouts(known_model([0.0] * 5, [1.0] * 5), keys=ALL_KEYS)
    assert imagine.capacity == 5 * (120 + 20)
    buffer = make_model_buffer(imagine.capacity)
    report = imagine(still, real(), buffer)
    assert {name: part["rows"] for name, part in report.items()} == {"fixed": 120, "resampled": 20}
    assert buffer[:]["member"].flatten().add(1).bincount().tolist() == [20, 24, 24, 24, 24, 24]
    assert [env.member for env, _ in imagine.rollouts] == ["fixed", "resampled"] and imagine.model_env.member == "fixed"


def test_one_stored_transition_is_what_a_round_writes(known_model):
    imagine = make_rollouts(known_model([0.0], [0.0]), keys=["observation", ["next", "reward"], "member"])
    buffer = make_model_buffer(imagine.capacity)
    imagine(still, real(), buffer)
    stored = {key: (value.shape[1:], value.dtype) for key, value in buffer[:].items(True, True)}
    assert stored == {key: (value.shape, value.dtype) for key, value in imagine.transition.items(True, True)}


def ends_at_once(next_observation, action):
    return torch.ones_like(next_observation[..., :1], dtype=torch.bool)


def pays_three(observation, action, next_observation):
    return torch.full_like(observation[..., :1], 3.0)


def test_rewards_and_ends_may_be_functions(known_model):
    functions = {"termination_fn": ends_at_once, "reward_fn": pays_three}
    imagine = make_rollouts(known_model([0.0]), keys=["observation", ("next", "terminated")], **functions)
    buffer = make_model_buffer(imagine.capacity)
    report = imagine(still, real(), buffer)
    assert report["fixed"] == {"rows": 12, "dropped": 0, "reward": 3.0, "horizon": 2}
    assert buffer[:]["next", "terminated"].all()


def test_rollouts_start_more_often_where_the_reward_is_rare(known_model):
    # one reward among 101 rows lies 10 deviations out: it counts 10 times, 10 of 110 draws
    data = real(101)
    data["observation"][7] = 1.0
    data["next", "reward"][7] = 5.0
    for threshold, share in ((None, 1 / 101), (1.0, 10 / 110)):
        imagine = make_rollouts(known_model([0.0, 0.0]), reward_fn=pays_three, rules=RULES[:1],
                                horizon=1, starts_per_step=1000, rare_threshold=threshold)  # fmt: skip
        buffer = make_model_buffer(imagine.capacity)
        imagine(still, data, buffer)
        starts = buffer[:8000]["observation"][:, 0]
        assert abs(starts.mean() - share) < 5 * (share / 8000) ** 0.5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rare_threshold": 0.0}, "rare_threshold must be positive, got 0.0"),
        ({"horizon": 2.5}, "horizon must be a positive integer, got 2.5"),
        ({"starts_per_step": 0}, "starts_per_step must be a positive integer, got 0"),
        ({"retained_rounds": True}, "retained_rounds must be a positive integer, got True"),
        ({"rules": []}, "rules must hold at least one rule"),
        ({"rules": [{"member": "fixed", "starts": "all"}]}, "rules must be of the form"),
        ({"rules": [RULES[0], RULES[0]]}, "rules must have different members"),
        ({"keys": ["observations"]}, 'key "observations" not found'),
        ({"termination_fn": "module:rule"}, "termination_fn must return a bool .*: str raised TypeError"),
        ({"reward_fn": pays_three}, "reward_fn must be None"),
        ({"horizon_range": [3, 2]}, r"horizon_range must be .fewest, most. steps, .*, got .3, 2."),
        ({"error_threshold": 0.0}, "error_threshold must be positive, got 0.0"),
    ],
)
def test_wrong_arguments_are_named_when_it_is_built(known_model, changes, message):
    with pytest.raises((ValueError, KeyError), match=message):
        make_rollouts(known_model([0.0], [0.0]), **changes)


@pytest.mark.parametrize("member", ["fixed", "resampled"])
def test_a_row_that_has_ended_stays_ended_where_noise_would_bring_it_back(known_model, member):
    # a random walk from 0 that ends above 0 goes on after t steps with probability C(2t, t) / 4^t
    model = known_model([0.0], [0.0], scale=[1.0, 0.0, 0.0, 0.0])

    def over(next_observation, action):
        return next_observation[..., :1] > 0

    report, rows = imagine(model, torch.zeros(1, 3), termination_fn=over, num_starts=2000, horizon=6, member=member)
    goes_on = [math.comb(2 * t, t) / 4**t for t in range(7)]
    assert report["rows"] == pytest.approx(2000 * sum(goes_on[:6]), abs=5 * 2 * 2000**0.5)
    assert rows["next", "terminated"].sum() == pytest.approx(2000 * (1 - goes_on[6]), abs=5 * 0.42 * 2000**0.5)


def test_anything_but_the_bare_environment_is_refused(known_model):
    env = ModelBasedEnv(known_model([0.0], [0.0]), toy_env(), termination_fn=never_terminates)
    scaled = TransformedEnv(env, RewardScaling(0.0, 100.0))
    with pytest.raises(
        ValueError, match=r"model_env must be a ModelBasedEnv, got TransformedEnv: .* bypass transforms"
    ):
        branched_rollout(scaled, still, torch.zeros(1, 3), make_model_buffer(10), num_starts=1, horizon=1)


def test_states_of_another_type_are_imagined_in_that_of_the_model(known_model):
    _, rows = imagine(known_model([1.0], [0.0]), torch.zeros(4, 3, dtype=torch.float64), num_starts=2, horizon=2)
    assert rows["observation"].dtype == torch.float32


def test_a_round_of_the_longest_rollouts_fits_into_its_capacity():
    model = GaussianEnsemble(3, 1, num_members=2, num_cells=(8,))
    sizes = {"horizon": 1, "starts_per_step": 1, "steps_per_round": 1, "retained_rounds": 1}
    imagined = BranchedRollouts(model, toy_env(), **sizes, horizon_range=(20, 25), termination_fn=never_terminates)
    assert imagined.capacity == 2 * 25


def test_an_error_threshold_is_needed():
    model = GaussianEnsemble(3, 1, num_members=2, num_cells=(8,))
    with pytest.raises(ValueError, match="error_threshold must be positive, got None"):
        BranchedRollouts(model, toy_env(), error_threshold=None, termination_fn=never_terminates)
