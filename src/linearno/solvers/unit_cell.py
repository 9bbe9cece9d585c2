"""The unit cell of the elasticity benchmark: the stress in a square that is pulled, around a random void.

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

EDGES = 10  # on top and bottom of the published mesh; finer ones have a multiple
GRID, MIDDLE = (10, 14), (4, 8)  # quads across and up, of the square and of the part that is cut out
CROWDING = 0.4  # how much closer than even the nodes of the sides lie at the corners of the square
CIRCLE = 0.3  # radius of the void before it is shaped
TRACTION = 100.0
POISSON = 0.5  # incompressible
MESH_POISSON = 0.0  # of the body that the mesh is while it follows the void
WAVES, SPREAD = 5, 16.0  # of the random void, and the deviation of their ten coefficients
RADII = 42  # angles at which a sample keeps the radius of its void


class Mesh(NamedTuple):
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
    """A unit square with a void around its centre, clamped at the bottom, pulled by 100 at the top."""

    def __init__(self, mesh: Mesh, *, poisson: float = POISSON, angle: float = 0.0):
        """`angle` of the pull, clockwise from upwards, in radians."""
        self.mesh = mesh
        nodes, quads, void = mesh
        self.directions = (nodes[void] - 0.5) / CIRCLE
        self.angles = np.arctan2(self.directions[:, 1], self.directions[:, 0])
        border = _on_border(nodes)
        border[void] = True
        self.motion = PlaneStress(quads, np.stack([border, border], axis=1), poisson=MESH_POISSON)
        bottom, top = nodes[:, 1] == 0, np.flatnonzero(nodes[:, 1] == 1)
        self.body = PlaneStress(quads, np.stack([bottom, bottom], axis=1), poisson=poisson)
        ends = top[np.argsort(nodes[top, 0])]
        edges_on_top = np.stack([ends[:-1:2], ends[1::2], ends[2::2]], axis=1)
        self.load = edge_load(nodes, edges_on_top, (TRACTION * np.sin(angle), TRACTION * np.cos(angle)))

    def shaped(self, radius: Float64[ndarray, "V"]) -> Nodes:
        """The nodes after a void of that radius at `angles` has pushed the mesh like an elastic body."""
        if not np.isfinite(radius).all():
            raise UserError("expected a void of finite radius, got NaN or infinity")
        reach = np.abs(radius[:, None] * self.directions).max()
        if radius.min() <= 0 or reach >= 0.5:
            raise UserError(
                f"the void has radii from {radius.min():.3g} to {radius.max():.3g} and does not lie within "
                "the unit cell; expected radii above 0 and a void that stays off the border"
            )
        held = np.zeros_like(self.mesh.nodes)
        held[self.mesh.void] = (radius - CIRCLE)[:, None] * self.directions
        return self.mesh.nodes + self.motion.solve(self.mesh.nodes, np.zeros_like(held), held)

    def pulled(self, nodes: Nodes) -> Nodes:
        """The displacement of the nodes, for these places of them."""
        return self.body.solve(nodes, self.load, np.zeros_like(nodes))

    def stress(self, nodes: Nodes) -> Stress:
        """σ at the Gauss points for these places of the nodes."""
        return self.body.stress(nodes, self.pulled(nodes))

    def sample(self, theta: Float64[ndarray, "10"]) -> CellSample:
        nodes = self.shaped(void_radius(theta, self.angles))
        sigma = von_mises(self.stress(nodes)).ravel()
        xy = gauss_points(nodes, self.mesh.quads).reshape(-1, 2)
        return CellSample(xy, sigma, void_radius(theta, np.linspace(0, 2 * np.pi, RADII)), theta)


@cache
def unit_cell(edges: int) -> UnitCell:
    """The cell of the benchmark, with so many quads on top."""
    require_edges(edges)
    return UnitCell(circle_mesh(edges // EDGES))


def elasticity_sample(rng: np.random.Generator, edges: int) -> CellSample:
    """A random void in a cell with `edges` quads on top: 972 points for 10, the published number."""
    return unit_cell(edges).sample(SPREAD * rng.standard_normal(2 * WAVES))


def void_radius(theta: Float64[ndarray, "10"], angles: Float64[ndarray, "V"]) -> Float64[ndarray, "V"]:
    """r = 0.2 + 0.2/(1 + eˢ),  s = Σ (aₖ cos kφ + bₖ sin kφ) / (√π (k² + 9)),  k = 1…5,  θ = (a₁, b₁, …)."""
    if not np.isfinite(theta).all():
        raise UserError("expected ten finite coefficients theta of the void, got NaN or infinity")
    k = np.arange(1, WAVES + 1)
    turns = np.exp(1j * k * angles[:, None]) / (np.sqrt(np.pi) * (k**2 + 9))
    return 0.2 + 0.2 * expit(-turns.real @ theta[::2] - turns.imag @ theta[1::2])


def require_edges(edges: int) -> None:
    if edges < 1 or edges % EDGES:
        raise UserError(
            f"resolution {edges} does not fit; it is the number of quads on top of the cell, "
            f"a multiple of {EDGES}"
        )


def gauss_point_count(edges: int) -> int:
    """Gauss points of a sample: nine in each quad."""
    require_edges(edges)
    (columns, rows), (across, up) = GRID, MIDDLE
    return 9 * (columns * rows - across * up) * (edges // EDGES) ** 2


def circle_mesh(finer: int) -> Mesh:
    """The mesh of the benchmark.

    10 × 14 quads without 4 × 8 are 108, in three layers around the circle, with 10 edges on top and bottom
    and 24 on the circle, as many as the published mesh has; `finer` divides each edge. Edges on the sides are
    0.1 long beside the circle, as on top, and shorter towards the corners: points then lie about as dense as
    the published ones.
    """
    (columns, rows), (across, up) = GRID, MIDDLE
    return layered_mesh((finer * columns, finer * rows), (finer * across, finer * up))


def layered_mesh(grid: tuple[int, int], middle: tuple[int, int]) -> Mesh:
    """The unit square around a circle of radius 0.3: a grid of quads whose middle is cut out and made round.

    Both are numbers of quads across and up, and their differences even, so that the middle is one. Each node
    between square and circle is at the mean of its neighbours.
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
    nodes[:, 1] -= CROWDING * np.sin(2 * np.pi * nodes[:, 1]) / (2 * np.pi)
    turn = 2 * np.pi * (np.arange(len(void)) - across / 2) / len(void) - np.pi / 2
    nodes[void] = 0.5 + CIRCLE * np.stack([np.cos(turn), np.sin(turn)], axis=1)
    placed = _on_border(nodes)
    placed[void] = True
    return Mesh(_even(nodes, quads, placed), quads, void)


def _on_border(nodes: Nodes) -> Bool[ndarray, "N"]:
    """On the border of the unit square."""
    return ((nodes == 0) | (nodes == 1)).any(axis=1)


def _even(nodes: Nodes, quads: Quads, placed: Bool[ndarray, "N"]) -> Nodes:
    """The nodes, with each that is not `placed` at the mean of those next to it in its quads."""
    patch = quads.reshape(-1, 3, 3)
    along, across = patch[:, :-1].ravel(), patch[:, 1:].ravel()
    down, up = patch[..., :-1].ravel(), patch[..., 1:].ravel()
    ends = np.concatenate([along, down]), np.concatenate([across, up])
    near = sp.coo_array((np.ones(len(ends[0])), ends), shape=(len(nodes),) * 2).tocsr().sign()
    near = near + near.T
    balance = (sp.diags_array(near.sum(axis=1)) - near).tocsr()[~placed]
    moved = nodes.copy()
    moved[~placed] = spsolve(balance[:, ~placed].tocsc(), -balance[:, placed] @ nodes[placed])
    return moved
