"""Figures of the tabular studies. The only file of this folder that imports matplotlib, and only when it draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec

import torch
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "plot_nroom",
    "plot_quantile_loss",
    "plot_regret",
    "plot_toy",
    "plot_uncertain_transition",
    "plot_unrolling",
]

# Okabe and Ito's palette, told apart by colour-blind readers; black stands for the truth
_BLUE, _ORANGE, _GREEN, _PURPLE, _SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9"
_STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.6,
    "savefig.dpi": 150,
}
_P = ParamSpec("_P")


def _styled(draw: Callable[_P, Figure]) -> Callable[_P, Figure]:
    @wraps(draw)
    def drawn(*args: _P.args, **kwargs: _P.kwargs) -> Figure:
        import matplotlib

        with matplotlib.rc_context(_STYLE):  # pyright: ignore[reportArgumentType]
            return draw(*args, **kwargs)

    return drawn


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _density(samples: Tensor, grid: Tensor) -> Tensor:
    """Gaussian kernel density estimate with Scott's bandwidth."""
    bandwidth = max(float(samples.std()) * len(samples) ** -0.2, 1e-12)
    scaled = (grid.unsqueeze(-1) - samples) / bandwidth
    return (-0.5 * scaled.square()).exp().mean(-1) / (bandwidth * (2 * torch.pi) ** 0.5)


def _draw_density(
    axes: Axes, samples: Tensor, grid: Tensor, colour: str, *, label: str | None = None, style="-"
) -> None:
    density = _density(samples, grid)
    axes.plot(grid, density, style, color=colour, label=label)
    axes.fill_between(grid, density, color=colour, alpha=0.15, linewidth=0)


def _draw_toy_mdp(axes: Axes) -> None:
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
        axes.text(
            x, y + (0.13 if y < 0.8 else -0.15), rewards[state], ha="center", va="center", color=_BLUE, fontsize=8
        )
    axes.set(xlim=(0, 1), ylim=(0, 1), title="MDP and rewards on leaving")
    axes.axis("off")


@_styled
def plot_uncertain_transition(x: Tensor, values: Tensor, *, beta: float) -> Figure:
    """An uncertain transition and the distribution of values it induces: Figure 2 of the paper.

    Args:
        x: draws of the uncertain probability, shape ``[J]``.
        values: the value of ``s0`` under each, in units of return, shape ``[J]``.
        beta: probability of the cycle.

    Returns:
        The figure.

    Examples:
        >>> x = torch.rand(50)
        >>> len(plot_uncertain_transition(x, 1 - 2 * x, beta=0.0).axes)
        3
    """
    figure = _figure(9, 2.7)
    diagram, transition, value = figure.subplots(1, 3)
    _draw_toy_mdp(diagram)
    _draw_density(transition, x, torch.linspace(0, 1, 500), _BLUE)
    transition.set(xlabel="probability $X$ of $s_0 \\to s_2$", ylabel="density", title="Distribution over MDPs")
    _draw_density(value, values, torch.linspace(-1, 1, 500), _ORANGE)
    value.set(xlabel="value $V(s_0)$ (return)", title=f"Distribution of values, $\\beta = {beta:g}$")
    return figure


@_styled
def plot_quantile_loss(values: Tensor, levels: Tensor, grid: Tensor, losses: Tensor) -> Figure:
    """The quantile-regression loss of the value distribution, Figure 4 of the paper.

    Args:
        values: draws of the value of ``s0``, in units of return, shape ``[J]``.
        levels: quantile levels, shape ``[L]``.
        grid: values at which the loss was computed, in units of return, shape ``[G]``.
        losses: loss of each level, in units of return, shape ``[L, G]``.

    Returns:
        The figure. Vertical lines are the quantiles on the left, the minima of the losses on the right.

    Examples:
        >>> grid = torch.linspace(-1, 1, 50)
        >>> len(plot_quantile_loss(torch.rand(50), torch.tensor([0.5]), grid, grid.abs().unsqueeze(0)).axes)
        2
    """
    figure = _figure(8, 3)
    density, loss = figure.subplots(1, 2, sharex=True)
    _draw_density(density, values, grid, "0.3")
    quantiles = torch.quantile(values, levels.to(values), interpolation="nearest")
    colours = [_BLUE, _SKY, _GREEN, _ORANGE, _PURPLE]
    for i, level in enumerate(levels.tolist()):
        colour = colours[i % len(colours)]
        density.axvline(float(quantiles[i]), color=colour, label=f"$\\tau = {level:g}$")
        loss.plot(grid, losses[i], color=colour, label=f"$\\tau = {level:g}$")
        loss.axvline(float(grid[losses[i].argmin()]), color=colour, linewidth=1, linestyle="--")
    density.set(xlabel="value $V(s_0)$ (return)", ylabel="density", title="Values and their quantiles")
    loss.set(xlabel="$v$ (return)", ylabel="loss (return)", title="Quantile-regression loss and its minima")
    figure.legend(*loss.get_legend_handles_labels(), loc="outside right center")
    return figure


