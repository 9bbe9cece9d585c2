"""Linear plane-stress elasticity with nine-node quads.

Axes: N nodes, E quads, P = 9 nodes of a quad, G = 9 Gauss points of a quad. A quad is a 3×3 patch of nodes:
node 3i + j has the local coordinates ξᵢ and ηⱼ, each −1, 0 or 1. All arrays are float64.
"""

from functools import cache

import numpy as np
import scipy.sparse as sp
from jaxtyping import Bool, Float64, Int
from numpy import ndarray
from scipy.linalg import LinAlgError, solveh_banded
from scipy.sparse.csgraph import reverse_cuthill_mckee

from linearno.core.errors import UserError

Nodes = Float64[ndarray, "N 2"]  # positions, displacements or forces
Quads = Int[ndarray, "E P"]
Matrices = Float64[ndarray, "E 18 18"]
AtGaussPoints = Float64[ndarray, "E G"]
Stress = Float64[ndarray, "E G 3"]  # xx, yy, xy


class PlaneStress:
    """Linear elasticity on given quads.

        −∇·σ = f,   σ = ((1 − ν) ε + ν tr ε I) / (1 − ν²),   ε = (∇u + ∇uᵀ)/2

    Young's modulus is 1: for given forces, u scales with its inverse and σ does not depend on it. In L2,
    third order in the size of the quads for u and second order for σ. Solves with a banded Cholesky
    factorisation, whose layout is computed once.

    Args:
        quads: nodes of each quad.
        fixed: which displacements are prescribed.
        poisson: Poisson's ratio ν.
    """

    def __init__(self, quads: Quads, fixed: Bool[ndarray, "N 2"], *, poisson: float):
        self.quads, self.fixed = quads, fixed
        matrix = [[1, poisson, 0], [poisson, 1, 0], [0, 0, (1 - poisson) / 2]]
        self._stiffness = np.array(matrix) / (1 - poisson**2)
        self._dofs = (2 * quads[:, :, None] + [0, 1]).reshape(len(quads), -1)
        self._free = _bandwidth_order(quads, fixed)
        self._band_entries, self._band_positions, self._band = _band_layout(
            self._dofs, self._free, fixed.size
        )

    def solve(self, nodes: Nodes, load: Nodes, prescribed: Nodes) -> Nodes:
        """Displacement of the nodes.

        Args:
            nodes: positions of the nodes.
            load: forces at the nodes.
            prescribed: displacement where it is fixed.
        """
        for name, values in (
            ("positions of the nodes", nodes),
            ("loads", load),
            ("prescribed displacements", prescribed),
        ):
            if not np.isfinite(values).all():
                raise UserError(f"expected finite {name}, got NaN or infinity")
        matrices = self._matrices(nodes)
        u = np.where(self.fixed, prescribed, 0.0).ravel()
        push = load.ravel() - self._internal_forces(matrices, u)
        band = np.bincount(
            self._band_positions, matrices.ravel()[self._band_entries], self._band[0] * self._band[1]
        )
        try:
            u[self._free] = solveh_banded(band.reshape(self._band), push[self._free], lower=True)
        except LinAlgError:
            raise UserError("the body is free to move or rotate; fix more of its displacements") from None
        return u.reshape(-1, 2)

    def forces(self, nodes: Nodes, u: Nodes) -> Nodes:
        """Internal forces for displacement u: the loads, and the reactions where displacements are fixed."""
        return self._internal_forces(self._matrices(nodes), u.ravel()).reshape(-1, 2)

    def stress(self, nodes: Nodes, u: Nodes) -> Stress:
        """σ at the Gauss points."""
        strain = _strain_matrix(gradients_at(nodes[self.quads])[0])
        return (strain @ u.ravel()[self._dofs][:, None, :, None])[..., 0] @ self._stiffness

    def _matrices(self, nodes: Nodes) -> Matrices:
        """Element stiffness matrices."""
        gradients, areas = gradients_at(nodes[self.quads])
        strain = _strain_matrix(gradients)
        stress = self._stiffness @ strain * areas[..., None, None]
        rows = (len(strain), -1, strain.shape[-1])
        return strain.reshape(rows).mT @ stress.reshape(rows)

    def _internal_forces(self, matrices: Matrices, u: Float64[ndarray, "U"]) -> Float64[ndarray, "U"]:
        """Sum of the forces of all quads at each unknown."""
        forces = matrices @ u[self._dofs][..., None]
        return np.bincount(self._dofs.ravel(), forces.ravel(), len(u))


def quads_between(numbers: Int[ndarray, "R Q"]) -> Quads:
    """Quads of a grid with odd sides.

    Args:
        numbers: indices of the nodes; rows run along ξ.
    """
    patches = np.lib.stride_tricks.sliding_window_view(numbers, (3, 3))[::2, ::2]
    return patches.reshape(-1, 9)


