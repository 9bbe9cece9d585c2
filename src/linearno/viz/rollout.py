"""A field that marches in time: some frames beside each other, or all one after the other.

Axes: N points, X coordinates, T frames.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy import ndarray

from linearno.viz.encode import Pixels, pixels
from linearno.viz.fields import (
    ERROR,
    FIELD,
    INPUT,
    Coords,
    Grid,
    Limits,
    Values,
    around,
    draw_field,
    limits,
    shape_of,
    show_only,
)
from linearno.viz.style import FONT, WIDTH, literal

Frames = Float[ndarray, "N T"]
Places = Float[ndarray, "N T X"]

FRAME_DPI = 100
COLUMNS = 3  # panels side by side: three steps of a figure, three fields of a frame
# inches
LEFT, BETWEEN, RIGHT = 0.8, 0.1, 0.12  # around and between panels
TITLES, TICKS, BAR = 0.3, 0.55, 0.6  # above panels, below those with numbers, for a colour bar
LEAST, NEXT_BAR = 1.3, 0.7  # beside the known frame stand the colour bars: two, and how far apart they are
LETTER = 0.082  # of the name of a row, which stands upright


@dataclass(frozen=True)
class RolloutCase:
    """One rollout in physical units: the last known frame, and those that follow.

    Or frames that are made from another field: then `known` is that, and has a label of its own. Points that
    move are drawn where they are, each prediction where it says that they are.
    """

    coords: Coords  # of points that stay
    known: Values
    truth: Frames
    prediction: Frames
    known_name: str = ""
    names: tuple[str, ...] = ()  # of the T frames
    axis_labels: tuple[str, ...] = ("x", "y", "z")  # name and unit
    label: str = ""  # name and unit of the field
    grid: Grid = None
    known_label: str = ""  # of a known field that is no frame
    places: Places | None = None
    predicted_places: Places | None = None

    def where(self, step: int, *, predicted: bool = False) -> Coords:
        """The points at a step."""
        places = self.predicted_places if predicted else self.places
        return self.coords if places is None else places[:, step]

    @property
    def box(self) -> Coords:
        """Points that fill as much room as those of all steps."""
        if self.places is None:
            return self.coords
        return np.stack([self.places.min(axis=(0, 1)), self.places.max(axis=(0, 1))])

    @property
    def steps(self) -> int:
        return self.truth.shape[1]

    def name(self, step: int) -> str:
        return self.names[step] if self.names else f"frame {step + 1}"


@dataclass(frozen=True)
class _Field:
    """Truth, prediction or error of all frames, on one scale."""

    name: str
    values: Frames
    scale: Limits
    colors: str
    predicted: bool = False

    @property
    def beyond(self) -> str:
        """The ends of its scale that it goes beyond, as a colour bar calls them."""
        below, above = (self.values < self.scale[0]).any(), (self.values > self.scale[1]).any()
        return "both" if below and above else "min" if below else "max" if above else "neither"


def rollout_figure(case: RolloutCase, *, title: str = "") -> Figure:
    """The last known frame; below it truth, prediction and |error| of the first, middle and last step.

    A row for each of the three; of panels that are too flat for their names a row for each step.
    """
    steps = sorted({0, (case.steps - 1) // 2, case.steps - 1})
    fields, (width, height) = _fields(case), _panel(case)
    bars = LEAST + (NEXT_BAR if case.known_label else 0)
    below = 3 * TITLES + max(height + TICKS, bars)  # where the steps begin
    flat = height + BETWEEN < LETTER * max(len(field.name) for field in fields)
    rows = [case.name(step) for step in steps] if flat else [field.name for field in fields]
    pitch = max(height + BETWEEN, LETTER * max(map(len, rows)))
    total = below + len(rows) * pitch
    sheet = _Sheet(Figure(figsize=(WIDTH, total), facecolor="white"), case)
    sheet.figure.suptitle(literal(title), fontsize=FONT + 1, y=1 - 0.08 / total, va="top")
    given = _given(case, fields[0])
    known = sheet.draw(given, case.known, LEFT, 2 * TITLES)
    known.set_title(literal(f"input: {case.known_name}"), fontsize=FONT - 1)
    sheet.name_axes(known)
    beside = LEFT + width + 0.5
    sheet.colour_bar(fields[1], case.label, beside, 2 * TITLES, WIDTH - beside - 0.3)
    sheet.colour_bar(fields[2], f"error: {case.label}", beside, 2 * TITLES + NEXT_BAR, WIDTH - beside - 0.3)
    if case.known_label:
        sheet.colour_bar(given, case.known_label, beside, 2 * TITLES + 2 * NEXT_BAR, WIDTH - beside - 0.3)
    for (i, field), (j, step) in product(enumerate(fields), enumerate(steps)):
        row, column = (j, i) if flat else (i, j)
        left, top = LEFT + column * (width + BETWEEN), below + row * pitch
        axes = sheet.draw(field, field.values[:, step], left, top, step)
        sheet.strip(axes, "" if column else rows[row])
        if row == 0:
            axes.set_title(literal(field.name if flat else case.name(step)), fontsize=FONT - 1)
    return sheet.figure


def frame_figure(case: RolloutCase, step: int) -> Figure:
    """Truth, prediction and |error| of one step side by side, on the scales of the whole rollout."""
    fields, (width, height) = _fields(case), _panel(case)
    below = 2 * TITLES + height + TICKS
    total = below + (0 if case.coords.shape[1] == 1 else BAR)
    sheet = _Sheet(Figure(figsize=(WIDTH, total), facecolor="white"), case)
    heading = f"{case.name(step)}: step {step + 1} of {case.steps}"
    sheet.figure.suptitle(literal(heading), fontsize=FONT, y=1 - 0.06 / total, va="top")
    places = [LEFT + column * (width + BETWEEN) for column in range(COLUMNS)]
    for field, left in zip(fields, places, strict=True):
        axes = sheet.draw(field, field.values[:, step], left, 2 * TITLES, step)
        limit = f" to {field.scale[1]:.2g}" if axes.lines and field is fields[2] else ""
        axes.set_title(f"{field.name}{limit}", fontsize=FONT - 1)
        if field is fields[0]:
            sheet.name_axes(axes)
        else:
            sheet.strip(axes)
    sheet.colour_bar(fields[1], case.label, places[0], below, 2 * width)
    sheet.colour_bar(fields[2], "", places[2], below, width)
    return sheet.figure


def rollout_frames(case: RolloutCase, *, dpi: int = FRAME_DPI) -> Iterator[Pixels]:
    """`frame_figure` of every step as pixels: the frames of an animation."""
    return (pixels(frame_figure(case, step), dpi=dpi) for step in range(case.steps))


@dataclass(frozen=True)
class _Sheet:
    """A figure on which panels are placed in inches, from its upper left corner."""

    figure: Figure
    case: RolloutCase

    def draw(self, field: _Field, values: Values, left: float, top: float, step: int = 0) -> Any:
        """A panel with one frame of a field, its points where they are at that step."""
        coords = self.case.where(step, predicted=field.predicted)
        kind: dict[str, Any] = {"projection": "3d"} if coords.shape[1] > 2 else {}
        axes = self.figure.add_axes(self._box(left, top, *_panel(self.case)), **kind)
        moves = self.case.places is not None
        draw_field(axes, coords, values, self.case.grid, field.scale, field.colors, within=moves)
        if shape_of(self.case.box)[1]:
            axes.set_aspect("equal")
        if moves:
            show_only([axes], around(self.case.box[:, :2]))
        axes.tick_params(labelsize=FONT - 3)
        return axes

    def name_axes(self, axes: Any) -> None:
        """Numbers and names at the axes of the panel that stands for all."""
        axes.locator_params(nbins=3)
        if axes.name != "3d":
            across, up = (
                (*self.case.axis_labels, self.case.label)[:2] if axes.lines else self.case.axis_labels[:2]
            )
            axes.set_xlabel(literal(across), fontsize=FONT - 2)
            axes.set_ylabel(literal(up), fontsize=FONT - 2)

    def strip(self, axes: Any, name: str = "") -> None:
        """No numbers at the axes, but for the values of a line at the left of its row, which has a name."""
        axes.set_xticks([])
        if not (axes.lines and name):
            axes.set_yticks([])
        if axes.name == "3d":
            axes.set_zticks([])
            look: dict[str, Any] = {"rotation": 90, "va": "center", "fontsize": FONT - 1}
            axes.text2D(-0.1, 0.5, literal(name), transform=axes.transAxes, **look)
        else:
            axes.set_ylabel(literal(name), fontsize=FONT - 1)

    def colour_bar(self, field: _Field, label: str, left: float, top: float, width: float) -> None:
        """A flat bar below its label; lines have none."""
        if self.case.coords.shape[1] == 1:
            return
        axes = self.figure.add_axes(self._box(left, top + 0.2, width, 0.12))
        shown = ScalarMappable(Normalize(*field.scale), field.colors)
        bar = self.figure.colorbar(shown, cax=axes, orientation="horizontal", extend=field.beyond)
        axes.set_title(literal(label), fontsize=FONT - 2, loc="left", pad=4)
        bar.locator = MaxNLocator(4)
        axes.ticklabel_format(axis="x", scilimits=(-2, 3))
        axes.tick_params(labelsize=FONT - 3)
        axes.xaxis.get_offset_text().set_fontsize(FONT - 3)

    def _box(self, left: float, top: float, width: float, height: float) -> tuple[float, float, float, float]:
        across, down = self.figure.get_size_inches()
        return left / across, 1 - (top + height) / down, width / across, height / down


def _panel(case: RolloutCase) -> tuple[float, float]:
    """Width and height of a panel."""
    width = (WIDTH - LEFT - RIGHT - BETWEEN * (COLUMNS - 1)) / COLUMNS
    return width, width * shape_of(case.box)[0]


def _given(case: RolloutCase, frames: _Field) -> _Field:
    """How the known field is drawn: as the frames are, or on a scale of its own."""
    if not case.known_label:
        return frames
    return _Field("input", case.known[:, None], limits(case.known), INPUT)


def _fields(case: RolloutCase) -> tuple[_Field, _Field, _Field]:
    """Truth and prediction on the scale of the truth: a prediction that runs away must not hide it.

    The error reaches from zero to its largest, or to the whole range of the truth if that is less.
    """
    shown = case.truth if case.known_label else np.column_stack([case.known, case.truth])
    scale, error = limits(shown.ravel()), np.abs(case.prediction - case.truth)
    largest = min(limits(error.ravel())[1], scale[1] - scale[0])
    return (
        _Field("truth", case.truth, scale, FIELD),
        _Field("prediction", case.prediction, scale, FIELD, predicted=True),
        _Field("absolute error", error, (0.0, largest), ERROR),
    )
