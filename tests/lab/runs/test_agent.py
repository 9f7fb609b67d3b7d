"""A trained agent loads anywhere, runs no code from a file, acts within its bounds, and can be exported."""

from __future__ import annotations

import logging
import sys

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.envs.utils import ExplorationType, set_exploration_type

from eqr_torchrl.lab.runs import Agent, load_agent
from eqr_torchrl.lab.runs import agent as module
from eqr_torchrl.lab.runs.agent import describe_actor, policy_content, save_policy, space_of
from eqr_torchrl.networks import make_actor
from eqr_torchrl.objectives import EpistemicQuantileLoss
from eqr_torchrl.testing import toy_actor, toy_critic, toy_env


def bounded_env(low=(-3.0, 0.0), high=(1.0, 0.5)):
    env = toy_env(3, len(low))
    env.action_spec = type(env.action_spec)(torch.tensor(low), torch.tensor(high), (len(low),))
    return env


def policy_file(tmp_path, actor=None, settings=None, env=None):
    env = env or bounded_env()
    actor = actor or make_actor(env, num_cells=[8, 5], activation_class=nn.ReLU, log_std_bounds=(-4.0, 1.0))
    space = space_of(env)
    path = tmp_path / "cart.dat"  # any name
    content = policy_content(actor, describe_actor(actor, space), space, settings or {"env": {"name": "toy"}}, 7)
    save_policy(path, content)
    return path, actor


def test_a_policy_file_needs_neither_name_nor_environment_nor_hydra_and_acts_the_same(tmp_path, monkeypatch):
    path, actor = policy_file(tmp_path)
    for name in ("hydra", "hydra.utils", "omegaconf"):
        monkeypatch.setitem(sys.modules, name, None)
    agent = load_agent(path)
    observations = torch.randn(50, 3)
    with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
        expected = actor(TensorDict({"observation": observations}, [50]))["action"]
    torch.testing.assert_close(agent.act(observations), expected, rtol=0, atol=0)
    torch.testing.assert_close(agent.act(observations[0].numpy()), expected[0], rtol=0, atol=1e-6)
    inputs = TensorDict({"observation": observations}, [50])
    torch.testing.assert_close(agent.actor.get_dist(inputs).scale, actor.get_dist(inputs).scale, rtol=0, atol=0)
    assert (agent.env_steps, agent.evaluation, agent.folder) == (7, None, tmp_path)
    assert agent.space["env"] == "toy" and agent.space["action_high"] == [1.0, 0.5]


def test_a_policy_acts_within_its_trained_bounds_and_names_what_does_not_fit(tmp_path):
    path, _ = policy_file(tmp_path)
    actions = load_agent(path, env=bounded_env()).act(1e3 * torch.randn(500, 3))
    low, high = torch.tensor([-3.0, 0.0]), torch.tensor([1.0, 0.5])
    assert (actions >= low).all() and (actions <= high).all() and (actions.amax(0) - actions.amin(0) > 0.4).all()
    with pytest.raises(
        ValueError, match=r"trained with action_high=\[1.0, 0.5\], and toy has action_high=\[2.0, 0.5\]"
    ):
        load_agent(path, env=bounded_env(high=(2.0, 0.5)))
    with pytest.raises(ValueError, match="trained with observation_size=3, .* and toy has observation_size=4, "):
        load_agent(path, env=toy_env(4, 2))
    with pytest.raises(ValueError, match=r"observation must have 3 entries, as in training: got shape \(5, 4\)"):
        load_agent(path).act(torch.zeros(5, 4))


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        ([0.0, 1.0, float("nan")], "observation must be finite: got nan in entry 2."),
        ([[0.0, 1.0, 2.0], [0.0, float("-inf"), 2.0]], "observation must be finite: got -inf in entry 1."),
    ],
)
def test_an_observation_that_is_not_finite_is_an_error_that_names_the_entry(tmp_path, observation, message):
    agent = load_agent(policy_file(tmp_path)[0])
    with pytest.raises(ValueError, match=message):
        agent.act(observation)
    assert agent.act([3e38, 3e38, 0.0]).isfinite().all()  # whose sum is too large for float32, each entry is not


def test_no_code_from_a_policy_file_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for env in (
        {"_target_": "eqr_torchrl.lab.envs.make_env", "name": "os:system", "command": "touch pwned"},
        {"_target_": "os.system", "command": "touch pwned"},
    ):
        path, _ = policy_file(tmp_path, settings={"env": env, "actor": {"_target_": "os.system", "command": "touch p"}})
        agent = load_agent(path)
        with pytest.raises(ValueError, match=r"must not choose code: name='.*' in make_env allows it"):
            agent.make_env()
    assert [file.name for file in tmp_path.iterdir()] == ["cart.dat"]


