"""A resumed run has the state of its checkpoint, the choices of its own settings, and one history."""

from __future__ import annotations

import os
import signal
import sys

import pytest
import torch
from test_run import episode, make_run, new_run
from torchrl.objectives import SACLoss, SoftUpdate

from eqr_torchrl.lab.runs import (
    capture_state,
    load_agent,
    load_checkpoint,
    read_csv,
    read_status,
    restore_state,
    save_checkpoint,
)
from eqr_torchrl.networks import make_actor, make_critic
from eqr_torchrl.objectives import EpistemicQuantileLoss, MemberwiseSACLoss
from eqr_torchrl.testing import toy_actor, toy_critic, toy_env
from eqr_torchrl.world_models import FixedStepsFit, GaussianEnsemble

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of TorchRL's collector, by TorchRL


def train(run, until=None):
    """The loop; left after step ``until``."""
    with run:
        for step in run.steps():
            run.log("train", {"x": float(step)})
            if step == until:
                break
    return run


def steps_saved(folder):
    return [int(path.stem[5:]) for path in sorted((folder / "checkpoints").glob("step_*.pt"))]


# --- a checkpoint holds state, a config holds choices


def test_the_rate_that_trains_is_the_one_of_the_resumed_run(tmp_path):
    def run_with(rate, **changes):
        weight = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(weight.weight)
        optimizer = torch.optim.SGD(weight.parameters(), lr=rate, momentum=0.0)
        run = make_run(tmp_path, parts={"weight": weight, "optimizer": optimizer}, log_every=1, **changes)
        with run:
            for step in run.steps():
                if step > 0:
                    weight.weight.grad = torch.ones(1, 1)
                    optimizer.step()
        return weight.weight.item()

    assert run_with(0.5) == pytest.approx(-6 * 0.5)
    assert run_with(0.01, resume=str(tmp_path), env_steps=10) == pytest.approx(-6 * 0.5 - 4 * 0.01)


def make_loss(kind, gamma, target_entropy, **bounds):
    critic = toy_critic(num_quantiles=1 if kind is SACLoss else 5)
    more = {"num_qvalue_nets": 1} if kind is SACLoss else {}
    loss = kind(toy_actor(), critic, target_entropy=target_entropy, **bounds, **more)
    loss.make_value_estimator(gamma=gamma)
    return loss


@pytest.mark.parametrize("kind", [EpistemicQuantileLoss, SACLoss])
def test_coefficients_of_a_loss_are_choices_and_its_temperature_is_state(tmp_path, kind):
    old = make_loss(kind, 0.99, -1.0, max_alpha=2.0)
    old.log_alpha.data.fill_(0.3)
    path = save_checkpoint(tmp_path / "a.pt", capture_state(loss=old))
    new = make_loss(kind, 0.5, -7.0, min_alpha=0.1)
    highest = None if new.max_log_alpha is None else new.max_log_alpha.item()  # TorchRL has a default
    restore_state(load_checkpoint(path), loss=new)
    gamma = new.value_estimator.gamma if kind is SACLoss else new.gamma
    assert (gamma.item(), new.target_entropy.item(), new.log_alpha.item()) == pytest.approx((0.5, -7.0, 0.3))
    assert new.min_log_alpha.exp().item() == pytest.approx(0.1)
    assert (None if new.max_log_alpha is None else new.max_log_alpha.item()) == highest
    weights = {key: value for key, value in old.state_dict().items() if "_params." in key}
    assert any("target_qvalue" in key for key in weights)
    assert all(torch.equal(new.state_dict()[key], value) for key, value in weights.items())


