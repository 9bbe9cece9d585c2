"""State of the page, as plain values, from the model."""

from typing import Any

import numpy as np

from linearno.studio import comparison
from linearno.studio.designs import CaseDesign, DarcyDesign, Design, Parameter
from linearno.studio.model import StudioModel
from linearno.studio.panels import MAX_PANELS, Panel, plot_state, rank_plot

State = dict[str, Any]

TITLES = {
    "inside": "Within training range",
    "edge": "Edge of the training range",
    "outside": "Outside training range",
}
AXES = ("off", "x", "y", "z")
INITIAL: State = {
    **{"page": "design", "theme": "light", "tool": "edit", "tick": 0, "flat": True, "camera": None},
    **{"panels": [], "solving": False, "playing": False, "error": "", "clip_axis": "off"},
    **{"clip_position": 0.5, "weights": "gather", "table": [], "live": False, "loss_plot": None},
    **{"rank_plot": None, "bars": [], "mark": None, "download": None, "parts_off": [], "ranges": []},
    **{"layer_items": [], "head_items": [], "slice_items": [], "layer": "0", "head": "0", "slice": "0"},
    **{"trust": None, "plot": None, "quantities": [], "truth_name": "", "probes": [], "radius": 0.0},
    **{"handles": [], "outline": [], "shows_handles": [False] * MAX_PANELS, "tools": ["pan"] * MAX_PANELS},
    **{"clip_items": [{"value": key, "text": key} for key in AXES]},
}


def choices(model: StudioModel, page: str) -> State:
    """Items of the selects, and what the design offers."""
    design = model.design
    return {
        "run_items": [{"value": str(i), "text": run.name} for i, run in enumerate(model.runs)],
        "run": str(model.index),
        "design_items": [{"value": title, "text": title} for title in model.titles],
        "design_title": "" if design is None else design.title,
        "case_items": [{"value": name, "text": name} for name in getattr(design, "files", ())],
        "case_name": getattr(design, "chosen", ""),
        "takes_meshes": CaseDesign.title in model.titles,
        "paints": getattr(design, "paints", False),
        "solver": getattr(design, "solver", ""),
        "draws": getattr(design, "draws", False),
        "hint": getattr(design, "hint", ""),
        "has_view": design is not None and design.view() is not None,
        "channel_items": [{"value": str(i), "text": name} for i, name in enumerate(model.channels)],
        **{"channel": str(model.channel), "frame": model.frame, "frames": model.frames},
        "parameters": _sliders(_shown_design(model, page)),
        "parts_off": list(filter(None, [*model.run.parts_off, model.run.data_message])),
    }


def _shown_design(model: StudioModel, page: str) -> Design | None:
    """The design whose parameters are on the page."""
    if page == "runs":
        return model.samples() if model.run.bundle is not None else None
    return model.design


def panel_state(panel: Panel) -> State:
    """Heading and colour bar of a panel."""
    low, high = f"{panel.scale.low:.3g}", f"{panel.scale.high:.3g}"
    bar = {"css": panel.scale.css, "label": panel.label, "low": low, "high": high}
    return {"title": panel.title, "note": panel.note, **bar}


def details(model: StudioModel, page: str) -> State:
    """What stands around the panels of a page."""
    if page == "runs":
        return run_details(model)
    found = overlay_details(model)
    if page == "inside":
        return found | inside_details(model)
    return found | design_details(model)


def run_details(model: StudioModel) -> State:
    """Table and curves of all runs, as their folders are now."""
    rows, loss = comparison.table(model.runs), comparison.curves(model.runs)
    return {
        "table": rows,
        "loss_plot": plot_state(loss, log=True) if any(line.x for line in loss.series) else None,
        "live": any(row["status"] == "training" for row in rows),
    }


