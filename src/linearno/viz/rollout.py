"""Figures and animation frames of a field that is predicted over time.

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
    ERROR_COLORMAP,
    INPUT_COLORMAP,
    Coords,
    Grid,
    Limits,
    Values,
    apply_view,
    color_limits,
    color_scale,
    draw_field,
    panel_aspect,
    view_around,
)
from linearno.viz.style import FONT, WIDTH, escape_mathtext

Frames = Float[ndarray, "N T"]
Positions = Float[ndarray, "N T X"]

FRAME_DPI = 100
PANEL_COLUMNS = 3  # steps in `rollout_figure`, fields in `frame_figure`
# Inches.
MARGIN_LEFT, PANEL_GAP, MARGIN_RIGHT = 0.8, 0.1, 0.12
TITLE_HEIGHT, TICKS_HEIGHT, COLORBAR_HEIGHT = 0.3, 0.55, 0.6
TWO_COLORBARS_HEIGHT, COLORBAR_PITCH = 1.3, 0.7  # of the colour bars on the right of the input
LETTER_WIDTH = 0.082  # of the rotated name of a row


@dataclass(frozen=True)
class RolloutCase:
    """Predicted frames of one sample in physical units, and the input that they are predicted from.

    The input is the last known frame of a rollout, or another field, which then has its own label.

    Args:
        coords: (N, X) coordinates of the points, unless they move.
        known: (N,) values of the input.
        truth: (N, T) true frames.
        prediction: (N, T) predicted frames.
        known_name: name of the input.
        names: names of the T frames.
        axis_labels: name and unit of each coordinate.
        label: name and unit of the frames.
        grid: (rows, columns) if the points are those of a grid in C order.
        known_label: name and unit of an input that is not a frame; empty for a frame.
        positions: (N, T, X) true positions of points that move.
        predicted_positions: (N, T, X) their predicted positions.
    """

    coords: Coords
    known: Values
    truth: Frames
    prediction: Frames
    known_name: str = ""
    names: tuple[str, ...] = ()
    axis_labels: tuple[str, ...] = ("x", "y", "z")
    label: str = ""
    grid: Grid = None
    known_label: str = ""
    positions: Positions | None = None
    predicted_positions: Positions | None = None

    def coords_at(self, step: int, *, predicted: bool = False) -> Coords:
        """Positions of the points at a step."""
        positions = self.predicted_positions if predicted else self.positions
        return self.coords if positions is None else positions[:, step]

    @property
    def bounds(self) -> Coords:
        """Points with the bounding box of all steps."""
        if self.positions is None:
            return self.coords
        return np.stack([self.positions.min(axis=(0, 1)), self.positions.max(axis=(0, 1))])

    @property
    def steps(self) -> int:
        """Number of predicted frames T."""
        return self.truth.shape[1]

    def name(self, step: int) -> str:
        """Name of a frame."""
        return self.names[step] if self.names else f"frame {step + 1}"


@dataclass(frozen=True)
class _Field:
    """Truth, prediction or error of all frames, with their colour scale."""

    name: str
    values: Frames
    scale: Limits
    colors: str
    predicted: bool = False

    @property
    def colorbar_extend(self) -> str:
        """`extend` of the colour bar: the ends of the scale that values exceed."""
        below, above = (self.values < self.scale[0]).any(), (self.values > self.scale[1]).any()
        return "both" if below and above else "min" if below else "max" if above else "neither"


def rollout_figure(case: RolloutCase, *, title: str = "") -> Figure:
    """The input, and below it truth, prediction and |error| of the first, middle and last step.

    Rows are fields and columns are steps, or vice versa if panels are too flat for the names of fields.
    """
    steps = sorted({0, (case.steps - 1) // 2, case.steps - 1})
    fields, (width, height) = _fields(case), _panel_size(case)
    colorbars_height = TWO_COLORBARS_HEIGHT + (COLORBAR_PITCH if case.known_label else 0)
    steps_top = 3 * TITLE_HEIGHT + max(height + TICKS_HEIGHT, colorbars_height)
    flat = height + PANEL_GAP < LETTER_WIDTH * max(len(field.name) for field in fields)
    rows = [case.name(step) for step in steps] if flat else [field.name for field in fields]
    pitch = max(height + PANEL_GAP, LETTER_WIDTH * max(map(len, rows)))
    total = steps_top + len(rows) * pitch
    sheet = _Sheet(Figure(figsize=(WIDTH, total), facecolor="white"), case)
    sheet.figure.suptitle(escape_mathtext(title), fontsize=FONT + 1, y=1 - 0.08 / total, va="top")
    known_field = _known_field(case, fields[0])
    known = sheet.draw(known_field, case.known, MARGIN_LEFT, 2 * TITLE_HEIGHT)
    known.set_title(escape_mathtext(f"input: {case.known_name}"), fontsize=FONT - 1)
    sheet.label_axes(known)
    colorbars = [(fields[1], case.label), (fields[2], f"error: {case.label}")]
    if case.known_label:
        colorbars.append((known_field, case.known_label))
    colorbar_left = MARGIN_LEFT + width + 0.5
    for i, (field, label) in enumerate(colorbars):
        top = 2 * TITLE_HEIGHT + i * COLORBAR_PITCH
        sheet.add_colorbar(field, label, colorbar_left, top, WIDTH - colorbar_left - 0.3)
    for (i, field), (j, step) in product(enumerate(fields), enumerate(steps)):
        row, column = (j, i) if flat else (i, j)
        left, top = MARGIN_LEFT + column * (width + PANEL_GAP), steps_top + row * pitch
        axes = sheet.draw(field, field.values[:, step], left, top, step)
        sheet.remove_ticks(axes, "" if column else rows[row])
        if row == 0:
            axes.set_title(escape_mathtext(field.name if flat else case.name(step)), fontsize=FONT - 1)
    return sheet.figure


def frame_figure(case: RolloutCase, step: int) -> Figure:
    """Truth, prediction and |error| of one step in a row, with the colour scales of the whole rollout."""
    fields, (width, height) = _fields(case), _panel_size(case)
    panels_bottom = 2 * TITLE_HEIGHT + height + TICKS_HEIGHT
    total = panels_bottom + (0 if case.coords.shape[1] == 1 else COLORBAR_HEIGHT)
    sheet = _Sheet(Figure(figsize=(WIDTH, total), facecolor="white"), case)
    heading = f"{case.name(step)}: step {step + 1} of {case.steps}"
    sheet.figure.suptitle(escape_mathtext(heading), fontsize=FONT, y=1 - 0.06 / total, va="top")
    lefts = [MARGIN_LEFT + column * (width + PANEL_GAP) for column in range(PANEL_COLUMNS)]
    for field, left in zip(fields, lefts, strict=True):
        axes = sheet.draw(field, field.values[:, step], left, 2 * TITLE_HEIGHT, step)
        limit = f" to {field.scale[1]:.2g}" if axes.lines and field is fields[2] else ""
        axes.set_title(f"{field.name}{limit}", fontsize=FONT - 1)
        if field is fields[0]:
            sheet.label_axes(axes)
        else:
            sheet.remove_ticks(axes)
    sheet.add_colorbar(fields[1], case.label, lefts[0], panels_bottom, 2 * width)
    sheet.add_colorbar(fields[2], "", lefts[2], panels_bottom, width)
    return sheet.figure


def rollout_frames(case: RolloutCase, *, dpi: int = FRAME_DPI) -> Iterator[Pixels]:
    """The pixels of `frame_figure` for every step, as frames of an animation."""
    return (pixels(frame_figure(case, step), dpi=dpi) for step in range(case.steps))


@dataclass(frozen=True)
class _Sheet:
    """A figure with panels positioned in inches from its upper left corner."""

    figure: Figure
    case: RolloutCase

    def draw(self, field: _Field, values: Values, left: float, top: float, step: int = 0) -> Any:
        """Add a panel with one frame of a field at the positions of that step."""
        coords = self.case.coords_at(step, predicted=field.predicted)
        kind: dict[str, Any] = {"projection": "3d"} if coords.shape[1] > 2 else {}
        axes = self.figure.add_axes(self._axes_rectangle(left, top, *_panel_size(self.case)), **kind)
        moves = self.case.positions is not None
        draw_field(axes, coords, values, self.case.grid, field.scale, field.colors, within_outline=moves)
        if panel_aspect(self.case.bounds)[1]:
            axes.set_aspect("equal")
        if moves:
            apply_view([axes], view_around(self.case.bounds[:, :2]))
        axes.tick_params(labelsize=FONT - 3)
        return axes

    def label_axes(self, axes: Any) -> None:
        """Label the axes of the panel that has ticks."""
        axes.locator_params(nbins=3)
        if axes.name != "3d":
            across, up = (
                (*self.case.axis_labels, self.case.label)[:2] if axes.lines else self.case.axis_labels[:2]
            )
            axes.set_xlabel(escape_mathtext(across), fontsize=FONT - 2)
            axes.set_ylabel(escape_mathtext(up), fontsize=FONT - 2)

    def remove_ticks(self, axes: Any, name: str = "") -> None:
        """Remove ticks, except of the values of a line in the first column, whose row has a name."""
        axes.set_xticks([])
        if not (axes.lines and name):
            axes.set_yticks([])
        if axes.name == "3d":
            axes.set_zticks([])
            style: dict[str, Any] = {"rotation": 90, "va": "center", "fontsize": FONT - 1}
            axes.text2D(-0.1, 0.5, escape_mathtext(name), transform=axes.transAxes, **style)
        else:
            axes.set_ylabel(escape_mathtext(name), fontsize=FONT - 1)

    def add_colorbar(self, field: _Field, label: str, left: float, top: float, width: float) -> None:
        """Add a horizontal colour bar below its label; none in 1-D, where fields are lines."""
        if self.case.coords.shape[1] == 1:
            return
        axes = self.figure.add_axes(self._axes_rectangle(left, top + 0.2, width, 0.12))
        shown = ScalarMappable(Normalize(*field.scale), field.colors)
        bar = self.figure.colorbar(shown, cax=axes, orientation="horizontal", extend=field.colorbar_extend)
        axes.set_title(escape_mathtext(label), fontsize=FONT - 2, loc="left", pad=4)
        bar.locator = MaxNLocator(4)
        axes.ticklabel_format(axis="x", scilimits=(-2, 3))
        axes.tick_params(labelsize=FONT - 3)
        axes.xaxis.get_offset_text().set_fontsize(FONT - 3)

    def _axes_rectangle(
        self, left: float, top: float, width: float, height: float
    ) -> tuple[float, float, float, float]:
        """The axes rectangle in figure coordinates, from inches."""
        total_width, total_height = self.figure.get_size_inches()
        bottom = 1 - (top + height) / total_height
        return left / total_width, bottom, width / total_width, height / total_height


def _panel_size(case: RolloutCase) -> tuple[float, float]:
    """Width and height of a panel in inches."""
    width = (WIDTH - MARGIN_LEFT - MARGIN_RIGHT - PANEL_GAP * (PANEL_COLUMNS - 1)) / PANEL_COLUMNS
    return width, width * panel_aspect(case.bounds)[0]


def _known_field(case: RolloutCase, frames: _Field) -> _Field:
    """Style of the input: that of the frames, or a separate colour scale for another field."""
    if not case.known_label:
        return frames
    return _Field(
        "input", case.known[:, None], *color_scale(case.coords.shape[1], case.known, colors=INPUT_COLORMAP)
    )


def _fields(case: RolloutCase) -> tuple[_Field, _Field, _Field]:
    """Truth, prediction and error; truth and prediction have the colour scale of the truth.

    A prediction that diverges then does not hide the truth. The scale of the error ends at its largest value,
    or at the range of the truth if that is less.
    """
    shown = case.truth if case.known_label else np.column_stack([case.known, case.truth])
    scale, colors = color_scale(case.coords.shape[1], shown.ravel())
    error, true_range = np.abs(case.prediction - case.truth), color_limits(shown.ravel())
    largest = min(color_limits(error.ravel())[1], true_range[1] - true_range[0])
    return (
        _Field("truth", case.truth, scale, colors),
        _Field("prediction", case.prediction, scale, colors, predicted=True),
        _Field("absolute error", error, (0.0, largest), ERROR_COLORMAP),
    )
