from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from eqr_torchrl.imagination import ModelBasedEnv, never_terminates
from eqr_torchrl.lab.judging import Judge, Judgement, advice, offline_report
from eqr_torchrl.lab.judging.judge import _Replay
from eqr_torchrl.lab.logs import specs_of, split_episodes
from eqr_torchrl.world_models import WorldModel

LIMIT = 12


class Walk(WorldModel):
    """Three members of x' = x + a + b_m, with reward x + a: with drifts b_m around the truth, which has none."""

    def __init__(self, drift=0.02, noise=0.1):
        super().__init__(1, num_members=3)
        self.drift = nn.Parameter(drift * torch.tensor([-1.0, 0.0, 1.0]).view(3, 1, 1), requires_grad=False)
        self.noise = noise

    def forward(self, observation, action):
        loc = torch.cat([observation + action + self.drift, observation + action], -1)
        return loc, torch.full_like(loc, self.noise) * torch.tensor([1.0, 0.0])


class Constant(nn.Module):
    def __init__(self, action):
        super().__init__()
        self.action = action

    def forward(self, tensordict):
        return tensordict.set("action", torch.full((*tensordict.batch_size, 1), self.action))


def walk_log(num_episodes=60, seed=0, noise=0.1):
    """Random actions within 0.3, with the true noise; episodes of twelve steps."""
    generator, rows = torch.Generator().manual_seed(seed), []
    for _ in range(num_episodes):
        x = torch.randn(1, generator=generator)
        for t in range(LIMIT):
            action = 0.6 * torch.rand(1, generator=generator) - 0.3
            following = x + action + noise * torch.randn(1, generator=generator)
            end = torch.tensor([t == LIMIT - 1])
            after = {"observation": following, "reward": x + action, "terminated": torch.tensor([False])}
            rows.append(
                TensorDict(
                    {"observation": x, "action": action, "next": {**after, "truncated": end, "done": end.clone()}}, []
                )
            )
            x = following
    return torch.stack(rows).contiguous()


def make_judge(model, seed=0, **options):
    data = walk_log(seed=seed)
    train, held_out = split_episodes(data, 0.3, seed=seed)
    env = ModelBasedEnv(model, specs_of(data), termination_fn=never_terminates)
    return Judge(env, train, held_out, seed=seed, **options), train


@pytest.fixture(scope="module")
def walk():
    """A judge of members that are nearly right, and the training episodes."""
    return make_judge(Walk())


def true_return(action, start):
    """Without noise: the reward of step t is x_0 + t a + a; the noise has mean 0."""
    return sum(start + (t + 1) * action for t in range(LIMIT))


def test_the_value_is_that_of_the_policy_and_the_interval_holds_it(walk):
    judge, _ = walk
    start = torch.stack([episode["observation"][0] for episode in judge.held_out]).mean().item()
    for action in (-0.2, 0.0, 0.2):
        found = judge(Constant(action))
        assert found.value == pytest.approx(true_return(action, start), abs=0.8)
        assert found.low < true_return(action, start) < found.high
    assert judge.limit == judge.horizon == LIMIT


def test_the_interval_is_the_calibrated_width_times_the_deviation_of_a_mean_return():
    # reward x_t + a with x_t = x_0 + t (a + b_m) + noise, t = 0 to 11: b_m counts 66 times, x_0 twelve times, and the
    # noise of step j is in the 11 - j later states: its variance counts 1 + 4 + ... + 121 = 506 times
    judge, _ = make_judge(Walk(drift=0.02, noise=0.1), num_episodes=2)
    start = torch.stack([episode["observation"][0] for episode in judge.held_out])
    members = 66**2 * 0.02**2  # of -b, 0, b, over two degrees of freedom
    starts = (1 / 2 + 1 / len(start)) * 144 * start.var(correction=0).item()
    noise = (506 * 0.1**2 + judge.unforeseen) / 2
    found = judge(Constant(0.1))
    half = judge.width * (members + judge.bias**2 + starts + noise) ** 0.5
    assert (found.high - found.low) / 2 == pytest.approx(half, rel=0.05)
    assert noise + starts > 10 * members


