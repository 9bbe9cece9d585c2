"""Figures of fields at points, on a grid or scattered.

Axes: N points, X coordinates (one may be time), R rows and Q columns of a grid, K observations.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
from jaxtyping import Float, Integer
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy import ndarray

from linearno.viz.mesh import corners, is_straight, triangulate
from linearno.viz.style import FONT, WIDTH, escape_mathtext

# Perceptually uniform, and suitable for colour-blind readers.
FIELD_COLORMAP, INPUT_COLORMAP, ERROR_COLORMAP = "viridis", "cividis", "magma"
SIGNED_COLORMAP = "RdBu_r"  # zero is white
SIGNED_SHARE = 0.2  # of the largest magnitude that both signs of a signed field reach
# Inches around and between panels, in 1-D, 2-D and 3-D.
MARGINS_X = (0.75, 1.0, 0.1), (0.7, 0.3, 0.15), (0.1, 0.4, 0.4)  # left, between, right
MARGINS_Y = (0.7, 0.85, 0.6), (0.7, 1.1, 1.3), (0.7, 1.2, 0.9)  # top, between, bottom
FLAT_ASPECT = 0.45  # height over width below which panels are stacked vertically
MAX_CLOUD_POINTS = 20_000  # points drawn of a 3-D cloud
SPACE_TIME_ASPECT = 0.8  # height over width of a panel over space and time
UNOBSERVED_COLOR = "#e4e4e4"  # background where nothing was observed

Coords = Float[ndarray, "N X"]
Values = Float[ndarray, "N"]
Grid = tuple[int, ...] | None
Limits = tuple[float, float]
View = tuple[Limits, ...] | None  # bounds of each coordinate; None shows all


@dataclass(frozen=True)
class Case:
    """One sample and one output channel in physical units.

    Args:
        coords: (N, X) coordinates of the points.
        truth: (N,) true values.
        prediction: (N,) predicted values.
        input: (N,) values of an input field; None if the geometry is the only input.
        axis_labels: name and unit of each coordinate.
        input_label: name and unit of the input.
        output_label: name and unit of the output.
        grid: (rows, columns) if the points are those of a grid in C order.
        observed: (K,) indices of the points whose true values are the input.
        over_time: whether one of two coordinates is time, which has no common scale with space.
        view: bounds of the plot.
        predicted_coords: (N, X) predicted positions of points that move.
    """

    coords: Coords
    truth: Values
    prediction: Values
    input: Values | None = None
    axis_labels: tuple[str, ...] = ("x", "y", "z")
    input_label: str = ""
    output_label: str = ""
    grid: Grid = None
    observed: Integer[ndarray, "K"] | None = None
    over_time: bool = False
    view: View = None
    predicted_coords: Coords | None = None

    def draw(self, axes: Any, values: Values, scale: Limits, colors: str, *, predicted: bool = False) -> None:
        """Draw a field at the points, or at their predicted positions."""
        moved = self.predicted_coords
        coords = moved if predicted and moved is not None else self.coords
        draw_field(axes, coords, values, self.grid, scale, colors, within_outline=moved is not None)


def case_figure(case: Case, *, title: str = "") -> Figure:
    """Input, truth, prediction and |error|; truth and prediction share one colour scale."""
    figure, panels = _create_panels(case.coords, 4, over_time=case.over_time, view=case.view)
    figure.suptitle(escape_mathtext(title), fontsize=FONT + 1)
    shared, shared_colors = color_scale(case.coords.shape[1], case.truth, case.prediction)
    error = np.abs(case.prediction - case.truth)
    for axes, name, values, scale, colors in (
        (panels[1], "truth", case.truth, shared, shared_colors),
        (panels[2], "prediction", case.prediction, shared, shared_colors),
        (panels[3], "absolute error", error, (0.0, color_limits(error)[1]), ERROR_COLORMAP),
    ):
        case.draw(axes, values, scale, colors, predicted=name == "prediction")
        _add_title_and_colorbar(axes, name, case.output_label)
    _draw_input(panels[0], case, shared, shared_colors)
    _label_axes(panels, case.axis_labels)
    apply_view(panels, case.view)
    return figure


def strip_figure(case: Case) -> Figure:
    """Truth, prediction and |error| in a row, or stacked vertically if the panels are flat.

    Truth and prediction have the colour scale of the truth, which outliers of the prediction do not hide.
    """
    figure, panels = _create_panels(case.coords, 3, over_time=case.over_time, view=case.view, max_columns=3)
    figure.suptitle(escape_mathtext(case.output_label), fontsize=FONT + 1)
    scale, field_colors = color_scale(case.coords.shape[1], case.truth)
    error = np.abs(case.prediction - case.truth)
    for axes, name, values, limits, colors in (
        (panels[0], "truth", case.truth, scale, field_colors),
        (panels[1], "prediction", case.prediction, scale, field_colors),
        (panels[2], "absolute error", error, (0.0, color_limits(error)[1]), ERROR_COLORMAP),
    ):
        case.draw(axes, values, limits, colors, predicted=name == "prediction")
        _add_title_and_colorbar(axes, name, "")
    _label_axes(panels, case.axis_labels)
    apply_view(panels, case.view)
    for axes in panels[1:]:
        if axes.get_subplotspec().is_first_row():  # in a row, only the first panel is labelled
            axes.set_xlabel("")
    return figure


def _draw_input(axes: Any, case: Case, scale: Limits, colors: str) -> None:
    """Draw the input of the model: observed values, a field, or only the points."""
    if case.observed is not None:
        coords, values = case.coords[case.observed], case.truth[case.observed]
        draw_observed(axes, coords, values, scale, colors)
        _add_title_and_colorbar(axes, f"{len(values):,} of {len(case.coords):,} observed", case.output_label)
    elif case.input is not None:
        case.draw(axes, case.input, *color_scale(case.coords.shape[1], case.input, colors=INPUT_COLORMAP))
        _add_title_and_colorbar(axes, "input", case.input_label)
    else:
        draw_points(axes, case.coords)
        _add_title_and_colorbar(axes, f"input: {len(case.coords)} points", "")


def field_figure(
    coords: Coords,
    values: Values,
    *,
    label: str,
    axis_labels: tuple[str, ...] = ("x", "y", "z"),
    grid: Grid = None,
    title: str = "",
    view: View = None,
    limits: Limits | None = None,
) -> Figure:
    """One field with its colour bar; `limits` of the colours, its own by default."""
    figure, panels = _create_panels(coords, 1, view=view)
    draw_field(panels[0], coords, values, grid, limits or color_limits(values), FIELD_COLORMAP)
    _add_title_and_colorbar(panels[0], title, label)
    _label_axes(panels, axis_labels)
    apply_view(panels, view)
    return figure


def color_limits(*fields: Values) -> Limits:
    """Smallest and largest finite value of all fields, widened if they are equal."""
    values = np.concatenate(fields)
    values = values[np.isfinite(values)]
    if not len(values):
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    margin = 0.0 if high > low else 0.5 * abs(high) or 0.5
    return low - margin, high + margin


def color_scale(
    axes: int, truth: Values, *others: Values, colors: str = FIELD_COLORMAP
) -> tuple[Limits, str]:
    """Limits and colour map of all fields: symmetric about zero and diverging if the truth is signed.

    With one coordinate (`axes`) fields are lines, whose limits are those of the values.
    """
    low, high = color_limits(truth)
    signed = axes > 1 and min(-low, high) >= SIGNED_SHARE * max(-low, high)
    low, high = color_limits(truth, *others)
    if not signed:
        return (low, high), colors
    largest = max(-low, high)
    return (-largest, largest), SIGNED_COLORMAP


def draw_field(
    axes: Any,
    coords: Coords,
    values: Values,
    grid: Grid,
    scale: Limits,
    colors: str,
    *,
    within_outline: bool = False,
) -> None:
    """Draw a field as a line (1-D), cells, interpolated triangles (2-D) or a point cloud (3-D).

    A rectilinear 2-D grid is drawn as cells around its points, a curved one with Gouraud shading, scattered
    points on a Delaunay triangulation.

    Args:
        axes: matplotlib axes.
        coords: (N, X) coordinates; those of a grid may be curved and run along any axis.
        values: (N,) values.
        grid: (rows, columns) if the points are those of a grid in C order.
        scale: smallest and largest value of the colour scale, or of the vertical axis in 1-D.
        colors: name of the colour map.
        within_outline: treat a rectilinear grid as a curved one. For points that move, whose grid is
            rectilinear in some frames only: cells would extend beyond the outline there.
    """
    style: dict[str, Any] = {"cmap": colors, "vmin": scale[0], "vmax": scale[1]}
    if coords.shape[1] == 1:
        order = np.argsort(coords[:, 0])
        axes.plot(coords[order, 0], values[order])
        margin = 0.04 * (scale[1] - scale[0])
        axes.set_ylim(scale[0] - margin, scale[1] + margin)
    elif coords.shape[1] > 2:
        subset = slice(None, None, ceil(len(coords) / MAX_CLOUD_POINTS))
        axes.scatter(*coords[subset, :3].T, c=values[subset], s=3, **style)
    elif grid is not None and len(grid) == 2 and np.isfinite(coords).all():  # predicted positions may be NaN
        x, y = (axis.reshape(grid) for axis in coords.T)
        within_outline = within_outline or not is_straight(x, y)
        if within_outline and np.isfinite(values).all():
            style["shading"] = "gouraud"
        else:
            x, y = corners(x, within_outline=within_outline), corners(y, within_outline=within_outline)
        axes.pcolormesh(x, y, values.reshape(grid), rasterized=True, **style)
    elif (mesh := triangulate(coords)) is not None and np.isfinite(values).all():
        axes.tripcolor(mesh, values, shading="gouraud", **style)
    else:
        axes.scatter(*coords.T, c=values, s=dot_size(len(coords)), **style)


def draw_points(axes: Any, coords: Coords) -> None:
    """Draw the points without values."""
    subset = coords[:: ceil(len(coords) / MAX_CLOUD_POINTS), :3]
    columns = subset.T if subset.shape[1] > 1 else (subset[:, 0], np.zeros(len(subset)))
    axes.scatter(*columns, color="#444444", s=dot_size(len(coords)) / 4)


def draw_observed(
    axes: Any, coords: Float[ndarray, "K X"], values: Float[ndarray, "K"], scale: Limits, colors: str
) -> None:
    """Draw a dot for each observed value, with the colour scale of the whole field."""
    if coords.shape[1] == 1:
        axes.plot(coords[:, 0], values, ".")
        axes.set_ylim(*scale)
        return
    if coords.shape[1] == 2:
        axes.set_facecolor(UNOBSERVED_COLOR)
    size = dot_size(len(coords)) / 5
    axes.scatter(*coords[:, :3].T, c=values, s=size, cmap=colors, vmin=scale[0], vmax=scale[1])


def dot_size(points: int, inches: float = 2.4) -> float:
    """Dot area (square points) with which `points` dots tile a square panel of this width in inches."""
    return float(np.clip((72 * inches) ** 2 / points, 1, 60))


def apply_view(panels: Sequence[Any], view: View) -> None:
    """Limit the axes of 2-D panels to `view`."""
    for axes in panels:
        if view is not None and len(view) == 2:
            axes.set(xlim=view[0], ylim=view[1])


def view_around(coords: Coords) -> tuple[Limits, ...]:
    """The bounding box of the points with a margin, for figures that also contain outliers."""
    low, high = coords.min(axis=0), coords.max(axis=0)
    margin = 0.02 * float(high[0] - low[0])
    return tuple((float(a) - margin, float(b) + margin) for a, b in zip(low, high, strict=True))


def panel_aspect(coords: Coords, view: View = None) -> tuple[float, bool]:
    """Height over width of a panel, and whether both axes have the same scale."""
    if coords.shape[1] != 2:
        return (0.7 if coords.shape[1] == 1 else 1.0), False
    width, height = np.ptp(coords if view is None else np.array(view).T, axis=0)
    ratio = float(height / width) if width > 0 and height > 0 else 1.0
    return (ratio, True) if 0.1 <= ratio <= 2 else (0.8, False)


def _create_panels(
    coords: Coords, count: int, *, over_time: bool = False, view: View = None, max_columns: int = 2
) -> tuple[Figure, list[Any]]:
    """A figure with `count` panels in up to `max_columns` columns, or stacked vertically if they are flat.

    Positions are computed in inches: layout engines do not account for equal scales and inset colour bars.
    """
    ratio, equal = (SPACE_TIME_ASPECT, False) if over_time else panel_aspect(coords, view)
    columns = 1 if ratio < FLAT_ASPECT else min(count, max_columns)
    rows = ceil(count / columns)
    left, between, right = MARGINS_X[min(coords.shape[1], 3) - 1]
    top, gap, bottom = MARGINS_Y[min(coords.shape[1], 3) - 1]
    width = (WIDTH - left - right - between * (columns - 1)) / columns
    height = width * ratio
    total = top + rows * height + (rows - 1) * gap + bottom
    figure = Figure(figsize=(WIDTH, total), facecolor="white")
    place = {
        "left": left / WIDTH,
        "right": 1 - right / WIDTH,
        "bottom": bottom / total,
        "top": 1 - top / total,
    }
    gaps = {"wspace": between / width, "hspace": gap / height}
    kind = {"projection": "3d"} if coords.shape[1] > 2 else {"aspect": "equal" if equal else "auto"}
    shared = coords.shape[1] == 2
    panels = figure.subplots(
        rows, columns, squeeze=False, sharex=shared, sharey=shared, subplot_kw=kind, gridspec_kw=place | gaps
    )
    return figure, list(panels.flat)


def _add_title_and_colorbar(axes: Any, title: str, label: str) -> None:
    """Add a title, and a colour bar below the panel; in 1-D label the vertical axis instead."""
    axes.set_title(escape_mathtext(title), fontsize=FONT)
    axes.tick_params(labelsize=FONT - 2)
    if axes.lines:
        axes.set_ylabel(escape_mathtext(label), fontsize=FONT)
        axes.grid(True, color="#dddddd", linewidth=0.8)
    elif axes.collections[0].get_array() is not None:
        last = axes.get_subplotspec().is_last_row()
        inches = axes.get_position().height * axes.figure.get_figheight()
        down = 0.35 if axes.name == "3d" else 0.7 if last else 0.25  # inches, below the tick labels
        bar = axes.figure.colorbar(
            axes.collections[0],
            cax=axes.inset_axes((0, -down / inches, 1, 0.12 / inches)),
            orientation="horizontal",
        )
        bar.set_label(escape_mathtext(label), fontsize=FONT - 1, loc="left")
        bar.locator = MaxNLocator(4)
        bar.formatter.set_powerlimits((-2, 3))
        bar.ax.tick_params(labelsize=FONT - 2)
        bar.ax.xaxis.get_offset_text().set_fontsize(FONT - 2)


def _label_axes(panels: list[Any], names: tuple[str, ...]) -> None:
    """Label the coordinate axes, in 2-D at the outer panels only, in 3-D not at all for lack of space."""
    for axes in panels:
        axes.locator_params(nbins=4)
        if axes.name == "3d":
            continue
        axes.locator_params(axis="x", nbins=3)  # tick labels of neighbouring panels must not touch
        axes.set_xlabel(escape_mathtext(names[0]), fontsize=FONT)
        if not axes.lines and len(names) > 1:
            axes.set_ylabel(escape_mathtext(names[1]), fontsize=FONT)
            axes.label_outer(remove_inner_ticks=True)
