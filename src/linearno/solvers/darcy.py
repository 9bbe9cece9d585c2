"""Darcy flow on the unit square, and the recipe of its benchmark. Axes: K nodes or cells a side."""

from functools import cache

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from scipy.fft import dstn
from scipy.interpolate import CubicSpline

from linearno.core.errors import UserError
from linearno.solvers.random_fields import neumann_field

Nodes = Float[ndarray, "K K"]  # at the corners of the cells, linspace(0, 1, K) a side
Cells = Float[ndarray, "K K"]  # at the centres of K cells a side: 1/2K, 3/2K, …
Inner = Float[ndarray, "n n"]  # at the nodes off the border, n = K − 2
Faces = tuple[Float[ndarray, "p n"], Float[ndarray, "n p"]]  # between neighbours along each axis, p = n + 1

TOLERANCE = 1e-10  # on ‖f − A u‖ / ‖f‖
MAX_ITERATIONS = 500
SMALLEST = 5  # the spline needs four points


def solve_darcy(a: Nodes, f: Nodes) -> Nodes:
    """Solve  −∇·(a ∇u) = f  in (0,1)²,  u = 0 on the border, all at the nodes.

    Five-point scheme with the mean of `a` at each face: symmetric positive definite, second order in 1/K
    for smooth `a`, and u > 0 inside for f > 0.
    """
    if a.shape != f.shape or a.shape != (len(a), len(a)) or len(a) < 3:
        raise UserError(f"expected a and f on one K×K grid with K ≥ 3, got shapes {a.shape} and {f.shape}")
    if not (np.isfinite(a).all() and a.min() > 0):
        raise UserError(f"expected a coefficient above zero everywhere, got {a.min():.3g} to {a.max():.3g}")
    if not np.isfinite(f).all():
        raise UserError("expected a finite right-hand side f, got NaN or infinity")
    return _solve(a, f)


def solve_between_centres(a: Cells, f: Cells) -> Cells:
    """The solver that made the published data: cell centres → nodes → `solve_darcy`'s scheme → cell centres.

    Both ways by a cubic not-a-knot spline. It extrapolates `a` by half a cell: where `a` jumps near the
    border, some border nodes fall below zero. The recipe keeps them, so the sign is not checked here.
    """
    to_nodes, to_centres = _between(len(a))
    u = _solve(to_nodes @ a @ to_nodes.T, to_nodes @ f @ to_nodes.T)
    return to_centres @ u @ to_centres.T


def darcy_sample(rng: np.random.Generator, resolution: int) -> tuple[Cells, Cells]:
    """`coeff` (12 where a random field is ≥ 0, 3 elsewhere) and `sol`, the pressure for f = 1."""
    require_resolution(resolution)
    coeff = np.where(neumann_field(rng, resolution) >= 0, 12.0, 3.0)
    return coeff, solve_between_centres(coeff, np.ones_like(coeff))


def require_resolution(resolution: int) -> None:
    if resolution < SMALLEST:
        raise UserError(f"resolution {resolution} is too small; Darcy flow needs at least {SMALLEST}")


def spline_matrix(source: Float[ndarray, "S"], target: Float[ndarray, "T"]) -> Float[ndarray, "T S"]:
    """P such that P y is the cubic not-a-knot spline through (source, y) at `target`, within or beyond."""
    return CubicSpline(source, np.eye(len(source)))(target)


@cache
def _between(size: int) -> tuple[Float[ndarray, "K K"], Float[ndarray, "K K"]]:
    """Spline matrices from cell centres to nodes, and back."""
    centres, nodes = (np.arange(size) + 0.5) / size, np.linspace(0, 1, size)
    return spline_matrix(centres, nodes), spline_matrix(nodes, centres)


def face_coefficients(a: Nodes) -> Faces:
    """Mean of `a` over the two nodes of each face that an inner node has."""
    return (a[1:] + a[:-1])[:, 1:-1] / 2, (a[:, 1:] + a[:, :-1])[1:-1] / 2


def apply_darcy(faces: Faces, u: Inner) -> Inner:
    """−∇·(a ∇u) at the inner nodes, u = 0 on the border."""
    flux_x = faces[0] * np.diff(u, axis=0, prepend=0, append=0)
    flux_y = faces[1] * np.diff(u, axis=1, prepend=0, append=0)
    return -((len(u) + 1) ** 2) * (np.diff(flux_x, axis=0) + np.diff(flux_y, axis=1))


def solve_poisson(f: Inner, eigenvalues: Inner) -> Inner:
    """Solve  −Δu = f  exactly on the grid: the sine transform is orthonormal and its own inverse."""
    return dstn(dstn(f, type=1, norm="ortho") / eigenvalues, type=1, norm="ortho")


def poisson_eigenvalues(n: int) -> Inner:
    """Of the five-point −Δ on n×n inner nodes."""
    one = (2 * (n + 1) * np.sin(np.arange(1, n + 1) * np.pi / (2 * (n + 1)))) ** 2
    return one[:, None] + one


def _solve(a: Nodes, f: Nodes) -> Nodes:
    """Conjugate gradients preconditioned by −Δ, so that the condition number is at most max a / min a.

    The number of iterations (about 30 for the benchmark) does not grow with the resolution.
    """
    faces, residual = face_coefficients(a), f[1:-1, 1:-1].astype(float)
    eigenvalues = poisson_eigenvalues(len(residual))
    u, direction = np.zeros_like(residual), np.zeros_like(residual)
    target, last = TOLERANCE * np.linalg.norm(residual), np.inf
    for _ in range(MAX_ITERATIONS):
        if np.linalg.norm(residual) <= target:
            return np.pad(u, 1)
        correction = solve_poisson(residual, eigenvalues)
        now = np.vdot(residual, correction)
        direction = correction + (now / last) * direction
        image = apply_darcy(faces, direction)
        step = now / np.vdot(direction, image)
        u += step * direction
        residual -= step * image
        last = now
    raise UserError(
        f"Darcy flow did not converge in {MAX_ITERATIONS} iterations for a coefficient from {a.min():.3g} to "
        f"{a.max():.3g}; expected max a / min a below about 1e4"
    )
