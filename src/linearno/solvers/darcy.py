"""Darcy flow on the unit square, in batches, and random samples of its benchmark.

Axes: B any batch axes, K nodes or cells a side, p = K − 1 faces, n = K − 2 inner nodes. Computes in float64
on the device of the input; results do not depend on the other samples of a batch.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from numpy import ndarray
from scipy.interpolate import CubicSpline
from torch import Tensor
from torch.nn.functional import pad

from linearno.core.errors import SampleError, UserError
from linearno.solvers.random_fields import draw_each, neumann_field

Nodes = Float64[Tensor, "*B K K"]  # at the corners of the cells, linspace(0, 1, K) a side
Cells = Float64[Tensor, "*B K K"]  # at the centres of K cells a side: 1/2K, 3/2K, …
Inner = Float64[Tensor, "*B K K"]  # at the nodes, zero on the border
Faces = tuple[Float64[Tensor, "*B p n"], Float64[Tensor, "*B n p"]]  # between neighbours along each axis
Scalar = Float64[Tensor, "*B 1 1"]  # one number per sample

TOLERANCE = 1e-10  # on ‖f − A u‖ / ‖f‖
MAX_ITERATIONS = 500
CHECK_EVERY = 4  # iterations between convergence checks on a GPU, which synchronise it
MIN_POINTS = 5  # the spline needs four points


def solve_darcy(a: Nodes, f: Nodes) -> Nodes:
    """Solve  −∇·(a ∇u) = f  in (0,1)²,  u = 0 on the border, all at the nodes.

    Five-point scheme with the mean of `a` at each face: symmetric positive definite, second order in 1/K
    for smooth `a`, and u > 0 inside for f > 0.

    Args:
        a: positive coefficient at the nodes.
        f: right-hand side at the nodes.
    """
    if a.shape != f.shape or a.dim() < 2 or a.shape[-1] != a.shape[-2] or a.shape[-1] < 3:
        shapes = f"{tuple(a.shape)} and {tuple(f.shape)}"
        raise UserError(f"expected a and f on one K×K grid with K ≥ 3, got shapes {shapes}")
    if not (a.isfinite().all() and a.min() > 0):
        raise UserError(f"expected a coefficient above zero everywhere, got {a.min():.3g} to {a.max():.3g}")
    if not f.isfinite().all():
        raise UserError("expected a finite right-hand side f, got NaN or infinity")
    return _solve(a, f)


def solve_at_cell_centres(a: Cells, f: Float64[Tensor, "*#B K K"]) -> Cells:
    """Solver of the published data: interpolate from cell centres to nodes, solve there, interpolate back.

    Cubic not-a-knot splines interpolate. They extrapolate `a` by half a cell, so that `a` may be negative at
    border nodes where it jumps near the border. The published solver accepts that; the sign is not checked.

    Args:
        a: coefficient at the cell centres.
        f: right-hand side at the cell centres, for each sample or for all.
    """
    to_nodes, to_centres = _spline_matrices(a.shape[-1], a.device)
    u = _solve(_apply_to_both_axes(to_nodes, a), _apply_to_both_axes(to_nodes, f).expand_as(a))
    return _apply_to_both_axes(to_centres, u)


def darcy_samples(
    rngs: Sequence[np.random.Generator], resolution: int, device: torch.device
) -> tuple[Float[ndarray, "B K K"], Float[ndarray, "B K K"]]:
    """`coeff` (12 where a random field is ≥ 0, 3 elsewhere) and `sol`, the pressure for f = 1.

    A sample for each generator. The fields are drawn on the CPU, so `coeff` is the same on every device.

    Args:
        rngs: generators of the B samples.
        resolution: K, points a side.
        device: device that solves.
    """
    require_resolution(resolution)
    fields = draw_each(rngs, lambda rng: neumann_field(rng, resolution))
    coeff = np.where(fields >= 0, 12.0, 3.0)
    a = torch.from_numpy(coeff).to(device)
    return coeff, solve_at_cell_centres(a, torch.ones_like(a[0])).cpu().numpy()


def require_resolution(resolution: int) -> None:
    if resolution < MIN_POINTS:
        raise UserError(f"resolution {resolution} is too small; Darcy flow needs at least {MIN_POINTS}")


def spline_matrix(source: Float[ndarray, "S"], target: Float[ndarray, "T"]) -> Float[ndarray, "T S"]:
    """Matrix P such that P y is the cubic not-a-knot spline through (source, y) at `target`."""
    return CubicSpline(source, np.eye(len(source)))(target)


@cache
def _spline_matrices(
    size: int, device: torch.device
) -> tuple[Float64[Tensor, "K K"], Float64[Tensor, "K K"]]:
    """Spline matrices from cell centres to nodes, and back."""
    centres, nodes = (np.arange(size) + 0.5) / size, np.linspace(0, 1, size)
    to_nodes, to_centres = spline_matrix(centres, nodes), spline_matrix(nodes, centres)
    return torch.from_numpy(to_nodes).to(device), torch.from_numpy(to_centres).to(device)


def _apply_to_both_axes(matrix: Float64[Tensor, "K K"], field: Cells) -> Cells:
    """P u Pᵀ for one sample at a time, because a batched product rounds differently from a single one."""
    samples = field.reshape(-1, *field.shape[-2:])
    return torch.stack([matrix @ u.clone() @ matrix.mT for u in samples]).reshape(field.shape)


def face_coefficients(a: Nodes) -> Faces:
    """Mean of `a` over the two nodes of each face of the inner nodes, divided by the squared spacing."""
    rows, columns, scale = a[..., 1:-1], a[..., 1:-1, :], (a.shape[-1] - 1) ** 2 / 2
    return (
        (rows[..., 1:, :] + rows[..., :-1, :]) * scale,
        (columns[..., 1:] + columns[..., :-1]) * scale,
    )


def apply_darcy(faces: Faces, u: Inner) -> Inner:
    """−∇·(a ∇u) at the inner nodes."""
    flux_x = faces[0] * u[..., 1:-1].diff(dim=-2)
    flux_y = faces[1] * u[..., 1:-1, :].diff(dim=-1)
    result = torch.zeros_like(u)
    inner = result[..., 1:-1, 1:-1]
    torch.sub(flux_x[..., :-1, :], flux_x[..., 1:, :], out=inner)
    inner.add_(flux_y[..., :-1]).sub_(flux_y[..., 1:])
    return result


def solve_poisson(f: Inner, inverse: Float64[Tensor, "K K"]) -> Inner:
    """Solve the five-point  −Δu = f  directly, with `inverse` from `inverse_eigenvalues`."""
    return sine_transform(inverse * sine_transform(f))


def sine_transform(u: Inner) -> Inner:
    """Σ u[j, i] sin(πjk/(K−1)) sin(πim/(K−1)) at [m, k]: transposed, so that two transforms need no copy.

    The sine sum is the imaginary part of the Fourier transform of zero-padded u; the two signs cancel.
    """
    for _ in range(2):
        u = torch.fft.rfft(u, n=2 * (u.shape[-1] - 1)).imag.mT
    return u.mT


@cache
def inverse_eigenvalues(size: int, device: torch.device) -> Float64[Tensor, "K K"]:
    """1/λ of the five-point −Δ, divided by (K − 1)²/4, the factor of two sine transforms."""
    intervals = size - 1
    one = (2 * intervals * np.sin(np.arange(1, intervals) * np.pi / (2 * intervals))) ** 2
    inverse = (2 / intervals) ** 2 / (one[:, None] + one)
    return torch.from_numpy(np.pad(inverse, 1)).to(device)


def _solve(a: Nodes, f: Nodes) -> Nodes:
    """Conjugate gradients preconditioned by −Δ: the condition number is at most max a / min a.

    The number of iterations (about 30 for the benchmark) does not grow with the resolution. Converged samples
    take steps of length zero while others of the batch iterate, so that they do not change.
    """
    faces, inverse = face_coefficients(a), inverse_eigenvalues(a.shape[-1], a.device)
    residual = pad(f[..., 1:-1, 1:-1], (1, 1, 1, 1))
    u, direction = torch.zeros_like(residual), torch.zeros_like(residual)
    target = TOLERANCE * _dot(residual, residual).sqrt()
    previous, zero = torch.full_like(target, torch.inf), torch.zeros_like(target)
    interval = CHECK_EVERY if _is_asynchronous(a.device) else 1
    for iteration in range(MAX_ITERATIONS + 1):
        active = ~(_dot(residual, residual).sqrt() <= target)  # true for NaN too
        if (iteration % interval == 0 or iteration == MAX_ITERATIONS) and not active.any():
            return u
        correction = solve_poisson(residual, inverse)
        product = _dot(residual, correction)
        direction = torch.addcmul(correction, torch.where(active, product / previous, zero), direction)
        image = apply_darcy(faces, direction)
        step = torch.where(active, product / _dot(direction, image), zero)
        u.addcmul_(step, direction)
        residual.addcmul_(step, image, value=-1)
        previous = product
    raise _not_converged(a, active)


def _is_asynchronous(device: torch.device) -> bool:
    """Whether reading a value synchronises with the device."""
    return device.type != "cpu"


def _dot(u: Inner, v: Inner) -> Scalar:
    return (u * v).sum(dim=(-2, -1), keepdim=True)


def _not_converged(a: Nodes, active: Bool[Tensor, "*B 1 1"]) -> SampleError:
    first = int(active.flatten().nonzero()[0])
    worst = a.reshape(-1, *a.shape[-2:])[first]
    return SampleError(
        first,
        f"Darcy flow did not converge in {MAX_ITERATIONS} iterations for a coefficient from "
        f"{worst.min():.3g} to {worst.max():.3g}; expected max a / min a below about 1e4",
    )
