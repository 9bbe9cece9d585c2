"""Panels and plots of the pages. Axes: N points."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from linearno.core.durations import format_duration
from linearno.core.errors import UserError
from linearno.nn.protocol import model_name
from linearno.studio import engine
from linearno.studio.colors import MEDIUM, WEIGHTS, Scale, positive_scale, scale_of, symmetric_scale
from linearno.studio.designs import DarcyDesign, LinePlot, Series
from linearno.studio.designs.darcy import HIGH, LOW
from linearno.studio.geometry import Geometry
from linearno.studio.model import StudioModel

MAX_PANELS = 4


@dataclass(frozen=True)
class Panel:
    """A field to draw.

    Args:
        title: heading.
        note: text beside the heading.
        geometry: where it is drawn.
        values: field at the rows of the data.
        scale: colours.
        label: quantity of the colour bar, with its unit.
    """

    title: str
    note: str
    geometry: Geometry
    values: Float[ndarray, "N"]
    scale: Scale
    label: str


def design_panels(model: StudioModel) -> list[Panel]:
    """Surrogate, and truth and difference where the truth is known."""
    fields, geometry, column = model.update(), model.geometry(), model.column()
    shown = fields.prediction[:, column]
    milliseconds = f"{1e3 * fields.seconds:.0f} ms"
    if fields.truth is None:
        panels = [Panel("Surrogate", milliseconds, geometry, shown, scale_of([shown]), model.label)]
        return [*_medium_panels(model), *panels]
    truth = fields.truth[:, column]
    scale, error = scale_of([truth, shown]), shown - truth
    seconds = fields.solver_seconds
    note = "" if seconds is None else format_seconds(seconds)
    relative = fields.relative_error
    difference = "" if relative is None else f"relative L2 {relative:.3g}"
    name, errors = fields.truth_name.capitalize(), symmetric_scale([error])
    return [
        *_medium_panels(model),
        Panel("Surrogate", milliseconds, geometry, shown, scale, model.label),
        Panel(name, note, geometry, truth, scale, model.label),
        Panel(f"Surrogate − {fields.truth_name}", difference, geometry, error, errors, model.label),
    ]


def _medium_panels(model: StudioModel) -> list[Panel]:
    """The medium that is painted."""
    if not isinstance(model.design, DarcyDesign):
        return []
    if model.medium is None:
        model.medium = model.design.medium_geometry()
    medium = model.design.medium.ravel()
    scale = Scale(MEDIUM, min(LOW, float(medium.min())), max(HIGH, float(medium.max())))
    return [Panel("Medium", "paint here", model.medium, medium, scale, "permeability")]


def trust_panels(model: StudioModel) -> list[Panel]:
    """Prediction and, where it is known, its standard deviation."""
    fields, geometry, column = model.update(), model.geometry(), model.column()
    if fields.std is None and (found := engine.spread(model.runs, model.run, model.require_design())):
        fields.std, fields.std_name = found
    shown = fields.prediction[:, column]
    panels = [Panel("Surrogate", model.run.name, geometry, shown, scale_of([shown]), model.label)]
    if fields.std is not None:
        std = fields.std[:, column]
        note = f"largest {float(np.nanmax(std)):.3g}"
        panels.append(Panel("Uncertainty", note, geometry, std, positive_scale([std]), fields.std_name))
    return panels


def inside_panels(model: StudioModel) -> list[Panel]:
    """Map of the chosen slice's weights for each of the runs."""
    panels, geometry = [], model.geometry()
    if not (shown := model.inside_runs()):
        raise UserError("; ".join(model.run.parts_off) or "no slices to show")
    for index in shown:
        inspector = model.inspector(index)
        layer, head = min(model.layer, len(inspector.layers) - 1), min(model.head, inspector.heads - 1)
        values = inspector.map(model.weights, layer, head, min(model.slice, inspector.slices - 1))
        bundle = model.runs[index].bundle
        assert bundle is not None
        gathers = model.weights == "gather"
        label = f"{'ψ, where it gathers' if gathers else 'φ, where it scatters'} (of its maximum)"
        note = f"{model_name(bundle.model)}, layer {layer + 1}, head {head + 1}, slice {model.slice + 1}"
        scale = Scale(WEIGHTS, 0.0, 1.0)
        panels.append(Panel(model.runs[index].name, note, geometry, values, scale, label))
    return panels


def rank_plot(model: StudioModel) -> LinePlot:
    """Mean rank over the heads in each layer."""
    series = []
    for color, index in enumerate(model.inside_runs()):
        inspector = model.inspector(index)
        ranks = inspector.ranks()
        layers = [float(layer + 1) for layer in range(len(ranks))]
        series.append(Series(model.runs[index].name, layers, ranks.mean(axis=1).tolist(), color))
        bound = [float(inspector.slices)] * len(layers)
        series.append(Series(f"upper bound M = {inspector.slices}", layers, bound, color, dashed=True))
    return LinePlot("rank of the attention kernel, mean of heads", "layer", "rank", series)


def format_seconds(seconds: float) -> str:
    """A time such as 35 ms, 1.7 s or 2 min."""
    if seconds < 1:
        return f"{1e3 * seconds:.0f} ms"
    return f"{seconds:.2g} s" if seconds < 60 else format_duration(seconds)


def plot_state(plot: LinePlot | None, *, log: bool = False) -> dict[str, Any] | None:
    """A line plot as plain values, for the page."""
    if plot is None:
        return None
    series: Sequence[Series] = plot.series
    lines = [
        {"name": s.name, "x": list(s.x), "y": list(s.y), "color": s.color, "dashed": s.dashed} for s in series
    ]
    names = {"title": plot.title, "x": plot.x, "y": plot.y}
    return names | {"inverted": plot.inverted, "log": log, "series": lines}
