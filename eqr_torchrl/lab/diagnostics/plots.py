"""Figures of diagnostics: value distributions, maps over a plane of states, calibration, growth along rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from eqr_torchrl.lab.figures import COLOURS, COLUMN_WIDTH, LINES, draw_density, legend_key, saved_figure, to_array


def plot_value_distribution(
    quantiles: ArrayLike,
    labels: Sequence[str],
    path: str | Path,
    *,
    returns: Sequence[ArrayLike] | None = None,
    member_values: ArrayLike | None = None,
    title: str = "",
) -> Path:
    """Draws the value posterior at a few states: density on the left, quantile function on the right.

    The posterior is about the *value*, an expectation: compare it with the mean of the returns, not with their spread.

    Args:
        quantiles: value quantiles at R states, in units of return, shape ``[R, N]``.
        labels: name of each state.
        path: file to write.
        returns: Monte-Carlo returns from each state in the real environment, R sequences of any length: ticks below
            the densities, their mean a dashed line.
        member_values: Monte-Carlo value of each ensemble member at each state, shape ``[R, M]``: circles.
        title: what the figure shows, or the verdict on it.

    Raises:
        ValueError: if the shapes do not fit.
        ImportError: if matplotlib is not installed, as in all functions here.

    Examples:
        >>> plot_value_distribution([[0.0, 1.0, 3.0]], ["start"], folder / "value.png", returns=[[1.0, 2.0]]).name
        'value.png'
    """
    q = np.sort(to_array(quantiles), axis=-1)
    if q.ndim != 2 or q.shape[0] != len(labels):
        raise ValueError(f"quantiles must be [R, N] with one label each, got shape {q.shape} and {len(labels)} labels.")
    members = None if member_values is None else to_array(member_values)
    for name, rows in (("returns", returns), ("member_values", members)):
        if rows is not None and len(rows) != len(labels):
            raise ValueError(f"{name} must hold one entry per state, got {len(rows)} for {len(labels)}.")
    with saved_figure(path, 2 * COLUMN_WIDTH, 2.2) as figure:
        density_axes, quantile_axes = figure.subplots(1, 2)
        levels = (np.arange(q.shape[1]) + 0.5) / q.shape[1]
        for i, label in enumerate(labels):
            colour, line = COLOURS[i % len(COLOURS)], LINES[i // len(COLOURS) % len(LINES)]
            draw_density(density_axes, q[i], colour, line)
            quantile_axes.plot(levels, q[i], line, color=colour, label=label)
            baseline = -0.06 * (i + 1)
            if returns is not None:
                sample = to_array(returns[i])
                density_axes.plot(sample, np.full(sample.size, baseline), "|", color=colour, markersize=5, alpha=0.6)
                density_axes.axvline(sample.mean(), color=colour, linestyle="--", linewidth=0.8)
                quantile_axes.axhline(sample.mean(), color=colour, linestyle="--", linewidth=0.8)
            if members is not None:
                density_axes.plot(
                    members[i], np.full(members[i].size, baseline), "o", color=colour, markersize=3.5, fillstyle="none"
                )
        value = "value (discounted return)"
        density_axes.set(xlabel=value, ylabel="posterior density / peak", yticks=[0, 0.5, 1])
        quantile_axes.set(xlabel="quantile level", ylabel=value, xlim=(0, 1))
        handles = quantile_axes.get_legend_handles_labels()[0]
        if returns is not None:
            handles.append(legend_key("--", "real returns (ticks), mean"))
        if members is not None:
            handles.append(legend_key("o", "value in each ensemble member"))
        figure.legend(
            handles=handles, loc="outside upper center", ncols=min(len(handles), 4), title=title or None,
            title_fontsize=8,
        )  # fmt: skip
    return Path(path)


def plot_value_maps(
    x: ArrayLike, y: ArrayLike, maps: Mapping[str, ArrayLike], path: str | Path, *, xlabel: str = "", ylabel: str = ""
) -> Path:
    """Draws functions of a two-dimensional state as colours, one panel each with its own scale.

    Args:
        x: first state entry, shape ``[X]``.
        y: second state entry, shape ``[Y]``.
        maps: title with unit to values, shape ``[Y, X]``.
        path: file to write.
        xlabel: name and unit of ``x``.
        ylabel: name and unit of ``y``.

    Raises:
        ValueError: if a map does not have the shape ``[Y, X]``.

    Examples:
        >>> plot_value_maps([0, 1, 2], [0, 1], {"mean value": [[0, 1, 2], [3, 4, 5]]}, folder / "map.png").name
        'map.png'
    """
    xs, ys = to_array(x), to_array(y)
    arrays = {title: to_array(values) for title, values in maps.items()}
    for title, values in arrays.items():
        if values.shape != (ys.size, xs.size):
            raise ValueError(f"maps[{title!r}] must have shape {(ys.size, xs.size)}, got {values.shape}.")
    with saved_figure(path, COLUMN_WIDTH * max(len(arrays), 1), 2.4) as figure:
        axes = figure.subplots(1, len(arrays), squeeze=False)[0]
        for panel, (title, values) in zip(axes, arrays.items(), strict=True):
            image = panel.pcolormesh(xs, ys, values, cmap="viridis", shading="nearest", rasterized=True)
            panel.set(xlabel=xlabel, ylabel=ylabel, title=title)
            figure.colorbar(image, ax=panel)
    return Path(path)


def plot_calibration(coverage: ArrayLike, probabilities: ArrayLike, ranks: ArrayLike, path: str | Path) -> Path:
    """Draws coverage of central intervals against nominal probability, and the histogram of the truth's ranks.

    Args:
        coverage: from :func:`central_interval_coverage`, shape ``[P]``.
        probabilities: nominal ones, shape ``[P]``.
        ranks: from :func:`probability_integral_transform`, any shape.
        path: file to write.

    Examples:
        >>> plot_calibration([0.4, 0.8], [0.5, 0.9], [0.1, 0.5, 0.7], folder / "calibration.png").name
        'calibration.png'
    """
    with saved_figure(path, 2 * COLUMN_WIDTH, 2.2) as figure:
        left, right = figure.subplots(1, 2)
        left.plot([0, 1], [0, 1], color="0.6", linewidth=0.8, label="calibrated")
        left.plot(to_array(probabilities), to_array(coverage), "o-", color=COLOURS[0], markersize=3, label="posterior")
        left.set(xlabel="nominal probability of central interval", ylabel="share of truths inside")
        left.legend()
        right.hist(to_array(ranks).ravel(), bins=10, range=(0, 1), density=True, color=COLOURS[0], alpha=0.7)
        right.axhline(1.0, color="0.6", linewidth=0.8)
        right.set(xlabel="rank of the truth in the posterior (PIT)", ylabel="density", xlim=(0, 1))
    return Path(path)


def plot_steps(lines: Mapping[str, ArrayLike], path: str | Path, *, ylabel: str) -> Path:
    """Draws quantities that grow along a model rollout, such as drift or variance, on a logarithmic axis.

    Args:
        lines: name to values, shape ``[T]``, or ``[T, M]`` for one thin line per member and their mean.
        path: file to write.
        ylabel: name and unit of the values.

    Examples:
        >>> plot_steps({"drift": [0.1, 0.2, 0.4]}, folder / "drift.png", ylabel="error").name
        'drift.png'
    """
    with saved_figure(path, COLUMN_WIDTH, 2.2) as figure:
        axes = figure.subplots()
        for i, (label, line) in enumerate(lines.items()):
            values = to_array(line)
            steps = np.arange(1, len(values) + 1)
            colour = COLOURS[i % len(COLOURS)]
            if values.ndim == 2:
                axes.plot(steps, values, color=colour, linewidth=0.5, alpha=0.4)
                values = values.mean(axis=1)
            axes.plot(steps, values, LINES[i % len(LINES)], color=colour, label=label)
        axes.set(xlabel="step of the rollout", ylabel=ylabel)
        if all((to_array(line) > 0).all() for line in lines.values()):
            axes.set_yscale("log")
        axes.legend()
    return Path(path)
