"""Learning curves and value distributions, at the width of a paper's column.

The only module of this folder that imports matplotlib, and only when a figure is drawn (extra ``plots``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eqr_torchrl.evaluation.evaluations import EvaluationRow, read_evaluations
from eqr_torchrl.evaluation.learning_curves import LearningCurve, learning_curves
from eqr_torchrl.evaluation.published import find_published

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN_WIDTH = 3.4  # inches
# Okabe and Ito's palette, told apart by all common kinds of colour vision; yellow left out, too light for lines.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINES = ("-", "--", "-.", ":")
STYLE: dict[Any, Any] = {
    "font.size": 8.0,
    "axes.titlesize": 8.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.2,
    "legend.frameon": False,
    "legend.fontsize": 7.0,
    "savefig.dpi": 200,
}


def plot_learning_curve(
    rows_or_folder: str | Path | Iterable[Mapping[str, object]], path: str | Path, *, smoothing: int = 1
) -> Path:
    """Draws the returns of one run, or of a few, against environment steps.

    Every evaluation episode is a dot, the mean of each evaluation a line; with several seeds, their mean and standard
    error.

    Args:
        rows_or_folder: a run folder, an ``evaluations.csv``, or its rows.
        path: file to write; its suffix (``.png``, ``.pdf``, ``.svg``) chooses the format.
        smoothing: evaluations in the trailing moving average of the lines; the dots are as they came.

    Returns:
        The path.

    Raises:
        ValueError: if there is nothing to draw, or a column is missing.
        ImportError: if matplotlib is not installed. So do all functions here.

    Examples:
        >>> import tempfile
        >>> row = {"env": "reach", "algorithm": "sac", "seed": 0}
        >>> rows = [row | {"env_steps": 1000 * i, "episode_return": i} for i in (1, 2)]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     plot_learning_curve(rows, folder + "/curve.png").name
        'curve.png'
    """
    rows = read_evaluations(rows_or_folder)
    return _draw_learning_curves(learning_curves(rows, smoothing=smoothing), path, episodes=rows)


def plot_learning_curves(
    curves: Sequence[LearningCurve], path: str | Path, *, show_seeds: bool = True, published: bool = True
) -> Path:
    """Draws one panel for each task: mean over seeds, a band of one standard error, and the seeds themselves.

    Args:
        curves: from :func:`~eqr_torchrl.evaluation.learning_curves`.
        path: file to write.
        show_seeds: also draw each seed as a thin line.
        published: draw the paper's final score of the same task, algorithm and utility, where there is one, as a
            dashed line of the same colour.

    Returns:
        The path.

    Raises:
        ValueError: if ``curves`` is empty.

    Examples:
        >>> import tempfile
        >>> from eqr_torchrl.evaluation import EvaluationRow, learning_curves
        >>> rows = [EvaluationRow("reach", "sac", "", s, t, 1.0) for s in ("0", "1") for t in (1, 2)]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     plot_learning_curves(learning_curves(rows), folder + "/curves.pdf").name
        'curves.pdf'
    """
    return _draw_learning_curves(curves, path, show_seeds=show_seeds, published=published)


def plot_value_distribution(
    quantiles: ArrayLike,
    labels: Sequence[str],
    path: str | Path,
    *,
    returns: Sequence[ArrayLike] | None = None,
    member_values: ArrayLike | None = None,
    xlabel: str = "value (discounted return)",
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
        xlabel: name and unit of the value axis.

    Returns:
        The path.

    Raises:
        ValueError: if the shapes do not fit.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     plot_value_distribution([[0.0, 1.0, 3.0]], ["start"], folder + "/value.png", returns=[[1.0, 2.0]]).name
        'value.png'
    """
    q = np.sort(to_array(quantiles), axis=-1)
    if q.ndim != 2 or q.shape[0] != len(labels):
        raise ValueError(f"quantiles must be [R, N] with one label each: got shape {q.shape} and {len(labels)} labels.")
    members = None if member_values is None else to_array(member_values)
    for name, rows in (("returns", returns), ("member_values", members)):
        if rows is not None and len(rows) != len(labels):
            raise ValueError(f"{name} must hold one entry per state: got {len(rows)} for {len(labels)}.")
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
        density_axes.set(xlabel=xlabel, ylabel="posterior density / peak", yticks=[0, 0.5, 1])
        quantile_axes.set(xlabel="quantile level", ylabel=xlabel, xlim=(0, 1))
        handles = quantile_axes.get_legend_handles_labels()[0]
        if returns is not None:
            handles.append(_key("--", "Monte-Carlo returns (ticks), mean"))
        if members is not None:
            handles.append(_key("o", "value in each ensemble member"))
        figure.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), 4))
    return Path(path)