@_styled
def plot_toy(
    values: Mapping[str, Tensor],
    iterations: Tensor,
    errors: Tensor,
    betas: Tensor,
    distances: Tensor,
    limit_betas: Tensor,
    limits: Tensor,
) -> Figure:
    """The toy study, Figure 5 of the paper: densities, error of each quantile, distance against the cycle.

    Args:
        values: draws of the value of ``s0`` without a cycle, in units of return, shape ``[J]``, by posterior (``P``).
        iterations: iterations at which errors were recorded, shape ``[I]``.
        errors: true minus learnt quantile, in units of return, shape ``[I, P, N]``.
        betas: probabilities of the cycle, shape ``[b]``.
        distances: 1-Wasserstein distance after the last iteration, in units of return, shape ``[P, b, seeds]``.
        limit_betas: probabilities of the cycle at which ``limits`` are known, shape ``[c]``.
        limits: distance of the exact fixed point, that is, of learning without noise, shape ``[P, c]``.

    Returns:
        The figure.

    Examples:
        >>> values, errors, distances, betas = torch.rand(50), torch.rand(4, 1, 3), torch.rand(1, 2, 3), torch.rand(2)
        >>> figure = plot_toy({"gaussian": values}, torch.arange(4), errors, betas, distances, betas, distances[..., 0])
        >>> len(figure.axes)  # the last one is the colour bar
        4
    """
    figure = _figure(3.1 * len(values), 6.6)
    rows = figure.subplots(3, len(values), sharex="row", sharey="row", squeeze=False)
    grid = torch.linspace(-1, 1, 500)
    for column, (name, samples) in enumerate(values.items()):
        density, error, distance = rows[:, column]
        _draw_density(density, samples, grid, _BLUE)
        density.set(title=name.replace("_", "-"), xlabel="value $V(s_0)$ (return)")
        # ordered colours: the level of a quantile from low (dark) to high (light)
        for i, series in enumerate(errors[:, column].T):
            error.plot(iterations / 1000, series, color=_shade(i, errors.shape[-1]), linewidth=0.9)
        error.axhline(0, color="black", linewidth=0.8)
        error.set(xlabel="thousand iterations", ylim=(-0.5, 0.2))
        runs = distances[column]
        distance.fill_between(betas, runs.amin(-1), runs.amax(-1), color=_ORANGE, alpha=0.25, linewidth=0)
        distance.plot(betas, runs.mean(-1), color=_ORANGE, label=f"EQR, mean and range of {runs.shape[-1]} runs")
        distance.plot(limit_betas, limits[column], "o", color="black", markersize=3.5, label="exact fixed point")
        distance.set_xlabel("probability $\\beta$ of the cycle")
    for row in (rows[0], rows[2]):  # only now do the shared axes know their range
        row[0].set_ylim(bottom=0)
    rows[0, 0].set_ylabel("density")
    rows[1, 0].set_ylabel("error, $\\beta = 0$ (return)")
    rows[2, 0].set_ylabel("1-Wasserstein (return)")
    rows[2, 0].legend(loc="upper left")
    _level_bar(figure, rows[1])
    return figure


def _shade(i: int, count: int):
    import matplotlib

    return matplotlib.colormaps["viridis"](0.9 * (i + 0.5) / count)


def _level_bar(figure: Figure, row: Sequence[Axes]) -> None:
    import matplotlib
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap

    colours = ListedColormap([matplotlib.colormaps["viridis"](0.9 * i / 255) for i in range(256)])
    figure.colorbar(ScalarMappable(cmap=colours), ax=list(row), label="quantile level", pad=0.01, aspect=12)