def test_another_first_temperature_cannot_take_effect_and_is_refused():
    state = capture_state(loss=make_loss(EpistemicQuantileLoss, 0.9, -1.0, alpha_init=1.0))
    with pytest.raises(ValueError, match="loss.alpha_init=0.5 cannot take effect: .* began at 1"):
        restore_state(state, loss=make_loss(EpistemicQuantileLoss, 0.9, -1.0, alpha_init=0.5))
    fixed = make_loss(EpistemicQuantileLoss, 0.9, -1.0, alpha_init=0.5, fixed_alpha=True)
    restore_state(state, loss=fixed)  # a fixed temperature is a choice
    assert fixed.log_alpha.exp().item() == pytest.approx(0.5)


def test_a_fixed_temperature_keeps_the_unit_of_the_values():
    """0.02 in a unit of 100 is 2, before and after a resume, and after the next fit too."""

    def made():
        networks = (
            make_actor(toy_env(), num_cells=(8,), normalize=True),
            make_critic(toy_env(), num_quantiles=5, num_cells=(8,), normalize=True),
        )
        loss = MemberwiseSACLoss(*networks, alpha_init=0.02, fixed_alpha=True)
        SoftUpdate(loss, tau=0.5)
        return loss

    before, after = made(), made()
    before.set_scales(torch.randn(50, 3), 100.0)
    restore_state(capture_state(loss=before), loss=after)
    for _ in range(2):
        assert after.log_alpha.exp().item() == pytest.approx(2.0) and float(after.value_unit) == 100.0
        after.set_scales(torch.randn(50, 3), 100.0)


def test_the_bounds_of_the_noise_are_those_of_the_resumed_run():
    def model(bounds):
        return GaussianEnsemble(2, 1, num_members=2, num_cells=[4], log_var_bounds=bounds)

    x, narrow = torch.zeros(2, 1, 3), model((-4.0, -3.0))
    saved = capture_state(model=model((-10.0, 0.5)))
    restore_state(saved, model=narrow)
    with torch.no_grad():
        scale = narrow(x[..., :2], x[..., 2:])[1]
    assert (scale.log() * 2 > -4.0).all() and (scale.log() * 2 < -2.6).all()  # softly: -3 and what softplus(-1) adds


def test_the_rate_of_a_fit_is_that_of_the_resumed_run():
    def make(rate):
        return FixedStepsFit(GaussianEnsemble(2, 1, num_members=2, num_cells=[4]), lr=rate)

    fit = make(1e-2)
    restore_state(capture_state(fit=make(1e-3)), fit=fit)
    assert fit.optimizer.param_groups[0]["lr"] == 1e-2


@pytest.mark.parametrize("names", [("optimizer", "schedule"), ("schedule", "optimizer")])
def test_a_schedule_continues_and_another_one_is_refused(names):
    def make(rate):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)
        return {"optimizer": optimizer, "schedule": torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)}

    old, new = make(1.0), make(1.0)
    old["optimizer"].step()
    old["schedule"].step()
    restore_state(capture_state(**old), **{name: new[name] for name in names})
    assert new["optimizer"].param_groups[0]["lr"] == pytest.approx(0.1)
    with pytest.raises(ValueError, match=r"schedule: rates \[2.0\] cannot take effect"):
        restore_state(capture_state(**old), **{name: part for name, part in make(2.0).items() if name in names})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"env": {"reward_scale": 0.01}}, "saved with env.reward_scale=1.0, this run has env.reward_scale=0.01"),
        ({"env": {"reward_scale": 1.0, "mass": 2}}, "saved with env.mass=None, this run has env.mass=2"),
        ({"seed": 4}, "saved with seed=3, this run has seed=4, which cannot take effect on resume"),
        ({"warmup_steps": 3}, "saved with warmup_steps=2, this run has warmup_steps=3"),
        ({"env_steps": 5}, "env_steps must be at least 6"),
    ],
)
def test_what_cannot_take_effect_is_refused_by_name(tmp_path, changes, words):
    env = {"reward_scale": 1.0, "max_episode_steps": 20}
    train(make_run(tmp_path, env=env))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=words):
        train(make_run(tmp_path, resume=str(tmp_path), **{"env": env, **changes}))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    longer = make_run(tmp_path, resume=str(tmp_path), env={"reward_scale": 1.0, "max_episode_steps": 30}, env_steps=7)
    assert train(longer).step == 7


