"""Linear elasticity in the plane on nine-node quads.

Axes: N nodes, E quads, P nodes of a quad and G Gauss points of a quad, nine of each. A quad is a 3×3 patch of
nodes: node 3i + j has the local coordinates ξᵢ and ηⱼ, each −1, 0 or 1. Everything is float64.
"""

from functools import cache

import numpy as np
import scipy.sparse as sp
from jaxtyping import Bool, Float64, Int
from numpy import ndarray
from scipy.linalg import LinAlgError, solveh_banded
from scipy.sparse.csgraph import reverse_cuthill_mckee

from linearno.core.errors import UserError

Nodes = Float64[ndarray, "N 2"]  # places, displacements or forces
Quads = Int[ndarray, "E P"]
Matrices = Float64[ndarray, "E 18 18"]
AtPoints = Float64[ndarray, "E G"]
Stress = Float64[ndarray, "E G 3"]  # xx, yy, xy


class PlaneStress:
    """Linear elasticity on given quads, for any places of their nodes.

        −∇·σ = f,   σ = ((1 − ν) ε + ν tr ε I) / (1 − ν²),   ε = (∇u + ∇uᵀ)/2

    Young's modulus is one: under given forces u goes with its inverse, and σ does not hang on it. Third order
    in the size of the quads for u and second for σ, in L2. What hangs on the quads alone, the order of the
    unknowns and their places in the band matrix, is found once.
    """

    def __init__(self, quads: Quads, fixed: Bool[ndarray, "N 2"], *, poisson: float):
        self.quads, self.fixed = quads, fixed
        law = [[1, poisson, 0], [poisson, 1, 0], [0, 0, (1 - poisson) / 2]]
        self._law = np.array(law) / (1 - poisson**2)
        self._dofs = (2 * quads[:, :, None] + [0, 1]).reshape(len(quads), -1)
        self._free = _narrow_order(quads, fixed)
        self._kept, self._places, self._band = _band_places(self._dofs, self._free, fixed.size)

    def solve(self, nodes: Nodes, load: Nodes, held: Nodes) -> Nodes:
        """The displacement under the forces `load` at the nodes; where it is fixed it is that of `held`."""
        for name, values in (("places of the nodes", nodes), ("loads", load), ("held displacements", held)):
            if not np.isfinite(values).all():
                raise UserError(f"expected finite {name}, got NaN or infinity")
        matrices = self._matrices(nodes)
        u = np.where(self.fixed, held, 0.0).ravel()
        push = load.ravel() - self._pull(matrices, u)
        band = np.bincount(self._places, matrices.ravel()[self._kept], self._band[0] * self._band[1])
        try:
            u[self._free] = solveh_banded(band.reshape(self._band), push[self._free], lower=True)
        except LinAlgError:
            raise UserError("the body is free to move or turn; fix more of its displacements") from None
        return u.reshape(-1, 2)

    def forces(self, nodes: Nodes, u: Nodes) -> Nodes:
        """What holds the nodes at the displacement u: the loads and, where it is fixed, the reactions."""
        return self._pull(self._matrices(nodes), u.ravel()).reshape(-1, 2)

    def stress(self, nodes: Nodes, u: Nodes) -> Stress:
        """σ at the Gauss points."""
        strain = _strain_matrix(gradients_at(nodes[self.quads])[0])
        return (strain @ u.ravel()[self._dofs][:, None, :, None])[..., 0] @ self._law

    def _matrices(self, nodes: Nodes) -> Matrices:
        """The forces at the nodes of each quad for unit displacements of them."""
        gradients, areas = gradients_at(nodes[self.quads])
        strain = _strain_matrix(gradients)
        stress = self._law @ strain * areas[..., None, None]
        rows = (len(strain), -1, strain.shape[-1])
        return strain.reshape(rows).mT @ stress.reshape(rows)

    def _pull(self, matrices: Matrices, u: Float64[ndarray, "U"]) -> Float64[ndarray, "U"]:
        """The forces of all quads together."""
        forces = matrices @ u[self._dofs][..., None]
        return np.bincount(self._dofs.ravel(), forces.ravel(), len(u))


def quads_between(numbers: Int[ndarray, "R Q"]) -> Quads:
    """The quads of a grid with odd sides, given by the numbers of its nodes: rows go with ξ."""
    patches = np.lib.stride_tricks.sliding_window_view(numbers, (3, 3))[::2, ::2]
    return patches.reshape(-1, 9)


