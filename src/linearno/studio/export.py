"""Pictures and meshes of what is shown. Axes: N points."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pyvista
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import Normalize
from mpl_toolkits.mplot3d.art3d import Poly3DCollection

from linearno.core.errors import UserError
from linearno.studio.panels import Panel
from linearno.viz.encode import png_bytes
from linearno.viz.style import escape_mathtext, new_figure

PANEL_WIDTH, PANEL_HEIGHT = 5.0, 4.0  # inches
MAX_FACES = 60_000  # of a picture of a body


def png(panels: Sequence[Panel]) -> bytes:
    """The panels side by side, each with its colour bar."""
    if not panels:
        raise UserError("nothing is shown that could be exported")
    figure = new_figure(PANEL_HEIGHT, PANEL_WIDTH * len(panels))
    for i, panel in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), i + 1, projection=None if panel.geometry.flat else "3d")
        colors = ScalarMappable(
            Normalize(panel.scale.low, panel.scale.high), mpl.colormaps[panel.scale.colormap]
        )
        _draw(axes, panel, colors)
        axes.set_title(escape_mathtext(f"{panel.title}  {panel.note}".strip()))
        figure.colorbar(colors, ax=axes, label=escape_mathtext(panel.label), shrink=0.85)
    return png_bytes(figure)


def _draw(axes: object, panel: Panel, colors: ScalarMappable) -> None:
    geometry = panel.geometry
    mesh, values = geometry.surface, panel.values[geometry.rows]
    box = geometry.box
    if mesh.n_faces == 0 or (not geometry.flat and mesh.n_cells > MAX_FACES):
        points = mesh.points if geometry.location == "points" else mesh.cell_centers().points
        columns = points[:, :2].T if geometry.flat else points.T
        axes.scatter(*columns, c=colors.to_rgba(values), s=4)  # type: ignore[attr-defined]
    else:
        faces = list(mesh.irregular_faces)
        if geometry.location == "points":
            values = np.array([np.mean(values[face]) for face in faces])
        corners = [mesh.points[face][:, : 2 if geometry.flat else 3] for face in faces]
        kind = PolyCollection if geometry.flat else Poly3DCollection
        drawn = kind(corners, facecolors=colors.to_rgba(values), edgecolors="face", linewidths=0.2)
        axes.add_collection(drawn)  # type: ignore[attr-defined]
    axes.set(xlim=box[0], ylim=box[1])  # type: ignore[attr-defined]
    axes.set_aspect("equal" if geometry.flat else "auto")  # type: ignore[attr-defined]


def vtu(panels: Sequence[Panel]) -> bytes:
    """The geometry of the first panel with the fields of all panels."""
    if not panels:
        raise UserError("nothing is shown that could be exported")
    geometry = panels[0].geometry
    grid = pyvista.UnstructuredGrid(geometry.surface.cast_to_unstructured_grid())
    data = grid.point_data if geometry.location == "points" else grid.cell_data
    for panel in panels:
        if panel.geometry is geometry:
            data[f"{panel.title}: {panel.label}"] = np.asarray(panel.values[geometry.rows], dtype=np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shown.vtu"
        grid.save(path)
        return path.read_bytes()