def test_other_action_bounds_are_refused(tmp_path):
    train(make_run(tmp_path))
    wide = toy_env()
    wide.action_spec = type(wide.action_spec)(-2.0, 2.0, (1,))
    run = make_run(tmp_path, resume=str(tmp_path))
    run.keep(env=wide, policy=toy_actor())
    with pytest.raises(ValueError, match=r"saved with action_low=\[-1.0\], action_high=\[1.0\], this run has .*2.0"):
        run.__enter__()


# --- one history


def test_resuming_from_an_older_checkpoint_leaves_the_abandoned_branch_behind(tmp_path):
    keep = {"checkpoint_every": 1, "keep_checkpoints": 9, "log_every": 1, "eval_every": 1}
    train(make_run(tmp_path, **keep))
    assert steps_saved(tmp_path) == [1, 2, 3, 4, 5, 6]
    train(make_run(tmp_path, resume=str(tmp_path / "checkpoints" / "step_000000002.pt"), **keep), until=3)
    assert steps_saved(tmp_path) == [1, 2, 3]
    assert [row["env_steps"] for row in read_csv(tmp_path / "metrics.csv")] == ["1", "2"]  # left before its row
    assert {row["env_steps"] for row in read_csv(tmp_path / "evaluations.csv")} == {"1", "2"}
    assert load_agent(tmp_path / "checkpoints" / "policy.pt").env_steps == 3
    run = train(make_run(tmp_path, resume="auto", **keep))
    assert [row["env_steps"] for row in read_csv(tmp_path / "metrics.csv")] == ["1", "2", "4", "5", "6"]
    assert run.step == 6 and steps_saved(tmp_path) == [1, 2, 3, 4, 5, 6]


# --- how a loop ends


def test_a_loop_that_is_left_early_is_saved_and_is_not_finished(tmp_path, capsys):
    train(make_run(tmp_path), until=4)
    status = read_status(tmp_path)
    assert (status["state"], status["env_steps"]) == ("stopped", 4)
    words = f"stopped at env step 4; resume with resume={tmp_path} (continues from env step 4)"
    assert status["reason"] == words and words in capsys.readouterr().out
    assert steps_saved(tmp_path) == [4]
    train(make_run(tmp_path, resume="auto"))
    assert (read_status(tmp_path)["state"], steps_saved(tmp_path)) == ("finished", [6])


def test_a_finished_run_stays_finished_when_it_is_resumed(tmp_path, capsys):
    train(make_run(tmp_path))
    capsys.readouterr()
    train(make_run(tmp_path, resume=str(tmp_path)))
    assert "already finished; to train longer: " in capsys.readouterr().out
    assert read_status(tmp_path)["state"] == "finished" and steps_saved(tmp_path) == [6]


def test_steps_without_the_context_say_what_is_missing(tmp_path):
    with pytest.raises(RuntimeError, match=r"steps\(\) must be called inside `with run:`"):
        next(make_run(tmp_path).steps())


@pytest.mark.parametrize(("at", "saved"), [(3, [3]), (-1, [0])])  # in the warm-up under 0
def test_sigterm_saves_between_two_steps_and_ends_with_143(tmp_path, capsys, at, saved):
    before, seen = signal.getsignal(signal.SIGTERM), []
    with pytest.raises(SystemExit) as stopped, make_run(tmp_path) as run:  # noqa: PT012
        for step in run.steps():
            seen.append(step)
            if step == at:
                signal.raise_signal(signal.SIGTERM)
                seen.append("whole step")
    assert stopped.value.code == 143 and seen[-2:] == [at, "whole step"]
    assert read_status(tmp_path)["state"] == "interrupted" and steps_saved(tmp_path) == saved
    told = capsys.readouterr().err
    assert "stopping after this step" in told and f"interrupted at env step {at}; resume with" in told
    assert signal.getsignal(signal.SIGTERM) == before
    resumed = make_run(tmp_path, resume="auto")
    with resumed:
        assert next(iter(resumed.steps())) == at + 1


