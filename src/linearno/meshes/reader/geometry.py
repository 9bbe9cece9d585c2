"""The shape of a mesh: its dimensions, cells without size, points that coincide, its boundary.

Axes: N points, E cells, V points and F faces of a surface, Q places that are asked about.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy import ndarray

from .ipc import Refused
from .mesh import FLAT, Mesh

AXES = ("x", "y", "z")
THIN = 1e-12  # a cell is without size below this share of the mesh's own extent, by dimension
TYPES = {0: (1, 2), 1: (3, 4, 21, 35, 68, 75), 2: (5, 6, 7, 8, 9, 22, 23, 28, 30, 34, 36, 69, 70, 76, 77)}


def extents(points: ndarray) -> ndarray:
    return np.ptp(points, axis=0) if len(points) else np.zeros(3)


def axes_of(points: ndarray) -> list[str]:
    """The axes along which the mesh has an extent."""
    size = extents(points)
    return [axis for axis, length in zip(AXES, size, strict=True) if length > FLAT * size.max()]


def cell_dimension(mesh: Mesh) -> int:
    """The dimension of the cells that the mesh consists of; 0 for a cloud of points."""
    return int(_dimensions(mesh).max(initial=0)) if mesh.cells is not None else 0


def _dimensions(mesh: Mesh) -> ndarray:
    assert mesh.cells is not None
    result = np.full(mesh.cell_count, 3)
    for dimension, types in TYPES.items():
        result[np.isin(mesh.cells.types, types)] = dimension
    return result


def thin_cells(mesh: Mesh) -> ndarray:
    """The numbers of the cells that have no length, area or volume."""
    if mesh.cells is None:
        return np.empty(0, dtype=int)
    grid, dimensions, length = mesh.as_grid(), _dimensions(mesh), extents(mesh.points).max(initial=0)
    sized = grid.copy(deep=False).compute_cell_sizes()
    names = ("Length", "Area", "Volume")
    thin = np.zeros(mesh.cell_count, dtype=bool)
    for dimension, name in enumerate(names, start=1):
        own = dimensions == dimension
        thin |= own & ~(np.abs(np.asarray(sized.cell_data[name])) > THIN * length**dimension)
    return np.flatnonzero(thin)


def coincident(points: ndarray) -> ndarray:
    """The numbers of the points that lie where an earlier one does, to the last bit."""
    key = points @ np.array([1.0, np.pi, np.e])  # equal for equal points, and seldom for others
    order = np.argsort(key, kind="stable")
    same = np.flatnonzero(np.diff(key[order]) == 0)
    some = np.sort(np.unique(np.concatenate([order[same], order[same + 1]])))
    _, first = np.unique(points[some], axis=0, return_index=True)
    return np.setdiff1d(some, some[first])


@dataclass(frozen=True)
class Surface:
    """Triangles in space, or segments in a plane; normals point out of the body or the mesh."""

    points: ndarray  # (V, 3)
    faces: ndarray  # (F, 3) or (F, 2)
    normals: ndarray  # (V, 3), of length one
    origin: ndarray | None = None  # (V,) numbers of the points in the mesh, where they are points of it

    @property
    def open_sides(self) -> int:
        """Edges of triangles, or ends of segments, that no other one shares; 0 if the surface is closed."""
        sides = self.faces.reshape(-1, 1) if self.faces.shape[1] == 2 else np.sort(_edges(self.faces), axis=1)
        counts = np.unique(sides, axis=0, return_counts=True)[1]
        return int((counts % 2).sum())


def boundary(mesh: Mesh) -> Surface:
    """The boundary of a volume or of a plane mesh; of a mesh that is a surface, itself."""
    dimension = cell_dimension(mesh)
    if dimension < 2:
        raise Refused("has no cells with an area or a volume, and so no surface of its own")
    grid = mesh.as_grid().copy(deep=False)
    grid.point_data["number"] = np.arange(len(mesh.points))  # VTK's own numbers are wrong for curved cells
    grid.cell_data["number"] = np.arange(mesh.cell_count)
    grid = grid.extract_cells(np.flatnonzero(_dimensions(mesh) == dimension))
    skin = grid.extract_surface(pass_pointid=False, pass_cellid=False).triangulate()
    if not skin.n_cells:
        raise Refused("has no surface: all its faces are without area")
    triangles, place = np.asarray(skin.regular_faces), np.asarray(skin.points, dtype=float)
    origin = np.asarray(skin.point_data["number"]).astype(int)
    if dimension == 3:
        inner = mesh.centres[np.asarray(skin.cell_data["number"]).astype(int)]
        return _surface(place, triangles, inner, origin)
    if len(axes_of(mesh.points)) < 3:
        edges, third = _outer_edges(triangles)
        if not len(edges):
            raise Refused("lies in a plane and has no boundary: its cells overlap")
        return _surface(place, edges, place[third], origin)
    return oriented(skin)


def oriented(skin: Any) -> Surface:
    """A surface that stands alone: normals point outwards if it is closed, and are consistent anyway."""
    skin = skin.triangulate()
    closed = skin.n_open_edges == 0 and skin.n_cells > 0
    turned = skin.compute_normals(
        cell_normals=False, split_vertices=False, consistent_normals=True, auto_orient_normals=closed
    )
    place, faces = np.asarray(turned.points, dtype=float), np.asarray(turned.regular_faces)
    numbers = turned.point_data.get("number")
    origin = None if numbers is None else np.asarray(numbers).astype(int)
    return Surface(place, faces, np.asarray(turned.point_data["Normals"], dtype=float), origin)


def part_of(surface: Surface, marked: ndarray) -> Surface:
    """Those faces whose corners are all among the marked points of the mesh."""
    assert surface.origin is not None
    kept = surface.faces[marked[surface.origin][surface.faces].all(axis=1)]
    if not len(kept):
        raise Refused("none of the marked points form a face of the surface")
    used, faces = np.unique(kept, return_inverse=True)
    own = surface.points[used], faces.reshape(kept.shape), surface.normals[used]
    return Surface(*own, surface.origin[used])


def _surface(points: ndarray, faces: ndarray, inner: ndarray, origin: ndarray) -> Surface:
    """With normals that point away from `inner`, a place behind each face."""
    used, numbers = np.unique(faces, return_inverse=True)
    width = faces.shape[1]
    points, faces, origin = points[used], numbers.reshape(-1, width), origin[used]
    corners = points[faces]
    if width == 3:
        normal = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    else:
        along, away = corners[:, 1] - corners[:, 0], corners[:, 0] - inner
        share = (along * away).sum(axis=1) / np.maximum((along**2).sum(axis=1), 1e-300)
        normal = _unit(away - share[:, None] * along) * np.linalg.norm(along, axis=1)[:, None]
    outward = ((corners.mean(axis=1) - inner) * normal).sum(axis=1) >= 0
    normal = np.where(outward[:, None], normal, -normal)
    sums = np.zeros_like(points)
    for corner in faces.T:
        np.add.at(sums, corner, normal)
    return Surface(points, faces, _unit(sums), origin)


def _outer_edges(triangles: ndarray) -> tuple[ndarray, ndarray]:
    """Edges that belong to one triangle alone, and the third corner of that."""
    edges, third = np.sort(_edges(triangles), axis=1), triangles[:, [2, 0, 1]].reshape(-1)
    _, first, counts = np.unique(edges, axis=0, return_index=True, return_counts=True)
    once = first[counts == 1]
    return edges[once], third[once]


def _edges(triangles: ndarray) -> ndarray:
    return triangles[:, [0, 1, 1, 2, 2, 0]].reshape(-1, 2)


def _unit(vectors: ndarray) -> ndarray:
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(length > 0, length, 1)
