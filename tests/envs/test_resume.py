from __future__ import annotations

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.data import Bounded, Composite, Unbounded
from torchrl.envs import EnvBase, GymEnv, SerialEnv, StepCounter, TransformedEnv
from torchrl.envs.transforms import InitTracker, RewardSum

from eqr_torchrl.envs import ResumableEpisode, make_env
from eqr_torchrl.envs._numpy_rng import numpy_generator_state, set_numpy_generator_state

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def make(name, seed, **kwargs):
    env = make_env(name, seed=seed, **kwargs)
    for transform in (InitTracker(), StepCounter(), RewardSum(in_keys=["reward"], out_keys=["reward_sum"])):
        env.append_transform(transform)
    env.append_transform(episode := ResumableEpisode())
    return env, episode


def make_policy(env):
    """Noisy actions drawn from the global generator, as a stochastic actor's are."""
    low, high = env.action_spec.space.low, env.action_spec.space.high

    def act(observation):
        noise = torch.rand(env.action_spec.shape) * 0.5
        return low + (high - low) * (0.5 + 0.5 * torch.tanh(observation.sum())) * noise

    return TensorDictModule(act, in_keys=["observation"], out_keys=["action"])


def collect(env):
    from torchrl.collectors import Collector  # warns while it is imported

    collector = Collector(
        env, make_policy(env), frames_per_batch=1, total_frames=-1, auto_register_policy_transforms=False
    )
    return collector, iter(collector)


def take(transitions, steps):
    return torch.cat([next(transitions).exclude("collector") for _ in range(steps)])


CASES = [
    ("Pendulum-v1", 15, 7),
    ("MountainCarContinuous-v0", 12, 12),
    ("dmc/cheetah-run", 20, 33),
    ("Pendulum-v1", 9, 0),
]


@pytest.mark.parametrize(("name", "limit", "before"), CASES)
def test_an_interrupted_collector_goes_on_bit_for_bit(name, limit, before, tmp_path):
    # after `before` steps: mid-episode; just after an episode's end; in a later episode; not begun
    env, episode = make(name, seed=3, max_episode_steps=limit)
    torch.manual_seed(1)
    _, transitions = collect(env)
    if before:
        take(transitions, before)
    torch.save({"episode": episode.episode_state(), "rng": torch.get_rng_state()}, tmp_path / "state.pt")
    expected = take(transitions, 3 * limit)  # two resets and more
    assert expected["next", "done"].sum() >= 2

    saved = torch.load(tmp_path / "state.pt", weights_only=True)
    env, episode = make(name, seed=99, max_episode_steps=limit)  # the seed of the new environment does not matter
    episode.restore(saved["episode"])
    _, transitions = collect(env)
    torch.set_rng_state(saved["rng"])
    found = take(transitions, 3 * limit)
    assert set(found.keys(True, True)) == set(expected.keys(True, True))
    for key in expected.keys(True, True):
        assert torch.equal(found[key], expected[key]), key


def test_a_run_can_be_interrupted_again_and_again():
    env, episode = make("Pendulum-v1", seed=0, max_episode_steps=10)
    torch.manual_seed(1)
    _, transitions = collect(env)
    expected = take(transitions, 40)
    env, episode = make("Pendulum-v1", seed=0, max_episode_steps=10)
    torch.manual_seed(1)
    _, transitions = collect(env)
    found = []
    for steps in (3, 4, 8, 6, 19):  # the second interruption falls into an episode that was itself resumed
        found.append(take(transitions, steps))
        state, rng = episode.episode_state(), torch.get_rng_state()
        env, episode = make("Pendulum-v1", seed=5, max_episode_steps=10)
        episode.restore(state)
        _, transitions = collect(env)
        torch.set_rng_state(rng)
    assert torch.equal(torch.cat(found)["next", "observation"], expected["next", "observation"])


def test_counters_of_earlier_transforms_go_on():
    env, episode = make("Pendulum-v1", seed=0)
    rollout = env.rollout(6)
    state = episode.episode_state()
    env, episode = make("Pendulum-v1", seed=1)
    episode.restore(state)
    resumed = env.reset()
    for key in ("observation", "step_count", "reward_sum", "is_init"):
        assert torch.equal(resumed[key], rollout["next"][key][-1]), key


def test_restoring_leaves_the_global_generators_alone():
    env, episode = make("Pendulum-v1", seed=0)
    env.rollout(3)
    state = episode.episode_state()
    torch.rand(5)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    episode.restore(state)
    env.reset()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()  # noqa: NPY002


