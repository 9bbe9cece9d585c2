"""The studio as a trame application: events of the page change the model, and the model fills the state."""

import asyncio
import base64
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from trame.app import get_server
from trame.ui.html import DivLayout

from linearno.core.errors import UserError
from linearno.studio import comparison, export
from linearno.studio.designs import AirfoilDesign, CaseDesign, DarcyDesign
from linearno.studio.layout import PAGES, build_page
from linearno.studio.model import MAX_PANELS, Panel, StudioModel, plot_state
from linearno.studio.runs import StudioRun
from linearno.studio.scene import Camera, FieldScene, fitted_camera
from linearno.studio.widgets import MODULE

FOLLOW_SECONDS = 2.0  # between looks at a training that is going on
FRAME_SECONDS = 0.25  # between frames of a played rollout
TITLES = {"inside": "Within training range", "edge": "Edge of the training range", "outside": "Outside training range"}
HINTS = {
    DarcyDesign: "Paint the medium with the pointer; the pressure follows.",
    AirfoilDesign: "Drag the control points of the box, or use the sliders and arrow keys.",
}
STATIC: dict[str, Any] = {
    "page": "design", "theme": "light", "tool": "edit", "tick": 0, "flat": True, "camera": None, "panels": [],
    "solving": False, "playing": False, "error": "", "clip_axis": "off", "clip_position": 0.5, "weights": "gather",
    "clip_items": [{"value": key, "text": key} for key in ("off", "x", "y", "z")], "table": [], "live": False,
    "loss_plot": None, "rank_plot": None, "bars": [], "mark": None, "download": None, "layer_items": [],
    "head_items": [], "slice_items": [], "layer": "0", "head": "0", "slice": "0", "parts_off": [], "ranges": [], "trust": None,
    "plot": None, "quantities": [], "truth_name": "", "probes": [], "radius": 0.0, "handles": [], "outline": [],
    "shows_handles": [False] * MAX_PANELS, "tools": ["pan"] * MAX_PANELS,
}  # fmt: skip

log = logging.getLogger(__name__)


@dataclass
class View:
    """A scene and its element on the page."""

    scene: FieldScene = field(default_factory=FieldScene)
    widget: Any = None


