"""Perforated plates under tension with random void, mesh and direction of the traction.

Axes: N nodes, Q quads.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int
from numpy import ndarray

from linearno.core.errors import UserError
from linearno.solvers.elasticity import Nodes, Quads, Stress, reference_quad, von_mises
from linearno.solvers.unit_cell import (
    COEFFICIENT_DEVIATION,
    FOURIER_MODES,
    UnitCell,
    layered_mesh,
    void_radius,
)

YOUNG = 2e5  # MPa, of steel; the traction is 100 MPa
POISSON = 0.3
MAX_PULL_ANGLE = 30.0  # degrees from upwards, to either side
MAX_DRAWS = 20  # of a void, until the mesh motion succeeds


class PerforatedPlate(NamedTuple):
    """Steel plate of 1 m with a void, clamped at the bottom, with a traction of 100 MPa at the top."""

    nodes: Nodes  # m
    quads: Int[ndarray, "Q 4"]  # straight-sided, four per quad of the solver
    displacement: Nodes  # mm
    stress: Float64[ndarray, "N"]  # von Mises, MPa
    angle: float  # direction of the traction, degrees clockwise from upwards


def random_plate(rng: np.random.Generator, edges: int) -> PerforatedPlate:
    """Random plate with 0.5 to 1.5 times `edges` quads on top."""
    mesh = layered_mesh(*_random_sizes(rng, edges))
    angle = rng.uniform(-MAX_PULL_ANGLE, MAX_PULL_ANGLE)
    cell = UnitCell(mesh, poisson=POISSON, angle=np.radians(angle))
    for _ in range(MAX_DRAWS):
        try:
            nodes = cell.deformed_nodes(
                void_radius(COEFFICIENT_DEVIATION * rng.standard_normal(2 * FOURIER_MODES), cell.angles)
            )
            u = cell.displacement(nodes)
            stress = _average_at_nodes(cell.body.stress(nodes, u), mesh.quads, len(nodes))
        except UserError:  # the mesh is too coarse for this void
            continue
        return PerforatedPlate(
            nodes, _split_quads(mesh.quads), 1000 * u / YOUNG, von_mises(stress[None])[0], angle
        )
    raise UserError(
        f"{edges} quads on top are too coarse for each of {MAX_DRAWS} random voids; expected more quads"
    )


def _random_sizes(rng: np.random.Generator, edges: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Columns and rows of quads, of the grid and of its cut-out middle."""
    layers = int(rng.integers(max(2, edges // 5), max(3, edges // 2)))
    across = int(rng.integers(max(3, layers), max(4, layers + 1, edges * 2 // 3)))
    up = int(rng.integers(across, 2 * across + 1))
    return (across + 2 * layers, up + 2 * layers), (across, up)


def _average_at_nodes(values: Stress, quads: Quads, nodes: int) -> Float64[ndarray, "N 3"]:
    """Extrapolate from Gauss points to the nodes of each quad, then average over the quads of a node."""
    nodal = np.linalg.inv(reference_quad()[0]) @ values
    sums = np.stack(
        [np.bincount(quads.ravel(), part.ravel(), nodes) for part in np.moveaxis(nodal, -1, 0)], axis=1
    )
    return sums / np.bincount(quads.ravel(), minlength=nodes)[:, None]


def _split_quads(quads: Quads) -> Int[ndarray, "Q 4"]:
    """Split each nine-node quad into four straight-sided quads."""
    patch = quads.reshape(-1, 3, 3)
    corners = [patch[:, i : i + 2, j : j + 2] for i in (0, 1) for j in (0, 1)]
    return np.concatenate([each.reshape(-1, 4)[:, [0, 2, 3, 1]] for each in corners])
