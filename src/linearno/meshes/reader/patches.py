"""Named parts of the boundary of a mesh, such as the patches of OpenFOAM.

Axes: N points of the mesh, V points and F faces of a surface.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numpy import ndarray

from linearno.core.errors import UserError
from linearno.meshes.reader.geometry import Surface, boundary
from linearno.meshes.reader.mesh import Cells, Mesh

TOLERANCE = 1e-6  # between points of a patch and of the mesh, over the extent of the mesh


def patches_of(mesh: Mesh, grids: Mapping[str, Any]) -> dict[str, Cells]:
    """Faces of patches given as PyVista grids with points of their own; those off the mesh are left out."""
    from scipy.spatial import cKDTree

    if not grids or not len(mesh.points) or not np.isfinite(mesh.points).all():
        return {}
    tree, near = cKDTree(mesh.points), TOLERANCE * np.ptp(mesh.points, axis=0).max()
    found = {}
    for name, grid in grids.items():
        if not grid.n_cells:
            continue
        distance, index = tree.query(np.asarray(grid.points))
        if distance.max() <= near:
            offsets = grid.cell_offsets if hasattr(grid, "cell_offsets") else grid.offset  # before 0.49
            corners = index[np.asarray(grid.cell_connectivity)]
            found[name] = Cells(np.asarray(grid.celltypes), corners, np.asarray(offsets))
    return found


def names_in(choice: str, mesh: Mesh) -> list[str]:
    """Patches of the mesh that `choice`, names separated by commas, consists of; none if one is missing."""
    names = [name.strip() for name in choice.split(",")]
    return names if all(name in mesh.patches for name in names) else []


def marks_of(mesh: Mesh, names: list[str]) -> ndarray:
    """Mask (N,) of the points of patches."""
    mask = np.zeros(len(mesh.points), dtype=bool)
    for name in names:
        mask[mesh.patches[name].corners] = True
    return mask


def patch_surface(mesh: Mesh, names: list[str]) -> Surface:
    """Surface of patches, with normals pointing out of the mesh."""
    whole = boundary(mesh)
    assert whole.origin is not None
    faces_at: dict[int, list[frozenset[int]]] = {}
    for face in (face for name in names for face in _point_sets(mesh.patches[name])):
        for point in face:
            faces_at.setdefault(point, []).append(face)
    corners = whole.origin[whole.faces].tolist()  # triangles of faces with more corners
    kept = np.array([any(face.issuperset(one) for face in faces_at.get(one[0], ())) for one in corners])
    if not kept.any():
        raise UserError(f"has no face of {', '.join(names)} on the boundary of its mesh")
    used, faces = np.unique(whole.faces[kept], return_inverse=True)
    faces = faces.reshape(-1, whole.faces.shape[1])
    return Surface(whole.points[used], faces, whole.normals[used], whole.origin[used])


def _point_sets(cells: Cells) -> list[frozenset[int]]:
    """The points of each face."""
    ends, corners = cells.offsets.tolist(), cells.corners.tolist()
    return [frozenset(corners[first:last]) for first, last in pairwise(ends)]
