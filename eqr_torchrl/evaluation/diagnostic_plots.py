"""Figures of diagnostics: maps over a plane of states, calibration, and growth along model rollouts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from eqr_torchrl.evaluation.plotting import COLOURS, COLUMN_WIDTH, LINES, saved_figure, to_array


def plot_value_maps(
    x: ArrayLike,
    y: ArrayLike,
    maps: Mapping[str, ArrayLike],
    path: str | Path,
    *,
    xlabel: str = "",
    ylabel: str = "",
) -> Path:
    """Draws functions of a two-dimensional state as colours, one panel each with its own scale.

    Args:
        x: first state entry, shape ``[X]``.
        y: second state entry, shape ``[Y]``.
        maps: title with unit to values, shape ``[Y, X]``.
        path: file to write.
        xlabel: name and unit of ``x``.
        ylabel: name and unit of ``y``.

    Returns:
        The path.

    Raises:
        ValueError: if a map does not have the shape ``[Y, X]``.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     plot_value_maps([0, 1, 2], [0, 1], {"mean value": [[0, 1, 2], [3, 4, 5]]}, folder + "/map.png").name
        'map.png'
    """
    xs, ys = to_array(x), to_array(y)
    arrays = {title: to_array(values) for title, values in maps.items()}
    for title, values in arrays.items():
        if values.shape != (ys.size, xs.size):
            raise ValueError(f"maps[{title!r}] must have shape {(ys.size, xs.size)}: got {values.shape}.")
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
        coverage: from :func:`~eqr_torchrl.evaluation.central_interval_coverage`, shape ``[P]``.
        probabilities: nominal ones, shape ``[P]``.
        ranks: from :func:`~eqr_torchrl.evaluation.probability_integral_transform`, any shape.
        path: file to write.

    Returns:
        The path.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     plot_calibration([0.4, 0.8], [0.5, 0.9], [0.1, 0.5, 0.7], folder + "/calibration.png").name
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


def plot_steps(
    lines: Mapping[str, ArrayLike], path: str | Path, *, ylabel: str, xlabel: str = "step of the rollout"
) -> Path:
    """Draws quantities that grow along a model rollout, such as drift or variance, on a logarithmic axis.

    Args:
        lines: name to values, shape ``[T]``, or ``[T, M]`` for one thin line per member and their mean.
        path: file to write.
        ylabel: name and unit of the values.
        xlabel: name of the steps, counted from 1.

    Returns:
        The path.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     plot_steps({"drift": [0.1, 0.2, 0.4]}, folder + "/drift.png", ylabel="error").name
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
        axes.set(xlabel=xlabel, ylabel=ylabel)
        if all((to_array(line) > 0).all() for line in lines.values()):
            axes.set_yscale("log")
        axes.legend()
    return Path(path)
