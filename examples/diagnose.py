"""Compares a trained agent's values with its models and with real episodes: figures and numbers.

    python examples/diagnose.py runs/eqr_sac-Pendulum-v1-seed0
    python examples/diagnose.py runs/.../checkpoints/step_000005000.pt --states 4 --episodes 20
    python examples/diagnose.py runs/eqr_sac-MountainCarContinuous-v0-seed0 --plane 0,1

Everything is measured on fresh episodes of the stochastic policy, which no model was fitted to. Values are soft: they
contain the entropy bonus at the checkpoint's temperature. A return is one noisy sample around a value, so calibration
against returns is strict where the policy or the environment is noisy. Episodes run until less than a hundredth of a
value is left, whatever the time limit of the run was.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import statistics
from pathlib import Path
from typing import Any, cast

import torch
from omegaconf import OmegaConf
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl.envs import EnvBase
from torchrl.objectives import SACLoss

from eqr_torchrl.lab._command import parser_of, run_command
from eqr_torchrl.lab.diagnostics import (
    Episodes,
    calibration_error,
    central_interval_coverage,
    conformal_interval,
    held_out_errors,
    member_returns,
    plot_calibration,
    plot_steps,
    plot_value_distribution,
    plot_value_maps,
    probability_integral_transform,
    rollout_drift,
    sample_episodes,
    spread_verdict,
    tail_steps,
    trajectory_windows,
    trusted_horizon,
    value_map,
    value_quantiles,
    value_spread,
)
from eqr_torchrl.lab.diagnostics.start_values import TAIL
from eqr_torchrl.lab.envs import renew_noise
from eqr_torchrl.lab.judging import diagnose_offline
from eqr_torchrl.lab.logs import returns_to_go
from eqr_torchrl.lab.runs import load_agent
from eqr_torchrl.objectives import MemberwiseSACLoss


def parse_arguments() -> argparse.Namespace:
    parser = parser_of(__doc__, "diagnose.py")
    parser.add_argument("source", type=Path, help="run folder, or one of its checkpoints")
    parser.add_argument(
        "--out", type=Path, help="folder for figures and numbers (figures/diagnostics in the run folder)"
    )
    parser.add_argument("--states", type=int, default=3, help="start states to look at (%(default)s)")
    parser.add_argument("--episodes", type=int, default=5, help="real episodes from each of them (%(default)s)")
    parser.add_argument("--visited", type=int, default=32, help="visited states for the spread (%(default)s)")
    parser.add_argument(
        "--rollouts", type=int, default=50, help="imagined episodes from each state in each member (%(default)s)"
    )
    parser.add_argument(
        "--horizon", type=int, help="steps of the model's drift (those of the median episode, while they count)"
    )
    parser.add_argument(
        "--calibrate", type=int, default=40, metavar="N",
        help="episodes for intervals of new returns, half of them to check; 38 at least, or 0 (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--plane", metavar="I,J", help="state entries of the value maps (0,1 if there are but two)")
    parser.add_argument("--format", default="png", choices=["png", "pdf", "svg"], help="of the figures (%(default)s)")
    parser.add_argument("--seed", type=int, default=1_000_000, help="of everything random (%(default)s)")
    return parser.parse_args()


def check_arguments(args: argparse.Namespace, size: int) -> None:
    """Raises a ValueError for numbers that cannot be, before anything is computed."""
    for name in ("states", "episodes", "visited", "rollouts", "horizon"):
        if (value := getattr(args, name)) is not None and value < 1:
            raise ValueError(f"--{name} must be positive, got {value}.")
    if args.calibrate and args.calibrate < 38:
        raise ValueError(f"--calibrate must be 0 or at least 38, got {args.calibrate}.")
    entries = [int(entry) if entry.strip().isdecimal() else size for entry in (args.plane or "").split(",")]
    if args.plane is not None and (len(set(entries)) != 2 or len(entries) != 2 or max(entries) >= size):
        raise ValueError(f"--plane must be two state entries below {size}, such as 0,1: got {args.plane}.")


def started(env: Any, seed: int, noise: int) -> Any:
    """The start of an episode, which ``seed`` fixes; what happens then follows from ``noise``."""
    env.set_seed(seed)
    start = env.reset()
    renew_noise(env, noise)
    return start


def main() -> None:
    args = parse_arguments()
    agent = load_agent(args.source)
    check_arguments(args, agent.space["observation_size"])
    if "held_out" in agent.settings:  # of examples/offline.py: there may be no simulator
        print(*diagnose_offline(args.source), sep="\n")
        return
    cfg: Any = OmegaConf.create(agent.settings)
    folder, actor, critic, alpha = agent.folder, agent.actor, agent.critic, agent.alpha
    steps = 2 * tail_steps(cfg.gamma)  # the first half has small tails
    env = agent.make_env(max_episode_steps=steps)
    model_env = agent.make_model_env(env)
    out = args.out or folder / "figures" / "diagnostics"
    out.mkdir(parents=True, exist_ok=True)
    report = []

    def show(title: str, header: list[str], rows: list[list[str]]) -> None:
        report.append(f"{title}\n{aligned(header, rows)}\n")
        print("\n" + report[-1], end="")

    def say(line: str) -> None:
        report.append(line + "\n")
        print(line)

    limit = cfg.env.get("max_episode_steps") or "its own"
    say(
        f"Episodes run for up to {steps} steps here, of which the first half is judged: a value looks beyond the time "
        f"limit of training ({limit})."
    )
    calibrating = f", then {args.calibrate} episodes of up to {steps // 2} for intervals" if args.calibrate else ""
    say(
        f"This runs {args.states * args.episodes} real episodes, and from {args.states} start states {args.rollouts} "
        f"imagined ones of {steps // 2} steps in each of {model_env.world_model.num_members} members{calibrating}."
    )

    # Real episodes: several from each start state, which differ in the noise of the environment
    noise = itertools.count(args.seed + args.states)
    groups = [
        sample_episodes(
            env, actor, num_episodes=args.episodes, max_steps=steps, gamma=cfg.gamma, alpha=alpha,
            seed=args.seed + state, reset_fn=lambda env, state=state: started(env, args.seed + state, next(noise)),
        )
        for state in range(args.states)
    ]  # fmt: skip
    episodes = [episode for group in groups for episode in group.transitions]
    transitions = joined(episodes)
    plain = torch.stack([returns_to_go(episode, cfg.gamma)[0] for episode in episodes])
    returns = [r for group in groups for r in completed(group, critic, actor, args.seed)]
    tails = [weight for group in groups for weight in group.tail_weight]
    starts = torch.stack([group.transitions[0]["observation"][0] for group in groups])

    # 1. The world model: one step, and many
    errors = held_out_errors(model_env.world_model, transitions)
    names = entry_names(env, starts.shape[-1])
    predicted = [*names, "reward"]
    least, worst = errors.explained.nan_to_num(nan=torch.inf).min(1)  # what never changes cannot be explained
    off, where = errors.standardised.max(1)
    rows = [
        [
            str(m),
            f"{errors.nll[m]:.2f}",
            f"{least[m]:.3f} ({predicted[worst[m]]})",
            f"{off[m]:.2f} ({predicted[where[m]]})",
        ]
        for m in range(len(errors.nll))
    ]
    header = ["member", "NLL (nats)", "least explained variance", "largest standardised error"]
    show(f"World model on {len(transitions)} unseen transitions, one step", header, rows)
    say(
        "Explained variance: of the change of an entry in a step (of the reward itself). 1 is perfect, 0 as good as "
        "the mean, negative worse: usual for an entry that hardly changes, where little but noise is left to explain. "
        "Standardised error: in predicted standard deviations, 1 if the predicted noise is right."
    )
    if model_env.world_model.predicts_reward:
        low, high = (end.item() for end in errors.mse[:, -1].sqrt().aminmax())
        spread_of_rewards = transitions["next", "reward"].std(correction=0).item()
        say(
            f"Reward: root mean square error {low:.3g} to {high:.3g} between members, where rewards have a standard "
            f"deviation of {spread_of_rewards:.3g}, in units of reward."
        )
    typical = int(statistics.median(len(episode) for episode in episodes))
    length = args.horizon or min(steps // 2, typical)
    windows = [trajectory_windows(episode, length) for episode in episodes if len(episode) >= length]
    if not windows:
        raise ValueError(f"--horizon must be at most the longest episode, {max(map(len, episodes))}, got {length}.")
    drift = rollout_drift(model_env, joined(windows), seed=args.seed)
    lines = {"error": drift.error, "epistemic": drift.epistemic, "aleatoric": drift.aleatoric}
    plot_steps(lines, out / f"model_drift.{args.format}", ylabel="in std of the states")
    trusted = trusted_horizon(drift)
    shown = sorted({1, min(cfg.rollout.horizon, length), max(trusted, 1), length})
    rows = [
        [str(t), f"{drift.error[t - 1].mean():.3f}", f"{drift.epistemic[t - 1]:.3f}", f"{drift.aleatoric[t - 1]:.3f}"]
        for t in shown
    ]
    show("Drift from real trajectories", ["step", "error", "epistemic std", "aleatoric std"], rows)
    say(f"The error stays below the spread of the states for {trusted} of {length} steps.")

    # 2. Values at the start states
    quantiles = value_quantiles(critic, actor, starts, num_actions=32, seed=args.seed)
    imagined = member_returns(
        model_env, actor, starts, horizon=steps // 2, gamma=cfg.gamma, num_rollouts=args.rollouts, alpha=alpha,
        seed=args.seed,
    ).returns.mean(-1)  # fmt: skip
    from_start = torch.stack([r[0] for r in returns]).unflatten(0, (args.states, args.episodes))
    labels = [f"start state {i + 1}" for i in range(args.states)]
    plot_value_distribution(
        quantiles, labels, out / f"value_distribution.{args.format}", returns=list(from_start), member_values=imagined
    )
    rows = [
        [
            label,
            mean_and_std(q),
            mean_and_std(m),
            mean_and_error(r),
            mean_and_error(p),
        ]
        for label, q, m, r, p in zip(labels, quantiles, imagined, from_start, plain.view_as(from_start), strict=True)
    ]
    is_posterior = not isinstance(agent.loss, SACLoss)  # its critics estimate one value each
    kind = f"posterior of {quantiles.shape[-1]} atoms" if is_posterior else f"{quantiles.shape[-1]} critics"
    header = ["mean (std)", kind, "ensemble members", "real returns, mean ± SEM", "of these, rewards alone"]
    show("Values at start states with the entropy bonus", header, rows)

    # 3. Calibration on visited state-action pairs whose returns are complete
    covered, complete = math.nan, torch.cat(tails) < TAIL
    if is_posterior and complete.any():
        truth = torch.cat(returns)[complete]
        with torch.no_grad():
            posterior = critic(cast(TensorDictBase, transitions[complete]))["state_action_value"]
        nominal = torch.tensor([0.0, 0.2, 0.4, 0.5, 0.6, 0.8, 0.9, 0.95])
        coverage = central_interval_coverage(posterior, truth, nominal)
        covered = float(coverage[3])
        ranks = probability_integral_transform(posterior, truth)
        plot_calibration(coverage, nominal, ranks, out / f"calibration.{args.format}")
        rows = [[f"{p:.0%}", f"{c:.1%}"] for p, c in zip(nominal[1:].tolist(), coverage[1:], strict=True)]
        show(f"Returns inside central intervals, {len(truth)} visited states", ["nominal", "covered"], rows)
        say(
            f"Kolmogorov-Smirnov distance of these returns: {calibration_error(posterior, truth):.3f}, from 0 (the "
            "atoms are distributed as the returns are) to 1. It judges returns; the verdict judges the models."
        )

    # 4. The critic's spread against that of the members, at visited states
    if is_posterior:
        visited = torch.linspace(0, len(transitions) - 1, min(args.visited, len(transitions))).long()
        spread = value_spread(
            model_env, actor, critic, transitions["observation"][visited], horizon=trusted, gamma=cfg.gamma,
            alpha=alpha, memberwise=isinstance(agent.loss, MemberwiseSACLoss), num_rollouts=args.rollouts,
            seed=args.seed,
        )  # fmt: skip
        verdict = spread_verdict(spread, coverage=None if math.isnan(covered) else covered)
        found = {
            "memberwise": "yes" if spread.memberwise else "no",
            "horizon": str(trusted),
            "left_out": f"{spread.left_out:.3f}",
            "critic_std": f"{spread.critic_std:.3g}",
            "member_std": f"{spread.member_std:.3g}",
            "ratio": f"{spread.ratio:.3g}",
            "error": f"{spread.error:.3g}",
            "coverage_50": f"{covered:.3f}",
        }
        show(f"Spread of values at {len(visited)} visited states", list(found), [list(found.values())])
        say(verdict)
        with open(out / "spread.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([[*found, "verdict"], [*found.values(), verdict]])

    # 5. Intervals for the return of a new episode, from half of the episodes and checked on the others
    if args.calibrate:
        fresh = sample_episodes(
            env, actor, num_episodes=args.calibrate, max_steps=steps // 2, gamma=cfg.gamma, alpha=alpha,
            seed=args.seed + args.states,
        )  # fmt: skip
        truth = torch.stack([r[0] for r in completed(fresh, critic, actor, args.seed)])
        first = torch.stack([episode["observation"][0] for episode in fresh.transitions])
        atoms = value_quantiles(critic, actor, first, num_actions=32, seed=args.seed)
        half = args.calibrate // 2
        interval = conformal_interval(atoms[:half].mean(-1), truth[:half])
        held = interval.coverage(atoms[half:].mean(-1), truth[half:])
        raw = central_interval_coverage(atoms[half:], truth[half:], [0.9])[0]
        width = (atoms[half:].quantile(0.95, dim=-1) - atoms[half:].quantile(0.05, dim=-1)).mean()
        ends, length = f"value {-interval.below:+.3g} to {interval.above:+.3g}", interval.above + interval.below
        rows = [["critic's atoms, 5 % to 95 %", f"{width:.3g}", f"{raw:.0%}"]] if is_posterior else []
        rows.append([ends, f"{length:.3g}", f"{held:.0%}"])
        count = len(truth) - half
        show("Return of a new episode, intervals of 90 %", ["interval", "width", f"holds, of {count} others"], rows)
        say(
            f"The last is calibrated on {half} episodes (split conformal); a right interval holds 90 % of {count} "
            f"others, give or take {math.sqrt(0.09 / count):.0%}."
        )

    # 6. Maps over a plane of states
    plane = args.plane or ("0,1" if starts.shape[-1] == 2 else None)
    if plane:
        i, j = (int(entry) for entry in plane.split(","))
        observed = transitions["observation"]
        x, y = (torch.linspace(observed[:, k].min().item(), observed[:, k].max().item(), 100) for k in (i, j))
        mean, std = value_map(critic, actor, x, y, observation=observed.median(0).values, entries=(i, j))
        maps = {"mean of the value (return)": mean, "epistemic std of the value (return)": std}
        axes = {"xlabel": names[i], "ylabel": names[j]}
        plot_value_maps(x, y, maps, out / f"value_map.{args.format}", **axes)
    (out / "diagnostics.txt").write_text("\n".join(report), encoding="utf-8")
    print(f"\nWritten to {out}")


def completed(
    episodes: Episodes, critic: TensorDictModuleBase, policy: TensorDictModuleBase, seed: int
) -> list[torch.Tensor]:
    """Returns whose little rest beyond the end of the episode is the critic's mean there."""
    ends = torch.stack([episode["next", "observation"][-1] for episode in episodes.transitions])
    beyond = value_quantiles(critic, policy, ends, num_actions=32, seed=seed).mean(-1)
    parts = zip(episodes.returns, episodes.tail_weight, beyond, strict=True)
    return [returns + weight * value for returns, weight, value in parts]


def entry_names(env: EnvBase, size: int) -> list[str]:
    """Names of the entries of the state: ``env.entry_names``, where the environment has them."""
    names: list[str] = list(getattr(env, "entry_names", None) or [])
    return names if len(names) == size else [f"state entry {i}" for i in range(size)]


def joined(parts: list[TensorDictBase]) -> TensorDictBase:
    return cast(TensorDictBase, torch.cat(parts))  # pyright: ignore[reportArgumentType, reportCallIssue]


def aligned(header: list[str], rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return "\n".join("  ".join(map(str.rjust, row, widths)) for row in [header, *rows])


def mean_and_error(returns: torch.Tensor) -> str:
    """Mean and its standard error, from several returns."""
    error = f" ± {returns.std() / math.sqrt(len(returns)):.2f}" if len(returns) > 1 else ""
    return f"{returns.mean():.2f}{error}"


def mean_and_std(values: torch.Tensor) -> str:
    return f"{values.mean():.2f} ({values.std(correction=0):.2f})"


def cli() -> None:
    """The command line."""
    run_command(main)


if __name__ == "__main__":
    cli()
