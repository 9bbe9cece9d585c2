"""Pulled cells on meshes of their own: a void, a mesh and a direction of pull drawn at random for each.

Axes: N nodes, Q quads.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int
from numpy import ndarray

from linearno.core.errors import UserError
from linearno.solvers.elasticity import Nodes, Quads, Stress, reference_quad, von_mises
from linearno.solvers.unit_cell import SPREAD, WAVES, UnitCell, layered_mesh, void_radius

STEEL = 2e5  # Young's modulus in MPa: the pull is 100 MPa
POISSON = 0.3
MOST_ANGLE = 30.0  # of the pull, in degrees to either side
TRIES = 20  # voids, until one is found that the mesh can follow


class PulledCell(NamedTuple):
    """A steel plate of 1 m with a void, pulled by 100 MPa at its top and held at its bottom."""

    nodes: Nodes  # m
    quads: Int[ndarray, "Q 4"]  # straight ones, four for each of the solver's
    displacement: Nodes  # mm
    stress: Float64[ndarray, "N"]  # von Mises, MPa
    angle: float  # of the pull, in degrees clockwise from upwards


def pulled_cell(rng: np.random.Generator, edges: int) -> PulledCell:
    """A random one, with about `edges` quads on top: half as many to half as many more."""
    mesh = layered_mesh(*_random_sizes(rng, edges))
    angle = rng.uniform(-MOST_ANGLE, MOST_ANGLE)
    cell = UnitCell(mesh, poisson=POISSON, angle=np.radians(angle))
    for _ in range(TRIES):
        try:
            nodes = cell.shaped(void_radius(SPREAD * rng.standard_normal(2 * WAVES), cell.angles))
            u = cell.pulled(nodes)
            stress = _at_nodes(cell.body.stress(nodes, u), mesh.quads, len(nodes))
        except UserError:  # the mesh is too coarse for that void
            continue
        return PulledCell(nodes, _quarters(mesh.quads), 1000 * u / STEEL, von_mises(stress[None])[0], angle)
    raise UserError(f"a mesh of {edges} quads on top follows none of {TRIES} voids; take more")


def _random_sizes(rng: np.random.Generator, edges: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Quads across and up, of the grid and of its middle."""
    layers = int(rng.integers(max(2, edges // 5), max(3, edges // 2)))
    across = int(rng.integers(max(3, layers), max(4, layers + 1, edges * 2 // 3)))
    up = int(rng.integers(across, 2 * across + 1))
    return (across + 2 * layers, up + 2 * layers), (across, up)


def _at_nodes(values: Stress, quads: Quads, nodes: int) -> Float64[ndarray, "N 3"]:
    """From the Gauss points of each quad to its nodes, and then the mean over the quads around a node."""
    own = np.linalg.inv(reference_quad()[0]) @ values
    sums = np.stack(
        [np.bincount(quads.ravel(), part.ravel(), nodes) for part in np.moveaxis(own, -1, 0)], axis=1
    )
    return sums / np.bincount(quads.ravel(), minlength=nodes)[:, None]


def _quarters(quads: Quads) -> Int[ndarray, "Q 4"]:
    """The four straight quads between the nine nodes of each."""
    patch = quads.reshape(-1, 3, 3)
    corners = [patch[:, i : i + 2, j : j + 2] for i in (0, 1) for j in (0, 1)]
    return np.concatenate([each.reshape(-1, 4)[:, [0, 2, 3, 1]] for each in corners])