def edge_load(nodes: Nodes, edges: Int[ndarray, "K 3"], traction: tuple[float, float]) -> Nodes:
    """Forces at the nodes for a constant traction on straight edges (first end, middle, second end)."""
    length = np.linalg.norm(nodes[edges[:, 2]] - nodes[edges[:, 0]], axis=1)
    share = length[:, None] * np.array([1, 4, 1]) / 6
    return np.bincount(edges.ravel(), share.ravel(), len(nodes))[:, None] * np.array(traction)


def von_mises(stress: Stress) -> AtGaussPoints:
    """√(σxx² − σxx σyy + σyy² + 3 σxy²), in plane stress."""
    xx, yy, xy = np.moveaxis(stress, -1, 0)
    return np.sqrt(xx**2 - xx * yy + yy**2 + 3 * xy**2)


def gauss_points(nodes: Nodes, quads: Quads) -> Float64[ndarray, "E G 2"]:
    """Positions of the Gauss points."""
    return reference_quad()[0] @ nodes[quads]


def gradients_at(nodes: Float64[ndarray, "E P 2"]) -> tuple[Float64[ndarray, "E G P 2"], AtGaussPoints]:
    """Gradients of the shape functions, and quadrature weights, at the Gauss points."""
    _, local, weights = reference_quad()
    jacobian = np.einsum("gpr,epx->egrx", local, nodes, optimize=True)
    (a, b), (c, d) = np.moveaxis(jacobian, (2, 3), (0, 1))
    area = a * d - b * c
    if not area.min() > 0:
        folded = int((area <= 0).any(axis=1).argmax())
        raise UserError(
            f"quad {folded} of {len(nodes)} is inverted (area element {area.min():.3g}); "
            "expected a smoother shape or a finer mesh"
        )
    inverse = np.stack([d, -b, -c, a], axis=-1).reshape(jacobian.shape) / area[..., None, None]
    return local @ inverse.mT, area * weights


@cache
def reference_quad() -> tuple[Float64[ndarray, "G P"], Float64[ndarray, "G P 2"], Float64[ndarray, "G"]]:
    """Shape functions, local gradients and weights at the 3×3 Gauss points of [−1, 1]²."""
    points, weights = np.polynomial.legendre.leggauss(3)
    x = points[:, None]
    value = np.hstack([x * (x - 1) / 2, 1 - x**2, x * (x + 1) / 2])
    slope = np.hstack([x - 0.5, -2 * x, x + 0.5])
    local = np.stack([np.kron(slope, value), np.kron(value, slope)], axis=-1)
    return np.kron(value, value), local, np.kron(weights, weights)


def _strain_matrix(gradients: Float64[ndarray, "E G P 2"]) -> Float64[ndarray, "E G 3 18"]:
    """Matrix from nodal displacements (x and y interleaved) to εxx, εyy and 2 εxy."""
    strain = np.zeros((*gradients.shape[:2], 3, 18))
    strain[..., 0, ::2] = strain[..., 2, 1::2] = gradients[..., 0]
    strain[..., 1, 1::2] = strain[..., 2, ::2] = gradients[..., 1]
    return strain


def _bandwidth_order(quads: Quads, fixed: Bool[ndarray, "N 2"]) -> Int[ndarray, "F"]:
    """Free unknowns in reverse Cuthill–McKee order, for a narrow band."""
    ends = np.repeat(quads, 9, axis=1).ravel(), np.tile(quads, 9).ravel()
    graph = sp.csr_array((np.ones(len(ends[0])), ends), shape=(len(fixed),) * 2)
    order = reverse_cuthill_mckee(graph, symmetric_mode=True).astype(int)
    unknowns = (2 * order[:, None] + [0, 1]).ravel()
    return unknowns[~fixed.ravel()[unknowns]]


def _band_layout(
    dofs: Int[ndarray, "E 18"], free: Int[ndarray, "F"], count: int
) -> tuple[Int[ndarray, "L"], Int[ndarray, "L"], tuple[int, int]]:
    """Entries of the element matrices in the lower band, their positions in it, and its shape.

    Args:
        dofs: unknowns of each quad.
        free: free unknowns in band order.
        count: number of all unknowns.
    """
    rank = np.full(count, -1)
    rank[free] = np.arange(len(free))
    rows, columns = np.broadcast_arrays(rank[dofs][:, :, None], rank[dofs][:, None, :])
    kept = np.flatnonzero((columns >= 0) & (rows >= columns))
    rows, columns = rows.ravel()[kept], columns.ravel()[kept]
    return kept, (rows - columns) * len(free) + columns, (int((rows - columns).max()) + 1, len(free))
