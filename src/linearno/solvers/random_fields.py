"""Gaussian random fields on the unit square, the unit torus and a circle."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from scipy.fft import fftfreq, idctn, ifft2
from scipy.interpolate import CubicSpline

CIRCLE_POINTS = 1000  # points of a draw on the circle
JITTER = 1e-13  # on the diagonal of its covariance, which is numerically singular


def draw_each(
    rngs: Sequence[np.random.Generator], draw: Callable[[np.random.Generator], ndarray]
) -> Float[ndarray, "B ..."]:
    """Stack draw(rng) for each generator, drawn in parallel threads (numpy and scipy release the GIL)."""
    with ThreadPoolExecutor(min(len(rngs), os.cpu_count() or 1)) as pool:
        return np.stack(list(pool.map(draw, rngs)))


def neumann_field(
    rng: np.random.Generator, size: int, *, alpha: float = 2.0, tau: float = 3.0
) -> Float[ndarray, "K K"]:
    """A draw of  g ~ N(0, (−Δ + τ²)^−α)  at the K×K cell centres, with ∂g/∂n = 0 and mean zero.

    The eigenfunctions are cos(iπx) cos(jπy), so g is the inverse cosine transform of independent normals
    with the standard deviations `neumann_amplitudes`.
    """
    modes = rng.standard_normal((size, size)) * neumann_amplitudes(size, alpha=alpha, tau=tau)
    return idctn(modes, type=2, norm="ortho")


def neumann_amplitudes(size: int, *, alpha: float, tau: float) -> Float[ndarray, "K K"]:
    """K τ^(α−1) (π²(i² + j²) + τ²)^(−α/2) for mode (i, j) of the orthonormal transform; 0 for the mean."""
    k = np.arange(size)
    amplitudes = size * tau ** (alpha - 1) * (np.pi**2 * (k[:, None] ** 2 + k**2) + tau**2) ** (-alpha / 2)
    amplitudes[0, 0] = 0
    return amplitudes


def periodic_field(
    rng: np.random.Generator, size: int, *, alpha: float = 2.5, tau: float = 7.0
) -> Float[ndarray, "K K"]:
    """A draw of  g ~ N(0, τ^(2α−2) (−Δ + τ²)^−α)  at the points (i/K, j/K) of the torus, with mean zero.

    Real part of the inverse Fourier transform of independent complex normals with E|z|² = 1; the factor √2
    compensates for the variance of the discarded imaginary part.
    """
    real, imaginary = rng.standard_normal((2, size, size))
    normals = (real + 1j * imaginary) / np.sqrt(2)
    return ifft2(np.sqrt(2) * fourier_amplitudes(size, alpha=alpha, tau=tau) * normals).real


def fourier_amplitudes(size: int, *, alpha: float, tau: float) -> Float[ndarray, "K K"]:
    """K² τ^(α−1) (4π²(i² + j²) + τ²)^(−α/2) for mode (i, j) of the plain transform; 0 for the mean."""
    k = 2 * np.pi * fftfreq(size, 1 / size)
    amplitudes = size**2 * tau ** (alpha - 1) * (k[:, None] ** 2 + k**2 + tau**2) ** (-alpha / 2)
    amplitudes[0, 0] = 0
    return amplitudes


def circle_field(rng: np.random.Generator, size: int) -> Float[ndarray, "n"]:
    """A draw of  g ~ N(0, exp(−2 sin² πd))  at 0, 1/n, … (n − 1)/n on the circle of length one.

    As published: drawn at 1000 points from 0 to 1 inclusive, then placed on the circle with spacing 1/1000
    and interpolated by a periodic cubic spline. The stretch by 1000/999 is kept.
    """
    values = circle_root() @ rng.standard_normal(CIRCLE_POINTS)
    knots = np.linspace(0, 1, CIRCLE_POINTS + 1)
    spline = CubicSpline(knots, np.append(values, values[0]), bc_type="periodic")
    return spline(np.arange(size) / size)


@cache
def circle_root() -> Float[ndarray, "K K"]:
    """The symmetric root of exp(−2 sin² πd) + jitter at the points where `circle_field` draws.

    The published code uses the Cholesky factor, which gives the same distribution. Only 27 of the 1000
    eigenvalues exceed rounding errors, which the Cholesky factor amplifies: between BLAS libraries, the field
    of a draw differs by 0.02, with the symmetric root by 3e-7.
    """
    points = np.linspace(0, 1, CIRCLE_POINTS)
    covariance = np.exp(-2 * np.sin(np.pi * (points[:, None] - points)) ** 2)
    eigenvalues, vectors = np.linalg.eigh(covariance)
    return vectors * np.sqrt(np.maximum(eigenvalues, 0) + JITTER) @ vectors.T
