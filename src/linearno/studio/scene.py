"""A field on a geometry as a VTK scene, which the browser renders; nothing is rendered here.

Axes: N points of the data, P points or cells of the surface.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from vtkmodules.util.numpy_support import numpy_to_vtk
from vtkmodules.vtkCommonDataModel import vtkPolyData
from vtkmodules.vtkRenderingCore import (
    vtkActor,
    vtkColorTransferFunction,
    vtkPolyDataMapper,
    vtkRenderer,
    vtkRenderWindow,
)

from linearno.studio.colors import Scale, colors_of
from linearno.studio.geometry import Geometry

ARRAY = "values"
POINT_SIZE = 5
MARGIN = 1.06  # of the view around the geometry
BACKGROUNDS = {"light": (1.0, 1.0, 1.0), "dark": (0.086, 0.102, 0.125)}


class Camera(NamedTuple):
    """A view of the plane: its centre, and half of its height."""

    x: float
    y: float
    scale: float

    def zoomed(self, factor: float, x: float, y: float) -> "Camera":
        """Scaled by `factor` around a position that stays where it is."""
        return Camera(x + (self.x - x) * factor, y + (self.y - y) * factor, self.scale * factor)


def fitted_camera(box: tuple[tuple[float, float], ...], aspect: float) -> Camera:
    """The camera that shows a box in a view of width `aspect` times its height."""
    (left, right), (low, high) = box[0], box[1]
    half = max((high - low) / 2, (right - left) / 2 / max(aspect, 0.1)) * MARGIN
    return Camera((left + right) / 2, (low + high) / 2, half or 1.0)


class FieldScene:
    """One actor with a colour map."""

    def __init__(self) -> None:
        self.renderer, self.window = vtkRenderer(), vtkRenderWindow()
        self.window.AddRenderer(self.renderer)
        self.window.OffScreenRenderingOn()
        self.mapper, self.actor = vtkPolyDataMapper(), vtkActor()
        self.colors = vtkColorTransferFunction()
        self.colors.SetNanColor(0.6, 0.6, 0.6)
        self.mapper.SetLookupTable(self.colors)
        self.mapper.SetScalarVisibility(True)
        self.mapper.UseLookupTableScalarRangeOn()
        self.actor.SetMapper(self.mapper)
        self.actor.GetProperty().SetPointSize(POINT_SIZE)
        self.renderer.AddActor(self.actor)
        self.geometry: Geometry | None = None
        self._data = vtkPolyData()
        self.mapper.SetInputDataObject(self._data)
        self._scale: Scale | None = None
        self._theme = ""
        self.set_theme("light")

    def show(self, geometry: Geometry) -> None:
        """Draw on another geometry."""
        if geometry is self.geometry:
            return
        self.geometry = geometry
        self._data = vtkPolyData()
        self._data.CopyStructure(geometry.surface)
        self.mapper.SetInputData(self._data)
        properties = self.actor.GetProperty()
        properties.SetLighting(not geometry.flat)
        properties.SetInterpolationToGouraud()

    def set_values(self, values: Float[ndarray, "N"], scale: Scale) -> None:
        """Colour the surface by a field of the data."""
        assert self.geometry is not None
        rows = self.geometry.rows
        array = numpy_to_vtk(np.ascontiguousarray(values[rows], dtype=np.float32), deep=True)
        array.SetName(ARRAY)
        at_points = self.geometry.location == "points"
        (self._data.GetPointData() if at_points else self._data.GetCellData()).SetScalars(array)
        if at_points:
            self.mapper.SetScalarModeToUsePointData()
        else:
            self.mapper.SetScalarModeToUseCellData()
        if scale != self._scale:
            self._set_scale(scale)
        self.mapper.SetScalarRange(scale.low, scale.high)
        self._data.Modified()

    def _set_scale(self, scale: Scale) -> None:
        self._scale = scale
        self.colors.RemoveAllPoints()
        colors = colors_of(scale.colormap)
        for color, at in zip(colors, np.linspace(scale.low, scale.high, len(colors)), strict=True):
            self.colors.AddRGBPoint(float(at), *color)

    def set_theme(self, theme: str) -> None:
        """Background of the page's theme, "light" or "dark"."""
        if theme != self._theme:
            self._theme = theme
            self.renderer.SetBackground(*BACKGROUNDS[theme])

    def look(self, camera: Camera | None) -> None:
        """Look at the plane from above; with None at the whole of a body."""
        view = self.renderer.GetActiveCamera()
        if camera is not None:
            distance = camera.scale / np.tan(np.radians(view.GetViewAngle() / 2))
            view.SetPosition(camera.x, camera.y, distance)
            view.SetFocalPoint(camera.x, camera.y, 0)
            view.SetViewUp(0, 1, 0)
            view.SetClippingRange(0.5 * distance, 2 * distance)
            return
        assert self.geometry is not None
        centre = np.mean(self.geometry.box, axis=1)
        size = float(np.linalg.norm(np.ptp(self.geometry.box, axis=1))) or 1.0
        view.SetFocalPoint(*centre)
        view.SetPosition(*(centre + size * np.array([0.9, -1.1, 0.8])))
        view.SetViewUp(0, 0, 1)
        view.SetClippingRange(0.01 * size, 10 * size)
