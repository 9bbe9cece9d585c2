"""Gaussian random fields: on the unit square, the unit torus and a circle."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from scipy.fft import fftfreq, idctn, ifft2
from scipy.interpolate import CubicSpline

CIRCLE = 1000  # points at which a field on the circle is drawn
JITTER = 1e-13  # on the diagonal of its covariance, whose smooth fields have far fewer than 1000 dimensions


def draw_each(
    rngs: Sequence[np.random.Generator], draw: Callable[[np.random.Generator], ndarray]
) -> Float[ndarray, "B ..."]:
    """draw(rng) for each generator, stacked. Threads share the work: numpy and scipy let them run at once."""
    with ThreadPoolExecutor(min(len(rngs), os.cpu_count() or 1)) as pool:
        return np.stack(list(pool.map(draw, rngs)))


def neumann_field(
    rng: np.random.Generator, size: int, *, alpha: float = 2.0, tau: float = 3.0
) -> Float[ndarray, "K K"]:
    """A draw of  g ~ N(0, (−Δ + τ²)^−α)  at the K×K cell centres, with ∂g/∂n = 0 and mean zero.

    The eigenfunctions are cos(iπx) cos(jπy), so g is the inverse cosine transform of independent normals
    whose deviations are `neumann_deviations`.
    """
    modes = rng.standard_normal((size, size)) * neumann_deviations(size, alpha=alpha, tau=tau)
    return idctn(modes, type=2, norm="ortho")


def neumann_deviations(size: int, *, alpha: float, tau: float) -> Float[ndarray, "K K"]:
    """K τ^(α−1) (π²(i² + j²) + τ²)^(−α/2) for mode (i, j) of the orthonormal transform; 0 for the mean."""
    k = np.arange(size)
    deviations = size * tau ** (alpha - 1) * (np.pi**2 * (k[:, None] ** 2 + k**2) + tau**2) ** (-alpha / 2)
    deviations[0, 0] = 0
    return deviations


def periodic_field(
    rng: np.random.Generator, size: int, *, alpha: float = 2.5, tau: float = 7.0
) -> Float[ndarray, "K K"]:
    """A draw of  g ~ N(0, τ^(2α−2) (−Δ + τ²)^−α)  at the points (i/K, j/K) of the torus, with mean zero.

    The real part of an inverse Fourier transform of complex normals, E|z|² = 1, independent in all K² modes:
    √2 makes good for the half of each that its imaginary part takes away.
    """
    real, imaginary = rng.standard_normal((2, size, size))
    normals = (real + 1j * imaginary) / np.sqrt(2)
    return ifft2(np.sqrt(2) * periodic_deviations(size, alpha=alpha, tau=tau) * normals).real


def periodic_deviations(size: int, *, alpha: float, tau: float) -> Float[ndarray, "K K"]:
    """K² τ^(α−1) (4π²(i² + j²) + τ²)^(−α/2) for mode (i, j) of the plain transform; 0 for the mean."""
    k = 2 * np.pi * fftfreq(size, 1 / size)
    deviations = size**2 * tau ** (alpha - 1) * (k[:, None] ** 2 + k**2 + tau**2) ** (-alpha / 2)
    deviations[0, 0] = 0
    return deviations


def circle_field(rng: np.random.Generator, size: int) -> Float[ndarray, "n"]:
    """A draw of  g ~ N(0, exp(−2 sin² πd))  at 0, 1/n, … (n − 1)/n on the circle of length one.

    As published: drawn at 1000 points from 0 to 1, both included, then laid around the circle 1/1000 apart
    and read off a periodic cubic spline. The stretch by 1000/999 is part of the recipe.
    """
    values = circle_root() @ rng.standard_normal(CIRCLE)
    knots = np.linspace(0, 1, CIRCLE + 1)
    spline = CubicSpline(knots, np.append(values, values[0]), bc_type="periodic")
    return spline(np.arange(size) / size)


@cache
def circle_root() -> Float[ndarray, "K K"]:
    """The symmetric root of exp(−2 sin² πd) + jitter at the points where `circle_field` draws.

    The published code takes the Cholesky factor; both give fields of one distribution. But only 27 of the
    1000 dimensions are above rounding, and which field a draw becomes hangs on the rounding errors of the
    factor: from one BLAS to another fields differ by 0.02, with the root by 3e-7.
    """
    points = np.linspace(0, 1, CIRCLE)
    covariance = np.exp(-2 * np.sin(np.pi * (points[:, None] - points)) ** 2)
    eigenvalues, vectors = np.linalg.eigh(covariance)
    return vectors * np.sqrt(np.maximum(eigenvalues, 0) + JITTER) @ vectors.T