class StudioApp:
    """The page of the studio.

    Args:
        runs: the runs, at least one.
        server: trame server; a new one by default.
    """

    def __init__(self, runs: list[StudioRun], server: Any = None):
        self.model = StudioModel(runs)
        self.server = server or get_server(f"linearno-{id(self)}", client_type="vue3")
        self.state = self.server.state
        self.views = [View() for _ in range(MAX_PANELS)]
        self._camera: Camera | None = None
        self._aspect = 1.4
        self._seed = 0
        self._pending = False
        self._shown = self._downloads = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.server.enable_module(MODULE)
        self.state.update(STATIC)
        self.state.trame__title = "linearno studio"
        self._choices()
        if self.model.run.bundle is None:
            self.state.page = "runs"
        self.update()
        with DivLayout(self.server):
            build_page(self)
        self.server.controller.on_server_ready.add(self._start_following)

    # -- events of the page ------------------------------------------------------------------------------------

    def open_page(self, page: str) -> None:
        if page in PAGES:
            self.state.page, self.state.playing = page, False
            self._camera = None
            self.refresh()

    def choose_run(self, index: str) -> None:
        self._change(lambda: self.model.choose_run(int(index)), new_view=True)

    def choose_design(self, title: str) -> None:
        self._change(lambda: self.model.choose_design(title), new_view=True)

    def choose_case(self, name: str) -> None:
        self._change(lambda: self.model.choose_case(name), new_view=True)

    def set_parameter(self, name: str, value: float) -> None:
        samples = self.model.samples() if self.state.page == "runs" else None
        if samples is not None:
            self._change(lambda: samples.set(name, float(value)))
        else:
            self._change(lambda: self.model.set_parameter(name, float(value)))

    def drag(self, name: str, x: float, y: float) -> None:
        self._change(lambda: self.model.drag(name, float(y)))

    def paint(self, points: list[list[float]]) -> None:
        self._change(lambda: self.model.paint([(float(x), float(y)) for x, y in points]))

    def draw(self) -> None:
        self._seed += 1
        self._change(lambda: self.model.draw(self._seed))

    def fill(self, name: str) -> None:
        self._change(lambda: self.model.fill(name))

    def upload(self, file: Any) -> None:
        content = file["content"] if isinstance(file, dict) else b""
        if isinstance(content, list):
            content = b"".join(content)
        if content:
            self._change(lambda: self.model.upload(str(file["name"]), bytes(content)), new_view=True)

    def probe(self, x: float, y: float) -> None:
        self._change(lambda: self.model.probes.append((float(x), float(y))))

    def remove_probes(self) -> None:
        self._change(self.model.probes.clear)

    def hover(self, x: float, y: float) -> None:
        def choose() -> None:
            self.model.point = self.model.geometry().nearest(float(x), float(y))

        self._change(choose)

    def choose_tool(self, tool: str) -> None:
        self.state.tool = tool
        self.refresh()

    def choose_channel(self, index: str) -> None:
        self._change(lambda: setattr(self.model, "channel", int(index)))

    def set_frame(self, frame: float) -> None:
        self._change(lambda: setattr(self.model, "frame", int(frame)))

    def choose_layer(self, index: str) -> None:
        self._change(lambda: setattr(self.model, "layer", int(index)))

    def choose_head(self, index: str) -> None:
        self._change(lambda: setattr(self.model, "head", int(index)))

    def choose_slice(self, index: str) -> None:
        self._change(lambda: setattr(self.model, "slice", int(index)))

    def choose_weights(self, kind: str) -> None:
        self._change(lambda: setattr(self.model, "weights", kind))

    def toggle_theme(self) -> None:
        self.state.theme = "light" if self.state.theme == "dark" else "dark"
        self.refresh()

    def set_clip_axis(self, axis: str) -> None:
        self.state.clip_axis = axis
        self._change(self._clip)

    def set_clip(self, position: float) -> None:
        self.state.clip_position = float(position)
        self._change(self._clip)

    def zoom(self, factor: float, x: float, y: float) -> None:
        if self._camera is not None:
            self._camera = self._camera.zoomed(float(factor), float(x), float(y))
            self._push_camera()

    def pan(self, dx: float, dy: float) -> None:
        if self._camera is not None:
            self._camera = Camera(self._camera.x + dx, self._camera.y + dy, self._camera.scale)
            self._push_camera()

    def resize(self, width: float, height: float) -> None:
        aspect = width / max(height, 1.0)
        if width > 1 and abs(aspect - self._aspect) > 0.02:
            self._aspect = aspect
            self.first_view()

    def first_view(self) -> None:
        """Show the part of the plane that matters."""
        self._camera = None
        self._look()
        self._push_camera()

    def whole_view(self) -> None:
        """Show the whole domain."""
        geometry = self.views[0].scene.geometry
        if geometry is not None and geometry.flat:
            self._camera = fitted_camera(geometry.box, self._aspect)
            self._push_camera()

    def start_solve(self) -> None:
        """Run the solver in a thread; the page stays in use."""
        if not self.state.solving:
            self.state.solving, self.state.error = True, ""
            self._spawn(self._solve())

    def toggle_play(self) -> None:
        self.state.playing = not self.state.playing
        if self.state.playing:
            self._spawn(self._play())

    def export_png(self) -> None:
        """Send a picture of the panels to the browser."""
        try:
            picture = export.png(self._panels())
        except UserError as error:
            self.state.error = str(error)
            return
        self._download("linearno.png", "image/png", picture)

    def export_vtu(self) -> None:
        try:
            self._download("linearno.vtu", "application/octet-stream", export.vtu(self._panels()))
        except UserError as error:
            self.state.error = str(error)

    # -- from the model to the state ---------------------------------------------------------------------------

    def refresh(self) -> None:
        """Update the page soon; requests that arrive meanwhile are joined."""
        self._pending = True
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self._pending = False
            self.update()
            return
        if not any(task.get_name() == "update" for task in self._tasks):
            self._spawn(self._drain(), "update")

    def update(self) -> None:
        """Fill the state from the model; an error is a message on the page."""
        state, self_model = self.state, self.model
        try:
            panels = self._panels()
            self._choices()
            self._show(panels)
            self._details()
            state.error = ""
        except UserError as error:
            state.error, state.panels = str(error), []
            self._choices()
        except Exception as error:
            log.exception("the page could not be updated")
            state.error = f"this page could not be computed ({type(error).__name__}); the log has the reason"
            state.panels = []
        state.parts_off = list(filter(None, [*self_model.run.parts_off, self_model.run.data_message]))
        state.tick += 1

    def _panels(self) -> list[Panel]:
        """Panels of the open page."""
        page, model = self.state.page, self.model
        if page == "runs":
            return comparison.side_by_side(model) if model.run.bundle is not None else []
        functions: dict[str, Callable[[], list[Panel]]] = {
            "design": model.design_panels, "inside": model.inside_panels, "trust": model.trust_panels,
        }  # fmt: skip
        return functions[page]()[:MAX_PANELS]

    def _show(self, panels: list[Panel]) -> None:
        for view, panel in zip(self.views, panels, strict=False):
            view.scene.show(panel.geometry)
            view.scene.set_theme(self.state.theme)
            view.scene.set_values(panel.values, panel.scale)
        changed_body = bool(panels) and panels[0].geometry.flat != self.state.flat
        self.state.flat = not panels or panels[0].geometry.flat
        self.state.panels = [
            {
                "title": panel.title, "note": panel.note, "css": panel.scale.css, "label": panel.label,
                "low": f"{panel.scale.low:.3g}", "high": f"{panel.scale.high:.3g}",
            }
            for panel in panels
        ]  # fmt: skip
        new = self._camera is None or changed_body or len(panels) != self._shown
        self._shown = len(panels)
        if panels and new:
            self._look(keep=not changed_body)
        for view, _ in zip(self.views, panels, strict=False):
            if view.widget is not None:
                view.widget.update()
        if panels and new:
            self._push_camera()

    def _look(self, *, keep: bool = False) -> None:
        """Point all views at the same place: where they look already, with `keep`, or where it fits."""
        shown = [view.scene for view in self.views[: len(self.state.panels)] if view.scene.geometry is not None]
        if not shown or shown[0].geometry is None:
            return
        geometry = shown[0].geometry
        if not geometry.flat:
            self._camera = None
        elif self._camera is None or not keep:
            design = self.model.design
            self._camera = fitted_camera((design and design.view()) or geometry.box, self._aspect)
        for scene in shown:
            scene.look(self._camera)

    def _push_camera(self) -> None:
        camera = self._camera
        self.state.camera = None if camera is None else camera._asdict()
        for view in self.views[: len(self.state.panels)]:
            if camera is not None:
                view.scene.look(camera)
            if view.widget is not None and view.scene.geometry is not None:
                view.widget.push_camera()

    def _choices(self) -> None:
        """Items of the selects, and what the design offers."""
        state, model = self.state, self.model
        state.run_items = [{"value": str(i), "text": run.name} for i, run in enumerate(model.runs)]
        state.run = str(model.index)
        state.design_items = [{"value": title, "text": title} for title in model.titles]
        design = model.design
        state.design_title = "" if design is None else design.title
        is_case = isinstance(design, CaseDesign)
        state.case_items = [{"value": name, "text": name} for name in design.files] if is_case else []
        state.case_name = design.chosen if is_case else ""
        state.takes_meshes = CaseDesign.title in model.titles
        state.paints, state.solver = getattr(design, "paints", False), getattr(design, "solver", "")
        state.draws = isinstance(design, DarcyDesign | AirfoilDesign)
        state.hint = next((text for kind, text in HINTS.items() if isinstance(design, kind)), "")
        state.has_view = design is not None and design.view() is not None
        state.channel_items = [{"value": str(i), "text": name} for i, name in enumerate(model.channels)]
        state.channel, state.frame, state.frames = str(model.channel), model.frame, model.frames
        if state.page == "runs":
            design = model.samples() if model.run.bundle is not None else None
        state.parameters = [] if design is None else [_slider(parameter) for parameter in design.parameters.values()]

    def _details(self) -> None:
        """What stands around the panels of the open page."""
        state, model, page = self.state, self.model, self.state.page
        design = model.design
        if page == "runs":
            state.table, loss = comparison.table(model.runs), comparison.curves(model.runs)
            state.loss_plot = plot_state(loss, log=True) if any(line.x for line in loss.series) else None
            state.live = any(row["status"] == "training" for row in state.table)
        if page in ("design", "trust") and design is not None:
            verdict = model.verdict()
            state.trust = {
                "level": verdict.level, "title": TITLES[verdict.level], "sentences": verdict.sentences,
                "note": model.trust_message or "",
            }  # fmt: skip
            state.plot = plot_state(model.line_plot())
            fields = model.update()
            state.truth_name = fields.truth_name if fields.truth is not None else ""
            state.quantities = [*model.quantities(), *model.probe_rows()]
            state.ranges = [_range(parameter) for parameter in design.parameters.values() if parameter.trained]
        if page == "inside":
            self._inside_details()
        handles = [] if design is None else design.handles()
        state.handles = [{"name": h.name, "x": h.x, "y": h.y, "fixed": h.fixed} for h in handles]
        state.outline = [] if design is None else [[list(p) for p in line] for line in design.outline()]
        state.probes = [{"x": x, "y": y, "label": f"P{i + 1}"} for i, (x, y) in enumerate(model.probes)]
        state.radius = design.value("radius") if isinstance(design, DarcyDesign) else 0.0
        titles = [panel["title"] for panel in state.panels]
        state.shows_handles = [page == "design" and i == 0 for i in range(MAX_PANELS)]
        state.tools = [self._tool(i, titles) for i in range(MAX_PANELS)]

    def _tool(self, index: int, titles: list[str]) -> str:
        """What the pointer does on a panel."""
        page, tool = self.state.page, self.state.tool
        if page == "inside":
            return "hover"
        if tool == "edit":
            return "brush" if page == "design" and index < len(titles) and titles[index] == "Medium" else "pan"
        return str(tool)

    def _inside_details(self) -> None:
        state, model = self.state, self.model
        inspectors = [(model.runs[i].name, model.inspector(i)) for i in model.inside_runs()]
        first = inspectors[0][1]
        state.layer_items = _numbered("layer", max(len(each.layers) for _, each in inspectors))
        state.head_items = _numbered("head", max(each.heads for _, each in inspectors))
        state.slice_items = _numbered("slice", first.slices)
        state.layer, state.head, state.slice = str(model.layer), str(model.head), str(model.slice)
        state.weights, state.rank_plot = model.weights, plot_state(model.rank_plot())
        state.bars, state.mark = [], None
        if model.point is None:
            state.bars = [{"name": name, "values": []} for name, _ in inspectors]
            return
        for name, each in inspectors:
            layer, head = min(model.layer, len(each.layers) - 1), min(model.head, each.heads - 1)
            state.bars = [*state.bars, {"name": name, "values": each.phi_at(layer, head, model.point).tolist()}]
        state.mark = [float(part) for part in model.update() and self._position(model.point)]

    def _position(self, row: int) -> list[float]:
        geometry = self.model.geometry()
        index = int(np.flatnonzero(geometry.rows == row)[0])
        points = geometry.surface.points if geometry.location == "points" else geometry.surface.cell_centers().points
        return [float(part) for part in points[index][:2]]

    # -- changes and tasks -------------------------------------------------------------------------------------

    def _change(self, change: Callable[[], Any], *, new_view: bool = False) -> None:
        """Apply a change of the model; an error of one line is a message on the page."""
        try:
            change()
        except UserError as error:
            self.state.error = str(error)
            self.state.tick += 1
            return
        if new_view:
            self._camera = None
        self.refresh()

    def _clip(self) -> None:
        axis = self.state.clip_axis
        if axis == "off":
            self.model.clip = None
            return
        self.model.clip = None
        box, i = self.model.geometry().box, "xyz".index(axis)
        origin = [float(np.mean(side)) for side in box]
        origin[i] = box[i][0] + self.state.clip_position * (box[i][1] - box[i][0])
        normal = [float(k == i) for k in range(3)]
        self.model.clip = (origin[0], origin[1], origin[2]), (normal[0], normal[1], normal[2])

    def _spawn(self, work: Any, name: str = "work") -> None:
        try:
            task = asyncio.get_running_loop().create_task(work, name=name)
        except RuntimeError:
            asyncio.run(work)
            return
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _drain(self) -> None:
        """Update until no request is left; other messages of the page are read in between."""
        while self._pending:
            await asyncio.sleep(0)
            self._pending = False
            with self.state:
                self.update()
            await asyncio.sleep(0.002)

    async def _solve(self) -> None:
        message = ""
        try:
            fields = self.model.fields
            await asyncio.to_thread(self.model.solve)
            if fields is not None and self.model.fields is not fields:
                message = "the design changed while it was solved: solve it again"
        except UserError as error:
            message = str(error)
        except Exception as error:
            log.exception("the solver failed")
            message = f"the solver failed ({type(error).__name__}); the log has the reason"
        with self.state:
            self.state.solving = False
            self.update()
            self.state.error = message or self.state.error

    async def _play(self) -> None:
        while self.state.playing and self.model.frames > 1:
            with self.state:
                self.model.frame = (self.model.frame + 1) % self.model.frames
                self.update()
            await asyncio.sleep(FRAME_SECONDS)

    def _start_following(self, **_: Any) -> None:
        self._spawn(self._follow(), "follow")

    async def _follow(self) -> None:
        """Follow trainings that are going on."""
        while True:
            await asyncio.sleep(FOLLOW_SECONDS)
            if self.state.page == "runs" and self.state.live:
                with self.state:
                    self._details()

    def _download(self, name: str, kind: str, content: bytes) -> None:
        text = base64.b64encode(content).decode()
        self._downloads += 1
        self.state.download = {"name": name, "url": f"data:{kind};base64,{text}", "number": self._downloads}


def _numbered(name: str, count: int) -> list[dict[str, str]]:
    return [{"value": str(i), "text": f"{name} {i + 1}"} for i in range(count)]


def _slider(parameter: Any) -> dict[str, Any]:
    span = parameter.high - parameter.low
    text = f"{parameter.value:.3g}" + (f" {parameter.unit}" if parameter.unit else "")
    return {
        "name": parameter.name, "label": re.sub("_", " ", parameter.label), "value": parameter.value,
        "low": parameter.low, "high": parameter.high, "step": parameter.step or span / 200, "text": text,
        "out": parameter.warning is not None,
    }  # fmt: skip


def _range(parameter: Any) -> dict[str, Any]:
    """A parameter's slider and training range in percent of the slider."""
    span, (low, high) = parameter.high - parameter.low, parameter.trained

    def percent(value: float) -> float:
        return 100 * (value - parameter.low) / span

    return {
        "name": parameter.label, "text": _slider(parameter)["text"], "at": percent(parameter.value),
        "from": percent(low), "width": percent(high) - percent(low),
    }  # fmt: skip
