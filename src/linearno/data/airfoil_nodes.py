"""Flows on C-grids, interpolated to the nodes of a finer C-grid and cropped to a box around the airfoil.

Axes: I × J cells, r refinement, N nodes in the box, Q quadrilaterals, W nodes of the wall, C columns of K
cells, F fields.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Integer
from numpy import ndarray
from scipy.spatial import cKDTree

BOX = ((-2.0, 4.0), (-1.5, 1.5))  # in chords, as in AirfRANS
INTERPOLATION_POINTS = 4
MIN_GROWTH = 1e-6  # of successive cells, below which they have equal sizes


class AirfoilMesh(NamedTuple):
    """Quadrilaterals around an airfoil.

    Args:
        nodes: positions.
        quads: corners, in a row around each.
        wall: nodes of the wall, in a row around the airfoil from the trailing edge over the lower side.
        normals: unit normals away from the airfoil at the nodes of the wall.
        distance: distance of each node from the wall.
    """

    nodes: Float[ndarray, "N 2"]
    quads: Integer[ndarray, "Q 4"]
    wall: Integer[ndarray, "W"]
    normals: Float[ndarray, "W 2"]
    distance: Float[ndarray, "N"]


class CellFields(NamedTuple):
    """Fields in the cells of a C-grid, in any units.

    Args:
        velocity: zero on the wall.
        pressure: with a derivative of zero across the wall.
        nut: turbulent viscosity, zero on the wall.
    """

    velocity: Float[ndarray, "I J 2"]
    pressure: Float[ndarray, "I J"]
    nut: Float[ndarray, "I J"]


def nodes_in_box(grid: Float[ndarray, "_ _ 2"], wake: int) -> int:
    """Number of nodes of a C-grid that belong to a cell with its centre in the box."""
    return len(np.unique(_quads_in_box(grid, wake)))


def refine_flow(
    grid: Float[ndarray, "_ _ 2"], fine: Float[ndarray, "_ _ 2"], wake: int, cells: CellFields
) -> tuple[AirfoilMesh, Float[ndarray, "N 4"]]:
    """The mesh of a refined C-grid in the box, and velocity, pressure and turbulent viscosity at its nodes.

    Fields are interpolated by cubics in the indices of the grid, along which boundary layers are smooth. On
    the wall velocity and turbulent viscosity are exactly zero.

    Args:
        grid: nodes (I + 1, J + 1) of the grid of the cells, both sides of the wake first and last.
        fine: nodes (r I + 1, r J + 1); every r-th is one of `grid`.
        wake: cells along each side of the wake.
        cells: fields.
    """
    refinement = (len(fine) - 1) // (len(grid) - 1)
    mesh, used = mesh_in_box(fine, wake * refinement)
    return mesh, _interpolate(grid, wake, cells, refinement).reshape(-1, 4)[used]


def mesh_in_box(grid: Float[ndarray, "_ _ 2"], wake: int) -> tuple[AirfoilMesh, Integer[ndarray, "N"]]:
    """The cells of a C-grid with their centre in the box, and the numbers of their nodes in the grid."""
    used, flat = np.unique(_quads_in_box(grid, wake), return_inverse=True)
    nodes, quads = grid.reshape(-1, 2)[used], flat.reshape(-1, 4)
    wall = np.searchsorted(used, np.arange(wake, len(grid) - 1 - wake) * grid.shape[1])
    distance = distance_from(nodes[wall], nodes)
    return AirfoilMesh(nodes, quads, wall, wall_normals(nodes[wall]), distance), used


def wall_normals(wall: Float[ndarray, "W 2"]) -> Float[ndarray, "W 2"]:
    """Unit normals to the left of a closed polygon at its vertices, means over both edges by length."""
    edges = np.roll(wall, -1, axis=0) - wall
    both = edges + np.roll(edges, 1, axis=0)
    normals = np.stack([-both[:, 1], both[:, 0]], axis=1)
    length = np.linalg.norm(normals, axis=1, keepdims=True)
    return normals / np.where(length > 0, length, 1)


def distance_from(wall: Float[ndarray, "W 2"], points: Float[ndarray, "N 2"]) -> Float[ndarray, "N"]:
    """Distance of points from a closed polygon: from the edges at the two nearest vertices."""
    _, nearest = cKDTree(wall).query(points, k=2)
    starts = np.concatenate([nearest, nearest - 1], axis=1) % len(wall)
    origin, edge = wall[starts], wall[(starts + 1) % len(wall)] - wall[starts]
    offset = points[:, None] - origin
    share = np.clip((offset * edge).sum(axis=-1) / (edge**2).sum(axis=-1), 0, 1)
    return np.linalg.norm(offset - share[..., None] * edge, axis=-1).min(axis=1)


def _quads_in_box(grid: Float[ndarray, "_ _ 2"], wake: int) -> Integer[ndarray, "Q 4"]:
    """Cells with their centre in the box, as node numbers in C order; both sides of the wake share nodes."""
    rows, columns, _ = grid.shape
    number = np.arange(rows * columns).reshape(rows, columns)
    number[rows - 1 - np.arange(wake + 1), 0] = number[: wake + 1, 0]
    centre = (grid[1:, 1:] + grid[:-1, 1:] + grid[1:, :-1] + grid[:-1, :-1]) / 4
    low, high = np.array(BOX).T
    kept = ((low <= centre) & (centre <= high)).all(axis=-1)
    corners = (number[:-1, :-1], number[1:, :-1], number[1:, 1:], number[:-1, 1:])
    return np.stack([part[kept] for part in corners], axis=-1)


def _interpolate(
    grid: Float[ndarray, "_ _ 2"], wake: int, cells: CellFields, refinement: int
) -> Float[ndarray, "_ _ 4"]:
    """Fields at the nodes of the refined grid: first outwards in each column of cells, then along it."""
    along, outward = cells.pressure.shape
    outwards = np.arange(outward * refinement + 1) / refinement
    positions = cell_positions(np.linalg.norm(np.diff(grid, axis=1), axis=-1))
    positions = (positions[1:] + positions[:-1]) / 2
    no_slip = np.concatenate([cells.velocity, cells.nut[..., None]], axis=-1)
    on_wall = np.zeros(along, dtype=bool)
    on_wall[wake : along - wake] = True
    columns = np.empty((along, len(outwards), 4))
    everything = np.concatenate([no_slip, cells.pressure[..., None]], axis=-1)
    mirrored = np.concatenate([-positions[::-1, 1::-1], positions], axis=1)
    values = np.concatenate([everything[::-1, 1::-1], everything], axis=1)
    even = np.concatenate([-positions[:, 1::-1], positions], axis=1)
    columns[~on_wall] = cubic(mirrored[~on_wall], values[~on_wall], outwards)
    pressure = np.concatenate([everything[:, 1::-1, 3:], everything[..., 3:]], axis=1)
    columns[on_wall, :, 3:] = cubic(even[on_wall], pressure[on_wall], outwards)
    from_wall = np.pad(positions, ((0, 0), (1, 0)))
    columns[on_wall, :, :3] = cubic(
        from_wall[on_wall], np.pad(no_slip, ((0, 0), (1, 0), (0, 0)))[on_wall], outwards
    )
    nodes = _along(columns, grid, wake, refinement)
    nodes[..., 2] = nodes[..., 2].clip(min=0)
    return nodes[..., [0, 1, 3, 2]]


def _along(
    columns: Float[ndarray, "I _ 4"], grid: Float[ndarray, "_ _ 2"], wake: int, refinement: int
) -> Float[ndarray, "_ _ 4"]:
    """Interpolate along the grid; at the wake cut from the trailing edge, where velocity and nut are zero."""
    count = len(columns)
    positions = cell_positions(np.linalg.norm(np.diff(grid[:, :1], axis=0), axis=-1).T)[0]
    targets = np.arange(count * refinement + 1) / refinement
    flat = columns.reshape(1, count, -1)
    nodes = cubic(positions[None], flat, targets)[0].reshape(len(targets), *columns.shape[1:])
    upper = targets >= count - wake
    knots = np.concatenate([[count - wake], positions[count - wake :]])[None]
    values = np.pad(columns[None, count - wake :, 0, :3], ((0, 0), (1, 0), (0, 0)))
    nodes[upper, 0, :3] = cubic(knots, values, targets[upper])[0]
    nodes[: int(upper.sum()), 0] = nodes[upper, 0][::-1]
    nodes[wake * refinement : (count - wake) * refinement + 1, 0, :3] = 0
    return nodes


def cell_positions(sizes: Float[ndarray, "C K"]) -> Float[ndarray, "C K"]:
    """Index coordinates of cell centres along lines of nodes at 0, 1, …, for sizes that grow geometrically.

    In a row of cells with the growth ρ the middle of a cell is at ln((1 + ρ)/2) / ln ρ of its index interval.
    """
    growth = np.exp(np.gradient(np.log(sizes), axis=1))
    equal = abs(growth - 1) < MIN_GROWTH
    growth = np.where(equal, 2, growth)
    return np.arange(sizes.shape[1]) + np.where(equal, 0.5, np.log((1 + growth) / 2) / np.log(growth))


def cubic(
    knots: Float[ndarray, "C K"], values: Float[ndarray, "C K F"], targets: Float[ndarray, "M"]
) -> Float[ndarray, "C M F"]:
    """Cubic Lagrange interpolation in each row, one-sided at its ends.

    Args:
        knots: increasing positions, four or more.
        values: F values at each.
        targets: positions, the same in all rows.
    """
    rows, count = knots.shape
    after = (knots[:, None] <= targets[:, None]).sum(axis=-1)
    first = np.clip(after - INTERPOLATION_POINTS // 2, 0, count - INTERPOLATION_POINTS)
    taps = first[..., None] + np.arange(INTERPOLATION_POINTS)  # C M 4
    at = np.take_along_axis(knots[:, None], taps, axis=-1)
    result = np.zeros((rows, len(targets), values.shape[-1]))
    for tap in range(INTERPOLATION_POINTS):
        others = [k for k in range(INTERPOLATION_POINTS) if k != tap]
        weight = np.prod([(targets - at[..., k]) / (at[..., tap] - at[..., k]) for k in others], axis=0)
        result += weight[..., None] * np.take_along_axis(values, taps[..., tap, None], axis=1)
    return result
