"""The figures of the paper's MountainCar study, from the run folders of one algorithm.

    python benchmarks/mountain_car.py runs/seed0 runs/seed1 --points 2000 5000 10000 25000 --out benchmarks/results

Writes the returns of all runs (mountain_car.csv, mountain_car.png), and for each run the value posterior at the initial
state (-0.5 m, 0) and its mean and standard deviation over all states at the given checkpoints (mountain_car_values.csv,
mountain_car_seedN.png). With --published, a CSV with the columns of the published curves, their seeds are drawn behind.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from eqr_torchrl.lab.comparison import learning_curves, read_runs
from eqr_torchrl.lab.diagnostics import member_returns, sample_episodes, tail_steps, value_map, value_quantiles
from eqr_torchrl.lab.figures import COLOURS, COLUMN_WIDTH, draw_density, saved_figure
from eqr_torchrl.lab.runs import checkpoint_path, load_agent

START = [-0.5, 0.0]  # m, m per step
NUM_EPISODES = 10
WANTED = ("eqrsac", "ofu", 0.5)  # names of the published table: EQR-SAC, optimistic utility, rewards halved


class Snapshot(NamedTuple):
    """What one checkpoint believes of the start and of all states, and what ten episodes from the start were worth."""

    env_steps: int
    quantiles: Tensor  # [N], at the start
    members: Tensor  # [M], Monte-Carlo value of each member there
    returns: Tensor  # [NUM_EPISODES], soft and discounted
    paths: list[Tensor]  # [T, 2] each
    position: Tensor  # [X]
    velocity: Tensor  # [Y]
    mean: Tensor  # [Y, X]
    std: Tensor  # [Y, X]


def look(run: Path, env_steps: int) -> Snapshot:
    """Everything about one checkpoint of a run."""
    agent = load_agent(checkpoint_path(run, env_steps))
    actor, critic, gamma = agent.actor, agent.critic, agent.settings["gamma"]
    steps = 2 * tail_steps(gamma)
    env: Any = agent.make_env(max_episode_steps=steps)
    model_env = agent.make_model_env(env)
    start = torch.tensor([START])
    options = {"low": START[0], "high": START[0]}
    settings: dict[str, Any] = {"gamma": gamma, "alpha": agent.alpha, "seed": 0}
    episodes = sample_episodes(
        env,
        actor,
        num_episodes=NUM_EPISODES,
        max_steps=steps,
        reset_fn=lambda env: env.reset(options=options),
        **settings,
    )
    low, high = env.base_env.observation_space.low, env.base_env.observation_space.high
    x, y = (torch.linspace(float(low[i]), float(high[i]), 100) for i in (0, 1))
    mean, std = value_map(critic, actor, x, y)
    return Snapshot(
        env_steps,
        value_quantiles(critic, actor, start, num_actions=32)[0],
        member_returns(model_env, actor, start, horizon=steps, num_rollouts=NUM_EPISODES, **settings).returns.mean(-1)[
            0
        ],
        torch.stack([returns[0] for returns in episodes.returns]),
        [episode["observation"] for episode in episodes.transitions],
        x,
        y,
        mean,
        std,
    )


def draw(snapshots: list[Snapshot], path: Path) -> None:
    """Value posterior at the start, and maps of its mean and standard deviation, one column for each checkpoint."""
    with saved_figure(path, 2.1 * len(snapshots), 4.8) as figure:
        grid = figure.subplots(3, len(snapshots), squeeze=False, height_ratios=[1, 1.3, 1.3])
        for column, snapshot in enumerate(snapshots):
            draw_posterior(grid[0, column], snapshot)
            grid[0, column].set_title(f"{snapshot.env_steps:,} env steps")
            for panel, values in zip(grid[1:, column], (snapshot.mean, snapshot.std), strict=True):
                image = panel.pcolormesh(snapshot.position, snapshot.velocity, values, cmap="viridis", rasterized=True)
                figure.colorbar(image, ax=panel, aspect=15)
                panel.label_outer()
            for states in snapshot.paths:
                grid[1, column].plot(states[:, 0], states[:, 1], color="white", linewidth=0.3, alpha=0.6)
            grid[2, column].set_xlabel("position (m)")
        for row, label in enumerate(("posterior at the start", "mean of the value", "std of the value")):
            grid[row, 0].set_ylabel(label + "\nvelocity (m/step)" if row else label)
        lines = grid[0, 0].get_legend_handles_labels()[0]
        figure.legend(handles=lines, loc="outside upper center", ncols=3)


def draw_posterior(panel: Any, snapshot: Snapshot) -> None:
    """Density of the quantiles; values of members that lie outside are arrows at the margin."""
    mean = snapshot.returns.mean().item()
    draw_density(panel, snapshot.quantiles.double().numpy(), COLOURS[0], "-")
    panel.lines[0].set_label("critic's posterior")
    panel.axvline(mean, color="black", linestyle=":", linewidth=1, label="mean of ten real episodes")
    low, high = panel.get_xlim()
    inside = snapshot.members.clamp(low, high)
    for marker, chosen in (
        ("o", inside == snapshot.members),
        ("<", snapshot.members < low),
        (">", snapshot.members > high),
    ):
        label = "value in each member" if marker == "o" else None
        panel.plot(
            inside[chosen], [-0.12] * int(chosen.sum()), marker, color=COLOURS[1], markersize=4, label=label, ls=""
        )
    panel.set(xlabel="value", yticks=[])


def draw_returns(runs: pd.DataFrame, published: Path | None, path: Path) -> None:
    """Returns of every seed against env steps."""
    with saved_figure(path, COLUMN_WIDTH, 2.6) as figure:
        axes = figure.subplots()
        if published is not None:
            theirs = pd.read_csv(published).set_index(["algorithm", "utility", "reward_scale"]).loc[[WANTED]]
            for i, (_, curve) in enumerate(theirs.groupby("seed")):
                label = "published seeds" if i == 0 else None
                axes.plot(curve["step"] / 1e3, curve["return"], color="0.6", linewidth=0.6, alpha=0.8, label=label)
        for (seed, curve), colour in zip(learning_curves(runs).groupby("seed", sort=False), COLOURS, strict=False):
            axes.plot(curve["env_steps"] / 1e3, curve["episode_return"], color=colour, label=f"seed {seed}")
        axes.set(xlabel="thousand env steps after the warm-up", ylabel="episode return (rewards x 0.5)")
        figure.legend(loc="outside upper center", ncols=4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="run folders, one for each seed")
    parser.add_argument("--points", type=int, nargs="+", required=True, help="env steps of the checkpoints to look at")
    parser.add_argument("--published", type=Path, help="CSV: algorithm, utility, reward_scale, seed, step, return")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder (%(default)s)")
    args = parser.parse_args()
    runs = read_runs(args.runs)
    args.out.mkdir(parents=True, exist_ok=True)
    runs.drop(columns="file").to_csv(args.out / "mountain_car.csv", index=False)
    draw_returns(runs, args.published, args.out / "mountain_car.png")
    table = []
    for run in args.runs:
        seed = read_runs(run)["seed"][0]
        snapshots = [look(run, env_steps) for env_steps in args.points]
        draw(snapshots, args.out / f"mountain_car_seed{seed}.png")
        for s in snapshots:
            row: dict[str, Any] = {"seed": seed, "env_steps": s.env_steps}
            for name, values in (("quantiles", s.quantiles), ("members", s.members), ("returns", s.returns)):
                row |= {f"{name}_mean": f"{values.mean():.3f}", f"{name}_std": f"{values.std():.3f}"}
            table.append(row)
            print(row, flush=True)
    pd.DataFrame(table).to_csv(args.out / "mountain_car_values.csv", index=False)


if __name__ == "__main__":
    main()