class OwnEnv(EnvBase):
    """Starts at random; the random number may come from torch's global generator or from one of its own."""

    def __init__(self, generator=None, noise=False):
        super().__init__()
        self.generator, self.noise, self.place = generator, noise, None
        self.observation_spec = Composite(observation=Unbounded((2,)))
        self.action_spec = Bounded(-1, 1, (2,))
        self.reward_spec = Unbounded((1,))

    def _reset(self, tensordict=None, **kwargs):
        self.place = torch.rand(2, generator=self.generator)
        return TensorDict({"observation": self.place}, [])

    def _step(self, tensordict):
        self.place = self.place + tensordict["action"] + (torch.rand(2) if self.noise else 0)
        done = torch.zeros(1, dtype=torch.bool)
        return TensorDict({"observation": self.place, "reward": self.place[:1], "done": done, "terminated": done}, [])

    def _set_seed(self, seed):
        torch.manual_seed(seed)


@pytest.mark.parametrize("own", [False, True])
def test_environments_written_in_torch_go_on(own):
    def make_own():
        env = TransformedEnv(OwnEnv(torch.Generator().manual_seed(0) if own else None), episode := ResumableEpisode())
        return env, episode

    env, episode = make_own()
    env.rollout(4)
    last = env.rollout(5)["next", "observation"][-1]
    state = episode.episode_state()
    following = env.reset()["observation"] if own else None
    env, episode = make_own()
    episode.restore(state)
    assert torch.equal(env.reset()["observation"], last)
    if own:
        assert torch.equal(env.reset()["observation"], following)


def test_a_simulator_that_does_not_repeat_itself_is_noticed():
    env = TransformedEnv(OwnEnv(torch.Generator(), noise=True), episode := ResumableEpisode())
    env.rollout(4)
    episode.restore(episode.episode_state())
    torch.manual_seed(7)
    episode._to_restore["rng"]["global"]["torch_cpu"] = torch.get_rng_state()
    with pytest.warns(UserWarning, match="did not repeat its episode: after 4 steps an observation is off by"):
        env.reset()


def test_long_episodes_are_noted_whole(monkeypatch):
    monkeypatch.setattr("eqr_torchrl.envs.resume._FIRST_CAPACITY", 8)
    env = TransformedEnv(OwnEnv(torch.Generator()), episode := ResumableEpisode())
    actions = env.rollout(40)["action"]  # more than are allocated at first
    assert torch.equal(episode.episode_state()["actions"][0], actions)


def test_misuse_is_one_line():
    env = TransformedEnv(GymEnv("Pendulum-v1"), ResumableEpisode()).append_transform(StepCounter())
    with pytest.raises(RuntimeError, match="must be the last transform: StepCounter follows it"):
        env.reset()
    env = TransformedEnv(SerialEnv(2, lambda: GymEnv("Pendulum-v1")), ResumableEpisode())
    with pytest.raises(RuntimeError, match=r"needs an unbatched environment: got batch size \(2,\)"):
        env.reset()
    with pytest.raises(RuntimeError, match="episode_state needs an episode"):
        ResumableEpisode().episode_state()
    env, episode = make("Pendulum-v1", seed=0)
    env.reset()
    other = TransformedEnv(OwnEnv(), other_episode := ResumableEpisode())
    other_episode.restore(episode.episode_state())
    with pytest.raises(RuntimeError, match="must have the random generators of the saved one"):
        other.reset()


@pytest.mark.parametrize("name", ["PCG64", "MT19937", "Philox", "SFC64"])
def test_every_numpy_generator_goes_on(name):
    generator = np.random.Generator(getattr(np.random, name)(3))
    generator.random(5)
    state = numpy_generator_state(generator)
    expected = generator.random(1000)
    set_numpy_generator_state(generator, state)
    np.testing.assert_array_equal(generator.random(1000), expected)


def test_random_state_goes_on_and_another_kind_is_refused():
    generator = np.random.RandomState(3)  # dm_control's
    generator.normal()  # leaves a cached second normal number
    state = numpy_generator_state(generator)
    expected = generator.normal(size=1000)
    set_numpy_generator_state(generator, state)
    np.testing.assert_array_equal(generator.normal(size=1000), expected)
    with pytest.raises(ValueError, match="must be a PCG64: got a MT19937"):
        set_numpy_generator_state(np.random.default_rng(0), state)
