"""Components of `assets/studio.js` as trame widgets."""

from importlib.resources import files
from typing import Any

from trame_client.widgets.core import AbstractElement
from trame_vtk.widgets.vtk import VtkLocalView

ASSETS = str(files("linearno.studio") / "assets")
MODULE = {
    "serve": {"__linearno_studio": ASSETS},
    "scripts": ["__linearno_studio/studio.js"],
    "styles": ["__linearno_studio/studio.css"],
    "vue_use": ["linearnoStudio"],
}


class FieldView(VtkLocalView):  # type: ignore[misc]
    """A scene that the browser renders.

    Args:
        window: render window of the scene.
        ref: name of the element.
    """

    def __init__(self, window: Any, ref: str, **attributes: Any):
        self._window, self._state_key = window, f"scene_{ref}"  # the key that the base class has
        super().__init__(window, ref, **attributes)

    def send_changes(self) -> None:
        """Send what has changed to open pages, which draw it."""
        if self.server.protocol:
            self.server.protocol.publish("trame.vtk.delta", self._scene(new_state=False))

    def store(self) -> None:
        """Store the whole scene for pages that are opened later."""
        if self.server.protocol:
            self.server.state[self._state_key] = self._scene(new_state=True)

    def _scene(self, *, new_state: bool) -> Any:
        return self._helper.scene(self._window, new_state=new_state, widgets=self._widgets)


class Overlay(AbstractElement):  # type: ignore[misc]
    """Transparent layer of a view in the plane, with handles, brush and probes."""

    def __init__(self, **attributes: Any):
        super().__init__("studio-overlay", **attributes)
        self._attr_names += [
            *("camera", "handles", "outline", "probes", "tool", "radius", "tick", "mark", "label"),
        ]
        self._event_names += ["drag", "paint", "probe", "hover", "zoom", "pan", "size"]


class LinePlotView(AbstractElement):  # type: ignore[misc]
    """A line plot."""

    def __init__(self, **attributes: Any):
        super().__init__("studio-plot", **attributes)
        self._attr_names += ["plot"]


class Bars(AbstractElement):  # type: ignore[misc]
    """A bar for each slice."""

    def __init__(self, **attributes: Any):
        super().__init__("studio-bars", **attributes)
        self._attr_names += ["values", "chosen", "color"]
        self._event_names += ["choose"]


class Download(AbstractElement):  # type: ignore[misc]
    """Saves a file, given as {name, url}, whenever it changes."""

    def __init__(self, **attributes: Any):
        super().__init__("studio-download", **attributes)
        self._attr_names += ["file"]
