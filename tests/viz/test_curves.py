import numpy as np
import pytest

from linearno.viz import (
    ErrorSet,
    FrameErrors,
    RankSet,
    TrainingCurve,
    error_figure,
    error_over_time_figure,
    png_bytes,
    rank_figure,
    training_figure,
)
from linearno.viz.style import run_color


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def curve(name="a", color=0, **more):
    epochs = np.arange(1, 6)
    return TrainingCurve(name, color, epochs, 1 / epochs, np.full(5, 1e-3), **more)


def test_loss_is_on_a_log_axis_and_every_run_is_named():
    figure = training_figure([curve("a"), curve("_b", 1, validation=np.full(5, 0.5))])
    above, below = figure.axes
    assert above.get_yscale() == "log"
    assert below.get_yscale() == "linear"
    assert [name.strip() for name in legend(figure)] == ["a", "_b", "_b, validation"]


def test_a_run_keeps_its_colour_where_another_is_missing():
    figure = training_figure([curve("b", 3)])
    assert figure.axes[0].lines[0].get_color() == run_color(3)


def counted(figure):
    """Samples in the filled bars."""
    return sum(bar.get_height() for bar in figure.axes[0].patches if hasattr(bar, "get_height"))


@pytest.mark.parametrize("largest", [0.02, 5.0])
def test_the_histogram_holds_every_sample(largest):
    errors = np.geomspace(0.01, largest, 37)
    figure = error_figure([ErrorSet("a", 0, errors, median=0.015)])
    assert counted(figure) == 37
    assert figure.axes[0].get_xscale() == ("log" if largest > 1 else "linear")


def test_median_and_baseline_are_drawn_where_they_are():
    figure = error_figure([ErrorSet("a", 0, np.linspace(0.01, 0.02, 9), median=0.015, baseline=0.4)])
    assert [line.get_xdata()[0] for line in figure.axes[0].lines] == [0.015, 0.4]
    assert figure.axes[0].get_xscale() == "log"
    assert legend(figure) == ["a: median 0.015", "mean field: 0.4"]


def test_a_baseline_far_away_is_named_and_does_not_squeeze_the_errors():
    figure = error_figure([ErrorSet("a", 0, np.linspace(1e-5, 2e-5, 9), median=1.5e-5, baseline=0.4)])
    assert figure.axes[0].get_xlim()[1] < 1e-3
    assert "mean field: 0.4 (beyond the right edge)" in legend(figure)


@pytest.mark.parametrize("errors", [[0.0, 0.1], [0.3], [0.0], [np.nan, 0.2], [np.nan]])
def test_odd_errors_are_drawn(errors):
    assert png_bytes(error_figure([ErrorSet("a", 0, np.array(errors), median=0.1, baseline=0.4)]), dpi=40)


def test_the_histogram_says_which_error_it_counts():
    figure = error_figure([ErrorSet("a", 0, np.array([0.1, 0.2]), median=0.15)], metric="relative MAE")
    assert figure.axes[0].get_xlabel() == "relative MAE on the test split"


def test_the_curve_over_time_holds_every_step_of_every_run():
    first, second = np.array([0.1, 0.2, 0.3]), np.array([0.2, 0.25])
    figure = error_over_time_figure([FrameErrors("a", 0, first), FrameErrors("b", 3, second)])
    for line, errors in zip(figure.axes[0].lines, (first, second), strict=True):
        np.testing.assert_array_equal(line.get_xdata(), np.arange(1, 1 + len(errors)))
        np.testing.assert_array_equal(line.get_ydata(), errors)
    assert [line.get_color() for line in figure.axes[0].lines] == [run_color(0), run_color(3)]
    assert legend(figure) == ["a: 0.1 to 0.3", "b: 0.2 to 0.25"]
    assert figure.axes[0].get_ylim()[0] == 0
    assert "last known" in figure.axes[0].get_xlabel()
    asked = error_over_time_figure([FrameErrors("a", 0, first)], autoregressive=False)
    assert asked.axes[0].get_xlabel() == "frame"


@pytest.mark.parametrize("errors", [[0.001, 0.9], [0.1], [np.nan, 0.1], [np.nan], [0.1, np.inf]])
def test_odd_errors_over_time_are_drawn(errors):
    figure = error_over_time_figure([FrameErrors("a", 0, np.array(errors))])
    assert png_bytes(figure, dpi=40)
    assert figure.axes[0].get_yscale() == ("log" if errors[0] == 0.001 else "linear")


def test_the_bound_of_the_rank_is_drawn_once_where_runs_agree():
    rank = np.array([[3.0, 5.0], [4.0, 4.0]])
    figure = rank_figure([RankSet("a", 0, rank, 8), RankSet("b", 1, rank - 1, 8)])
    assert legend(figure) == ["a: mean of heads", "b: mean of heads", "upper bound M = 8"]
    np.testing.assert_allclose(figure.axes[0].lines[0].get_ydata(), [4, 4])
