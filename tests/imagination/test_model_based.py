from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torchrl.envs import Compose, InitTracker, RewardSum, StepCounter, TransformedEnv
from torchrl.envs.utils import ExplorationType, check_env_specs, set_exploration_type

from eqr_torchrl.imagination import ModelBasedEnv, never_terminates
from eqr_torchrl.testing import toy_actor, toy_env
from eqr_torchrl.world_models import GaussianEnsemble

DRIFT, REWARD = [1.0, 10.0, 100.0], [0.5, 1.5, 2.5]
ORIGIN, STARTS = torch.zeros(1, 3), torch.randn(20, 3)


def minus_distance(observation, action, next_observation):
    """A known reward that needs all of its arguments, of one shape."""
    return -torch.cat([next_observation - observation, action], -1).abs().sum(-1, keepdim=True)


def toy_still(tensordict):
    return tensordict.set("action", torch.zeros(*tensordict.batch_size, 1))


@pytest.fixture
def env_of(known_model):
    def make(*, scale=0.0, known_reward=False, observation_dim=3, **kwargs):
        model = known_model(DRIFT, None if known_reward else REWARD, observation_dim=observation_dim, scale=scale)
        defaults = {"termination_fn": never_terminates, "rows_per_member": 4, "start_states": ORIGIN}
        if known_reward:
            defaults["reward_fn"] = minus_distance
        return ModelBasedEnv(model, toy_env(), **(defaults | kwargs))

    return make


@pytest.mark.filterwarnings("ignore::UserWarning")  # check_env_specs seeds the environment and says so
@pytest.mark.parametrize("member", ["fixed", "resampled"])
@pytest.mark.parametrize("known_reward", [False, True])
def test_it_keeps_torchrls_rules_for_environments(env_of, member, known_reward):
    env = env_of(
        member=member,
        known_reward=known_reward,
        scale=1.0,
        termination_fn=lambda s, a: s[..., :1] > 2,
        start_states=STARTS,
    )
    check_env_specs(env, break_when_any_done="both")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_model_in_float64_keeps_them_too_and_takes_what_numpy_gives():
    model, starts = GaussianEnsemble(3, 1, num_members=2, num_cells=(8,)).double(), STARTS.numpy().astype("float32")
    env = ModelBasedEnv(model, toy_env(), termination_fn=never_terminates, start_states=starts)
    check_env_specs(env)
    assert env.reset()["observation"].dtype == env.rollout(2)["next", "observation"].dtype == torch.float64
    assert {id(p) for p in env.parameters()} == {id(p) for p in model.parameters()}


def test_a_row_stays_in_its_member(env_of):
    rollout = env_of().rollout(5)
    assert rollout.batch_size == (3, 4, 5)
    steps = torch.arange(1.0, 6.0)
    expected = torch.tensor(DRIFT)[:, None, None] * steps
    torch.testing.assert_close(rollout["next", "observation"][..., 0], expected.expand(3, 4, 5))
    torch.testing.assert_close(rollout["next", "reward"][..., 0], torch.tensor(REWARD)[:, None, None].expand(3, 4, 5))
    assert not rollout["next", "done"].any()


def test_resampled_rows_get_any_member_alike_at_every_step_and_each_is_evaluated_once(env_of):
    env = env_of(member="resampled", rows_per_member=200)
    rollout = env.rollout(10)
    moves = rollout["next", "observation"][..., 0] - rollout["observation"][..., 0]
    member = moves.log10().round().long()
    torch.testing.assert_close(rollout["next", "reward"][..., 0], torch.tensor(REWARD)[member])
    assert env.world_model.rows == [200] * 10  # rows of each member in every call
    for step in range(10):
        assert (member[..., step].flatten().bincount() == 200).all()  # dealt out evenly
    for row in range(3):  # and independently of row and step
        share = member[row].flatten().bincount(minlength=3) / 2000
        torch.testing.assert_close(share, torch.full((3,), 1 / 3), atol=0.05, rtol=0)
    stays = (member[..., 1:] == member[..., :-1]).float().mean()
    assert stays.item() == pytest.approx(1 / 3, abs=0.04)


def test_a_transition_is_mean_plus_scaled_noise(env_of):
    env, observation, noise = env_of(scale=0.5), torch.randn(3, 4, 3), torch.randn(3, 4, 6, 4)
    next_observation, reward, terminated = env.sample_next(observation, torch.zeros(3, 4, 1), noise)
    drift, pay = (torch.tensor(x).view(3, 1, 1, 1) for x in (DRIFT, REWARD))
    torch.testing.assert_close(next_observation, observation[:, :, None] + drift + 0.5 * noise[..., :3])
    torch.testing.assert_close(reward, (pay + 0.5 * noise[..., 3:]))
    assert terminated.shape == (3, 4, 6, 1) and terminated.dtype == torch.bool


