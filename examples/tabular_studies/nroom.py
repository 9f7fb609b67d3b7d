"""The grid world of rooms: EQR on its posterior (Figure 6), and PSRL, which finds its policy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from matplotlib.figure import Figure
from tabular_studies.figures import (
    BLUE,
    GREEN,
    ORANGE,
    SKY,
    Findings,
    check_numbers,
    draw_density,
    new_figure,
)
from torch import Tensor
from tqdm import tqdm

from eqr_torchrl import tabular
from eqr_torchrl.functional import quantile_projection, wasserstein_distance
from eqr_torchrl.networks.layers import check_counts
from eqr_torchrl.tabular import (
    MDPEnv,
    TransitionStatistics,
    count_transitions,
    epistemic_quantile_regression,
    nroom_mdp,
    nroom_prior,
    policy_iteration,
    policy_values,
    sample_values,
)


def nroom(
    generator: torch.Generator,
    progress: bool,
    *,
    snapshots: Sequence[int],
    horizon: int,
    num_quantiles: int,
    num_iterations: int,
    step_size: float,
    num_truth: int,
    num_reference: int,
) -> Findings:
    """EQR on the posterior of a grid world after more and more episodes of the optimal policy."""
    check_counts(
        horizon=horizon, num_quantiles=num_quantiles, num_iterations=num_iterations, num_truth=num_truth,
        num_reference=num_reference, **{f"snapshots[{i}]": episode for i, episode in enumerate(snapshots)},
    )  # fmt: skip
    check_numbers(step_size=step_size)
    if not snapshots:
        raise ValueError("snapshots must hold at least one number of episodes, got none.")
    if num_truth > num_reference:
        raise ValueError(f"num_truth must not exceed num_reference, {num_reference}, got {num_truth}.")
    mdp = nroom_mdp()
    start = mdp.initial_state
    policy, _ = policy_iteration(nroom_mdp(left_prize_ends_episode=True))
    posterior = nroom_prior().update(follow(policy, snapshots, horizon))  # [P]
    values = sample_values(posterior, policy, num_reference, generator=generator)[..., start].T  # [P, Q]
    truth, reference = (quantile_projection(v, num_quantiles) for v in (values[:, :num_truth], values))  # [P, N]
    with tqdm(total=num_iterations, disable=not progress, unit="iteration") as bar:
        estimate = epistemic_quantile_regression(
            posterior,
            policy,
            num_quantiles=num_quantiles,
            num_iterations=num_iterations,
            step_size=step_size,
            record_states=(start,),
            progress=bar.update,
            generator=generator,
        )
    history = estimate.history[:, :, 0]  # [I, P, N]
    distances = wasserstein_distance(history, truth)  # [I, P]
    tail = history[-math.ceil(num_iterations / 10) :]
    to_truth, to_reference = (wasserstein_distance(tail, target).mean(0) for target in (truth, reference))  # [P]
    averaged = wasserstein_distance(tail.mean(0), reference)
    # What num_truth draws leave to chance: how far such samples are from the larger one
    samples = quantile_projection(values.unfold(-1, num_truth, num_truth), num_quantiles)  # [P, samples, N]
    chance = wasserstein_distance(samples, reference.unsqueeze(1)).mean(-1)  # [P]

    summary = [f"1-Wasserstein distance, mean over the last {len(tail):,} iterations:"]
    summary += [
        f"  after {episode:3} episodes: {to_truth[i]:.2f} from {num_truth:,} true values, which are themselves "
        f"{chance[i]:.2f} from the truth; {to_reference[i]:.2f} from {num_reference:,} true values, of which "
        f"{averaged[i]:.2f} remain if the iterates are averaged"
        for i, episode in enumerate(snapshots)
    ]
    rows = [
        (episode, iteration + 1, float(distance))
        for i, episode in enumerate(snapshots)
        for iteration, distance in enumerate(distances[:, i])
    ]
    figure = plot_nroom(
        snapshots,
        values[:, :num_truth],
        history[-1],
        estimate.history_iterations,
        distances,
        true_value=float(policy_values(mdp, policy)[start]),
        sampling_error=chance,
    )
    return Findings(summary, {"nroom.png": figure}, {"nroom.csv": (("episode", "iteration", "wasserstein_1"), rows)})


def psrl(generator: torch.Generator, progress: bool, *, num_episodes: int, horizon: int, num_runs: int) -> Findings:
    """PSRL finds the way to the prize."""
    check_counts(num_episodes=num_episodes, horizon=horizon, num_runs=num_runs)
    env = MDPEnv(nroom_mdp(left_prize_ends_episode=True), batch_size=(num_runs,))
    env.set_seed(generator.initial_seed())
    options = {"num_episodes": num_episodes, "horizon": horizon, "true_mdp": env.mdp, "generator": generator}
    with tqdm(total=num_episodes, disable=not progress, unit="episode") as bar:
        result = tabular.psrl(env, nroom_prior(), progress=bar.update, **options)
    regret = torch.as_tensor(result.regret)  # [episodes, R]
    tenth = math.ceil(num_episodes / 10)
    summary = [
        f"regret per episode: {regret[:tenth].mean():.3f} over the first {tenth} episodes, "
        f"{regret[-tenth:].mean():.3f} over the last {tenth}"
    ]
    rows = [
        (episode + 1, run, float(result.episode_returns[episode, run]), float(regret[episode, run]))
        for run in range(num_runs)
        for episode in range(num_episodes)
    ]
    figure = plot_regret(regret)
    return Findings(
        summary, {"psrl.png": figure}, {"psrl.csv": (("episode", "seed", "episode_return", "regret"), rows)}
    )


def follow(policy: Tensor, snapshots: Sequence[int], horizon: int) -> TransitionStatistics:
    """What the grid world shows to ``policy`` in its first episodes, up to each snapshot: batch shape ``[P]``."""
    env = MDPEnv(nroom_mdp(), batch_size=(max(snapshots),))
    episodes = env.rollout(horizon, lambda td: td.set("action", policy[td["observation"]]), break_when_any_done=False)
    seen = count_transitions(episodes, env.mdp.num_states, env.mdp.num_actions)
    last = torch.tensor(snapshots) - 1
    return TransitionStatistics(*(v.cumsum(0)[last] for v in (seen.counts, seen.reward_sums)))


def plot_nroom(
    episodes: Sequence[int],
    truth: Tensor,
    quantiles: Tensor,
    iterations: Tensor,
    distances: Tensor,
    *,
    true_value: float,
    sampling_error: Tensor,
) -> Figure:
    """The grid-world study, Figure 6 of the paper: density, distribution function and distance, column by column."""
    figure = new_figure(9.3, 6.6)
    rows = figure.subplots(3, len(episodes), sharex="row", squeeze=False)  # densities: each on a scale of its own
    grid, num_quantiles = torch.linspace(-15, 15, 600), quantiles.shape[-1]
    levels = (torch.arange(num_quantiles) + 0.5) / num_quantiles
    for column, count in enumerate(episodes):
        density, distribution, distance = rows[:, column]
        draw_density(density, truth[column], grid, BLUE, label="true (posterior samples)", style="--")
        draw_density(density, quantiles[column], grid, ORANGE, label="predicted (EQR)")
        ranks = (torch.arange(truth.shape[-1]) + 0.5) / truth.shape[-1]
        distribution.plot(truth[column].sort().values, ranks, "--", color=BLUE)
        distribution.plot(quantiles[column].sort().values, levels, color=ORANGE)
        for axes in (density, distribution):
            axes.axvline(true_value, color=GREEN, linestyle=":", label="value under the true dynamics")
            axes.set_xlim(-15, 15)
        density.set_title(f"after {count} episode{'s' if count > 1 else ''}")
        distribution.set_xlabel("value of the initial state (return)")
        distance.plot(iterations / 1000, distances[:, column], color=ORANGE, linewidth=1.0, label="EQR")
        label = f"error of {truth.shape[-1]:,} true samples"
        distance.axhline(float(sampling_error[column]), color="black", linewidth=1, linestyle="--", label=label)
        distance.set(xlabel="thousand iterations", ylim=(0, 2))
        if column:
            distribution.sharey(rows[1, 0])
    rows[0, 0].set_ylabel("density")
    rows[1, 0].set_ylabel("distribution function")
    rows[2, 0].set_ylabel("1-Wasserstein (return)")
    figure.legend(*rows[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    rows[2, 0].legend(loc="upper right")
    return figure


def plot_regret(regret: Tensor) -> Figure:
    """Cumulative regret of several runs, with their mean."""
    figure = new_figure(4.6, 3.2)
    axes = figure.subplots()
    episodes, cumulative = torch.arange(1, len(regret) + 1), regret.cumsum(0)
    for i, run in enumerate(cumulative.T):
        axes.plot(episodes, run, color=SKY, linewidth=0.9, label="one run" if i == 0 else None)
    axes.plot(episodes, cumulative.mean(-1), color=BLUE, label=f"mean of {regret.shape[-1]} runs")
    axes.set(xlabel="episode", ylabel="cumulative regret (return)", ylim=(0, None))
    axes.legend(loc="upper left")
    return figure
