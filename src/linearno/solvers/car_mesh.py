"""Surface and volume meshes around cars, with the point counts of ShapeNet-Car.

The surface is a box of 1 × 1 × 3 cells with 14 quadrilaterals, divided four times: 3,586 points and 3,584
quadrilaterals. The volume is a block of 3 × 3 × 6 cells with that box left out, each cell divided into
8 × 8 × 8: 29,498 nodes, 898 of them on the surface. x points to the side, y upwards, z along the flow.
"""

from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float, Int
from numpy import ndarray
from scipy.sparse.linalg import SuperLU, splu

LEVELS = 4
FINE = 2**LEVELS  # surface steps per cell of the box
COARSE = FINE // 2  # volume steps per cell
SURFACE_POINTS, SURFACE_QUADS, VOLUME_POINTS = 3586, 3584, 29498
CORNERS = 16  # corners of the box, the first points of the surface
SHARED_POINTS = 898  # points of the surface after three divisions, which are nodes of the volume
OUTER_CORNERS = 96  # corners of the block's cells that are no corners of the box
BLOCK = (3, 3, 6)  # cells of the block; the box is the middle one, one cell after the inlet
LOWER, UPPER = np.array([-2.5, -1.8, -4.5]), np.array([2.5, 3.2, 7.5])  # outer block in metres


class SurfaceMesh(NamedTuple):
    """Points and quadrilaterals of the box.

    Args:
        place: position (V, 3) of each point in the box, in steps: 0 to 16, 0 to 16, 0 to 48.
        quads: corners of each quadrilateral, anticlockwise seen from outside.
    """

    place: Int[ndarray, "V 3"]
    quads: Int[ndarray, "P 4"]