@pytest.mark.parametrize(
    ("drift", "confidence", "least", "most"), [(0.02, 0.8, 0.6, 1.0), (0.02, 0.4, 0.2, 0.65), (0.2, 0.8, 0.6, 1.0)]
)
def test_intervals_hold_real_returns_of_other_episodes_as_often_as_they_say(drift, confidence, least, most):
    """With members that are ten times too unsure at least as often."""
    judge, _ = make_judge(Walk(drift), confidence=confidence, num_episodes=1)
    inside = []
    for episode in walk_log(40, seed=9).split(LIMIT):
        value, within, between, _ = judge._imagined(_Replay(episode["action"]), episode["observation"][:1], LIMIT)
        half = judge.width * (between[0].var(correction=1) + within[0] + judge.unforeseen + judge.bias**2).sqrt()
        inside.append(bool((episode["next", "reward"].sum() - value[0]).abs() <= half))
    assert least <= sum(inside) / len(inside) <= most


def test_a_policy_is_imagined_to_the_time_limit_also_where_replays_cannot_be(monkeypatch):
    """What it gains late counts, which the value of the logging policy does not know."""
    found = []
    for horizon in (1, LIMIT):
        monkeypatch.setattr(Judge, "_trusted", lambda judge, horizon=horizon: horizon)
        judge, _ = make_judge(Walk())
        found.append(judge(Constant(0.3)).value)
    assert found[0] == found[1]


@pytest.mark.parametrize("horizon", [1, 2, 6])
def test_intervals_hold_real_returns_where_the_horizon_is_shorter_than_an_episode(monkeypatch, horizon):
    """What comes after it is the value of the logging policy, whose error a whole episode shows, and no late piece."""
    monkeypatch.setattr(Judge, "_trusted", lambda judge: horizon)
    inside, errors = [], []
    for seed in range(3):
        judge, _ = make_judge(Walk(), seed=seed, num_episodes=1)
        assert judge.num_scores == len(judge.held_out) == 18  # one an episode
        for episode in walk_log(40, seed=9 + seed).split(LIMIT):
            value, within, between, _ = judge._imagined(_Replay(episode["action"]), episode["observation"][:1], LIMIT)
            half = judge.width * (between[0].var(correction=1) + within[0] + judge.unforeseen + judge.bias**2).sqrt()
            errors.append(episode["next", "reward"].sum() - value[0])
            inside.append(bool(errors[-1].abs() <= half))
    assert sum(inside) / len(inside) > 0.85
    assert judge.unforeseen > 0.3 * torch.stack(errors).square().mean()


class Paid(Walk):
    """A reward of 1 a step, or as much more as it is ``too_high``."""

    def __init__(self, too_high=0.0, **options):
        super().__init__(**options)
        self.too_high = too_high

    def forward(self, observation, action):
        loc, scale = super().forward(observation, action)
        return torch.cat([loc[..., :1], torch.full_like(loc[..., 1:], 1.0 + self.too_high)], -1), scale


def paid_log(num_episodes=60):
    data = walk_log(num_episodes)
    data["next", "reward"].fill_(1.0)
    return data


class Parting(Paid):
    """Members agree up to 3; beyond, one of three is a unit away, and rewards of 1 are imagined as 2.

    The logging policy stays below 3.
    """

    def forward(self, observation, action):
        loc, scale = super().forward(observation, action)
        beyond = (observation > 3.0).to(loc)
        parted = beyond * torch.tensor([0.0, 0.0, 1.0]).view(3, 1, 1)
        return torch.cat([loc[..., :1] + parted, loc[..., 1:] + beyond], -1), scale


def test_a_policy_that_leaves_the_data_is_judged_between_the_members_and_the_logging_policy():
    """From 0 with steps of 1: states 0 to 3 earn 1 each, the eight after them 2 (20 in all) or, as logged, 1 (12)."""
    data = paid_log(40)
    states = data["observation"].clamp(-2.5, 2.5).view(40, LIMIT, 1)
    states[:, 0] = 0.0
    data["observation"] = states.reshape(-1, 1)
    data["next", "observation"] = torch.cat([states[:, 1:], states[:, -1:]], 1).reshape(-1, 1)
    train, held_out = data[: 30 * LIMIT], data[30 * LIMIT :]
    env = ModelBasedEnv(Parting(drift=0.0, noise=0.0), specs_of(data), termination_fn=never_terminates)
    judge = Judge(env, train, held_out)
    stays, leaves = judge(Constant(0.2)), judge(Constant(1.0))
    assert stays.left == 0.0 and stays.value == pytest.approx(12.0, abs=0.1) and stays.high - stays.low < 0.5
    assert leaves.left == 1.0 and leaves.value == pytest.approx(16.0, abs=0.2)
    # give or take a standard deviation of the returns in the log, which is taken as 1 where it is 0
    assert leaves.low == pytest.approx(12.0 - judge.width, abs=0.5) and leaves.high == pytest.approx(20.0, abs=0.5)
    line = offline_report(judge, Constant(1.0), train)[2]
    assert line.startswith("leaves the data    in 100% of imagined episodes")