def test_a_second_sigterm_ends_at_once(tmp_path):
    with pytest.raises(SystemExit) as stopped, make_run(tmp_path) as run:  # noqa: PT012
        for _ in run.steps():
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
            raise AssertionError("not reached")
    assert stopped.value.code == 143 and read_status(tmp_path)["state"] == "interrupted"
    assert steps_saved(tmp_path) == []


def test_a_signal_in_the_last_step_leaves_a_finished_run(tmp_path):
    with pytest.raises(SystemExit), make_run(tmp_path) as run:  # noqa: PT012
        for step in run.steps():
            if step == 6:
                signal.raise_signal(signal.SIGTERM)
    assert read_status(tmp_path)["state"] == "finished" and steps_saved(tmp_path) == [6]


def test_handlers_of_others_stay_in_charge(tmp_path, monkeypatch):
    calls = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: calls.append(number))
    interrupt, real = signal.getsignal(signal.SIGINT), signal.getsignal
    # what Python says of a handler that it did not install, and could not restore
    monkeypatch.setattr(signal, "getsignal", lambda number: None if number == signal.SIGINT else real(number))
    try:
        with make_run(tmp_path) as run:
            assert real(signal.SIGINT) is interrupt
            for step in run.steps():
                if step == 1:
                    signal.raise_signal(signal.SIGTERM)
        assert calls == [signal.SIGTERM] and read_status(tmp_path)["state"] == "finished"
        assert real(signal.SIGINT) is interrupt
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.skipif(not hasattr(signal, "SIGUSR2"), reason="POSIX")
def test_a_launcher_that_queues_a_job_again_is_called_after_a_checkpoint(tmp_path):
    def requeue(number, frame):  # as submitit does at a time limit
        assert steps_saved(tmp_path) == [3]
        sys.exit(7)

    before = signal.signal(signal.SIGUSR2, requeue)
    try:
        with pytest.raises(SystemExit) as stopped, make_run(tmp_path) as run:  # noqa: PT012
            for step in run.steps():
                if step == 3:
                    os.kill(os.getpid(), signal.SIGUSR2)
        assert stopped.value.code == 7 and read_status(tmp_path)["state"] == "interrupted"
        assert signal.getsignal(signal.SIGUSR2) is requeue
    finally:
        signal.signal(signal.SIGUSR2, before)


# --- what is recorded


def collected(folder, *, env=None, **changes):
    """A run with a collector; the transitions and the seeds that the environment was given."""
    from torchrl.collectors import Collector  # warns at import

    env, actor, seeds, rows = env or toy_env(max_steps=3), toy_actor(), [], []
    set_seed = env.set_seed
    env.set_seed = lambda seed, **kwargs: seeds.append(seed) or set_seed(seed, **kwargs)
    run = make_run(folder, env_steps=11, warmup_steps=2, log_every=11, **changes)
    run.keep(env=env, policy=actor)
    collector = Collector(env, actor, frames_per_batch=1, total_frames=-1, auto_register_policy_transforms=False)
    transitions = run.watch(collector)
    with run:
        for _ in run.steps():
            rows.append(next(transitions)["next"])
    return rows, seeds


def test_returns_and_lengths_of_training_episodes_are_recorded(tmp_path):
    rows, _ = collected(tmp_path)
    # episodes of 3 steps: 13 steps with the warm-up are four whole episodes
    returns = [sum(row["reward"].item() for row in rows[i : i + 3]) for i in range(0, 12, 3)]
    [found] = read_csv(tmp_path / "metrics.csv")
    assert float(found["collect/episode_return"]) == pytest.approx(sum(returns) / 4, rel=1e-5)
    assert found["collect/episode_length"] == "3.0"


