"""How figures look: colours, sizes, densities, and a figure that is saved without a display.

The only file of the package that imports matplotlib, and only when a figure is drawn (extra ``plots``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from eqr_torchrl.lab._quiet import errors_alone

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "COLUMN_WIDTH", "LINES", "draw_density", "legend_key", "saved_figure", "to_array"]

COLUMN_WIDTH = 3.4
"""Width of a paper's column, in inches."""

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette, distinct for all common kinds of colour vision; without yellow, too light for lines."""

LINES = ("-", "--", "-.", ":")
"""Line styles."""

_STYLE: dict[Any, Any] = {
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


@contextmanager
def saved_figure(path: str | Path, width: float, height: float) -> Iterator[Figure]:
    """A figure that is saved at the end; it needs no display and leaves matplotlib's settings as they are.

    Args:
        path: file to write; its suffix (``.png``, ``.pdf``, ``.svg``) chooses the format, its folder is made.
        width: in inches.
        height: in inches.

    Raises:
        ImportError: if matplotlib is not installed.

    Examples:
        >>> with saved_figure(folder / "line.png", 2, 2) as figure:
        ...     _ = figure.subplots().plot([0, 1], color=COLOURS[0])
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("Figures need matplotlib: pip install 'eqr_torchrl[plots]'.") from error
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with errors_alone("matplotlib.font_manager"):  # a line for each font of formulas that its cache lacks
            figure.savefig(path)


def draw_density(axes: Axes, atoms: NDArray[np.float64], colour: str, line: str = "-") -> None:
    """Draws a Gaussian kernel density with Silverman's bandwidth, scaled to its peak; a spike if all atoms are equal.

    Args:
        axes: where to draw.
        atoms: equally likely values, shape ``[N]``.
        colour: of the line and, lighter, of the area below it.
        line: its style.

    Examples:
        >>> from matplotlib.figure import Figure
        >>> axes = Figure().subplots()
        >>> draw_density(axes, np.array([0.0, 1.0, 3.0]), COLOURS[0])
        >>> float(axes.lines[0].get_ydata().max())
        1.0
    """
    iqr = np.subtract(*np.percentile(atoms, [75, 25])) / 1.34
    spreads = [spread for spread in (atoms.std(), iqr) if spread > 0]
    if not spreads or spreads[0] <= 1e-9 * abs(atoms).max():
        axes.plot([atoms.mean()] * 2, [0, 1], line, color=colour)
        return
    bandwidth = 0.9 * min(spreads) * atoms.size**-0.2
    grid = np.linspace(atoms.min() - 3 * bandwidth, atoms.max() + 3 * bandwidth, 300)
    density = np.exp(-0.5 * ((grid[:, None] - atoms) / bandwidth) ** 2).sum(axis=1)
    axes.plot(grid, density / density.max(), line, color=colour)
    axes.fill_between(grid, density / density.max(), color=colour, alpha=0.12, linewidth=0)


def legend_key(style: Any, label: str, colour: str = "0.3") -> Any:
    """A legend's entry for a line style, or for the marker ``"o"``.

    Examples:
        >>> legend_key("--", "published").get_label()
        'published'
    """
    from matplotlib.lines import Line2D

    line, marker = ("none", style) if style == "o" else (style, "")
    return Line2D([], [], color=colour, linestyle=line, marker=marker, markersize=3.5, fillstyle="none", label=label)


def to_array(values: Any) -> NDArray[np.float64]:
    """A double-precision array from numbers, an array, or a tensor on any device, with or without gradient.

    Examples:
        >>> to_array(torch.ones(2, requires_grad=True))
        array([1., 1.])
    """
    if hasattr(values, "detach"):
        values = values.detach().double().cpu().numpy()
    return np.asarray(values, dtype=np.float64)
