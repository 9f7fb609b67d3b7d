"""What the figures show: lines, colours and labels of the figure that is saved."""

from __future__ import annotations

import logging

import matplotlib
import numpy as np
import pytest
import torch

from eqr_torchrl.lab.diagnostics import plot_calibration, plot_steps, plot_value_distribution, plot_value_maps


def test_value_distribution_shows_quantiles_returns_and_members(tmp_path, figures):
    quantiles = torch.stack([torch.tensor([3.0, 1.0, 2.0]), torch.full((3,), 3.0)]).requires_grad_()
    returns = [torch.tensor([0.5, 1.5]), [3.0]]
    path = plot_value_distribution(
        quantiles, ["start", "goal"], tmp_path / "value.png", returns=returns, member_values=torch.zeros(2, 5)
    )
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    density, quantile = figures[0].axes
    assert quantile.lines[0].get_xydata() == pytest.approx(np.array([[1 / 6, 1], [1 / 2, 2], [5 / 6, 3]]))
    assert quantile.lines[1].get_ydata() == [1.0, 1.0]  # mean of the returns
    spikes = [line for line in density.lines if list(line.get_ydata()) == [0, 1] and line.get_linestyle() == "-"]
    assert [list(line.get_xdata()) for line in spikes] == [[3.0, 3.0]]  # all atoms of the second state are equal
    members = [line for line in density.lines if line.get_marker() == "o"]
    assert [line.get_xdata().tolist() for line in members] == [[0.0] * 5] * 2


def test_value_distribution_refuses_shapes_that_do_not_fit(tmp_path):
    with pytest.raises(ValueError, match=r"one label each, got shape \(2, 3\) and 1 labels"):
        plot_value_distribution(torch.zeros(2, 3), ["start"], tmp_path / "bad.png")
    with pytest.raises(ValueError, match="returns must hold one entry per state, got 1 for 2"):
        plot_value_distribution(torch.zeros(2, 3), ["a", "b"], tmp_path / "bad.png", returns=[[1.0]])
    assert not (tmp_path / "bad.png").exists()


def test_fonts_that_are_not_found_fill_no_screen(tmp_path, caplog):
    level = logging.getLogger("matplotlib.font_manager").level
    with matplotlib.rc_context({"font.family": "a font that nobody has"}):
        plot_value_distribution([[0.0, 1.0]], ["start"], tmp_path / "value.png")
    assert [record.getMessage() for record in caplog.records] == []
    assert logging.getLogger("matplotlib.font_manager").level == level


def test_maps_have_y_as_rows_and_a_colour_bar_each(tmp_path, figures):
    grid = np.arange(6.0).reshape(2, 3)
    plot_value_maps([0, 1, 2], [0, 1], {"mean": grid, "std": 2 * grid}, tmp_path / "map.png", ylabel="velocity")
    mean, std, *bars = figures[0].axes
    assert (mean.get_title(), std.get_title(), mean.get_ylabel(), len(bars)) == ("mean", "std", "velocity", 2)
    assert mean.collections[0].get_array().reshape(2, 3).tolist() == grid.tolist()
    with pytest.raises(ValueError, match=r"maps\['mean'\] must have shape \(3, 2\), got \(2, 3\)"):
        plot_value_maps([0, 1], [0, 1, 2], {"mean": grid}, tmp_path / "bad.png")


def test_calibration_shows_coverage_and_the_histogram_of_ranks(tmp_path, figures):
    plot_calibration([0.4, 0.8], [0.5, 0.9], [0.05, 0.06, 0.95, 0.96], tmp_path / "calibration.png")
    left, right = figures[0].axes
    assert left.lines[1].get_xydata().tolist() == [[0.5, 0.4], [0.9, 0.8]]
    assert [bar.get_height() for bar in right.patches] == pytest.approx([5, 0, 0, 0, 0, 0, 0, 0, 0, 5])  # area 1


def test_steps_count_from_one_and_are_logarithmic_where_all_is_positive(tmp_path, figures):
    lines = {"error": np.array([[1.0, 3.0], [2.0, 4.0]]), "spread": [1.0, 2.0]}
    plot_steps(lines, tmp_path / "steps.png", ylabel="m")
    axes = figures[0].axes[0]
    *members, mean, spread = axes.lines
    assert [line.get_ydata().tolist() for line in members] == [[1, 2], [3, 4]]
    assert mean.get_xydata().tolist() == [[1, 2], [2, 3]]
    assert spread.get_xydata().tolist() == [[1, 1], [2, 2]]
    assert axes.get_yscale() == "log"
    plot_steps(lines | {"zero": np.zeros(2)}, tmp_path / "steps.png", ylabel="m")
    assert figures[1].axes[0].get_yscale() == "linear"
