"""Cells for drawing fields at points: grids, scattered points and meshes.

Axes: N points, X coordinates, P points that are drawn, E cells.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyvista
from jaxtyping import Float, Integer
from numpy import ndarray

from linearno.meshes.reader.mesh import Cells
from linearno.viz.mesh import triangulate

# VTK types of tetrahedra, voxels, hexahedra, wedges and pyramids, linear and quadratic, and polyhedra
SOLID_CELLS = (10, 11, 12, 13, 14, 24, 25, 26, 27, 42)

Plane = tuple[tuple[float, float, float], tuple[float, float, float]]  # origin and normal


@dataclass
class Geometry:
    """A surface to draw, and which points or cells of the data it shows.

    Args:
        surface: what is drawn.
        rows: index into the data of each point of the surface, or of each of its cells.
        location: "points" or "cells".
        flat: whether it lies in the plane z = 0.
        volume: cells behind the surface, to clip; None in a plane.
    """

    surface: pyvista.PolyData
    rows: Integer[ndarray, "_"]
    location: str = "points"
    flat: bool = True
    volume: pyvista.UnstructuredGrid | None = None

    @property
    def box(self) -> tuple[tuple[float, float], ...]:
        """Bounds along x, y and z."""
        b = [float(bound) for bound in self.surface.bounds]
        return (b[0], b[1]), (b[2], b[3]), (b[4], b[5])

    def move(self, coords: Float[ndarray, "N X"]) -> None:
        """Move the points of the surface to other coordinates."""
        self.surface.points = in_space(coords)[self.rows]

    def clipped(self, plane: Plane) -> "Geometry":
        """What is left of a volume or surface on the positive side of a plane."""
        origin, normal = plane
        source = self.surface if self.volume is None else self.volume
        part = source.clip(normal=normal, origin=origin, invert=False, crinkle=self.volume is not None)
        return _surface_of(part, self.location)

    def nearest(self, x: float, y: float) -> int:
        """Row of the data nearest to a position in the plane."""
        points = self.surface.points if self.location == "points" else self.surface.cell_centers().points
        distance = (points[:, 0] - x) ** 2 + (points[:, 1] - y) ** 2
        return int(self.rows[int(np.argmin(distance))])


def in_space(coords: Float[ndarray, "N X"]) -> Float[ndarray, "N 3"]:
    """Coordinates padded with zeros to three; only the first three are kept."""
    kept = np.asarray(coords, dtype=np.float32)[:, :3]
    return np.pad(kept, ((0, 0), (0, 3 - kept.shape[1])))


def geometry_of(
    coords: Float[ndarray, "N X"], grid: tuple[int, ...] | None = None, cells: Cells | None = None,
    location: str = "points",
) -> Geometry:  # fmt: skip
    """Geometry of points: on a grid, in the cells of a mesh, or scattered."""
    points, flat = in_space(coords), coords.shape[1] < 3
    if cells is not None:
        volume = pyvista.UnstructuredGrid(
            np.insert(cells.corners, cells.offsets[:-1], np.diff(cells.offsets)), cells.types, points
        )
        geometry = _surface_of(_with_rows(volume), location)
        geometry.flat = flat or float(np.ptp(points[:, 2])) == 0
        if not geometry.flat and volume.n_cells and _is_solid(cells):
            geometry.volume = volume
        return geometry
    if grid is not None and len(grid) == 2:
        return Geometry(_quads(points, grid), np.arange(len(points)), flat=flat)
    if grid is not None and len(grid) == 3:
        solid = pyvista.StructuredGrid()
        solid.points, solid.dimensions = points, grid[::-1]
        volume = _with_rows(solid.cast_to_unstructured_grid())
        geometry = _surface_of(volume, "points")
        geometry.flat, geometry.volume = False, volume
        return geometry
    mesh = triangulate(np.asarray(coords, dtype=float)) if coords.shape[1] == 2 else None
    if mesh is None:
        return Geometry(pyvista.PolyData(points), np.arange(len(points)), flat=flat)
    triangles = mesh.get_masked_triangles()
    return Geometry(_faces(points, triangles), np.arange(len(points)), flat=flat)


def geometry_of_quads(coords: Float[ndarray, "N X"], quads: Integer[ndarray, "E 4"]) -> Geometry:
    """Geometry of points at the corners of quadrilaterals."""
    return Geometry(_faces(in_space(coords), quads), np.arange(len(coords)), flat=coords.shape[1] < 3)


def _quads(points: Float[ndarray, "N 3"], grid: tuple[int, ...]) -> pyvista.PolyData:
    index = np.arange(len(points)).reshape(grid)
    corners = [index[:-1, :-1], index[1:, :-1], index[1:, 1:], index[:-1, 1:]]
    return _faces(points, np.column_stack([part.ravel() for part in corners]))


def _faces(points: Float[ndarray, "N 3"], corners: Integer[ndarray, "E _"]) -> pyvista.PolyData:
    """Polygons that all have the same number of corners."""
    count = np.full(len(corners), corners.shape[1])
    return pyvista.PolyData(points, np.column_stack([count, corners]).ravel())


def _with_rows(grid: Any) -> Any:
    grid.point_data["row"] = np.arange(grid.n_points)
    grid.cell_data["row"] = np.arange(grid.n_cells)
    return grid


def _surface_of(grid: Any, location: str) -> Geometry:
    surface = grid.extract_surface(algorithm="geometry", pass_pointid=False, pass_cellid=False)
    data = surface.point_data if location == "points" else surface.cell_data
    rows = np.asarray(data["row"]) if "row" in data else np.zeros(0, dtype=int)
    surface.clear_data()
    return Geometry(surface, rows, location, flat=False)


def _is_solid(cells: Cells) -> bool:
    """Whether there are cells with a volume."""
    return bool(np.isin(cells.types, SOLID_CELLS).any())