def test_an_error_that_all_held_out_episodes_share_is_not_averaged_away():
    """Twelve rewards of 1 that are imagined 0.3 too high: 15.6 in place of 12, for a mean of ten episodes too."""
    train, held_out = split_episodes(paid_log(), 0.3, seed=0)
    env = ModelBasedEnv(Paid(0.3, drift=0.002), specs_of(train), termination_fn=never_terminates)
    judge = Judge(env, train, held_out)
    assert judge.horizon == LIMIT and judge.bias == pytest.approx(-3.6, abs=1e-3)
    found = judge(Constant(0.0))
    assert found.value == pytest.approx(15.6, abs=1e-3) and found.low < 12.0 + 1e-3


def test_pieces_of_episodes_are_not_what_whole_ones_are_judged_by():
    """An exact model: 12 a whole episode. Pieces of two steps earn 2, which is no error of 10."""
    data = paid_log(40)
    pieces = data[32 * LIMIT :].reshape(8, LIMIT)[:, :2].clone()
    pieces["next", "truncated"][:, -1] = pieces["next", "done"][:, -1] = True
    train, held_out = data[: 20 * LIMIT], torch.cat([data[20 * LIMIT : 32 * LIMIT], pieces.reshape(-1)])
    env = ModelBasedEnv(Paid(), specs_of(data), termination_fn=never_terminates)
    judge = Judge(env, train, held_out)
    assert judge.num_scores == 12 and len(judge.held_out) == 20
    low, value, high = sorted(judge(Constant(0.0))[:3])
    assert 11.9 < low <= value <= high < 12.1


def test_policies_start_from_fifty_held_out_episodes_at_most():
    data = walk_log(125)
    env = ModelBasedEnv(Walk(), specs_of(data), termination_fn=never_terminates)
    judge = Judge(env, data[: 5 * LIMIT], data[5 * LIMIT :])
    assert judge.num_scores == 120 and len(judge.starts) == 40  # every third
    assert judge.starts[1].tolist() == data[8 * LIMIT]["observation"].tolist()


@pytest.mark.parametrize(("num_held_out", "share"), [(1, 1 / 2), (5, 5 / 6), (8, 8 / 9), (9, 0.9), (30, 0.9)])
def test_few_held_out_episodes_make_an_interval_of_less(num_held_out, share):
    data = walk_log(40)
    env = ModelBasedEnv(Walk(), specs_of(data), termination_fn=never_terminates)
    judge = Judge(env, data[: 10 * LIMIT], data[-num_held_out * LIMIT :])
    assert judge.confidence == pytest.approx(share)
    line = offline_report(judge, Constant(0.0), data[: 10 * LIMIT])[-2]
    assert f"{share:.0%} interval of the mean" in line


def test_a_time_limit_beyond_the_log_counts_the_steps_that_no_logged_episode_has():
    """Pieces of twelve steps with a reward of 1 each: 24 within 24 steps, of which the last twelve are not imagined."""
    train, held_out = split_episodes(paid_log(), 0.3, seed=0)
    env = ModelBasedEnv(Paid(), specs_of(train), termination_fn=never_terminates)
    judge = Judge(env, train, held_out, max_episode_steps=2 * LIMIT)
    assert judge.limit == 2 * LIMIT and judge.horizon == LIMIT
    assert judge(Constant(0.0)).value == pytest.approx(24.0, abs=0.5)
    with pytest.raises(
        ValueError, match="max_episode_steps must be at least 12, the longest episode in the log: got 11"
    ):
        Judge(env, train, held_out, max_episode_steps=LIMIT - 1)


