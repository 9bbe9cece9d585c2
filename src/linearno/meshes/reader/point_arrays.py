"""Named arrays at the points of a mesh file, called in the reader process. Axes: N points, Q cells."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy import ndarray

from linearno.core.errors import UserError
from linearno.meshes.reader.mesh import Arrays, CaseFile
from linearno.meshes.reader.vtk_files import read_mesh

QUAD = 4


class PointArrays(NamedTuple):
    """Part of a mesh.

    Args:
        points: positions (N, 3).
        arrays: arrays at the points by name, (N,) or (N, C), of the types in the file.
        quads: corners (Q, 4) of the cells with four of them.
        others: points of the cells with another number of corners, sorted.
    """

    points: ndarray
    arrays: Arrays
    quads: ndarray
    others: ndarray


def read_point_arrays(file: CaseFile, names: Sequence[str]) -> PointArrays:
    """Read points, cells and the arrays called `names` at the points."""
    mesh = read_mesh(file.path)
    found = mesh.fields["points"]
    if missing := [name for name in names if name not in found]:
        only = " at the points (the cells have one)" if missing[0] in mesh.fields["cells"] else ""
        raise UserError(
            f"holds no array {missing[0]!r}{only}; at its points are {', '.join(found) or 'none'}"
        )
    points = np.asarray(mesh.points)
    if mesh.cells is None:
        return PointArrays(
            points, {name: found[name] for name in names}, np.empty((0, QUAD), int), np.empty(0, int)
        )
    counts = np.diff(mesh.cells.offsets)
    corners = mesh.cells.offsets[:-1][counts == QUAD, None] + np.arange(QUAD)
    others = np.unique(mesh.cells.corners[np.repeat(counts != QUAD, counts)])
    return PointArrays(points, {name: found[name] for name in names}, mesh.cells.corners[corners], others)