def test_a_known_reward_sees_state_action_and_next_state(env_of):
    env = env_of(known_reward=True, scale=0.5)
    observation, action, noise = torch.randn(3, 4, 3), torch.randn(3, 4, 1), torch.randn(3, 4, 6, 3)
    next_observation, reward, _ = env.sample_next(observation, action, noise)
    expected = -(next_observation - observation[:, :, None]).abs().sum(-1) - action.abs()
    torch.testing.assert_close(reward.squeeze(-1), expected.expand(3, 4, 6))
    rollout = env.rollout(2)
    moved = (rollout["next", "observation"] - rollout["observation"]).abs().sum(-1, keepdim=True)
    torch.testing.assert_close(rollout["next", "reward"], -moved - rollout["action"].abs())


def test_terminations_are_those_of_predicted_states_and_actions(env_of):
    def far_or_pushed(next_observation, action):
        return (next_observation[..., :1] > 50) | (action > 0.9)

    env = env_of(termination_fn=far_or_pushed)
    state = env.reset()
    state["action"] = torch.zeros(3, 4, 1)
    state["action"][0, 0] = 1.0
    out = env.step(state)["next"]
    expected = torch.tensor([[True, False, False, False], [False] * 4, [True] * 4]).unsqueeze(-1)
    for key in ("terminated", "done"):
        assert torch.equal(out[key], expected)
    assert not out["truncated"].any()


def test_only_the_rows_that_are_over_start_again(env_of):
    # member m moves by 1, 10, 100 and is over beyond 15: after 2 and 1 steps for the last two
    env = env_of(termination_fn=lambda s, a: s[..., :1] > 15, start_states=torch.full((1, 3), 0.25))
    rollout = env.rollout(4, break_when_any_done=False)
    states = rollout["observation"][:, 0, :, 0].tolist()
    assert states == [[0.25, 1.25, 2.25, 3.25], [0.25, 10.25, 0.25, 10.25], [0.25] * 4]


def test_rollouts_start_where_they_are_told_or_at_random_start_states(env_of):
    start = torch.randn(3, 4, 3)
    before = start.clone()
    rollout = env_of().rollout(2, tensordict=TensorDict({"observation": start}, [3, 4]))
    assert torch.equal(rollout["observation"][:, :, 0], before) and torch.equal(start, before)
    pool = torch.arange(5.0)[:, None].expand(5, 3)
    drawn = env_of(start_states=pool, rows_per_member=2000).reset()["observation"][..., 0]
    counts = drawn.long().flatten().bincount()
    assert ((counts - 1200).abs() < 5 * 1200**0.5).all()


def test_it_works_with_torchrls_policies_and_transforms(env_of):
    transforms = Compose(
        InitTracker(), StepCounter(max_steps=3), RewardSum(in_keys=["reward"], out_keys=["reward_sum"])
    )
    env = TransformedEnv(env_of(), transforms)
    rollout = env.rollout(5, toy_actor())
    assert rollout.batch_size == (3, 4, 3) and rollout["next", "truncated"][..., -1, :].all()
    sums = torch.tensor(REWARD)[:, None, None] * torch.arange(1.0, 4.0)
    torch.testing.assert_close(rollout["next", "reward_sum"][..., 0], sums.expand(3, 4, 3))
    assert (rollout["action"].abs() <= 1).all() and len(rollout["action"].unique()) > 30


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_works_in_torchrls_collector(env_of):
    from torchrl.collectors import Collector  # warns while it is imported

    collector = Collector(
        env_of(), toy_actor(), frames_per_batch=24, total_frames=48, auto_register_policy_transforms=False
    )
    batches = list(collector)
    assert [batch.batch_size for batch in batches] == [(3, 4, 2)] * 2
    assert batches[1]["observation"][2, 0, 0, 0] == 200  # goes on where it was


def test_gradients_reach_the_policy_through_the_model():
    model = GaussianEnsemble(3, 1, num_members=2, num_cells=(8,))
    env = ModelBasedEnv(model, toy_env(), termination_fn=never_terminates, rows_per_member=2, start_states=ORIGIN)
    actor = toy_actor()
    env.rollout(3, actor)["next", "reward"].sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in actor.parameters())


@pytest.mark.parametrize("member", ["fixed", "resampled"])
def test_a_seed_fixes_everything(env_of, member):
    env = env_of(member=member, scale=1.0, start_states=torch.randn(9, 3))
    rollouts = []
    for seed in (1, 1, 2):
        env.set_seed(seed)
        rollouts.append(env.rollout(3, toy_still)["next", "observation"])
    assert torch.equal(rollouts[0], rollouts[1]) and not torch.equal(rollouts[0], rollouts[2])