def test_the_environment_of_a_policy_file_is_built_by_name_and_compared(tmp_path):
    pytest.importorskip("gymnasium")
    settings = {"env": {"_target_": "eqr_torchrl.lab.envs.make_env", "name": "Pendulum-v1", "max_episode_steps": 4}}
    path, _ = policy_file(tmp_path, settings=settings, env=bounded_env((-2.0,), (2.0,)), actor=None)
    env = load_agent(path).make_env(seed=0)
    assert env.env_name == "Pendulum-v1" and len(env.rollout(9)) == 4
    path, _ = policy_file(tmp_path, settings=settings, env=bounded_env((-1.0,), (2.0,)))
    with pytest.raises(ValueError, match=r"trained with action_low=\[-1.0\], and Pendulum-v1 has action_low=\[-2.0\]"):
        load_agent(path).make_env()


def test_an_agent_acts_in_one_environment_though_it_was_trained_in_several(tmp_path):
    pytest.importorskip("gymnasium")
    env = {"_target_": "eqr_torchrl.lab.envs.make_env", "name": "Pendulum-v1", "num_envs": 2}
    path, _ = policy_file(tmp_path, settings={"env": env}, env=bounded_env((-2.0,), (2.0,)))
    assert load_agent(path).make_env().batch_size == ()


def test_a_policy_of_ones_own_is_refused_in_one_line(tmp_path):
    leaky = make_actor(bounded_env(), num_cells=[4], activation_class=lambda: nn.Softplus(beta=3.0))
    own = TensorDictModule(nn.Linear(3, 2), ["observation"], ["action"])
    for actor in (leaky, own):  # a slope of its own is not in the file
        path, _ = policy_file(tmp_path, actor=actor)
        with pytest.raises(
            ValueError, match="holds a policy that make_actor did not build: load the run folder instead"
        ):
            load_agent(path)


def test_other_files_are_refused_in_one_line(tmp_path):
    torch.save({"weight": torch.ones(1)}, tmp_path / "policy.pt")
    (tmp_path / "text").write_text("no file of ours")
    unreadable = "cannot read .*: it is no file of torch.save"
    for name, words in (("policy.pt", "source must be a run folder"), ("text", unreadable)):
        with pytest.raises(ValueError, match=words) as error:
            load_agent(tmp_path / name)
        assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match='which must be "last" or "best"'):
        load_agent(tmp_path, which="first")
    with pytest.raises(ValueError, match=r"has no policy_best.pt: it was not evaluated"):
        load_agent(tmp_path, which="best")


def test_describing_a_policy_draws_no_random_number():
    actor, before = toy_actor(), torch.get_rng_state()
    assert describe_actor(actor, space_of(toy_env())) is not None
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("log_alpha", "alpha"), [(2.0, 1.5), (-5.0, 0.1), (0.0, 1.0)])
def test_the_temperature_of_an_agent_is_the_one_that_the_loss_uses(tmp_path, log_alpha, alpha):
    loss = EpistemicQuantileLoss(toy_actor(), toy_critic(), min_alpha=0.1, max_alpha=1.5)
    loss.log_alpha.data.fill_(log_alpha)
    assert Agent(tmp_path, {}, {}, 0, toy_actor(), loss=loss).alpha == pytest.approx(alpha)


@pytest.mark.parametrize(("suffix", "normalized"), [("pt2", False), ("pt2", True), ("onnx", True)])
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)  # of exporters
def test_an_exported_policy_acts_as_the_agent_without_it(tmp_path, caplog, suffix, normalized):
    if suffix == "onnx":
        onnxruntime = pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
    env = bounded_env()
    actor = make_actor(env, num_cells=[8, 5], layer_norm=normalized, normalize=normalized)
    if normalized:
        actor[0].module.network[0].update(torch.randn(9, 3) * 7 + 2)
    path, _ = policy_file(tmp_path, actor)
    agent = load_agent(path)
    exporter = logging.getLogger("torch.onnx")  # whose records do not reach the root
    exporter.addHandler(caplog.handler)
    exported = agent.export(tmp_path / f"policy.{suffix}")
    exporter.removeHandler(caplog.handler)
    assert "torchvision" not in caplog.text
    for count in (1, 7):  # any number of rows
        observations = torch.randn(count, 3)
        if suffix == "onnx":
            session = onnxruntime.InferenceSession(exported)
            [found] = session.run(["action"], {"observation": observations.numpy()})
        else:
            found = torch.export.load(exported).module()(observations).numpy()
        np.testing.assert_allclose(found, agent.act(observations).numpy(), rtol=0, atol=1e-5)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["cart.dat", f"policy.{suffix}"]


def test_an_export_that_acts_differently_is_refused(tmp_path, monkeypatch):
    path, _ = policy_file(tmp_path)
    forward = module._PlainPolicy.forward
    monkeypatch.setattr(module._PlainPolicy, "forward", lambda self, x: 0.99 * forward(self, x))
    with pytest.raises(RuntimeError, match="the exported policy differs by .* of the action range"):
        load_agent(path).export(tmp_path / "policy.pt2")
    assert [file.name for file in tmp_path.iterdir()] == ["cart.dat"]
    with pytest.raises(ValueError, match=r"path must end in .onnx or .pt2, got .*policy.npz"):
        load_agent(path).export(tmp_path / "policy.npz")
