"""Geometry of a mesh: dimensions, degenerate cells, duplicate points, boundary.

Axes: N points, E cells, V points and F faces of a surface.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy import ndarray

from linearno.core.errors import UserError
from linearno.meshes.reader.mesh import Mesh

AXES = ("x", "y", "z")
MIN_RELATIVE_EXTENT = 1e-6  # of an axis, over the largest extent
MIN_RELATIVE_SIZE = 1e-12  # of a cell, over the largest extent to the power of its dimension


def axes_of(points: ndarray) -> list[str]:
    """Axes along which the mesh has an extent."""
    size = np.ptp(points, axis=0) if len(points) else np.zeros(3)
    return [
        axis for axis, length in zip(AXES, size, strict=True) if length > MIN_RELATIVE_EXTENT * size.max()
    ]


def cell_dimension(mesh: Mesh) -> int:
    """Highest dimension of a cell; 0 for a point cloud."""
    return int(_cell_dimensions(mesh).max(initial=0)) if mesh.cells is not None else 0


def is_surface(mesh: Mesh) -> bool:
    """Whether the mesh is a surface in space."""
    return cell_dimension(mesh) == 2 and len(axes_of(mesh.points)) == 3


def _cell_dimensions(mesh: Mesh) -> ndarray:
    from vtkmodules.vtkCommonDataModel import vtkGenericCell

    assert mesh.cells is not None
    types, index = np.unique(mesh.cells.types, return_inverse=True)
    return np.array([vtkGenericCell.InstantiateCell(kind).GetCellDimension() for kind in types.tolist()])[
        index
    ]


def degenerate_cells(mesh: Mesh) -> ndarray:
    """Indices of the cells without length, area or volume."""
    if mesh.cells is None:
        return np.empty(0, dtype=int)
    dimensions, length = _cell_dimensions(mesh), np.ptp(mesh.points, axis=0).max()
    sized = mesh.as_grid().copy(deep=False).compute_cell_sizes()
    without = np.zeros(mesh.cell_count, dtype=bool)
    for dimension, name in enumerate(("Length", "Area", "Volume"), start=1):
        size = np.abs(np.asarray(sized.cell_data[name]))
        without |= (dimensions == dimension) & ~(size > MIN_RELATIVE_SIZE * length**dimension)
    return np.flatnonzero(without)


def duplicate_points(points: ndarray) -> ndarray:
    """Indices of the points whose coordinates equal those of an earlier point."""
    order = np.lexsort(points.T)  # stable
    equal = (np.diff(points[order], axis=0) == 0).all(axis=1)
    return np.sort(order[1:][equal])


@dataclass(frozen=True)
class Surface:
    """Triangles in space, or segments in a plane.

    Args:
        points: coordinates (V, 3).
        faces: indices of the corners, (F, 3) or (F, 2).
        normals: unit normals (V, 3) pointing out of the body or the mesh.
        origin: indices (V,) of the points in the mesh, if the surface is part of it.
    """

    points: ndarray
    faces: ndarray
    normals: ndarray
    origin: ndarray | None = None

    @property
    def open_edges(self) -> int:
        """Number of edges of a single triangle, or ends of a single segment; 0 if the surface is closed."""
        sides = self.faces.reshape(-1, 1) if self.faces.shape[1] == 2 else np.sort(_edges(self.faces), axis=1)
        counts = np.unique(sides, axis=0, return_counts=True)[1]
        return int((counts % 2).sum())

    def marks(self, count: int) -> ndarray:
        """Mask (count,) of the mesh points on the surface."""
        assert self.origin is not None
        mask = np.zeros(count, dtype=bool)
        mask[self.origin] = True
        return mask


def boundary(mesh: Mesh) -> Surface:
    """Boundary of a volume or plane mesh; the mesh itself if it is a surface."""
    dimension = cell_dimension(mesh)
    if dimension < 2:
        raise UserError("has no cells with an area or a volume, and so no boundary surface")
    grid = mesh.as_grid().copy(deep=False)
    grid.point_data["number"] = np.arange(len(mesh.points))  # VTK's indices are wrong for curved cells
    grid.cell_data["number"] = np.arange(mesh.cell_count)
    grid = grid.extract_cells(np.flatnonzero(_cell_dimensions(mesh) == dimension))
    skin = grid.extract_surface(pass_pointid=False, pass_cellid=False).triangulate()
    if not skin.n_cells:
        raise UserError("has no surface: all its faces are without area")
    triangles, points = np.asarray(skin.regular_faces), np.asarray(skin.points, dtype=float)
    origin = np.asarray(skin.point_data["number"]).astype(int)
    if dimension == 3:
        inner = mesh.centres[np.asarray(skin.cell_data["number"]).astype(int)]
        return _with_normals(points, triangles, inner, origin)
    if is_surface(mesh):
        return orient_normals(skin)
    edges, third = _outer_edges(triangles)
    if not len(edges):
        raise UserError("lies in a plane and has no boundary: its cells overlap")
    return _with_normals(points, edges, points[third], origin)


def orient_normals(skin: Any) -> Surface:
    """Surface with consistent normals, which point outwards if it is closed, from a PyVista surface."""
    skin = skin.triangulate()
    closed = skin.n_open_edges == 0 and skin.n_cells > 0
    turned = skin.compute_normals(
        cell_normals=False, split_vertices=False, consistent_normals=True, auto_orient_normals=closed
    )
    points, faces = np.asarray(turned.points, dtype=float), np.asarray(turned.regular_faces)
    numbers = turned.point_data.get("number")
    origin = None if numbers is None else np.asarray(numbers).astype(int)
    return Surface(points, faces, np.asarray(turned.point_data["Normals"], dtype=float), origin)


def marked_part(surface: Surface, marked: ndarray) -> Surface:
    """The part of a surface whose faces have only marked points (N,) of the mesh as corners."""
    assert surface.origin is not None
    kept = surface.faces[marked[surface.origin][surface.faces].all(axis=1)]
    if not len(kept):
        raise UserError("none of the marked points form a face of the surface")
    used, faces = np.unique(kept, return_inverse=True)
    points, normals = surface.points[used], surface.normals[used]
    return Surface(points, faces.reshape(kept.shape), normals, surface.origin[used])


def _with_normals(points: ndarray, faces: ndarray, inner: ndarray, origin: ndarray) -> Surface:
    """Surface of faces, with normals pointing away from `inner` (F, 3), a point behind each face."""
    used, numbers = np.unique(faces, return_inverse=True)
    points, faces, origin = points[used], numbers.reshape(-1, faces.shape[1]), origin[used]
    corners = points[faces]
    along = corners[:, 1] - corners[:, 0]
    if corners.shape[1] == 3:
        normal = np.cross(along, corners[:, 2] - corners[:, 0])
    else:
        away = corners[:, 0] - inner
        share = (along * away).sum(axis=1) / np.maximum((along**2).sum(axis=1), 1e-300)
        normal = _unit(away - share[:, None] * along) * np.linalg.norm(along, axis=1)[:, None]
    outward = ((corners.mean(axis=1) - inner) * normal).sum(axis=1) >= 0
    normal = np.where(outward[:, None], normal, -normal)
    sums = np.zeros_like(points)
    for corner in faces.T:
        np.add.at(sums, corner, normal)
    return Surface(points, faces, _unit(sums), origin)


def _outer_edges(triangles: ndarray) -> tuple[ndarray, ndarray]:
    """Edges of a single triangle, and the third corner of that triangle."""
    edges, third = np.sort(_edges(triangles), axis=1), triangles[:, [2, 0, 1]].reshape(-1)
    _, first, counts = np.unique(edges, axis=0, return_index=True, return_counts=True)
    once = first[counts == 1]
    return edges[once], third[once]


def _edges(triangles: ndarray) -> ndarray:
    return triangles[:, [0, 1, 1, 2, 2, 0]].reshape(-1, 2)


def _unit(vectors: ndarray) -> ndarray:
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(length > 0, length, 1)
