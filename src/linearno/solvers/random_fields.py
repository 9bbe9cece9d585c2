"""Gaussian random fields on the unit square and the unit torus."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from scipy.fft import fftfreq, idctn, ifft2


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
