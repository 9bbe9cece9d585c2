"""Inputs derived from the surface of a mesh: distance, normals, curvature at the nearest surface point.

Axes: Q points, V points and F faces of the
surface.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import dist
from typing import Any, cast

import numpy as np
from numpy import ndarray

from linearno.core.errors import UserError
from linearno.meshes.reader.geometry import Surface
from linearno.meshes.reader.mesh import Arrays


@dataclass(frozen=True)
class Position:
    """How positions are transformed, so that small distances near a body count in a large domain.

    Args:
        center: of the points, in space.
        scale: length below which distances are resolved linearly.
        frequencies: number of octaves of the Fourier features.
    """

    center: tuple[float, float, float]
    scale: float
    frequencies: int = 4


def position_inputs(names: Sequence[str], points: ndarray, position: Position) -> Arrays:
    """Inputs derived from positions alone.

    local_coords (3)               asinh((x − center) / scale): linear near the center, logarithmic far away
    fourier (3, 2 · frequencies)   sines and cosines of 1, 2, 4, … times the local coordinates
    """
    local = np.arcsinh((points - np.array(position.center)) / position.scale)
    octaves = 2.0 ** np.arange(position.frequencies)
    phases = local[:, :, None] * octaves
    found = {"local_coords": local, "fourier": np.concatenate([np.sin(phases), np.cos(phases)], axis=2)}
    return {name: found[name] for name in names if name in found}


def derived_inputs(
    names: Sequence[str], points: ndarray, surface: Surface, *, body: bool, scale: float = 1.0
) -> Arrays:
    """Compute inputs derived from the surface; with `body`, distances inside the surface are negative.

    distance            distance to a closed surface
    unsigned_distance   distance to any surface
    log_distance        asinh(distance / scale) of the unsigned distance
    normals (3)         unit normals pointing out of the mesh or the body
    curvature           mean curvature, 1 / length; > 0 where the body or the mesh is convex
    """
    if "distance" in names and (count := surface.open_edges):
        what = "edges" if surface.faces.shape[1] == 3 else "ends"
        raise UserError(
            f"has a surface that is not closed ({count} open {what}), so it has no inside; close it, or set "
            "unsigned_distance instead of distance"
        )
    nearest, face = _nearest(points, surface)
    length = np.linalg.norm(points - nearest, axis=1)
    found = {"unsigned_distance": length, "log_distance": np.arcsinh(length / scale)}
    if "distance" in names:
        found["distance"] = np.where(_inside(points, surface), -length, length) if body else length
    corners = surface.faces[face]
    weights = _weights(nearest, surface.points[corners])
    if "normals" in names:
        normal = (weights[..., None] * surface.normals[corners]).sum(axis=1)
        found["normals"] = normal / np.maximum(np.linalg.norm(normal, axis=1, keepdims=True), 1e-300)
    if "curvature" in names:
        found["curvature"] = (weights * mean_curvature(surface)[corners]).sum(axis=1)
    return {name: found[name] for name in names if name in found}


def mean_curvature(surface: Surface) -> ndarray:
    """Mean curvature (V,), 1/r for a circle and for a ball of radius r.

    Normal component of ∇L / L for segments and of ∇A / 2A for triangles (cotangent formula), with the
    length L or the area A around each point.
    """
    area, gradient = np.zeros(len(surface.points)), np.zeros_like(surface.points)
    corners = surface.points[surface.faces]
    if surface.faces.shape[1] == 2:
        along = corners[:, 1] - corners[:, 0]
        length = np.linalg.norm(along, axis=1, keepdims=True)
        for corner, tangent in zip(surface.faces.T, (-along, along), strict=True):
            np.add.at(gradient, corner, tangent / np.maximum(length, 1e-300))
            np.add.at(area, corner, length[:, 0] / 2)
    else:
        size = np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=1)
        for k in range(3):
            after, before = (k + 1) % 3, (k + 2) % 3
            near, far = corners[:, after] - corners[:, k], corners[:, before] - corners[:, k]
            cotangent = (near * far).sum(axis=1) / np.maximum(size, 1e-300)
            pull = cotangent[:, None] * (near - far) / 4
            np.add.at(gradient, surface.faces[:, after], pull)
            np.add.at(gradient, surface.faces[:, before], -pull)
            np.add.at(area, surface.faces[:, k], size / 6)
    return (gradient * surface.normals).sum(axis=1) / np.maximum(area, 1e-300)


def _nearest(points: ndarray, surface: Surface) -> tuple[ndarray, ndarray]:
    """Nearest surface point (Q, 3) of each point, and its face (Q,).

    In the order of a k-d tree, each result bounds the search radius of the next point, which is two to three
    times faster than `find_closest_cell`.
    """
    from scipy.spatial import cKDTree
    from vtkmodules.vtkCommonCore import reference
    from vtkmodules.vtkCommonDataModel import vtkCellLocator, vtkGenericCell

    locator: Any = vtkCellLocator()
    locator.SetDataSet(_to_polydata(surface))
    locator.BuildLocator()
    cell, found, last = vtkGenericCell(), [0.0, 0.0, 0.0], surface.points[0].tolist()
    face, part, square, inside = [cast(Any, reference(value)) for value in (0, 0, 0.0, 0)]
    nearest, faces = np.empty((len(points), 3)), np.empty(len(points), dtype=int)
    for number in cKDTree(points).indices.tolist():
        point = points[number].tolist()
        radius = dist(point, last) * (1 + 1e-9)
        if not locator.FindClosestPointWithinRadius(point, radius, found, cell, face, part, square, inside):
            locator.FindClosestPoint(point, found, cell, face, part, square)
        last = found.copy()
        nearest[number], faces[number] = last, face.get()
    return nearest, faces


def _inside(points: ndarray, surface: Surface) -> ndarray:
    import pyvista
    from vtkmodules.vtkFiltersModeling import vtkSelectEnclosedPoints

    select = vtkSelectEnclosedPoints()
    select.SetInputData(pyvista.PolyData(np.asarray(points, dtype=float)))
    select.SetSurfaceData(_to_polydata(surface))
    select.SetTolerance(1e-9)
    select.Update()
    return np.asarray(pyvista.wrap(select.GetOutput()).point_data["SelectedPoints"]).astype(bool)


def _to_polydata(surface: Surface) -> Any:
    import pyvista

    faces = np.insert(surface.faces, 0, surface.faces.shape[1], axis=1).ravel()
    if surface.faces.shape[1] == 2:
        return pyvista.PolyData(surface.points, lines=faces)
    return pyvista.PolyData(surface.points, faces=faces)


def _weights(nearest: ndarray, corners: ndarray) -> ndarray:
    """Barycentric coordinates (Q, corners) of points (Q, 3) on faces with these corners (Q, corners, 3)."""
    first, second = corners[:, 0], corners[:, 1]
    if corners.shape[1] == 2:
        along = second - first
        square = np.maximum((along**2).sum(axis=1), 1e-300)
        share = np.clip(((nearest - first) * along).sum(axis=1) / square, 0, 1)
        return np.stack([1 - share, share], axis=1)
    to_corners = corners - nearest[:, None]
    opposite = np.cross(to_corners[:, [1, 2, 0]], to_corners[:, [2, 0, 1]])
    areas = np.linalg.norm(opposite, axis=2)
    total = areas.sum(axis=1, keepdims=True)
    return np.where(total > 0, areas / np.where(total > 0, total, 1), 1 / 3)
