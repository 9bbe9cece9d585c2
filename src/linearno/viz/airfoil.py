"""Figures of flows around airfoils. Axes: W points on an airfoil, S samples."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Integer
from matplotlib.figure import Figure
from numpy import ndarray

from linearno.viz.style import WIDTH, format_axes, legend_below, new_figure, run_color

TRUTH_COLOR = "#000000"


@dataclass(frozen=True)
class WallPressure:
    """Pressure coefficient on one airfoil.

    Args:
        title: title of the panel.
        x: position along the chord.
        upper: whether a point is on the upper side.
        truth: true coefficients.
        prediction: predicted coefficients.
    """

    title: str
    x: Float[ndarray, "W"]
    upper: Bool[ndarray, "W"]
    truth: Float[ndarray, "W"]
    prediction: Float[ndarray, "W"]


def wall_pressure_figure(airfoils: Sequence[WallPressure], *, color: int = 0) -> Figure:
    """Pressure coefficient along the chord, a panel for each airfoil; low pressure is above."""
    figure = new_figure(3.0 * len(airfoils))
    panels = figure.subplots(len(airfoils), 1, squeeze=False, sharex=True)[:, 0]
    for axes, airfoil in zip(panels, airfoils, strict=True):
        order = _around(airfoil)
        x = airfoil.x[order]
        axes.plot(x, airfoil.truth[order], color=TRUTH_COLOR, linewidth=1.2, label="truth")
        style = {"color": run_color(color), "linewidth": 1.6, "label": "prediction"}
        axes.plot(x, airfoil.prediction[order], "--", **style)
        axes.set_ylim(*_limits(airfoil.truth)[::-1])
        last = axes is panels[-1]
        format_axes(
            axes, title=airfoil.title, x="x / chord" if last else "", y="pressure coefficient", grid=True
        )
    legend_below(figure, panels[0])
    return figure


def _around(airfoil: WallPressure) -> Integer[ndarray, "W"]:
    """Points from the trailing edge along the upper side and back along the lower side."""
    upper, lower = np.flatnonzero(airfoil.upper), np.flatnonzero(~airfoil.upper)
    back = upper[np.argsort(-airfoil.x[upper], kind="stable")]
    return np.concatenate([back, lower[np.argsort(airfoil.x[lower], kind="stable")]])


def polar_figure(
    angle: Float[ndarray, "S"],
    lift: Float[ndarray, "S"],
    true_lift: Float[ndarray, "S"],
    drag: Float[ndarray, "S"],
    true_drag: Float[ndarray, "S"],
    *,
    color: int = 0,
) -> Figure:
    """Coefficients of lift and drag against the angle of attack, true and predicted, of all samples."""
    figure = new_figure(7.0, WIDTH)
    panels = figure.subplots(2, 1, sharex=True)
    values = (("lift coefficient", lift, true_lift), ("drag coefficient", drag, true_drag))
    for axes, (name, predicted, true) in zip(panels, values, strict=True):
        low, high = _limits(true)
        shown = np.clip(predicted, low, high)
        axes.vlines(angle, true, shown, color="#bbbbbb", linewidth=0.8)
        axes.plot(angle, true, "o", color=TRUTH_COLOR, markersize=4.5, fillstyle="none", label="truth")
        axes.plot(angle, shown, ".", color=run_color(color), markersize=6, label="prediction")
        axes.set_ylim(low, high)
        last = axes is panels[-1]
        format_axes(axes, x="angle of attack (degrees)" if last else "", y=name, grid=True)
    legend_below(figure, panels[0])
    return figure


def _limits(true: Float[ndarray, "_"]) -> tuple[float, float]:
    """Range of the true values with a margin; predictions beyond it are drawn at its ends."""
    low, high = float(true.min()), float(true.max())
    margin = 0.12 * (high - low) or 0.1
    return low - margin, high + margin