def test_replays_stop_before_a_tenth_of_them_end_where_the_log_does_not(monkeypatch):
    """Members that drift by 0.5 a step end at the first t with x_t + 0.5 t > -0.5; the log never ended."""

    class Rising(Paid):
        def forward(self, observation, action):
            loc, scale = super().forward(observation, action)
            return loc + torch.tensor([0.5, 0.0]), scale

    monkeypatch.setattr(Judge, "_trusted", lambda judge: LIMIT)
    data = walk_log(noise=0.0)
    data["observation"], data["next", "observation"] = data["observation"] - 3.0, data["next", "observation"] - 3.0
    train, held_out = split_episodes(data, 0.3, seed=0)
    env = ModelBasedEnv(
        Rising(drift=0.0, noise=0.0), specs_of(data), termination_fn=lambda following, action: following > -0.5
    )
    judge = Judge(env, train, held_out)
    ends = []
    for episode in judge.held_out:
        states = episode["next", "observation"].flatten() + 0.5 * torch.arange(1, LIMIT + 1)
        ends.append(next((t + 1 for t, x in enumerate(states.tolist()) if x > -0.5 and t < LIMIT - 1), LIMIT))
    assert judge.horizon == sorted(ends)[int(0.1 * (len(ends) - 1))] < LIMIT


def test_one_member_cannot_be_judged_by():
    data = walk_log(4)
    env = ModelBasedEnv(Paid(), specs_of(data), termination_fn=never_terminates)
    env.world_model.num_members = 1
    with pytest.raises(ValueError, match="model_env must have at least 2 members"):
        Judge(env, data[: 2 * LIMIT], data[2 * LIMIT :])


def test_an_end_that_no_member_foresees_widens_every_interval_by_its_share():
    """One of the held-out episodes ends with -50: their mean square error is 50 squared over their number."""
    data = walk_log()
    train, held_out = split_episodes(data, 0.3, seed=0)
    held_out["next", "reward"][LIMIT - 1] -= 50.0
    env = ModelBasedEnv(Walk(), specs_of(data), termination_fn=never_terminates)
    judge = Judge(env, train, held_out)
    n = len(judge.held_out)
    assert judge.unforeseen == pytest.approx(50.0**2 / n, rel=0.3)
    assert judge.width < n**0.5 * 1.2  # 50 / sqrt(50**2 / n) at most, and not 50 in units of what members disagree by


def test_beyond_the_trusted_steps_the_logging_policy_counts():
    """Members that scatter at once: one step is imagined, and the rest is what random actions earn, 11 x_1."""
    judge, _ = make_judge(Walk(drift=3.0, noise=1.0))
    assert judge.horizon < 4
    state = torch.tensor([[-1.0], [1.0]])
    value = judge._value(state, torch.full((2,), LIMIT - 1))
    torch.testing.assert_close(value, 11.0 * state.flatten(), atol=2.5, rtol=0.0)
    assert judge._value(state, torch.zeros(2)).tolist() == [0.0, 0.0]


def test_the_report_is_one_page_with_one_advice(walk):
    judge, train = walk
    lines = offline_report(judge, Constant(0.3), train)
    assert len(lines) == 6 and all("\n" not in line for line in lines)
    assert f"errors of imagined logged actions do not reach the spread of the states within {LIMIT} steps" in lines[1]
    assert "of an episode: 90% interval of the mean of 10 episodes" in lines[4] and "the best of" not in lines[4]
    assert lines[-1].startswith("advice             Better than the logging policy even at the lower end")
    assert offline_report(judge, Constant(-0.3), train)[-1].startswith("advice             Worse than")


@pytest.mark.parametrize(
    ("found", "begin"),
    [
        (Judgement(9.0, 5.0, 13.0), "Better than the logging policy even at the lower end, by 4"),
        (Judgement(13.0, 9.0, 17.0), "No logged episode returned so much, at most 8: the models extrapolate"),
        (Judgement(-9.0, -13.0, -5.0), "Worse than"),
        (Judgement(1.0, -3.0, 5.0), "Indistinguishable from the logging policy"),
    ],
)
def test_advice_compares_the_interval_with_the_logging_policy(found, begin):
    class Made:
        trusted, limit, logged, best = 50, 100, Judgement(1.0, 0.0, 2.0), 8.0

    assert advice(Made(), found).startswith(begin)
    assert advice(Made(), found, reward=-0.76).startswith("Do not use it: the models explain -76% of the reward")
    assert advice(Made(), found, reward=0.49).startswith("Do not use it: the models explain 49% of the reward")
    assert advice(Made(), found, reward=0.5).startswith(begin)
    Made.trusted = 2
    assert advice(Made(), found).startswith("Do not use it: the models predict 2 steps only")


