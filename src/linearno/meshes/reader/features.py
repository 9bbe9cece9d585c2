"""Inputs that a mesh itself tells: how far the surface is, which way it faces, how it bends.

At any place they are those of the point of the surface that is nearest. Axes: Q places, V points, F faces.
"""

from collections.abc import Sequence
from math import dist
from typing import Any, cast

import numpy as np
from numpy import ndarray

from .geometry import Surface
from .ipc import Arrays, Refused

DERIVED = ("distance", "unsigned_distance", "normals", "curvature")


def derived_inputs(names: Sequence[str], places: ndarray, surface: Surface, *, body: bool) -> Arrays:
    """What is asked for at the places. `body`: the surface is that of a body, distances inside it are < 0.

    distance            to the surface, which must be closed
    unsigned_distance   to any surface
    normals (3)         unit vectors out of the mesh, or out of the body
    curvature           mean curvature, 1 / length; > 0 where the body or the mesh is convex
    """
    if "distance" in names and (gaps := surface.open_sides):
        what = "edges" if surface.faces.shape[1] == 3 else "ends"
        raise Refused(
            f"its surface is not closed ({gaps} open {what}), so it has no inside; close it, or ask for "
            "unsigned_distance instead of distance"
        )
    nearest, face = _nearest(places, surface)
    length = np.linalg.norm(places - nearest, axis=1)
    found = {"unsigned_distance": length}
    if "distance" in names:
        found["distance"] = np.where(_inside(places, surface), -length, length) if body else length
    weights = _weights(nearest, surface.points[surface.faces[face]])
    if "normals" in names:
        normal = (weights[..., None] * surface.normals[surface.faces[face]]).sum(axis=1)
        found["normals"] = normal / np.maximum(np.linalg.norm(normal, axis=1, keepdims=True), 1e-300)
    if "curvature" in names:
        found["curvature"] = (weights * curvature(surface)[surface.faces[face]]).sum(axis=1)
    return {name: found[name] for name in names}


def curvature(surface: Surface) -> ndarray:
    """Mean curvature at the points of the surface, 1/r for a circle and for a ball of radius r."""
    normals, area = surface.normals, np.zeros(len(surface.points))
    vector = np.zeros_like(surface.points)
    corners = surface.points[surface.faces]
    if surface.faces.shape[1] == 2:
        along = corners[:, 1] - corners[:, 0]
        length = np.linalg.norm(along, axis=1, keepdims=True)
        tangent = along / np.maximum(length, 1e-300)
        for column, sign in ((0, -1.0), (1, 1.0)):
            np.add.at(vector, surface.faces[:, column], sign * tangent)
            np.add.at(area, surface.faces[:, column], length[:, 0] / 2)
        return (vector * normals).sum(axis=1) / np.maximum(area, 1e-300)
    size = np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=1) / 2
    for k in range(3):
        here, after, before = corners[:, k], corners[:, (k + 1) % 3], corners[:, (k + 2) % 3]
        near, far = after - here, before - here  # of the edge opposite to this corner
        cotangent = (near * far).sum(axis=1) / np.maximum(2 * size, 1e-300)
        pull = cotangent[:, None] * (after - before)
        np.add.at(vector, surface.faces[:, (k + 1) % 3], pull / 2)
        np.add.at(vector, surface.faces[:, (k + 2) % 3], -pull / 2)
        np.add.at(area, surface.faces[:, k], size / 3)
    return (vector * normals).sum(axis=1) / np.maximum(2 * area, 1e-300)


def _nearest(places: ndarray, surface: Surface) -> tuple[ndarray, ndarray]:
    """The nearest point of the surface to each place, and the face that it lies on.

    Places are asked along a curve that stays near itself: the answer for one bounds how far to search for the
    next, which is several times faster than a search without a bound.
    """
    from vtkmodules.vtkCommonCore import reference
    from vtkmodules.vtkCommonDataModel import vtkCellLocator, vtkGenericCell

    locator: Any = vtkCellLocator()
    locator.SetDataSet(_polydata(surface))
    locator.BuildLocator()
    cell, point, last = vtkGenericCell(), [0.0, 0.0, 0.0], surface.points[0].tolist()
    face, part, square, inside = [cast(Any, reference(value)) for value in (0, 0, 0.0, 0)]
    nearest, faces = np.empty((len(places), 3)), np.empty(len(places), dtype=int)
    for number in _along_a_curve(places).tolist():
        place = places[number].tolist()
        reach = dist(place, last) * (1 + 1e-9)
        if not locator.FindClosestPointWithinRadius(place, reach, point, cell, face, part, square, inside):
            locator.FindClosestPoint(place, point, cell, face, part, square)
        last = point.copy()
        nearest[number], faces[number] = last, face.get()
    return nearest, faces


def _along_a_curve(places: ndarray, bits: int = 10) -> ndarray:
    """An order in which places follow others that are near: by their bits, x, y and z in turn (Morton)."""
    size = np.ptp(places, axis=0).max(initial=0) or 1.0
    steps = ((places - places.min(axis=0, initial=np.inf)) / size * (2**bits - 1)).astype(np.int64)
    key = np.zeros(len(places), dtype=np.int64)
    for bit in range(bits):
        for axis in range(3):
            key |= ((steps[:, axis] >> bit) & 1) << (3 * bit + axis)
    return np.argsort(key, kind="stable")


def _inside(places: ndarray, surface: Surface) -> ndarray:
    import pyvista
    from vtkmodules.vtkFiltersModeling import vtkSelectEnclosedPoints

    ask = vtkSelectEnclosedPoints()
    ask.SetInputData(pyvista.PolyData(np.asarray(places, dtype=float)))
    ask.SetSurfaceData(_polydata(surface))
    ask.SetTolerance(1e-9)
    ask.Update()
    return np.asarray(pyvista.wrap(ask.GetOutput()).point_data["SelectedPoints"]).astype(bool)


def _polydata(surface: Surface) -> Any:
    """As pyvista's PolyData, which is known only where it is installed."""
    import pyvista

    count, width = surface.faces.shape
    flat = np.concatenate([np.full((count, 1), width), surface.faces], axis=1).reshape(-1)
    if width == 2:
        return pyvista.PolyData(surface.points, lines=flat)
    return pyvista.PolyData(surface.points, faces=flat)


def _weights(nearest: ndarray, corners: ndarray) -> ndarray:
    """How much each corner of a face counts at a point on it: they sum to one."""
    if corners.shape[1] == 2:
        along = corners[:, 1] - corners[:, 0]
        square = np.maximum((along**2).sum(axis=1), 1e-300)
        second = np.clip(((nearest - corners[:, 0]) * along).sum(axis=1) / square, 0, 1)
        return np.stack([1 - second, second], axis=1)
    areas = [
        np.linalg.norm(np.cross(corners[:, (k + 1) % 3] - nearest, corners[:, (k + 2) % 3] - nearest), axis=1)
        for k in range(3)
    ]
    shares = np.stack(areas, axis=1)
    total = shares.sum(axis=1, keepdims=True)
    return np.where(total > 0, shares / np.where(total > 0, total, 1), 1 / 3)