def test_an_episode_that_a_checkpoint_truncates_is_no_episode(tmp_path):
    # episodes of 20 steps, a checkpoint every 2 * 2 steps truncates each of them
    collected(tmp_path, env=toy_env(max_steps=20), checkpoint_every=2)
    [found] = read_csv(tmp_path / "metrics.csv")
    assert "collect/episode_return" not in found


def test_the_environment_has_another_seed_after_each_checkpoint_and_the_same_one_when_resumed(tmp_path):
    # 2 steps of warm-up and episodes of 3: ends after steps 1, 4, 7, 10; a checkpoint and a reset at the last three
    whole = {"checkpoint_every": 2, "keep_checkpoints": 9}
    _, seeds = collected(tmp_path / "whole", **whole)
    assert len(seeds) == 3 and len(set(seeds)) == 3
    middle = str(tmp_path / "whole" / "checkpoints" / "step_000000007.pt")
    _, again = collected(tmp_path / "resumed", resume=middle, **whole)
    assert again == seeds[1:]


def test_evaluation_can_be_switched_off(tmp_path):
    def never(num_episodes, seed):
        raise AssertionError("must not be evaluated")

    run = train(make_run(tmp_path, never, eval_every=None))
    assert run.last_return is None and read_status(tmp_path)["state"] == "finished"
    assert not (tmp_path / "evaluations.csv").exists()


def test_the_policy_of_the_best_evaluation_is_kept(tmp_path):
    def run_until(until, **changes):
        actor, returns = toy_actor(), {1: 5.0, 2: 46.8, 3: -4.8, 4: float("nan"), 5: 46.8, 6: 9.0}

        def evaluate(num_episodes, seed):
            return [episode(i) | {"episode_return": returns[run.step]} for i in range(num_episodes)]

        run = make_run(tmp_path, evaluate, eval_every=1, checkpoint_every=0, eval_episodes=2, **changes)
        run.keep(env=toy_env(), policy=actor)
        with run:
            for step in run.steps():
                next(actor.parameters()).data.fill_(float(step))
                if step == until:
                    break

    run_until(4)
    run_until(None, resume="auto")
    best, last = load_agent(tmp_path, which="best"), load_agent(tmp_path / "checkpoints" / "policy.pt")
    assert best.evaluation == {"mean_return": 46.8, "num_episodes": 2, "env_steps": 2}  # the first of two equals
    assert last.evaluation == {"mean_return": 9.0, "num_episodes": 2, "env_steps": 6}
    weights = [(next(agent.actor.parameters()) == step).all() for agent, step in ((best, 2), (last, 6))]
    assert all(weights) and (best.env_steps, last.env_steps) == (2, 6)


def test_a_folder_is_named_by_algorithm_utility_environment_and_seed(tmp_path):
    names = []
    for utility in ("cvar", ""):
        labels = {"algorithm": "member_values", "utility": utility}
        run = new_run(runs_root=str(tmp_path), labels=labels)
        run.keep(env=toy_env(), policy=toy_actor())
        names.append(train(run).folder.name)
    assert names[0].startswith("member_values-cvar-toy-seed3-2") and names[1].startswith("member_values-toy-seed3-2")


def test_every_choice_of_an_optimiser_is_that_of_the_resumed_run():
    def adam(**choices):
        return torch.optim.Adam([torch.nn.Parameter(torch.ones(1))], **choices)

    new = adam(lr=0.1, weight_decay=0.5, betas=(0.5, 0.6), eps=1e-3)
    restore_state(capture_state(optimizer=adam(lr=1.0)), optimizer=new)
    (group,) = new.param_groups
    assert [group[name] for name in ("lr", "weight_decay", "betas", "eps")] == [0.1, 0.5, (0.5, 0.6), 1e-3]
