"""What the studies share: what they find, how their figures look, and checks of their settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import gaussian_kde
from torch import Tensor

from eqr_torchrl.lab.figures import COLOURS

BLUE, ORANGE, GREEN, PURPLE, _, SKY, _ = COLOURS
STYLE: dict[Any, Any] = {
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


class Findings(NamedTuple):
    """What a study found: lines to print, figures, and CSV tables as a header and rows, by file name."""

    summary: list[str]
    figures: dict[str, Figure]
    tables: Mapping[str, tuple[Sequence[str], Sequence[Sequence[Any]]]]


def check_numbers(**numbers: float) -> None:
    """Raises a ValueError that names the first argument that is no number."""
    for name, value in numbers.items():
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError(f"{name} must be a number, got {value!r}.")


def new_figure(width: float, height: float) -> Figure:
    """A figure of ``width`` x ``height`` inches."""
    return Figure(figsize=(width, height), layout="constrained")


def draw_density(
    axes: Axes, samples: Tensor, grid: Tensor, colour: str, *, label: str | None = None, style: Any = "-"
) -> None:
    """Gaussian kernel density estimate with Scott's bandwidth."""
    density = gaussian_kde(samples.numpy())(grid.numpy())
    axes.plot(grid, density, style, color=colour, label=label)
    axes.fill_between(grid, density, color=colour, alpha=0.15, linewidth=0)