@cache
def surface_mesh() -> SurfaceMesh:
    """The box of 16 corners, divided four times; each division adds midpoints of edges, then of quads."""
    place = FINE * np.array(list(product((0, 1), (0, 1), range(4))))
    number = {tuple(point): i for i, point in enumerate((place // FINE).tolist())}
    quads = np.array([[number[corner] for corner in quad] for quad in _box_quads()])
    for _ in range(LEVELS):
        ends = np.stack([quads, np.roll(quads, -1, axis=1)], axis=-1).reshape(-1, 2)
        edges, index = np.unique(np.sort(ends, axis=1), axis=0, return_inverse=True)
        middle = len(place) + index.reshape(quads.shape)
        centre = len(place) + len(edges) + np.arange(len(quads))
        place = np.concatenate([place, place[edges].mean(axis=1), place[quads].mean(axis=1)])
        before = np.roll(middle, 1, axis=1)
        parts = np.stack([quads, middle, np.broadcast_to(centre[:, None], quads.shape), before], axis=-1)
        quads = parts.reshape(-1, 4)
    return SurfaceMesh(np.rint(place).astype(int), quads)


def _box_quads() -> list[list[tuple[int, int, int]]]:
    """Corners of the 14 sides of three unit cells along z, outwards."""
    found = []
    for z in range(3):
        for x in (0, 1):
            side = [(x, 0, z), (x, 0, z + 1), (x, 1, z + 1), (x, 1, z)]
            found.append(side if x == 0 else side[::-1])
        for y in (0, 1):
            side = [(0, y, z), (1, y, z), (1, y, z + 1), (0, y, z + 1)]
            found.append(side if y == 0 else side[::-1])
    for z in (0, 3):
        side = [(0, 0, z), (0, 1, z), (1, 1, z), (1, 0, z)]
        found.append(side if z == 0 else side[::-1])
    return found


class VolumeMesh(NamedTuple):
    """Nodes and hexahedra of the block around the box.

    Args:
        step: position (N, 3) of each node in the block, 0 to 24, 0 to 24, 0 to 48. The first 16 nodes are the
            corners of the box, the next 96 those of the other cells.
        hexahedra: corners of each hexahedron.
        shared: node of each of the first 898 points of the surface.
    """

    step: Int[ndarray, "N 3"]
    hexahedra: Int[ndarray, "E 8"]
    shared: Int[ndarray, "898"]


@cache
def volume_mesh() -> VolumeMesh:
    """Connectivity of the block."""
    sizes = [COARSE * cells for cells in BLOCK]
    lower, upper = np.full(3, COARSE), COARSE * np.array([2, 2, 4])
    steps = np.stack(np.meshgrid(*[np.arange(size + 1) for size in sizes], indexing="ij"), axis=-1)
    inside = ((steps > lower) & (steps < upper)).all(axis=-1)
    outside = steps[~inside]
    on_box = ((outside >= lower) & (outside <= upper)).all(axis=1)
    corner = (outside % COARSE == 0).all(axis=1)
    rank = np.where(corner, np.where(on_box, 0, 1), np.where(on_box, 2, 3))
    outside = outside[np.argsort(rank, kind="stable")]
    box = surface_mesh().place[:SHARED_POINTS] // 2 + lower
    number = np.full(inside.shape, -1)
    number[tuple(outside.T)] = np.arange(len(outside))
    # the corners of the box come in the order of the surface
    swap = number[tuple(box[:CORNERS].T)]
    outside[:CORNERS] = outside[swap]
    number[tuple(outside.T)] = np.arange(len(outside))
    cells = steps[:-1, :-1, :-1].reshape(-1, 3)
    hollow = ((cells >= lower) & (cells < upper)).all(axis=1)
    around = np.array(
        [(0, 0, 0), (1, 0, 0), (1, 1, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1), (1, 1, 1), (0, 1, 1)]
    )
    corners = cells[~hollow][:, None] + around
    return VolumeMesh(outside, number[tuple(np.moveaxis(corners, -1, 0))], number[tuple(box.T)])


def volume_points(surface: Float[ndarray, "V 3"]) -> Float[ndarray, "N 3"]:
    """Nodes of the block around a car: the mean of their neighbours, but on the car and on the outside."""
    mesh = volume_mesh()
    known, positions = _outer_positions(surface)
    _, coupling, free, solve = _laplace()
    points = np.empty((len(mesh.step), 3))
    points[known] = positions
    points[free] = solve.solve(-coupling @ positions)
    return points


def _outer_positions(surface: Float[ndarray, "V 3"]) -> tuple[Int[ndarray, "K"], Float[ndarray, "K 3"]]:
    """Nodes on the car and on the outside of the block, and their positions."""
    mesh, known = volume_mesh(), _laplace()[0]
    low, high = surface.min(axis=0), surface.max(axis=0)
    place = surface_mesh().place
    stations = [surface[:CORNERS][place[:CORNERS, 2] == FINE * k, 2].mean() for k in range(4)]
    wake = (stations[-1] + UPPER[2]) / 2
    knots = [
        [LOWER[0], low[0], high[0], UPPER[0]],
        [LOWER[1], low[1], high[1], UPPER[1]],
        [LOWER[2], *stations, wake, UPPER[2]],
    ]
    points = np.stack(
        [np.interp(mesh.step[:, k], COARSE * np.arange(len(knots[k])), knots[k]) for k in range(3)], axis=-1
    )
    points[mesh.shared] = surface[:SHARED_POINTS]
    return known, points[known]


@cache
def _laplace() -> tuple[ndarray, sp.csc_array, ndarray, SuperLU]:
    """Known nodes, coupling of the free nodes with them, free nodes, and the factorised graph Laplacian."""
    mesh = volume_mesh()
    count = len(mesh.step)
    pairs = [(0, 1), (1, 2), (2, 3), (3, 0), (4, 5), (5, 6), (6, 7), (7, 4), (0, 4), (1, 5), (2, 6), (3, 7)]
    edges = np.unique(np.sort(np.concatenate([mesh.hexahedra[:, pair] for pair in pairs]), axis=1), axis=0)
    half = sp.coo_array((np.ones(len(edges)), edges.T), shape=(count, count)).tocsc()
    links = half + half.T
    matrix = (sp.diags_array(np.asarray(links.sum(axis=1)).ravel()) - links).tocsc()
    top = COARSE * np.array(BLOCK)
    fixed = ((mesh.step == 0) | (mesh.step == top)).any(axis=1)
    fixed[mesh.shared] = True
    known, free = np.flatnonzero(fixed), np.flatnonzero(~fixed)
    rows = matrix[free]
    symmetric = {"permc_spec": "MMD_AT_PLUS_A", "diag_pivot_thresh": 0.0, "options": {"SymmetricMode": True}}
    return known, rows[:, known], free, splu(rows[:, free].tocsc(), **symmetric)
