"""Fields at points, on a grid or scattered.

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
from linearno.viz.style import FONT, WIDTH, literal

FIELD, INPUT, ERROR = "viridis", "cividis", "magma"  # perceptually uniform, safe for colour-blind readers
# inches around and between panels, in 1-D, 2-D and 3-D
MARGINS_ACROSS = (0.75, 1.0, 0.1), (0.7, 0.3, 0.15), (0.1, 0.4, 0.4)  # left, between, right
MARGINS_DOWN = (0.7, 0.85, 0.6), (0.7, 1.1, 1.3), (0.7, 1.2, 0.9)  # top, between, bottom
FLAT = 0.45  # height over width below which panels stand one above the other
MOST_POINTS = 20_000  # of a 3-D cloud: more cannot be told apart
SPACE_TIME = 0.8  # height over width of a panel over space and time, which have no common scale
NOWHERE = "#e4e4e4"  # the ground where nothing was observed

Coords = Float[ndarray, "N X"]
Values = Float[ndarray, "N"]
Grid = tuple[int, ...] | None
Limits = tuple[float, float]
View = tuple[Limits, ...] | None  # bounds of each coordinate; None shows all


@dataclass(frozen=True)
class Case:
    """One sample and one output channel in physical units; labels say name and unit."""

    coords: Coords
    truth: Values
    prediction: Values
    input: Values | None = None  # None: the points themselves are the input
    axis_labels: tuple[str, ...] = ("x", "y", "z")
    input_label: str = ""
    output_label: str = ""
    grid: Grid = None
    observed: Integer[ndarray, "K"] | None = None  # the points whose true values are the input
    over_time: bool = False  # one of two coordinates is time: they have no common scale
    view: View = None
    predicted_coords: Coords | None = None  # of points that move: where the prediction says that they are

    def draw(self, axes: Any, values: Values, scale: Limits, colors: str, *, predicted: bool = False) -> None:
        """A field at the points, or at the predicted ones."""
        moved = self.predicted_coords
        coords = moved if predicted and moved is not None else self.coords
        draw_field(axes, coords, values, self.grid, scale, colors, within=moved is not None)


def case_figure(case: Case, *, title: str = "") -> Figure:
    """Input, truth, prediction, |error|: truth and prediction on one scale, the error on its own."""
    figure, panels = _panels(case.coords, 4, over_time=case.over_time, view=case.view)
    figure.suptitle(literal(title), fontsize=FONT + 1)
    both = limits(case.truth, case.prediction)
    error = np.abs(case.prediction - case.truth)
    for axes, name, values, scale, colors in (
        (panels[1], "truth", case.truth, both, FIELD),
        (panels[2], "prediction", case.prediction, both, FIELD),
        (panels[3], "absolute error", error, (0.0, limits(error)[1]), ERROR),
    ):
        case.draw(axes, values, scale, colors, predicted=name == "prediction")
        _finish(axes, name, case.output_label)
    _draw_input(panels[0], case, both)
    _name_axes(panels, case.axis_labels)
    show_only(panels, case.view)
    return figure


def strip_figure(case: Case) -> Figure:
    """Truth, prediction and |error| in a row, or one below the other where they are flat.

    Truth and prediction have the scale of the truth: a prediction that is far off must not hide it.
    """
    figure, panels = _panels(case.coords, 3, over_time=case.over_time, view=case.view, most=3)
    figure.suptitle(literal(case.output_label), fontsize=FONT + 1)
    scale, error = limits(case.truth), np.abs(case.prediction - case.truth)
    for axes, name, values, of, colors in (
        (panels[0], "truth", case.truth, scale, FIELD),
        (panels[1], "prediction", case.prediction, scale, FIELD),
        (panels[2], "absolute error", error, (0.0, limits(error)[1]), ERROR),
    ):
        case.draw(axes, values, of, colors, predicted=name == "prediction")
        _finish(axes, name, "")
    _name_axes(panels, case.axis_labels)
    show_only(panels, case.view)
    for axes in panels[1:]:
        if axes.get_subplotspec().is_first_row():  # in a row one name serves all, and has room
            axes.set_xlabel("")
    return figure


def _draw_input(axes: Any, case: Case, scale: Limits) -> None:
    """What the model was given: some values of the truth, a field, or only the points."""
    if case.observed is not None:
        coords, values = case.coords[case.observed], case.truth[case.observed]
        draw_observed(axes, coords, values, scale)
        _finish(axes, f"{len(values):,} of {len(case.coords):,} observed", case.output_label)
    elif case.input is not None:
        case.draw(axes, case.input, limits(case.input), INPUT)
        _finish(axes, "input", case.input_label)
    else:
        draw_points(axes, case.coords)
        _finish(axes, f"input: {len(case.coords)} points", "")


def field_figure(
    coords: Coords,
    values: Values,
    *,
    label: str,
    axis_labels: tuple[str, ...] = ("x", "y", "z"),
    grid: Grid = None,
    title: str = "",
    view: View = None,
) -> Figure:
    """One field with its colour bar."""
    figure, panels = _panels(coords, 1, view=view)
    draw_field(panels[0], coords, values, grid, limits(values), FIELD)
    _finish(panels[0], title, label)
    _name_axes(panels, axis_labels)
    show_only(panels, view)
    return figure


def limits(*fields: Values) -> Limits:
    """The least and the greatest finite value of all fields together, never equal."""
    values = np.concatenate(fields)
    values = values[np.isfinite(values)]
    if not len(values):
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    margin = 0.0 if high > low else 0.5 * abs(high) or 0.5
    return low - margin, high + margin


def draw_field(
    axes: Any,
    coords: Coords,
    values: Values,
    grid: Grid,
    scale: Limits,
    colors: str,
    *,
    within: bool = False,
) -> None:
    """A line in 1-D; cells around the points of a straight 2-D grid; smooth shades between those of a curved
    one, and on triangles between scattered points; a 3-D cloud.

    The coordinates place the values, so a grid may be curved and its rows may run along any axis. `within`
    treats a straight grid as a curved one: points that move are straight in some frames only, and cells
    around them would be larger there.
    """
    look: dict[str, Any] = {"cmap": colors, "vmin": scale[0], "vmax": scale[1]}
    if coords.shape[1] == 1:
        order = np.argsort(coords[:, 0])
        axes.plot(coords[order, 0], values[order])
        margin = 0.04 * (scale[1] - scale[0])
        axes.set_ylim(scale[0] - margin, scale[1] + margin)
    elif coords.shape[1] > 2:
        some = slice(None, None, ceil(len(coords) / MOST_POINTS))
        axes.scatter(*coords[some, :3].T, c=values[some], s=3, **look)
    elif grid is not None and len(grid) == 2 and np.isfinite(coords).all():  # predicted ones may not be
        x, y = (axis.reshape(grid) for axis in coords.T)
        within = within or not is_straight(x, y)
        if within and np.isfinite(values).all():
            look["shading"] = "gouraud"
        else:
            x, y = corners(x, within=within), corners(y, within=within)
        axes.pcolormesh(x, y, values.reshape(grid), rasterized=True, **look)
    elif (mesh := triangulate(coords)) is not None and np.isfinite(values).all():
        axes.tripcolor(mesh, values, shading="gouraud", **look)
    else:
        axes.scatter(*coords.T, c=values, s=dot_size(len(coords)), **look)


def draw_points(axes: Any, coords: Coords) -> None:
    """Where the points are, and nothing else."""
    some = coords[:: ceil(len(coords) / MOST_POINTS), :3]
    columns = some.T if some.shape[1] > 1 else (some[:, 0], np.zeros(len(some)))
    axes.scatter(*columns, color="#444444", s=dot_size(len(coords)) / 4)


def draw_observed(
    axes: Any, coords: Float[ndarray, "K X"], values: Float[ndarray, "K"], scale: Limits
) -> None:
    """A dot for each known value, in the colours of the whole field; the more there are, the smaller."""
    if coords.shape[1] == 1:
        axes.plot(coords[:, 0], values, ".")
        axes.set_ylim(*scale)
        return
    if coords.shape[1] == 2:
        axes.set_facecolor(NOWHERE)
    size = dot_size(len(coords)) / 5
    axes.scatter(*coords[:, :3].T, c=values, s=size, cmap=FIELD, vmin=scale[0], vmax=scale[1])


def dot_size(points: int, inches: float = 2.4) -> float:
    """The area in square points of a dot that tiles a panel `inches` wide with `points` of its kind."""
    return float(np.clip((72 * inches) ** 2 / points, 1, 60))


def show_only(panels: Sequence[Any], view: View) -> None:
    """The part of two coordinates that there is to see, where most of the points lie."""
    for axes in panels:
        if view is not None and len(view) == 2:
            axes.set(xlim=view[0], ylim=view[1])


def around(coords: Coords) -> tuple[Limits, ...]:
    """A view of these points, with a little room: others that are far off do not make them small."""
    low, high = coords.min(axis=0), coords.max(axis=0)
    room = 0.02 * float(high[0] - low[0])
    return tuple((float(a) - room, float(b) + room) for a, b in zip(low, high, strict=True))


def shape_of(coords: Coords, view: View = None) -> tuple[float, bool]:
    """Height over width of a panel, and whether both axes have one scale in it."""
    if coords.shape[1] != 2:
        return (0.7 if coords.shape[1] == 1 else 1.0), False
    width, height = np.ptp(coords if view is None else np.array(view).T, axis=0)
    ratio = float(height / width) if width > 0 and height > 0 else 1.0
    return (ratio, True) if 0.1 <= ratio <= 2 else (0.8, False)


def _panels(
    coords: Coords, count: int, *, over_time: bool = False, view: View = None, most: int = 2
) -> tuple[Figure, list[Any]]:
    """A figure with `count` panels: in `most` columns, or one above the other where they are flat.

    Placed by hand, in inches: layout engines know neither equal scales nor what stands below a panel.
    """
    ratio, equal = (SPACE_TIME, False) if over_time else shape_of(coords, view)
    columns = 1 if ratio < FLAT else min(count, most)
    rows = ceil(count / columns)
    left, between, right = MARGINS_ACROSS[min(coords.shape[1], 3) - 1]
    top, gap, bottom = MARGINS_DOWN[min(coords.shape[1], 3) - 1]
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


def _finish(axes: Any, title: str, label: str) -> None:
    """Title, and a colour bar below the panel; in 1-D the label stands at the axis."""
    axes.set_title(literal(title), fontsize=FONT)
    axes.tick_params(labelsize=FONT - 2)
    if axes.lines:
        axes.set_ylabel(literal(label), fontsize=FONT)
        axes.grid(True, color="#dddddd", linewidth=0.8)
    elif axes.collections[0].get_array() is not None:
        last = axes.get_subplotspec().is_last_row()
        inches = axes.get_position().height * axes.figure.get_figheight()
        down = 0.35 if axes.name == "3d" else 0.7 if last else 0.25  # below the axis's own numbers
        bar = axes.figure.colorbar(
            axes.collections[0],
            cax=axes.inset_axes((0, -down / inches, 1, 0.12 / inches)),
            orientation="horizontal",
        )
        bar.set_label(literal(label), fontsize=FONT - 1, loc="left")
        bar.locator = MaxNLocator(4)
        bar.formatter.set_powerlimits((-2, 3))
        bar.ax.tick_params(labelsize=FONT - 2)
        bar.ax.xaxis.get_offset_text().set_fontsize(FONT - 2)


def _name_axes(panels: list[Any], names: tuple[str, ...]) -> None:
    """Names of the coordinates, in 2-D at the outer panels only; a 3-D panel has no room for them."""
    for axes in panels:
        axes.locator_params(nbins=4)
        if axes.name == "3d":
            continue
        axes.locator_params(axis="x", nbins=3)  # so that the last number is not the next panel's first
        axes.set_xlabel(literal(names[0]), fontsize=FONT)
        if not axes.lines and len(names) > 1:
            axes.set_ylabel(literal(names[1]), fontsize=FONT)
            axes.label_outer(remove_inner_ticks=True)