def edge_load(nodes: Nodes, edges: Int[ndarray, "K 3"], traction: tuple[float, float]) -> Nodes:
    """Forces at the nodes for a constant traction on straight edges, each given by end, middle and end."""
    length = np.linalg.norm(nodes[edges[:, 2]] - nodes[edges[:, 0]], axis=1)
    share = length[:, None] * np.array([1, 4, 1]) / 6
    return np.bincount(edges.ravel(), share.ravel(), len(nodes))[:, None] * np.array(traction)


def von_mises(stress: Stress) -> AtPoints:
    """√(σxx² − σxx σyy + σyy² + 3 σxy²), in plane stress."""
    xx, yy, xy = np.moveaxis(stress, -1, 0)
    return np.sqrt(xx**2 - xx * yy + yy**2 + 3 * xy**2)


def gauss_points(nodes: Nodes, quads: Quads) -> Float64[ndarray, "E G 2"]:
    return reference_quad()[0] @ nodes[quads]


def gradients_at(nodes: Float64[ndarray, "E P 2"]) -> tuple[Float64[ndarray, "E G P 2"], AtPoints]:
    """Gradients of the shape functions at the Gauss points, and the area that each point stands for."""
    _, local, weights = reference_quad()
    jacobian = np.einsum("gpr,epx->egrx", local, nodes, optimize=True)
    (a, b), (c, d) = np.moveaxis(jacobian, (2, 3), (0, 1))
    area = a * d - b * c
    if not area.min() > 0:
        folded = int((area <= 0).any(axis=1).argmax())
        raise UserError(
            f"quad {folded} of {len(nodes)} is folded or turned over (area element {area.min():.3g}); "
            "expected a shape that the mesh can follow: a smoother one, or a finer mesh"
        )
    inverse = np.stack([d, -b, -c, a], axis=-1).reshape(jacobian.shape) / area[..., None, None]
    return local @ inverse.mT, area * weights


@cache
def reference_quad() -> tuple[Float64[ndarray, "G P"], Float64[ndarray, "G P 2"], Float64[ndarray, "G"]]:
    """Shape functions, their local gradients and the weights at the 3×3 Gauss points of [−1, 1]²."""
    points, weights = np.polynomial.legendre.leggauss(3)
    x = points[:, None]
    value = np.hstack([x * (x - 1) / 2, 1 - x**2, x * (x + 1) / 2])
    slope = np.hstack([x - 0.5, -2 * x, x + 0.5])
    local = np.stack([np.kron(slope, value), np.kron(value, slope)], axis=-1)
    return np.kron(value, value), local, np.kron(weights, weights)


def _strain_matrix(gradients: Float64[ndarray, "E G P 2"]) -> Float64[ndarray, "E G 3 18"]:
    """εxx, εyy and 2 εxy for displacements of the nodes, x and y in turn."""
    strain = np.zeros((*gradients.shape[:2], 3, 18))
    strain[..., 0, ::2] = strain[..., 2, 1::2] = gradients[..., 0]
    strain[..., 1, 1::2] = strain[..., 2, ::2] = gradients[..., 1]
    return strain


def _narrow_order(quads: Quads, fixed: Bool[ndarray, "N 2"]) -> Int[ndarray, "F"]:
    """The free unknowns, in an order that keeps those of one quad near each other."""
    ends = np.repeat(quads, 9, axis=1).ravel(), np.tile(quads, 9).ravel()
    graph = sp.csr_array((np.ones(len(ends[0])), ends), shape=(len(fixed),) * 2)
    order = reverse_cuthill_mckee(graph, symmetric_mode=True).astype(int)
    unknowns = (2 * order[:, None] + [0, 1]).ravel()
    return unknowns[~fixed.ravel()[unknowns]]


def _band_places(
    dofs: Int[ndarray, "E 18"], free: Int[ndarray, "F"], count: int
) -> tuple[Int[ndarray, "L"], Int[ndarray, "L"], tuple[int, int]]:
    """Which entries of the quads' matrices make up the lower band, their places in it, and its shape."""
    rank = np.full(count, -1)
    rank[free] = np.arange(len(free))
    rows, columns = np.broadcast_arrays(rank[dofs][:, :, None], rank[dofs][:, None, :])
    kept = np.flatnonzero((columns >= 0) & (rows >= columns))
    rows, columns = rows.ravel()[kept], columns.ravel()[kept]
    return kept, (rows - columns) * len(free) + columns, (int((rows - columns).max()) + 1, len(free))
