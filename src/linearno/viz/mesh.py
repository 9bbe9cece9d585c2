"""Cells and triangulations for plots. Axes: N points, T triangles, R rows, Q columns, E edges."""

import numpy as np
from jaxtyping import Bool, Float, Integer
from matplotlib.tri import Triangulation
from numpy import ndarray
from scipy.spatial import cKDTree

MAX_EDGE_RATIO = 4  # ratio to the typical edge length at its points above which an edge spans a hole
MAX_MASKED_FRACTION = 0.25  # share of triangles across holes above which points are drawn instead


def corners(centres: Float[ndarray, "R Q"], *, within_outline: bool = False) -> Float[ndarray, "R+1 Q+1"]:
    """One coordinate of the cell corners around a grid of points, which may be curved.

    The outermost cells extend half a cell beyond their points, or end at them if `within_outline`.
    """
    padded = np.pad(centres, 1, mode="edge")
    for axis, size in enumerate(centres.shape):
        if within_outline or size == 1:  # a single point does not determine a cell width
            continue
        line = np.moveaxis(padded, axis, 0)
        line[0], line[-1] = 2 * line[1] - line[2], 2 * line[-2] - line[-3]
    return (padded[1:, 1:] + padded[:-1, 1:] + padded[1:, :-1] + padded[:-1, :-1]) / 4


def is_straight(x: Float[ndarray, "R Q"], y: Float[ndarray, "R Q"]) -> bool:
    """Whether a grid is rectilinear: one coordinate is constant in each row, the other in each column."""

    def constant(values: ndarray, axis: int) -> bool:
        return bool(np.all(np.ptp(values, axis=axis) <= 1e-6 * max(np.ptp(values), 1e-30)))

    return any(constant(x, axis) and constant(y, 1 - axis) for axis in (0, 1))


def triangulate(coords: Float[ndarray, "N 2"]) -> Triangulation | None:
    """Delaunay triangulation with triangles across holes masked; None if it is not usable."""
    try:
        mesh = Triangulation(*coords.astype(float).T)
    except (ValueError, RuntimeError):  # fewer than three points, collinear points, or not finite
        return None
    masked = _spans_hole(coords, mesh.triangles)
    if masked.mean() > MAX_MASKED_FRACTION:
        return None
    mesh.set_mask(masked)
    return mesh


def triangulate_cells(coords: Float[ndarray, "N 2"], cells: Integer[ndarray, "Q _"]) -> Triangulation:
    """Triangulation of a mesh of triangles or quadrilaterals; quadrilaterals are split along a diagonal."""
    corners = range(1, cells.shape[1] - 1)
    triangles = np.concatenate([cells[:, [0, corner, corner + 1]] for corner in corners])
    x, y = coords.astype(float).T
    return Triangulation(x, y, triangles)


def cells_within(
    coords: Float[ndarray, "N 2"],
    cells: Integer[ndarray, "Q K"],
    view: tuple[tuple[float, float], ...] | None,
) -> Integer[ndarray, "_ K"]:
    """Cells with a corner within the bounds of a plot."""
    return cells if view is None else cells[~outside_view(coords, view)[cells].all(axis=1)]


def outside_view(coords: Float[ndarray, "N 2"], view: tuple[tuple[float, float], ...]) -> Bool[ndarray, "N"]:
    """Points outside the bounds of a plot."""
    low, high = np.array(view).T
    return ((coords < low) | (coords > high)).any(axis=1)


def cell_reach(coords: Float[ndarray, "N 2"], cells: Integer[ndarray, "Q K"]) -> Float[ndarray, "N"]:
    """Longest edge of the cells at each point; 0 at points without cells."""
    length = np.linalg.norm(coords[cells] - coords[np.roll(cells, -1, axis=1)], axis=-1).max(axis=1)
    reach = np.zeros(len(coords))
    np.maximum.at(reach, cells, length[:, None])
    return reach


def nearest_points(
    coords: Float[ndarray, "N 2"], pixels: int, reach: Float[ndarray, "N"] | None = None
) -> Integer[ndarray, "P Q"]:
    """Index of the nearest point for each pixel of the bounding box; −1 if no point is near.

    Rows run upwards along the second coordinate; the longer side has `pixels` pixels.

    Args:
        coords: points.
        pixels: number of pixels along the longer side.
        reach: distance from each point up to which pixels belong to it; by default that of its neighbours.
    """
    low, size = coords.min(axis=0), np.ptp(coords, axis=0)
    counts = np.maximum(np.ceil(pixels * size / size.max()), 1).astype(int)
    x, y = (low[k] + (np.arange(counts[k]) + 0.5) / counts[k] * size[k] for k in (0, 1))
    tree = cKDTree(coords)
    distance, index = tree.query(np.stack(np.meshgrid(x, y), axis=-1))
    if reach is None:
        reach = tree.query(coords, k=min(5, len(coords)))[0][:, -1]
    return np.where(distance <= reach[index], index, -1)


def _spans_hole(coords: Float[ndarray, "N 2"], triangles: Integer[ndarray, "T 3"]) -> Bool[ndarray, "T"]:
    """Triangles whose longest edge is much longer than the typical edge at one of their points."""
    ends = np.stack([triangles, np.roll(triangles, 1, axis=1)], axis=-1)
    length = np.linalg.norm(coords[ends[..., 0]] - coords[ends[..., 1]], axis=-1)
    typical = _typical_edge_length(len(coords), ends.reshape(-1, 2), length.ravel())
    return length.max(axis=1) > MAX_EDGE_RATIO * typical[triangles].min(axis=1)


def _typical_edge_length(
    points: int, ends: Integer[ndarray, "E 2"], length: Float[ndarray, "E"]
) -> Float[ndarray, "N"]:
    """Median length of the edges at each point, or the third-shortest if less; infinite without edges.

    The third-shortest, since at the rim of a hole most edges may span it. All edges except those of the
    boundary are listed twice.
    """
    point, lengths = ends.T.ravel(), np.tile(length, 2)
    order = np.lexsort((lengths, point))
    count = np.bincount(point, minlength=points)
    first = np.cumsum(count) - count
    typical = np.full(points, np.inf)
    typical[count > 0] = lengths[order][(first + np.minimum(count // 2, 5))[count > 0]]
    return typical
