"""Cells and triangles around points. Axes: N points, R rows, Q columns, E edges."""

import numpy as np
from jaxtyping import Bool, Float, Integer
from matplotlib.tri import Triangulation
from numpy import ndarray
from scipy.spatial import cKDTree

LONG = 4  # an edge this many times longer than its neighbours spans a hole
CROWDED = 0.25  # a mesh that would lose this share of its triangles is better drawn as points


def corners(centres: Float[ndarray, "R Q"], *, within: bool = False) -> Float[ndarray, "R+1 Q+1"]:
    """One coordinate of the corners of the cells around a grid of points, also where the grid is curved.

    The outermost cells reach half a cell beyond their points, or end there: `within` the outline of the grid.
    """
    padded = np.pad(centres, 1, mode="edge")
    for axis, size in enumerate(centres.shape):
        if within or size == 1:  # alone, it has no neighbour to tell the width of a cell
            continue
        line = np.moveaxis(padded, axis, 0)
        line[0], line[-1] = 2 * line[1] - line[2], 2 * line[-2] - line[-3]
    return (padded[1:, 1:] + padded[:-1, 1:] + padded[1:, :-1] + padded[:-1, :-1]) / 4


def is_straight(x: Float[ndarray, "R Q"], y: Float[ndarray, "R Q"]) -> bool:
    """Whether each row and each column of a grid has one coordinate in common: its cells are rectangles."""

    def constant(values: ndarray, axis: int) -> bool:
        return bool(np.all(np.ptp(values, axis=axis) <= 1e-6 * max(np.ptp(values), 1e-30)))

    return any(constant(x, axis) and constant(y, 1 - axis) for axis in (0, 1))


def triangulate(coords: Float[ndarray, "N 2"]) -> Triangulation | None:
    """Delaunay triangles without those that span holes; None where the points make no good mesh."""
    try:
        mesh = Triangulation(*coords.astype(float).T)
    except (ValueError, RuntimeError):  # fewer than three points, all on a line, or not finite
        return None
    hidden = _spans_a_hole(coords, mesh.triangles)
    if hidden.mean() > CROWDED:
        return None
    mesh.set_mask(hidden)
    return mesh


def nearest_points(coords: Float[ndarray, "N 2"], pixels: int) -> Integer[ndarray, "P Q"]:
    """The index of the point nearest to each pixel of the box around the points; −1 where none is near.

    Rows run along the second coordinate, upwards; the longer side has `pixels` of them.
    """
    low, size = coords.min(axis=0), np.ptp(coords, axis=0)
    counts = np.maximum(np.ceil(pixels * size / size.max()), 1).astype(int)
    x, y = (low[k] + (np.arange(counts[k]) + 0.5) / counts[k] * size[k] for k in (0, 1))
    tree = cKDTree(coords)
    distance, index = tree.query(np.stack(np.meshgrid(x, y), axis=-1))
    spacing = tree.query(coords, k=min(5, len(coords)))[0][:, -1]
    return np.where(distance <= spacing[index], index, -1)


def _spans_a_hole(coords: Float[ndarray, "N 2"], triangles: Integer[ndarray, "T 3"]) -> Bool[ndarray, "T"]:
    """Triangles whose longest edge is far above the usual length at one of their points."""
    ends = np.stack([triangles, np.roll(triangles, 1, axis=1)], axis=-1)
    length = np.linalg.norm(coords[ends[..., 0]] - coords[ends[..., 1]], axis=-1)
    usual = _usual_edge(len(coords), ends.reshape(-1, 2), length.ravel())
    return length.max(axis=1) > LONG * usual[triangles].min(axis=1)


def _usual_edge(
    points: int, ends: Integer[ndarray, "E 2"], length: Float[ndarray, "E"]
) -> Float[ndarray, "N"]:
    """The median length of the edges at each point, or the third-shortest where that is less: at the rim of a
    hole most may span it. Infinite at a point without any. All edges but the outermost come twice.
    """
    owner, twice = ends.T.ravel(), np.tile(length, 2)
    order = np.lexsort((twice, owner))
    count = np.bincount(owner, minlength=points)
    first = np.cumsum(count) - count
    usual = np.full(points, np.inf)
    usual[count > 0] = twice[order][(first + np.minimum(count // 2, 5))[count > 0]]
    return usual