class Bound(WorldModel):
    """Two entries that stay as they are; the second is predicted ``beyond`` too high, as noise at a bound is."""

    def __init__(self, beyond):
        super().__init__(2, num_members=2)
        self.offset = nn.Parameter(torch.tensor([0.0, beyond, 0.0]), requires_grad=False)

    def forward(self, observation, action):
        loc = torch.cat([observation, action], -1) + self.offset
        return loc, torch.full_like(loc, 0.1)


@pytest.mark.parametrize(("beyond", "message"), [(0.04, "none"), (0.06, "entry 1 (price) in 100%")])
def test_next_states_are_outside_beyond_a_twentieth_of_the_range(beyond, message):
    """The price is 1 in the held-out rows, its upper bound, in a range from 0 to 1: a prediction is 1 + beyond."""
    data = walk_log(20)
    price = torch.ones(len(data), 1)
    price[:LIMIT] = 0.0
    data["observation"] = torch.cat([data["observation"], price], -1)
    data["next", "observation"] = torch.cat([data["next", "observation"], price], -1)
    train, held_out = data[: 15 * LIMIT], data[15 * LIMIT :]
    judge = Judge(ModelBasedEnv(Bound(beyond), specs_of(data), termination_fn=never_terminates), train, held_out)
    lines = offline_report(judge, Constant(0.0), train, names=["level", "price"])
    assert lines[2].endswith(f"next states over 5% outside the logged range: {message}")


def test_the_page_names_the_worst_entry_and_what_the_policy_is_the_best_of(walk):
    judge, train = walk
    lines = offline_report(judge, Constant(0.3), train, names="x", called="(step 7, file) ", num_judgements=4)
    assert "of the worst, entry 0 (x), and" in lines[0]
    assert lines[4].startswith("this policy        (step 7, file) return ")
    assert lines[4].endswith("held-out episodes; the best of 4 judgements, so a little high")


def test_the_logging_policy_is_measured_over_whole_episodes():
    """Ten whole episodes of twelve rewards of 1; thirty that a gap cut after four. With two whole ones, all count."""
    data = walk_log(40)
    data["next", "reward"].fill_(1.0)
    long, short = data[: 10 * LIMIT], data[10 * LIMIT :].reshape(30, LIMIT)[:, :4].clone()
    short["next", "truncated"][:, -1] = short["next", "done"][:, -1] = True

    def judge_of(train):
        env = ModelBasedEnv(Walk(), specs_of(data), termination_fn=never_terminates)
        held_out = short.reshape(-1)[:20]
        return Judge(env, train, held_out)

    judge = judge_of(torch.cat([long, short.reshape(-1)[20:]]))
    assert judge.whole == 10 and judge.logged.value == 12.0
    few = judge_of(torch.cat([long[: 2 * LIMIT], short.reshape(-1)[20:]]))
    assert few.whole == 0 and few.logged.value == pytest.approx((2 * 12 + 30 * 4) / 32)
    lines = offline_report(few, Constant(0.0), long)
    assert "mean of all episodes, since fewer than three are whole" in lines[3]


def test_the_page_says_how_many_imagined_episodes_end(walk):
    """One that goes up by 0.3 a step passes 2, the end, within twelve steps from most starts."""
    judge, train = walk
    env = ModelBasedEnv(Walk(noise=0.0), specs_of(train), termination_fn=lambda following, action: following > 2.0)
    ending = Judge(env, train, torch.cat(judge.held_out))
    starts = torch.stack([episode["observation"][0] for episode in ending.held_out]).flatten()
    lines = offline_report(ending, Constant(0.3), train)
    # members drift by -0.02, 0 and 0.02 a step: after twelve steps the state is x + 12 (0.3 + b)
    share = torch.stack([starts + LIMIT * (0.3 + drift) > 2.0 for drift in (-0.02, 0.0, 0.02)]).float().mean()
    assert lines[3].startswith(f"early ends         {share:.0%} of imagined episodes terminate within {LIMIT} steps")
    assert lines[3].endswith("; 0% of those logged")