@_styled
def plot_nroom(
    episodes: Sequence[int],
    truth: Tensor,
    quantiles: Tensor,
    iterations: Tensor,
    distances: Tensor,
    *,
    true_value: float,
    sampling_error: Tensor | None = None,
    limits: tuple[float, float] = (-15.0, 15.0),
) -> Figure:
    """The grid-world study, Figure 6 of the paper: density, distribution function and distance, column by column.

    Args:
        episodes: number of episodes behind each of the ``P`` posteriors.
        truth: values of the initial state under MDPs drawn from each posterior, in units of return, ``[P, J]``.
        quantiles: learnt quantiles of that state, in units of return, shape ``[P, N]``.
        iterations: iterations at which ``distances`` were taken, shape ``[I]``.
        distances: 1-Wasserstein distance to the quantile projection of ``truth``, in units of return, ``[I, P]``.
        true_value: value under the true dynamics, in units of return.
        sampling_error: the distance that the finite number of draws in ``truth`` alone makes, shape ``[P]``.
        limits: range of values shown.

    Returns:
        The figure.

    Examples:
        >>> truth, quantiles, distances = torch.rand(2, 9), torch.rand(2, 4), torch.rand(3, 2)
        >>> figure = plot_nroom([1, 10], truth, quantiles, torch.arange(3), distances, true_value=0.5)
        >>> len(figure.axes)
        6
    """
    figure = _figure(9.3, 6.6)
    rows = figure.subplots(3, len(episodes), sharex="row", squeeze=False)  # densities: each on a scale of its own
    grid, num_quantiles = torch.linspace(*limits, 600), quantiles.shape[-1]
    levels = (torch.arange(num_quantiles) + 0.5) / num_quantiles
    for column, count in enumerate(episodes):
        density, distribution, distance = rows[:, column]
        _draw_density(density, truth[column], grid, _BLUE, label="true (posterior samples)", style="--")
        _draw_density(density, quantiles[column], grid, _ORANGE, label="predicted (EQR)")
        ranks = (torch.arange(truth.shape[-1]) + 0.5) / truth.shape[-1]
        distribution.plot(truth[column].sort().values, ranks, "--", color=_BLUE)
        distribution.plot(quantiles[column].sort().values, levels, color=_ORANGE)
        for axes in (density, distribution):
            axes.axvline(true_value, color=_GREEN, linestyle=":", label="value under the true dynamics")
            axes.set_xlim(*limits)
        density.set_title(f"after {count} episode{'s' if count > 1 else ''}")
        distribution.set_xlabel("value of the initial state (return)")
        distance.plot(iterations / 1000, distances[:, column], color=_ORANGE, linewidth=1.0, label="EQR")
        if sampling_error is not None:
            distance.axhline(
                float(sampling_error[column]),
                color="black",
                linewidth=1,
                linestyle="--",
                label=f"error of {truth.shape[-1]:,} true samples",
            )
        distance.set(xlabel="thousand iterations", ylim=(0, 2))
        if column:
            distribution.sharey(rows[1, 0])
    rows[0, 0].set_ylabel("density")
    rows[1, 0].set_ylabel("distribution function")
    rows[2, 0].set_ylabel("1-Wasserstein (return)")
    figure.legend(*rows[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    rows[2, 0].legend(loc="upper right")
    return figure


@_styled
def plot_unrolling(
    horizons: Tensor, errors: Mapping[str, Mapping[str, Tensor]], *, bounds: Mapping[str, Tensor]
) -> Figure:
    """Error of the value distribution of the unrolled MDP against its horizon, for Appendix A of the paper.

    Args:
        horizons: number of unrolled steps, shape ``[H]``.
        errors: by MDP and by what its steps have in common, 1-Wasserstein distances to the true value distribution,
            in units of return, shape ``[H]``.
        bounds: by MDP, the bound that truncation alone puts on the distance, shape ``[H]``.

    Returns:
        The figure.

    Examples:
        >>> h = torch.arange(1, 4)
        >>> len(plot_unrolling(h, {"toy": {"same dynamics": 1.0 / h}}, bounds={"toy": 3.0 / h}).axes)
        1
    """
    figure = _figure(4.2 * len(errors), 3.6)
    panels = figure.subplots(1, len(errors), squeeze=False)[0]
    styles = ((_BLUE, "-"), (_ORANGE, "--"), (_GREEN, "-."))
    for axes, (name, series) in zip(panels, errors.items(), strict=True):
        axes.plot(horizons, bounds[name], ":", color="0.4", label="bound of truncation")
        for (label, distances), (colour, style) in zip(series.items(), styles, strict=False):
            axes.plot(horizons, distances, style, color=colour, label=label)
        axes.set(xscale="log", yscale="log", xlabel="horizon $H$ (steps)", title=name)
        axes.set_ylim(bottom=1e-3)
    panels[0].set_ylabel("1-Wasserstein (return)")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


@_styled
def plot_regret(regret: Tensor) -> Figure:
    """Cumulative regret of several runs, with their mean.

    Args:
        regret: value lost in each episode, in units of return, shape ``[episodes, runs]``.

    Returns:
        The figure.

    Examples:
        >>> len(plot_regret(torch.rand(10, 3)).axes)
        1
    """
    figure = _figure(4.6, 3.2)
    axes = figure.subplots()
    episodes, cumulative = torch.arange(1, len(regret) + 1), regret.cumsum(0)
    for i, run in enumerate(cumulative.T):
        axes.plot(episodes, run, color=_SKY, linewidth=0.9, label="one run" if i == 0 else None)
    axes.plot(episodes, cumulative.mean(-1), color=_BLUE, label=f"mean of {regret.shape[-1]} runs")
    axes.set(xlabel="episode", ylabel="cumulative regret (return)", ylim=(0, None))
    axes.legend(loc="upper left")
    return figure
