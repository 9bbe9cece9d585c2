"""Rows of a ShapeNet-Car sample: off-surface nodes, then surface points, with features and targets.

Axes: S samples, V surface points, M nodes, N rows, P quadrilaterals.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray
from scipy.spatial import ConvexHull, cKDTree

from linearno.core.errors import UserError
from linearno.solvers.surface_distance import area_vectors

SAME_POINT = 1e-6  # metres; nodes that coincide with a surface point
SPEED, DENSITY, VISCOSITY = 20.0, 0.3, 1.8e-5  # of the published drag code; its density of air is 0.3


class CarFields(NamedTuple):
    """Stored fields of a car.

    Args:
        points: surface points (V, 3).
        quads: corners of the quadrilaterals.
        pressure: pressure at the surface points, in Pa.
        nodes: nodes (M, 3) of the volume, some of them surface points.
        velocity: velocity at the nodes, in m/s.
    """

    points: Float[ndarray, "V 3"]
    quads: Int[ndarray, "P 4"]
    pressure: Float[ndarray, "V"]
    nodes: Float[ndarray, "M 3"]
    velocity: Float[ndarray, "M 3"]


class CarRows(NamedTuple):
    """A sample.

    Args:
        coords: positions (N, 3), off-surface nodes first.
        inputs: distance to the nearest surface point, and a normal (N, 4): of the surface at its points,
            away from the nearest surface point elsewhere.
        targets: velocity and pressure (N, 4); zero pressure off the surface.
        surface: number of surface points, the last rows.
        pressure_weight: C_D = Σ pressure_weight p + …
        friction_weight: … + Σ friction_weight (v_z(neighbour) − v_z) over the surface points.
        neighbour: row of the nearest off-surface node of each surface point.
    """

    coords: Float[ndarray, "N 3"]
    inputs: Float[ndarray, "N 4"]
    targets: Float[ndarray, "N 4"]
    surface: int
    pressure_weight: Float[ndarray, "V"]
    friction_weight: Float[ndarray, "V"]
    neighbour: Int[ndarray, "V"]


def car_rows(car: CarFields) -> CarRows:
    """Rows of a car, in the order of the published code."""
    points, nodes = car.points.astype(float), car.nodes.astype(float)
    distance, nearest = cKDTree(points).query(nodes, workers=-1)
    off = np.flatnonzero(distance > SAME_POINT)
    away = (nodes[off] - points[nearest[off]]) / distance[off, None]
    velocity = np.zeros_like(points)
    on = np.flatnonzero(distance <= SAME_POINT)
    velocity[nearest[on]] = car.velocity[on]
    area = area_vectors(points, car.quads)
    normal = point_normals(area, car.quads, len(points))
    gap, neighbour = cKDTree(nodes[off]).query(points, workers=-1)
    weight = corner_sums(area[:, 2], car.quads, len(points)) / 4
    scale = drag_scale(points)
    rise = nodes[off][neighbour, 2] - points[:, 2]
    inputs = [np.c_[distance[off], away], np.c_[np.zeros(len(points)), normal]]
    targets = [np.c_[car.velocity[off], np.zeros(len(off))], np.c_[velocity, car.pressure]]
    return CarRows(
        coords=np.concatenate([nodes[off], points]).astype(np.float32),
        inputs=np.concatenate(inputs).astype(np.float32),
        targets=np.concatenate(targets).astype(np.float32),
        surface=len(points),
        pressure_weight=(-scale * weight).astype(np.float32),
        friction_weight=(-scale * VISCOSITY * weight * rise / gap**2).astype(np.float32),
        neighbour=neighbour.astype(np.int32),
    )


class CarCells(NamedTuple):
    """Mesh of a sample.

    Args:
        quads: corners of the quadrilaterals, counted from the first surface point.
        hexahedra: corners (E, 8) of the volume's cells, as rows.
        surface: number of surface points.
    """

    quads: Int[ndarray, "P 4"]
    hexahedra: Int[ndarray, "E 8"]
    surface: int


def cells_of_rows(car: CarFields, hexahedra: Int[ndarray, "E 8"]) -> CarCells:
    """Mesh of the rows of a car whose volume's cells have the nodes `hexahedra`."""
    distance, nearest = cKDTree(car.points.astype(float)).query(car.nodes.astype(float))
    off = distance > SAME_POINT
    row = np.where(off, np.cumsum(off) - 1, off.sum() + nearest)
    return CarCells(car.quads, row[hexahedra], len(car.points))


def point_normals(
    area: Float[ndarray, "P 3"], quads: Int[ndarray, "P 4"], count: int
) -> Float[ndarray, "V 3"]:
    """Means of the unit normals of the adjacent quadrilaterals, normalised: outwards if `area` is."""
    unit = area / np.maximum(np.linalg.norm(area, axis=1, keepdims=True), 1e-30)
    total = np.stack([corner_sums(unit[:, k], quads, count) for k in range(3)], axis=-1)
    return total / np.maximum(np.linalg.norm(total, axis=1, keepdims=True), 1e-30)


def corner_sums(values: Float[ndarray, "P"], quads: Int[ndarray, "P 4"], count: int) -> Float[ndarray, "V"]:
    """Sum of the values of the quadrilaterals around each point."""
    return np.bincount(quads.ravel(), weights=np.repeat(values, 4), minlength=count)


def drag_scale(points: Float[ndarray, "V 3"]) -> float:
    """2 / (speed² area density), with the area of the convex hull of the front view."""
    return 2 / (SPEED**2 * ConvexHull(points[:, :2]).volume * DENSITY)


def outward_quads(
    points: Float[ndarray, "V 3"], quads: Int[ndarray, "P 4"], name: str
) -> Int[ndarray, "P 4"]:
    """Quadrilaterals oriented so that the volume is positive."""
    volume = (points[quads].mean(axis=1) * area_vectors(points, quads)).sum() / 3
    if volume == 0 or not np.isfinite(volume):
        raise UserError(f"{name}: its surface encloses no volume; expected a closed car body")
    return quads if volume > 0 else quads[:, ::-1]
