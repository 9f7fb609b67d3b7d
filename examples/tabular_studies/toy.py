"""The toy MDP: EQR against the true posterior of values (Figures 2 and 5), quantiles as minima of a loss (Figure 4)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import matplotlib
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from tabular_studies.figures import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    Findings,
    check_numbers,
    draw_density,
    new_figure,
)
from torch import Tensor
from tqdm import tqdm

from eqr_torchrl.functional import quantile_projection, wasserstein_distance
from eqr_torchrl.networks.layers import check_counts
from eqr_torchrl.tabular import (
    EmpiricalPosterior,
    epistemic_quantile_regression,
    process_values,
    sample_toy_parameter,
    toy_mdp,
    value_distribution_iteration,
)

COLUMNS = ("gaussian", "bimodal", "heavy_tailed")  # left, middle and right column of Figure 5
NO_CHOICE = torch.zeros(4, dtype=torch.long)  # the policy of the toy MDP


def toy(
    generator: torch.Generator,
    progress: bool,
    *,
    num_samples: int,
    truncation: Literal["clipped", "truncated"],
    num_quantiles: int,
    num_iterations: int,
    step_size: float,
    num_betas: int,
    num_runs: int,
    num_limit_betas: int,
    example_beta: float,
) -> Findings:
    """EQR against the true posterior of values, without a cycle and with cycles of any strength."""
    check_counts(
        num_samples=num_samples, num_quantiles=num_quantiles, num_iterations=num_iterations, num_betas=num_betas,
        num_runs=num_runs, num_limit_betas=num_limit_betas,
    )  # fmt: skip
    check_numbers(step_size=step_size, example_beta=example_beta)

    def draw(name: str) -> Tensor:
        return sample_toy_parameter(name, num_samples, truncation=truncation, generator=generator)

    example_x = draw("example")
    example_values = process_values(toy_mdp(example_beta, example_x).under(NO_CHOICE))[:, 0]
    x = torch.stack([draw(name) for name in COLUMNS])  # [P, Q]
    betas = torch.linspace(0, 1, num_betas, dtype=torch.float64)
    mdps = toy_mdp(betas.unsqueeze(-1), x.unsqueeze(1))  # [P, b, Q]
    values = process_values(mdps.under(NO_CHOICE))[..., 0]
    truth = quantile_projection(values, num_quantiles)  # [P, b, N]
    with tqdm(total=num_iterations, disable=not progress, unit="iteration") as bar:
        estimate = epistemic_quantile_regression(
            EmpiricalPosterior(mdps),
            NO_CHOICE,
            num_quantiles=num_quantiles,
            num_iterations=num_iterations,
            step_size=step_size,
            run_shape=(num_runs,),
            record_states=(0,),
            record_every=max(1, num_iterations // 500),
            progress=bar.update,
            generator=generator,
        )
    history = estimate.history[..., 0, :]  # [I, R, P, b, N]
    distances = wasserstein_distance(estimate.quantiles[..., 0, :], truth).movedim(0, -1)  # [P, b, R]
    averaged = wasserstein_distance(history[-math.ceil(len(history) / 10) :].mean(0), truth).mean(0)  # [P, b]

    # Where the updates vanish on average: the part of the distance that is no noise
    limit_betas = torch.linspace(0, 1, num_limit_betas, dtype=torch.float64)
    few_x = quantile_projection(x, 500)
    processes = toy_mdp(limit_betas, few_x.T.unsqueeze(-1)).under(NO_CHOICE)  # [500, P, c]
    limit_truth = quantile_projection(process_values(processes)[..., 0].movedim(0, -1), num_quantiles)
    limit = value_distribution_iteration(processes, num_quantiles=num_quantiles)[..., 0, :]
    limits = wasserstein_distance(limit, limit_truth)  # [P, c]

    summary = [f"1-Wasserstein distance after {num_iterations:,} iterations, mean and range of {num_runs} runs:"]
    summary += [
        f"  {name:12} beta {betas[at]:.0f}: {distances[column, at].mean():.3f} ({distances[column, at].min():.3f} to "
        f"{distances[column, at].max():.3f}), last tenth averaged {averaged[column, at]:.3f}, exact fixed point "
        f"{limits[column, at]:.3f}"
        for column, name in enumerate(COLUMNS)
        for at in (0, -1)
    ]
    rows = [
        (name, float(beta), run, float(distances[column, at, run]))
        for column, name in enumerate(COLUMNS)
        for at, beta in enumerate(betas)
        for run in range(num_runs)
    ]
    figures = {
        "toy.png": plot_toy(
            dict(zip(COLUMNS, values[:, 0], strict=True)),
            estimate.history_iterations,
            truth[:, 0] - history[:, 0, :, 0],
            betas,
            distances,
            limit_betas,
            limits,
        ),
        "uncertain_transition.png": plot_uncertain_transition(example_x, example_values, beta=example_beta),
    }
    return Findings(summary, figures, {"wasserstein.csv": (("posterior", "beta", "seed", "wasserstein_1"), rows)})


def qr_loss(
    generator: torch.Generator, progress: bool, *, num_samples: int, beta: float, levels: Sequence[float], num_grid: int
) -> Findings:
    """The quantile-regression loss, whose minima are the quantiles of the value distribution."""
    check_counts(num_samples=num_samples, num_grid=num_grid)
    check_numbers(beta=beta, **{f"levels[{i}]": level for i, level in enumerate(levels)})
    x = sample_toy_parameter("example", num_samples, generator=generator)
    values = process_values(toy_mdp(beta, x).under(NO_CHOICE))[:, 0]
    grid, level_tensor = torch.linspace(-1, 1, num_grid, dtype=torch.float64), torch.tensor(levels, dtype=torch.float64)
    gap = values - grid.unsqueeze(-1)  # [G, Q]
    losses = torch.outer(level_tensor, gap.relu().mean(-1)) + torch.outer(
        1 - level_tensor, (-gap).relu().mean(-1)
    )  # Eq. 13
    quantiles = torch.quantile(values, level_tensor, interpolation="nearest")
    summary = [
        f"  level {level:g}: quantile {quantile:.3f}, minimum of the loss at {grid[at]:.3f}"
        for level, quantile, at in zip(levels, quantiles, losses.argmin(-1), strict=True)
    ]
    rows = [(level, float(v), float(losses[i, j])) for i, level in enumerate(levels) for j, v in enumerate(grid)]
    figure = plot_quantile_loss(values, level_tensor, grid, losses)
    return Findings(summary, {"qr_loss.png": figure}, {"qr_loss.csv": (("level", "v", "loss"), rows)})


def plot_toy(
    values: Mapping[str, Tensor],
    iterations: Tensor,
    errors: Tensor,
    betas: Tensor,
    distances: Tensor,
    limit_betas: Tensor,
    limits: Tensor,
) -> Figure:
    """The toy study, Figure 5 of the paper: densities, error of each quantile, distance against the cycle."""
    figure = new_figure(3.1 * len(values), 6.6)
    rows = figure.subplots(3, len(values), sharex="row", sharey="row", squeeze=False)
    grid = torch.linspace(-1, 1, 500)
    for column, (name, samples) in enumerate(values.items()):
        density, error, distance = rows[:, column]
        draw_density(density, samples, grid, BLUE)
        density.set(title=name.replace("_", "-"), xlabel="value $V(s_0)$ (return)")
        # ordered colours: the level of a quantile from low (dark) to high (light)
        for i, series in enumerate(errors[:, column].T):
            error.plot(iterations / 1000, series, color=shade(i, errors.shape[-1]), linewidth=0.9)
        error.axhline(0, color="black", linewidth=0.8)
        error.set(xlabel="thousand iterations", ylim=(-0.5, 0.2))
        runs = distances[column]
        distance.fill_between(betas, runs.amin(-1), runs.amax(-1), color=ORANGE, alpha=0.25, linewidth=0)
        distance.plot(betas, runs.mean(-1), color=ORANGE, label=f"EQR, mean and range of {runs.shape[-1]} runs")
        distance.plot(limit_betas, limits[column], "o", color="black", markersize=3.5, label="exact fixed point")
        distance.set_xlabel("probability $\\beta$ of the cycle")
    for row in (rows[0], rows[2]):  # only now do the shared axes know their range
        row[0].set_ylim(bottom=0)
    rows[0, 0].set_ylabel("density")
    rows[1, 0].set_ylabel("error, $\\beta = 0$ (return)")
    rows[2, 0].set_ylabel("1-Wasserstein (return)")
    rows[2, 0].legend(loc="upper left")
    draw_level_bar(figure, rows[1])
    return figure


def shade(i: int, count: int) -> Any:
    """Colour of level i, from low (dark) to high (light)."""
    return matplotlib.colormaps["viridis"](0.9 * (i + 0.5) / count)


def draw_level_bar(figure: Figure, row: Sequence[Axes]) -> None:
    colours = ListedColormap([matplotlib.colormaps["viridis"](0.9 * i / 255) for i in range(256)])
    figure.colorbar(ScalarMappable(cmap=colours), ax=list(row), label="quantile level", pad=0.01, aspect=12)


def plot_uncertain_transition(x: Tensor, values: Tensor, *, beta: float) -> Figure:
    """An uncertain transition and the distribution of values it induces: Figure 2 of the paper."""
    figure = new_figure(9, 2.7)
    diagram, transition, value = figure.subplots(1, 3)
    draw_toy_mdp(diagram)
    draw_density(transition, x, torch.linspace(0, 1, 500), BLUE)
    transition.set(xlabel="probability $X$ of $s_0 \\to s_2$", ylabel="density", title="Distribution over MDPs")
    draw_density(value, values, torch.linspace(-1, 1, 500), ORANGE)
    value.set(xlabel="value $V(s_0)$ (return)", title=f"Distribution of values, $\\beta = {beta:g}$")
    return figure


def draw_toy_mdp(axes: Axes) -> None:
    places = {"0": (0.1, 0.5), "1": (0.5, 0.88), "2": (0.5, 0.12), "3": (0.9, 0.5)}
    arrows = {  # from, to, curvature, label and its place
        ("0", "1", 0.0): ("$1 - X$", (0.24, 0.78)),
        ("0", "2", 0.18): ("$X$", (0.22, 0.2)),
        ("2", "0", 0.18): (r"$\beta$", (0.37, 0.42)),
        ("2", "3", 0.0): (r"$1 - \beta$", (0.77, 0.2)),
        ("1", "3", 0.0): ("$1$", (0.74, 0.78)),
    }
    for (start, end, bend), (label, at) in arrows.items():
        arrow = {
            "arrowstyle": "-|>",
            "shrinkA": 14,
            "shrinkB": 14,
            "color": "0.2",
            "connectionstyle": f"arc3,rad={bend}",
        }
        axes.annotate("", places[end], places[start], arrowprops=arrow)
        axes.text(*at, label, ha="center", va="center")
    rewards = {"0": "0", "1": "+1", "2": "$-$1", "3": "end"}
    for state, (x, y) in places.items():
        axes.scatter([x], [y], s=560, color="white", edgecolor="0.2", zorder=3)
        axes.text(x, y, f"$s_{state}$", ha="center", va="center", zorder=4)
        axes.text(x, y + (0.13 if y < 0.8 else -0.15), rewards[state], ha="center", va="center", color=BLUE, fontsize=8)
    axes.set(xlim=(0, 1), ylim=(0, 1), title="MDP and rewards on leaving")
    axes.axis("off")


def plot_quantile_loss(values: Tensor, levels: Tensor, grid: Tensor, losses: Tensor) -> Figure:
    """The quantile-regression loss of the value distribution, Figure 4 of the paper."""
    figure = new_figure(8, 3)
    density, loss = figure.subplots(1, 2, sharex=True)
    draw_density(density, values, grid, "0.3")
    quantiles = torch.quantile(values, levels.to(values), interpolation="nearest")
    colours = [BLUE, SKY, GREEN, ORANGE, PURPLE]
    for i, level in enumerate(levels.tolist()):
        colour = colours[i % len(colours)]
        density.axvline(float(quantiles[i]), color=colour, label=f"$\\tau = {level:g}$")
        loss.plot(grid, losses[i], color=colour, label=f"$\\tau = {level:g}$")
        loss.axvline(float(grid[losses[i].argmin()]), color=colour, linewidth=1, linestyle="--")
    density.set(xlabel="value $V(s_0)$ (return)", ylabel="density", title="Values and their quantiles")
    loss.set(xlabel="$v$ (return)", ylabel="loss (return)", title="Quantile-regression loss and its minima")
    figure.legend(*loss.get_legend_handles_labels(), loc="outside right center")
    return figure
