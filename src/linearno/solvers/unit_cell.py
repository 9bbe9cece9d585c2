"""Unit cell of the Elasticity benchmark: stress around a random void in a square under tension.

Axes: N nodes, V of them on the void, K Gauss points.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from jaxtyping import Bool, Float64, Int
from numpy import ndarray
from scipy.sparse.linalg import spsolve
from scipy.special import expit

from linearno.core.errors import UserError
from linearno.solvers.elasticity import (
    Nodes,
    PlaneStress,
    Quads,
    Stress,
    edge_load,
    gauss_points,
    quads_between,
    von_mises,
)

EDGES = 10  # on top and bottom of the published mesh; refined meshes have a multiple
GRID_QUADS, CUTOUT_QUADS = (10, 14), (4, 8)  # columns and rows of quads: square, and part cut out
CORNER_CLUSTERING = 0.4  # clustering of the nodes on the sides towards the corners
CIRCLE_RADIUS = 0.3  # radius of the void of the undeformed mesh
TRACTION = 100.0  # on the top
POISSON = 0.5  # incompressible
MESH_POISSON = 0.0  # of the elastic mesh motion
FOURIER_MODES, COEFFICIENT_DEVIATION = 5, 16.0  # of the random void; standard deviation of the coefficients
RADIUS_COUNT = 42  # stored radii of a void


class Mesh(NamedTuple):
    """Mesh of quads around a void."""

    nodes: Nodes
    quads: Quads
    void: Int[ndarray, "V"]  # nodes around the void, anticlockwise


class CellSample(NamedTuple):
    """A void and the stress around it, at the Gauss points."""

    xy: Float64[ndarray, "K 2"]
    sigma: Float64[ndarray, "K"]  # von Mises
    rr: Float64[ndarray, "42"]  # radius of the void at angles from 0 to 2π, both included
    theta: Float64[ndarray, "10"]


class UnitCell:
    """Unit square with a void around its centre, clamped at the bottom, with traction 100 at the top.

    Args:
        mesh: mesh around a circular void.
        poisson: Poisson's ratio.
        angle: direction of the traction, clockwise from upwards, in radians.
    """

    def __init__(self, mesh: Mesh, *, poisson: float = POISSON, angle: float = 0.0):
        self.mesh = mesh
        nodes, quads, void = mesh
        self.directions = (nodes[void] - 0.5) / CIRCLE_RADIUS
        self.angles = np.arctan2(self.directions[:, 1], self.directions[:, 0])
        border = _on_border(nodes)
        border[void] = True
        self.mesh_motion = PlaneStress(quads, np.stack([border, border], axis=1), poisson=MESH_POISSON)
        bottom, top = nodes[:, 1] == 0, np.flatnonzero(nodes[:, 1] == 1)
        self.body = PlaneStress(quads, np.stack([bottom, bottom], axis=1), poisson=poisson)
        ends = top[np.argsort(nodes[top, 0])]
        edges_on_top = np.stack([ends[:-1:2], ends[1::2], ends[2::2]], axis=1)
        self.load = edge_load(nodes, edges_on_top, (TRACTION * np.sin(angle), TRACTION * np.cos(angle)))

    def deformed_nodes(self, radius: Float64[ndarray, "V"]) -> Nodes:
        """Nodes of the mesh for a void of the given radius at `angles`, by elastic mesh motion."""
        if not np.isfinite(radius).all():
            raise UserError("expected a void of finite radius, got NaN or infinity")
        reach = np.abs(radius[:, None] * self.directions).max()
        if radius.min() <= 0 or reach >= 0.5:
            raise UserError(
                f"the void has radii from {radius.min():.3g} to {radius.max():.3g} and does not lie within "
                "the unit cell; expected radii above 0 and a void inside the square"
            )
        boundary = np.zeros_like(self.mesh.nodes)
        boundary[self.mesh.void] = (radius - CIRCLE_RADIUS)[:, None] * self.directions
        return self.mesh.nodes + self.mesh_motion.solve(self.mesh.nodes, np.zeros_like(boundary), boundary)

    def displacement(self, nodes: Nodes) -> Nodes:
        """Displacement under the traction, for nodes at these positions."""
        return self.body.solve(nodes, self.load, np.zeros_like(nodes))

    def stress(self, nodes: Nodes) -> Stress:
        """σ at the Gauss points, for nodes at these positions."""
        return self.body.stress(nodes, self.displacement(nodes))

    def sample(self, theta: Float64[ndarray, "10"]) -> CellSample:
        """Stress around the void with coefficients θ."""
        nodes = self.deformed_nodes(void_radius(theta, self.angles))
        sigma = von_mises(self.stress(nodes)).ravel()
        xy = gauss_points(nodes, self.mesh.quads).reshape(-1, 2)
        return CellSample(xy, sigma, void_radius(theta, np.linspace(0, 2 * np.pi, RADIUS_COUNT)), theta)


@cache
def cached_unit_cell(edges: int) -> UnitCell:
    """Cell of the benchmark with `edges` quads on top."""
    require_edges(edges)
    return UnitCell(circle_mesh(edges // EDGES))


def elasticity_sample(rng: np.random.Generator, edges: int) -> CellSample:
    """Random void in a cell with `edges` quads on top; 10 give the published 972 points."""
    return cached_unit_cell(edges).sample(COEFFICIENT_DEVIATION * rng.standard_normal(2 * FOURIER_MODES))


def void_radius(theta: Float64[ndarray, "10"], angles: Float64[ndarray, "V"]) -> Float64[ndarray, "V"]:
    """r = 0.2 + 0.2/(1 + eˢ),  s = Σ (aₖ cos kφ + bₖ sin kφ) / (√π (k² + 9)),  k = 1…5,  θ = (a₁, b₁, …)."""
    if not np.isfinite(theta).all():
        raise UserError("expected ten finite coefficients theta of the void, got NaN or infinity")
    k = np.arange(1, FOURIER_MODES + 1)
    turns = np.exp(1j * k * angles[:, None]) / (np.sqrt(np.pi) * (k**2 + 9))
    return 0.2 + 0.2 * expit(-turns.real @ theta[::2] - turns.imag @ theta[1::2])


def require_edges(edges: int) -> None:
    if edges < 1 or edges % EDGES:
        raise UserError(
            f"resolution {edges} does not fit; it is the number of quads on top of the cell, "
            f"a multiple of {EDGES}"
        )


def gauss_point_count(edges: int) -> int:
    """Number of Gauss points of a sample, nine per quad."""
    require_edges(edges)
    (columns, rows), (across, up) = GRID_QUADS, CUTOUT_QUADS
    return 9 * (columns * rows - across * up) * (edges // EDGES) ** 2


def circle_mesh(refinement: int) -> Mesh:
    """Mesh of the benchmark; `refinement` divides each edge.

    10 × 14 − 4 × 8 = 108 quads in three layers around the circle, with 10 edges on top and bottom and 24 on
    the circle, as in the published mesh. Edges on the sides are 0.1 long at the height of the circle and
    shorter towards the corners, so that the density of points is close to the published one.
    """
    (columns, rows), (across, up) = GRID_QUADS, CUTOUT_QUADS
    return layered_mesh((refinement * columns, refinement * rows), (refinement * across, refinement * up))


def layered_mesh(grid: tuple[int, int], middle: tuple[int, int]) -> Mesh:
    """Mesh of the unit square around a circle of radius 0.3, smoothed between square and circle.

    Args:
        grid: columns and rows of quads of the square.
        middle: columns and rows of quads cut out; smaller than `grid` by even numbers.
    """
    (columns, rows), (across, up) = ((2 * a, 2 * b) for a, b in (grid, middle))
    left, low = (columns - across) // 2, (rows - up) // 2
    kept = np.ones((columns + 1, rows + 1), dtype=bool)
    kept[left + 1 : left + across, low + 1 : low + up] = False
    numbers = np.where(kept, np.cumsum(kept).reshape(kept.shape) - 1, -1)
    quads = quads_between(numbers)
    quads = quads[(quads >= 0).all(axis=1)]
    ring = numbers[left : left + across + 1, low : low + up + 1]
    void = np.concatenate([ring[:-1, 0], ring[-1, :-1], ring[:0:-1, -1], ring[0, :0:-1]])
    nodes = np.argwhere(kept) / [columns, rows]
    nodes[:, 1] -= CORNER_CLUSTERING * np.sin(2 * np.pi * nodes[:, 1]) / (2 * np.pi)
    turn = 2 * np.pi * (np.arange(len(void)) - across / 2) / len(void) - np.pi / 2
    nodes[void] = 0.5 + CIRCLE_RADIUS * np.stack([np.cos(turn), np.sin(turn)], axis=1)
    fixed = _on_border(nodes)
    fixed[void] = True
    return Mesh(_smooth(nodes, quads, fixed), quads, void)


def _on_border(nodes: Nodes) -> Bool[ndarray, "N"]:
    """Whether nodes are on the border of the unit square."""
    return ((nodes == 0) | (nodes == 1)).any(axis=1)


def _smooth(nodes: Nodes, quads: Quads, fixed: Bool[ndarray, "N"]) -> Nodes:
    """Laplacian smoothing: move each node that is not `fixed` to the mean of its neighbours."""
    patch = quads.reshape(-1, 3, 3)
    along, across = patch[:, :-1].ravel(), patch[:, 1:].ravel()
    down, up = patch[..., :-1].ravel(), patch[..., 1:].ravel()
    ends = np.concatenate([along, down]), np.concatenate([across, up])
    near = sp.coo_array((np.ones(len(ends[0])), ends), shape=(len(nodes),) * 2).tocsr().sign()
    near = near + near.T
    balance = (sp.diags_array(near.sum(axis=1)) - near).tocsr()[~fixed]
    moved = nodes.copy()
    moved[~fixed] = spsolve(balance[:, ~fixed].tocsc(), -balance[:, fixed] @ nodes[fixed])
    return moved