def test_the_real_environment_is_never_stepped(known_model):
    real = toy_env()

    def refuse(*args, **kwargs):
        raise AssertionError("the real environment was used")

    real._step = real._reset = refuse
    env = ModelBasedEnv(known_model(DRIFT, REWARD), real, termination_fn=never_terminates, start_states=ORIGIN)
    env.rollout(2)


def test_a_transformed_environment_lends_its_specs_alone(known_model):
    real = TransformedEnv(toy_env(), Compose(StepCounter(), RewardSum()))
    env = ModelBasedEnv(known_model(DRIFT, REWARD), real, termination_fn=never_terminates, start_states=ORIGIN)
    assert set(env.observation_spec.keys()) == {"observation"} and set(env.reward_keys) == {"reward"}
    assert env.action_spec.shape == (3, 1, 1)
    assert (env.action_spec.space.low == -1).all() and (env.action_spec.space.high == 1).all()


@pytest.mark.parametrize("member", ["fixed", "resampled"])
@pytest.mark.parametrize("exploration", list(ExplorationType))
def test_the_models_noise_does_not_depend_on_how_policies_explore(env_of, exploration, member):
    env = env_of(scale=0.5, member=member, rows_per_member=2000)
    with set_exploration_type(exploration):
        reward = env.rollout(1, toy_still)["next", "reward"]
    # where rows change members, the means of these, 0.5, 1.5 and 2.5, spread by 2 / 3 besides
    assert reward.var((1, 2, 3)).tolist() == pytest.approx([0.25 + 2 / 3 * (member == "resampled")] * 3, abs=0.1)


@pytest.mark.parametrize("member", ["fixed", "resampled"])
def test_whether_a_step_ends_the_episode_is_a_matter_of_the_predicted_state_alone(env_of, member):
    env = env_of(member=member, termination_fn=lambda s, a: s[..., :1] > 1e6)
    state = env.reset()
    for key in ("terminated", "done", "truncated"):  # flags of a replayed state
        state[key] = torch.ones(3, 4, 1, dtype=torch.bool)
    out = env.step(state.set("action", torch.zeros(3, 4, 1)))["next"]
    assert not any(out[key].any() for key in ("terminated", "done", "truncated"))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"member": "random"}, 'member must be "fixed" or "resampled", got \'random\''),
        ({"rows_per_member": 0}, "rows_per_member must be a positive integer, got 0"),
        ({"observation_dim": 2}, "must have the observation_dim of env, 3: got 2"),
        ({"reward_fn": minus_distance}, "predicts_reward=True, got minus_distance; or build .*learn_reward=false"),
        ({"known_reward": True, "reward_fn": None}, "is required .*predicts_reward=False, got None; or .*=true"),
    ],
)
def test_arguments_out_of_range_are_named(env_of, kwargs, message):
    with pytest.raises(ValueError, match=message) as error:
        env_of(**kwargs)
    assert "\n" not in str(error.value)


def test_a_reset_to_nowhere_says_what_it_needs(env_of):
    with pytest.raises(RuntimeError, match=r"needs start_states, or a tensordict with an observation: got neither"):
        env_of(start_states=None).reset()


WRONG = [  # of terminations, (next state, action), and of rewards, (state, action, next state)
    (lambda s, a: (s[..., :1] > 0).float(), r"returned float32 of shape \(3, 2, 1, 1\)"),
    (lambda s, a: s[..., 0] > 0, r"returned bool of shape \(3, 2, 1\)"),
    (lambda s, a: s > 0, r"returned bool of shape \(3, 2, 1, 3\)"),
    (lambda s, a: False, "returned a bool"),
    (lambda s, a: None, "returned None"),
    (lambda s, a: (s[..., :1] > 0).numpy(), "returned a numpy.ndarray"),
    (lambda s, a: s[..., 7:8].max() > 0, r"raised RuntimeError: max\(\)"),
    (lambda s: s[..., :1] > 0, "raised TypeError: .* takes 1 positional argument but 2 were given"),
    (lambda s, a, n: n[..., 0], r"returned float32 of shape \(3, 2, 1\)"),
    (lambda s, a, n: n[..., :1] > 0, r"returned bool of shape \(3, 2, 1, 1\)"),
    (lambda s, a, n: n[..., :1].long(), r"returned int64 of shape \(3, 2, 1, 1\)"),
    (lambda s, a, n: 1.0, "returned a float"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG)
def test_a_wrong_function_is_one_sentence_before_the_first_step(env_of, wrong, message):
    of_rewards = wrong.__code__.co_argcount == 3
    role, kind = ("reward_fn", "float") if of_rewards else ("termination_fn", "bool")
    needed = (
        rf"{role} must return a {kind} tensor of shape \(3, 2, 1, 1\) for observations \(3, 2, 1, 3\) .*: <lambda> "
    )
    with pytest.raises(ValueError, match=needed + message) as error:
        env_of(known_reward=of_rewards, **{role: wrong})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda loc, scale: loc, r"float32 of shape \(3, 2, 4\)\."),
        (lambda loc, scale: (loc, scale, scale), "float32 .*, float32 .*, float32 .*"),
        (lambda loc, scale: (loc[0], scale[0]), r"float32 of shape \(2, 4\), float32 of shape \(2, 4"),
        (lambda loc, scale: (loc[..., :3], scale[..., :3]), r"float32 of shape \(3, 2, 3\)"),  # no reward
    ],
)
def test_a_model_that_predicts_another_shape_is_one_sentence(known_model, monkeypatch, wrong, message):
    forward = known_model.forward
    monkeypatch.setattr(known_model, "forward", lambda self, *arguments: wrong(*forward(self, *arguments)))
    needed = r"world_model must return the tuple \(mean, standard deviation\), each of shape \(3, 2, 4\): KnownModel .*"
    env = ModelBasedEnv(known_model(DRIFT, REWARD), toy_env(), termination_fn=never_terminates)
    with pytest.raises(ValueError, match=needed + message) as error:
        env.step_rows(torch.zeros(3, 2, 3), torch.zeros(3, 2, 1))
    assert "\n" not in str(error.value)


