"""Periodic Burgers' equation and random samples of its benchmark. Axes: T times, n points."""

import warnings
from collections.abc import Callable

import numpy as np
from jaxtyping import Float64
from numpy import ndarray
from scipy.integrate import ODEintWarning, odeint

from linearno.core.errors import UserError
from linearno.solvers.random_fields import circle_field

VISCOSITY = 0.01
MIN_POINTS = 4  # the benchmark uses the middle half of the times


def solve_burgers(
    initial: Float64[ndarray, "n"],
    times: Float64[ndarray, "T"],
    *,
    spacing: float,
    viscosity: float = VISCOSITY,
) -> Float64[ndarray, "T n"]:
    """Solve  u_t + u u_x = ν u_xx,  x of period n·spacing,  from u(times[0]) = initial.

    Method of lines: upwind differences for u u_x, central differences for u_xx, and LSODA with tolerance
    1.5e-8. First order in the spacing. Solutions stay in the range of the initial values; the mean of u is
    conserved to first order only.

    Args:
        initial: u at n periodic points.
        times: output times.
        spacing: distance between points.
        viscosity: ν.
    """
    if not np.isfinite(initial).all():
        raise UserError("expected a finite initial velocity, got NaN or infinity")
    with warnings.catch_warnings():
        warnings.simplefilter("error", ODEintWarning)
        try:
            return odeint(burgers_rate(len(initial), spacing, viscosity), initial, times)
        except ODEintWarning:
            raise UserError(
                f"Burgers' equation from {initial.min():.3g} ≤ u ≤ {initial.max():.3g} took more than 500 "
                f"steps between two of {len(times)} times; give times that lie closer, or a smaller u"
            ) from None


def burgers_rate(points: int, spacing: float, viscosity: float) -> Callable[[ndarray, float], ndarray]:
    """u_t as a function of (u, t); uses few numpy calls because it is called thousands of times."""
    jump = np.empty(points + 1)  # difference to the left neighbour, periodic
    inner, left, right = jump[1:-1], jump[:-1], jump[1:]
    diffusion, slope = viscosity / spacing**2, 1 / spacing

    def rate(u: ndarray, t: float) -> ndarray:
        np.subtract(u[1:], u[:-1], out=inner)
        jump[0] = jump[-1] = u[0] - u[-1]
        upwind = np.where(u > 0, left, right)
        return diffusion * (right - left) - slope * u * upwind

    return rate


def burgers_sample(rng: np.random.Generator, resolution: int) -> Float64[ndarray, "n n"]:
    """u at n = `resolution` times in [0, 1] (rows) and n points (columns), from a random u at t = 0.

    As published, the spacing is 1/(n − 1), so that x = 0 and x = 1 are neighbouring points.
    """
    require_resolution(resolution)
    times = np.linspace(0, 1, resolution)
    return solve_burgers(circle_field(rng, resolution), times, spacing=1 / (resolution - 1))


def require_resolution(resolution: int) -> None:
    if resolution < MIN_POINTS:
        raise UserError(
            f"resolution {resolution} is too small; Burgers' equation needs at least {MIN_POINTS}"
        )
