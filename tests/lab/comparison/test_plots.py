"""What the figures show: lines, bands and labels of the figure that is saved."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from run_tables import evaluations

from eqr_torchrl.lab.comparison import (
    aggregate_table,
    learning_curves,
    plot_aggregates,
    plot_learning_curve,
    plot_learning_curves,
    plot_performance_profiles,
)
from eqr_torchrl.lab.figures import COLOURS

TWO_SEEDS = {"0": {1000: 1.0, 2000: 1.0}, "1": {1000: 9.0, 2000: 9.0, 3000: 9.0}}


def lines(axes) -> list[list[tuple[float, float]]]:
    return [list(zip(*map(np.ravel, line.get_data()), strict=True)) for line in axes.lines]


def test_a_learning_curve_shows_each_episode_and_the_mean_of_each_evaluation(tmp_path, figures):
    table = pd.concat([evaluations({"0": {1: 0.0, 2: 4.0}}), evaluations({"0": {1: 2.0}})])
    path = plot_learning_curve(table, tmp_path / "deep" / "curve.png")
    dots, mean = lines(figures[0].axes[0])
    assert dots == [(1, 0), (2, 4), (1, 2)]
    assert mean == [(1, 1), (2, 4)]
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_seeds_are_drawn_to_their_own_ends_and_the_mean_to_the_first(tmp_path, figures):
    plot_learning_curves(learning_curves(evaluations(TWO_SEEDS)), tmp_path / "curves.png")
    first, second, mean = lines(figures[0].axes[0])
    assert first == [(1000, 1), (2000, 1)]
    assert second == [(1000, 9), (2000, 9), (3000, 9)]
    assert mean == [(1000, 5), (2000, 5)]
    band = figures[0].axes[0].collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == (1.0, 9.0)  # 5 plus and minus a standard error of 4
    plot_learning_curves(learning_curves(evaluations(TWO_SEEDS)), tmp_path / "curves.png", show_seeds=False)
    assert lines(figures[1].axes[0]) == [mean]


def test_each_task_has_a_panel_with_its_published_score(tmp_path, figures):
    tasks = {"dmc/cheetah-run": 571.4, "dmc/walker-run": 474.3}
    table = pd.concat([evaluations({"0": {10_000: 7}}, env=env, algorithm="mbpo") for env in tasks])
    plot_learning_curves(learning_curves(table), tmp_path / "curves.png")
    assert [panel.get_title() for panel in figures[0].axes] == ["cheetah-run", "walker-run"]
    for panel, score in zip(figures[0].axes, tasks.values(), strict=True):
        mean, published = panel.lines
        assert mean.get_xydata().tolist() == [[10, 7]]  # in thousand steps
        assert published.get_ydata() == [score, score]
    assert [text.get_text() for text in figures[0].legends[0].get_texts()] == ["mbpo", "published, 250K steps"]
    plot_learning_curves(learning_curves(table), tmp_path / "curves.png", published=False)
    assert [len(panel.lines) for panel in figures[1].axes] == [1, 1]


def test_no_two_curves_look_alike(tmp_path, figures):
    """One more than there are colours: the last has another line style, and none that of a published score."""
    names = [f"a{i}" for i in range(len(COLOURS) + 1)]
    table = pd.concat([evaluations({"0": {1: 0.0, 2: 1.0}}, algorithm=name) for name in names])
    plot_learning_curves(learning_curves(table), tmp_path / "curves.png", published=False)
    looks = {(line.get_color(), line.get_linestyle()) for line in figures[0].axes[0].lines}
    assert len(looks) == len(names) and "--" not in {style for _, style in looks}


def test_a_performance_profile_falls_from_one_to_zero(tmp_path, figures):
    plot_performance_profiles({"sac": {"reach": [0.2, 0.6]}}, tmp_path / "profile.png")
    profile = dict(lines(figures[0].axes[0])[0])
    assert [profile[z] for z in (0.0, 0.6)] == [1.0, 0.0]
    assert profile[min(z for z in profile if z > 0.2)] == 0.5


def test_aggregates_have_a_panel_for_each_metric(tmp_path, figures):
    table = aggregate_table({"sac": {"reach": [0.2, 0.4]}, "mbpo": {"reach": [0.6, 0.8]}})
    plot_aggregates(table, tmp_path / "aggregates.png")
    mean = next(panel for panel in figures[0].axes if panel.get_title() == "mean")
    estimates = [line.get_xdata()[0] for line in mean.lines if line.get_marker() == "|"]
    assert estimates == pytest.approx([0.3, 0.7])
    assert [text.get_text() for text in figures[0].axes[0].get_yticklabels()] == ["sac", "mbpo"]


def test_nothing_to_draw_is_an_error_and_writes_nothing(tmp_path):
    with pytest.raises(ValueError, match="curves must hold at least one row, got none"):
        plot_learning_curves(evaluations({}), tmp_path / "none.png")
    with pytest.raises(ValueError, match="table must hold at least one row, got none"):
        plot_aggregates(pd.DataFrame(), tmp_path / "none.png")
    assert list(tmp_path.iterdir()) == []


def test_drawing_leaves_matplotlib_settings_alone(tmp_path):
    import matplotlib

    before = dict(matplotlib.rcParams)
    plot_learning_curves(learning_curves(evaluations(TWO_SEEDS)), tmp_path / "curves.png")
    assert dict(matplotlib.rcParams) == before


def test_colours_are_distinct_when_green_is_not_seen():
    # Deuteranopia, Vienot et al. (1999): in linear RGB, red and green collapse onto 0.29275 R + 0.70725 G
    rgb = np.array([[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in COLOURS]) ** 2.2
    seen = np.stack([rgb @ [0.29275, 0.70725, 0.0], rgb @ [-0.02234, 0.02234, 1.0]], axis=1)
    gaps = np.abs(seen[:, None] - seen[None]).max(axis=-1) + 10 * np.eye(len(COLOURS))
    assert gaps.min() > 0.04


def test_a_table_needs_a_path():
    with pytest.raises(ValueError, match="path must be given unless source is a run folder, got None"):
        plot_learning_curve(evaluations(TWO_SEEDS))