def _draw_learning_curves(
    curves: Sequence[LearningCurve],
    path: str | Path,
    *,
    show_seeds: bool = True,
    published: bool = False,
    episodes: Sequence[EvaluationRow] = (),
) -> Path:
    if not curves:
        raise ValueError("curves must hold at least one curve: got none.")
    tasks = list(dict.fromkeys(curve.env for curve in curves))
    colours = {label: COLOURS[i % len(COLOURS)] for i, label in enumerate(dict.fromkeys(c.label for c in curves))}
    columns = min(len(tasks), 4)
    rows = -(-len(tasks) // columns)
    width = COLUMN_WIDTH if columns == 1 else 2 * COLUMN_WIDTH
    height = 2.3 if columns == 1 else 0.5 + rows * width / columns * 0.85
    unit = 1000 if max(curve.env_steps[-1] for curve in curves) >= 10_000 else 1
    prefix = tasks[0].split("/")[0] + "/"
    prefix = prefix if len(tasks) > 1 and all(task.startswith(prefix) for task in tasks) else ""
    reference_steps: set[int] = set()
    with saved_figure(path, width, height) as figure:
        panels = figure.subplots(rows, columns, squeeze=False).ravel()
        for panel in panels[len(tasks) :]:
            panel.remove()
        for task, panel in zip(tasks, panels, strict=False):
            mine = [curve for curve in curves if curve.env == task]
            for curve in mine:
                colour, steps = colours[curve.label], curve.env_steps / unit
                dots = [e for e in episodes if e[:3] == (curve.env, curve.algorithm, curve.utility)]
                panel.plot([e.env_steps / unit for e in dots], [e.episode_return for e in dots], ".", color=colour,
                           markersize=2, alpha=0.3, markeredgewidth=0)  # fmt: skip
                if show_seeds and len(curve.seeds) > 1:
                    panel.plot(steps, curve.returns.T, color=colour, linewidth=0.4, alpha=0.4)
                marker = "o" if steps.size == 1 else ""
                panel.plot(steps, curve.mean, marker=marker, markersize=3, color=colour, label=curve.label)
                panel.fill_between(
                    steps, curve.mean - curve.sem, curve.mean + curve.sem, color=colour, alpha=0.25, linewidth=0
                )
                score = find_published(curve.env, curve.algorithm, curve.utility) if published else None
                if score is not None:
                    panel.axhline(score.mean, color=colour, linestyle="--", linewidth=0.8)
                    reference_steps.add(score.env_steps)
            panel.set_title(task.removeprefix(prefix), fontsize=7 if columns == 4 else 8)
        xlabel, ylabel = "environment steps" + (" (thousands)" if unit == 1000 else ""), "return (undiscounted)"
        if len(tasks) == 1:
            panels[0].set(xlabel=xlabel, ylabel=ylabel)
        else:
            figure.supxlabel(xlabel, fontsize=8)
            figure.supylabel(ylabel, fontsize=8)
        handles = {label: _key("-", label, colour) for label, colour in colours.items()}
        for steps in sorted(reference_steps):
            handles[str(steps)] = _key("--", f"published, {steps // 1000}K steps", "0.4")
        figure.legend(handles=list(handles.values()), loc="outside upper center", ncols=2 if columns == 1 else 4)
    return Path(path)


def draw_density(axes: Axes, quantiles: NDArray[np.float64], colour: str, line: str) -> None:
    """Gaussian kernel density of the atoms with Silverman's bandwidth, scaled to its peak; a spike if all are equal."""
    iqr = np.subtract(*np.percentile(quantiles, [75, 25])) / 1.34
    spreads = [spread for spread in (quantiles.std(), iqr) if spread > 0]
    if not spreads or spreads[0] <= 1e-9 * abs(quantiles).max():
        axes.plot([quantiles.mean()] * 2, [0, 1], line, color=colour)
        return
    bandwidth = 0.9 * min(spreads) * quantiles.size**-0.2
    grid = np.linspace(quantiles.min() - 3 * bandwidth, quantiles.max() + 3 * bandwidth, 300)
    density = np.exp(-0.5 * ((grid[:, None] - quantiles) / bandwidth) ** 2).sum(axis=1)
    axes.plot(grid, density / density.max(), line, color=colour)
    axes.fill_between(grid, density / density.max(), color=colour, alpha=0.12, linewidth=0)


def _key(style: Any, label: str, colour: str = "0.3") -> Any:
    from matplotlib.lines import Line2D

    line, marker = ("none", style) if style == "o" else (style, "")
    return Line2D([], [], color=colour, linestyle=line, marker=marker, markersize=3.5, fillstyle="none", label=label)


def to_array(values: Any) -> NDArray[np.float64]:
    """A double-precision array from numbers, an array, or a tensor on any device, with or without gradient."""
    if hasattr(values, "detach"):
        values = values.detach().double().cpu().numpy()
    return np.asarray(values, dtype=np.float64)


@contextmanager
def saved_figure(path: str | Path, width: float, height: float) -> Iterator[Figure]:
    """A figure of ``width`` x ``height`` inches, saved to ``path`` at the end; no display, no global pyplot state."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("Figures need matplotlib: pip install 'eqr_torchrl[plots]'.") from error
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