def test_it_is_built_without_a_call_of_the_model_or_a_draw(known_model):
    model, before = known_model(DRIFT, REWARD), torch.get_rng_state()
    ModelBasedEnv(model, toy_env(), termination_fn=never_terminates)
    assert model.rows == [] and torch.equal(before, torch.get_rng_state())


def test_rewards_are_clipped_to_the_bounds_where_they_are_stated(env_of):
    state, action = torch.zeros(3, 1, 3), torch.zeros(3, 1, 1)
    reward = env_of(reward_bounds=(0.0, 1.0)).step_rows(state, action)[1]  # 0.5, 1.5 and 2.5 in the members
    torch.testing.assert_close(reward.flatten(), torch.tensor([0.5, 1.0, 1.0]))
    torch.testing.assert_close(env_of().step_rows(state, action)[1].flatten(), torch.tensor(REWARD))
    with pytest.raises(ValueError, match=r"reward_bounds must increase, got \(1.0, 0.0\)"):
        env_of(reward_bounds=(1.0, 0.0))


@pytest.mark.parametrize("shape", [(0, 3), (3,), (5, 4), (2, 5, 3)])
def test_start_states_of_another_shape_are_named_when_it_is_built(env_of, shape):
    with pytest.raises(ValueError, match=r"start_states must be of shape \[n, 3\] with n > 0, got"):
        env_of(start_states=torch.zeros(shape))


@pytest.fixture
def ending_model(known_model):
    """Member m ends an episode with probability 0, 0.2 or 1, whatever happens."""

    class Ending(known_model):
        def __init__(self):
            super().__init__(DRIFT, REWARD)
            self.predicts_termination = True

        def termination_probability(self, next_observation, action):
            assert next_observation.shape[:2] == action.shape[:2]
            return torch.tensor([0.0, 0.2, 1.0]).view(3, 1, 1).expand(*action.shape[:2], 1)

    return Ending()


def test_predicted_terminations_are_drawn_with_the_probability_of_the_member(ending_model):
    env = ModelBasedEnv(ending_model, toy_env(), termination_fn=None)
    ended = env.sample_next(torch.zeros(3, 500, 3), torch.zeros(3, 500, 1), torch.zeros(3, 500, 4, 4))[2]
    assert ended.shape == (3, 500, 4, 1) and ended.dtype == torch.bool
    share = ended.float().mean((1, 2, 3))
    assert share[0] == 0 and share[2] == 1 and abs(share[1] - 0.2) < 5 * (0.16 / 2000) ** 0.5
    assert env.rollout(1, tensordict=TensorDict({"observation": torch.zeros(3, 1, 3)}, [3, 1]))[2]["next", "done"].all()


def test_terminations_come_from_the_rule_or_from_the_model(ending_model, env_of):
    with pytest.raises(ValueError, match="termination_fn must be None for .*predicts_termination=True, got never_term"):
        ModelBasedEnv(ending_model, toy_env(), termination_fn=never_terminates)
    with pytest.raises(
        ValueError, match="termination_fn is required for .*predicts_termination=False, got None.*=true"
    ):
        env_of(termination_fn=None)


def test_start_states_are_finite_and_follow_the_environment(env_of):
    env = env_of(start_states=torch.zeros(2, 3)).double()
    assert env.start_states.dtype == torch.float64 and "start_states" not in env.state_dict()
    with pytest.raises(ValueError, match="start_states must be finite, got NaN or infinity in 1 of 2 rows"):
        env_of(start_states=torch.tensor([[0.0, 0.0, 0.0], [0.0, float("nan"), 1.0]]))
