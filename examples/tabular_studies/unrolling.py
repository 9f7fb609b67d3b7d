"""Appendix A: how the values of the unrolled MDP approach those of the MDP with cycles."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import torch
from matplotlib.figure import Figure
from tabular_studies.figures import BLUE, GREEN, ORANGE, Findings, check_numbers, new_figure
from tabular_studies.nroom import follow
from tabular_studies.toy import NO_CHOICE
from torch import Tensor
from tqdm import tqdm

from eqr_torchrl.functional import wasserstein_distance
from eqr_torchrl.networks.layers import check_counts
from eqr_torchrl.tabular import (
    bellman_targets,
    nroom_mdp,
    nroom_prior,
    policy_iteration,
    process_values,
    sample_toy_parameter,
    toy_mdp,
    value_distribution_samples,
)


def unrolling(
    generator: torch.Generator, progress: bool, *, max_horizon: int, num_samples: int, beta: float, num_episodes: int
) -> Findings:
    """How the value distribution of the unrolled MDP approaches that of the MDP with cycles."""
    check_counts(max_horizon=max_horizon, num_samples=num_samples, num_episodes=num_episodes)
    check_numbers(beta=beta)
    x = sample_toy_parameter("example", num_samples, generator=generator)
    policy, _ = policy_iteration(nroom_mdp(left_prize_ends_episode=True))
    posterior = nroom_prior().update(follow(policy, [num_episodes], horizon=20))
    grid_worlds = posterior.sample_process(policy, (num_samples,), generator=generator)[:, 0]
    studies = {
        "toy": (f"toy MDP, $\\beta = {beta:g}$", toy_mdp(beta, x).under(NO_CHOICE), 0),
        "nroom": (f"three rooms after {num_episodes} episodes", grid_worlds, nroom_mdp().initial_state),
    }
    horizons = torch.logspace(0, math.log10(max_horizon), 40).round().long().unique()
    labels = {  # by column of the table
        "same_dynamics": "same dynamics at all steps",
        "own_dynamics": "dynamics of its own at each step",
        "own_dynamics_by_rank": "likewise, next values tied by rank as in EQR",
    }
    couplings: tuple[Literal["joint", "comonotone"], ...] = ("joint", "comonotone")
    summary, rows, errors, bounds = [f"1-Wasserstein distance at horizon {max_horizon}:"], [], {}, {}
    for name, (title, processes, state) in studies.items():
        truth = process_values(processes)[:, state]
        values = [torch.zeros_like(processes.rewards)] * 3  # with no step left
        distances = []
        for steps in tqdm(range(1, max_horizon + 1), disable=not progress, unit="step", desc=name):
            values[0] = bellman_targets(values[0].unsqueeze(-1), processes).squeeze(-1)
            for i, coupling in enumerate(couplings, start=1):
                values[i] = value_distribution_samples(
                    processes, num_iterations=1, coupling=coupling, initial_values=values[i], generator=generator
                )
            if steps in horizons:
                distances.append([float(wasserstein_distance(v[:, state], truth)) for v in values])
        errors[title] = dict(zip(labels.values(), torch.tensor(distances).unbind(-1), strict=True))
        bounds[title] = processes.gamma**horizons / (1 - processes.gamma) * processes.rewards.abs().amax(-1).mean()
        rows += [(name, int(horizon), *row) for horizon, row in zip(horizons, distances, strict=True)]
        summary += [
            f"  {name:5} {error:.4f} {label}" for error, label in zip(rows[-1][2:], labels.values(), strict=True)
        ]
    figure = plot_unrolling(horizons, errors, bounds=bounds)
    return Findings(summary, {"unrolling.png": figure}, {"unrolling.csv": (("mdp", "horizon", *labels), rows)})


def plot_unrolling(
    horizons: Tensor, errors: Mapping[str, Mapping[str, Tensor]], *, bounds: Mapping[str, Tensor]
) -> Figure:
    """Error of the value distribution of the unrolled MDP against its horizon, for Appendix A of the paper."""
    figure = new_figure(4.2 * len(errors), 3.6)
    panels = figure.subplots(1, len(errors), squeeze=False)[0]
    styles = ((BLUE, "-"), (ORANGE, "--"), (GREEN, "-."))
    for axes, (name, series) in zip(panels, errors.items(), strict=True):
        axes.plot(horizons, bounds[name], ":", color="0.4", label="bound of truncation")
        for (label, distances), (colour, style) in zip(series.items(), styles, strict=False):
            axes.plot(horizons, distances, style, color=colour, label=label)
        axes.set(xscale="log", yscale="log", xlabel="horizon $H$ (steps)", title=name)
        axes.set_ylim(bottom=1e-3)
    panels[0].set_ylabel("1-Wasserstein (return)")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure
