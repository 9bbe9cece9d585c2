"""Components of `assets/studio.js` as trame widgets."""

from importlib.resources import files
from typing import Any

from trame_client.widgets.core import AbstractElement

ASSETS = str(files("linearno.studio") / "assets")
MODULE = {
    "serve": {"__linearno_studio": ASSETS},
    "scripts": ["__linearno_studio/studio.js"],
    "styles": ["__linearno_studio/studio.css"],
    "vue_use": ["linearnoStudio"],
}


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
