"""Integral quantities of a field as weights of its values: forces on patches, averages, probes.

Axes: K points or cells of a mesh, N points, E cells.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from linearno.meshes.reader.mesh import Mesh
from linearno.meshes.reader.patches import names_in, patch_surface


@dataclass(frozen=True)
class Functional:
    """A number that is linear in a field: Σ weight · value.

    Args:
        kind: "force" (∫ p n · direction dA over a patch, n out of the mesh), "average" (over a patch), or
            "probe" (value at the nearest point).
        patch: names of patches, separated by commas.
        direction: of a force, in space.
        point: of a probe, in space.
    """

    kind: str
    patch: str = ""
    direction: tuple[float, ...] = ()
    point: tuple[float, ...] = ()


def weights_of(mesh: Mesh, functional: Functional, location: str) -> ndarray:
    """Weight (K,) of the value at each point, or in each cell.

    In a mesh in a plane forces are those on a unit of its depth.
    """
    if functional.kind == "probe":
        return _probe_weights(mesh, functional.point, location)
    names = names_in(functional.patch, mesh)
    weights = _patch_weights(mesh, names, functional.direction if functional.kind == "force" else None)
    return weights if location == "points" else _to_cells(mesh, weights)


def _probe_weights(mesh: Mesh, point: Sequence[float], location: str) -> ndarray:
    places = mesh.points if location == "points" else mesh.centres
    weights = np.zeros(len(places))
    weights[np.argmin(((places - np.array(point)) ** 2).sum(axis=1))] = 1
    return weights


def _patch_weights(mesh: Mesh, names: list[str], direction: Sequence[float] | None) -> ndarray:
    """Weights (N,) of a force, or of the average if there is no direction."""
    surface = patch_surface(mesh, names)
    assert surface.origin is not None
    corners = surface.points[surface.faces]
    along = corners[:, 1] - corners[:, 0]
    outward = surface.normals[surface.faces].mean(axis=1)
    if corners.shape[1] == 3:
        area = np.cross(along, corners[:, 2] - corners[:, 0]) / 2
    else:
        square = np.maximum((along**2).sum(axis=1, keepdims=True), 1e-300)
        across = outward - (outward * along).sum(axis=1, keepdims=True) / square * along
        length = np.maximum(np.linalg.norm(across, axis=1, keepdims=True), 1e-300)
        area = across / length * np.sqrt(square)
    area *= np.where((area * outward).sum(axis=1) < 0, -1, 1)[:, None]
    size = np.linalg.norm(area, axis=1)
    share = size / size.sum() if direction is None else area @ np.array(direction)
    weights = np.zeros(len(mesh.points))
    for corner in surface.faces.T:
        np.add.at(weights, surface.origin[corner], share / surface.faces.shape[1])
    return weights


def _to_cells(mesh: Mesh, weights: ndarray) -> ndarray:
    """Weights (E,) of cell values that are averaged to points first, from weights of points (N,)."""
    assert mesh.cells is not None
    corners, owner = mesh.cells.corners, mesh.cells.owner
    count = np.maximum(np.bincount(corners, minlength=len(mesh.points)), 1)
    return np.bincount(owner, (weights / count)[corners], mesh.cell_count)