def overlay_details(model: StudioModel) -> State:
    """Handles, probes and brush."""
    design = model.require_design()
    return {
        "handles": [{"name": h.name, "x": h.x, "y": h.y, "fixed": h.fixed} for h in design.handles()],
        "outline": [[list(point) for point in line] for line in design.outline()],
        "probes": [{"x": x, "y": y, "label": f"P{i + 1}"} for i, (x, y) in enumerate(model.probes)],
        "radius": design.value("radius") if isinstance(design, DarcyDesign) else 0.0,
    }


def design_details(model: StudioModel) -> State:
    """Trust, line plot and quantities of the design."""
    design, fields, verdict = model.require_design(), model.update(), model.verdict()
    trust = {
        **{"level": verdict.level, "title": TITLES[verdict.level], "sentences": verdict.sentences},
        "note": model.trust_message or "",
    }
    return {
        "trust": trust,
        "plot": plot_state(model.line_plot()),
        "truth_name": fields.truth_name if fields.truth is not None else "",
        "quantities": [*model.quantities(), *model.probe_rows()],
        "ranges": [_range(parameter) for parameter in design.parameters.values() if parameter.trained],
    }


def inside_details(model: StudioModel) -> State:
    """Layers, heads and slices to choose from, weights of the hovered point, ranks."""
    shown = [(model.runs[i].name, model.inspector(i)) for i in model.inside_runs()]
    bars = []
    for name, each in shown:
        layer, head = min(model.layer, len(each.layers) - 1), min(model.head, each.heads - 1)
        values = [] if model.point is None else each.phi_at(layer, head, model.point).tolist()
        bars.append({"name": name, "values": values})
    return {
        "layer_items": _numbered("layer", max(len(each.layers) for _, each in shown)),
        "head_items": _numbered("head", max(each.heads for _, each in shown)),
        "slice_items": _numbered("slice", shown[0][1].slices),
        **{"layer": str(model.layer), "head": str(model.head), "slice": str(model.slice)},
        **{"weights": model.weights, "rank_plot": plot_state(rank_plot(model)), "bars": bars},
        "mark": None if model.point is None else _position(model, model.point),
    }


def tools(page: str, tool: str, titles: list[str]) -> list[str]:
    """What the pointer does on each of the panels: "hover", "brush", "probe" or "pan"."""

    def of(index: int) -> str:
        if page == "inside":
            return "hover"
        if tool != "edit":
            return tool
        return "brush" if page == "design" and titles[index : index + 1] == ["Medium"] else "pan"

    return [of(index) for index in range(MAX_PANELS)]


def _position(model: StudioModel, row: int) -> list[float]:
    """Coordinates of a row of the data in the plane."""
    geometry = model.geometry()
    at_points, surface = geometry.location == "points", geometry.surface
    points = surface.points if at_points else surface.cell_centers().points
    index = int(np.flatnonzero(geometry.rows == row)[0])
    return [float(part) for part in points[index][:2]]


def _numbered(name: str, count: int) -> list[dict[str, str]]:
    return [{"value": str(i), "text": f"{name} {i + 1}"} for i in range(count)]


def _sliders(design: Design | None) -> list[State]:
    return [] if design is None else [_slider(parameter) for parameter in design.parameters.values()]


def _slider(parameter: Parameter) -> State:
    step = parameter.step or (parameter.high - parameter.low) / 200
    return {
        **{"name": parameter.name, "label": parameter.label.replace("_", " "), "value": parameter.value},
        **{"low": parameter.low, "high": parameter.high, "step": step, "text": _value_text(parameter)},
        "out": parameter.warning is not None,
    }


def _value_text(parameter: Parameter) -> str:
    return f"{parameter.value:.3g} {parameter.unit}".strip()


def _range(parameter: Parameter) -> State:
    """A parameter's value and training range in percent of its slider."""
    assert parameter.trained is not None
    span = parameter.high - parameter.low
    at, low, high = (100 * (v - parameter.low) / span for v in (parameter.value, *parameter.trained))
    text = _value_text(parameter)
    return {"name": parameter.label, "text": text, "at": at, "from": low, "width": high - low}
