"""The studio as a trame application: events of the page change the model, and the model fills the state."""

import asyncio
import base64
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from trame.app import get_server
from trame.ui.html import DivLayout

from linearno.core.errors import UserError
from linearno.studio import comparison, export, page_state
from linearno.studio.layout import PAGES, build_page
from linearno.studio.model import StudioModel
from linearno.studio.panels import MAX_PANELS, Panel, design_panels, inside_panels, trust_panels
from linearno.studio.runs import StudioRun
from linearno.studio.scene import Camera, FieldScene, fitted_camera
from linearno.studio.widgets import MODULE

FOLLOW_SECONDS = 2.0  # between looks at a training that is going on
FRAME_SECONDS = 0.25  # between frames of a played rollout
PAUSE_SECONDS = 0.3  # without changes, after which whole scenes are stored for pages opened later
PANELS = {"design": design_panels, "inside": inside_panels, "trust": trust_panels}

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
        self._storing: asyncio.Task[None] | None = None
        self.server.enable_module(MODULE)
        self.state.update(page_state.INITIAL)
        self.state.trame__title = "linearno studio"
        if self.model.run.bundle is None:
            self.state.page = "runs"
        self.update()
        with DivLayout(self.server):
            build_page(self)
        self.server.controller.on_server_ready.add(self._start_following)

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

    def set_parameter(self, name: str, value: float | int) -> None:
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
        state, model, page = self.state, self.model, self.state.page
        try:
            panels = self._panels()
            state.update(page_state.choices(model, page))
            self._show(panels)
            if panels or page == "runs":
                state.update(page_state.details(model, page))
            titles = [panel.title for panel in panels]
            state.tools = page_state.tools(page, state.tool, titles)
            state.shows_handles = [page == "design" and i == 0 for i in range(MAX_PANELS)]
            state.error = ""
        except UserError as error:
            self._fail(str(error))
        except Exception as error:
            log.exception("the page could not be updated")
            self._fail(f"this page could not be computed ({type(error).__name__}); the log has the reason")
        state.tick += 1

    def _fail(self, message: str) -> None:
        """Show a message instead of panels."""
        self.state.update(page_state.choices(self.model, self.state.page))
        self.state.update({"error": message, "panels": [], "trust": None})

    def _panels(self) -> list[Panel]:
        """Panels of the open page."""
        page, model = self.state.page, self.model
        if page == "runs":
            return comparison.side_by_side(model) if model.run.bundle is not None else []
        return PANELS[page](model)[:MAX_PANELS]

    def _show(self, panels: list[Panel]) -> None:
        """Put the panels into the scenes, and send those to the browser."""
        for view, panel in zip(self.views, panels, strict=False):
            view.scene.show(panel.geometry)
            view.scene.set_theme(self.state.theme)
            view.scene.set_values(panel.values, panel.scale)
        changed_body = bool(panels) and panels[0].geometry.flat != self.state.flat
        self.state.flat = not panels or panels[0].geometry.flat
        self.state.panels = [page_state.panel_state(panel) for panel in panels]
        new = self._camera is None or changed_body or len(panels) != self._shown
        self._shown = len(panels)
        if panels and new:
            self._look(keep=not changed_body)
        for view, _ in zip(self.views, panels, strict=False):
            if view.widget is not None:
                view.widget.send_changes()
        self._store_scenes_soon()
        if panels and new:
            self._push_camera()

    def _look(self, *, keep: bool = False) -> None:
        """Point all views at the same place: where they look already, with `keep`, or where it fits."""
        scenes = [view.scene for view in self.views[: len(self.state.panels)]]
        shown = [scene for scene in scenes if scene.geometry is not None]
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

    def _store_scenes_soon(self) -> None:
        """Store whole scenes when changes pause; it takes as long as to send the changes."""
        if self._storing is not None:
            self._storing.cancel()
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # the server has not started: no page is open
            return
        self._storing = loop.create_task(self._store_scenes())

    async def _store_scenes(self) -> None:
        await asyncio.sleep(PAUSE_SECONDS)
        with self.state:
            for view in self.views[: len(self.state.panels)]:
                if view.widget is not None:
                    view.widget.store()

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
                    self.state.update(page_state.run_details(self.model))

    def _download(self, name: str, kind: str, content: bytes) -> None:
        text = base64.b64encode(content).decode()
        self._downloads += 1
        self.state.download = {"name": name, "url": f"data:{kind};base64,{text}", "number": self._downloads}
