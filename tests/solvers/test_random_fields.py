import numpy as np
from scipy.fft import dctn

from linearno.solvers.random_fields import neumann_field


def draws(count: int, size: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.stack([neumann_field(rng, size) for _ in range(count)])


def test_cosine_modes_have_the_variance_of_the_inverse_operator():
    """Mode (i, j) has variance ∝ (π²(i² + j²) + 9)^−2, by the formula and not by the code's own function."""
    size, count = 17, 4000
    variance = (dctn(draws(count, size), axes=(1, 2), norm="ortho") ** 2).mean(axis=0)
    k = np.arange(size)
    expected = (size * 3) ** 2 / (np.pi**2 * (k[:, None] ** 2 + k**2) + 9.0) ** 2
    ratio = (variance / expected).ravel()[1:]
    assert np.abs(ratio - 1).max() < 5 * np.sqrt(2 / count)  # five deviations of a χ² mean


def test_distinct_modes_are_uncorrelated():
    modes = dctn(draws(2000, 4), axes=(1, 2), norm="ortho").reshape(2000, 16)[:, 1:]
    correlation = np.corrcoef(modes.T) - np.eye(15)
    assert np.abs(correlation).max() < 5 / np.sqrt(2000)


def test_every_draw_has_mean_zero():
    assert np.abs(draws(5, 33).mean(axis=(1, 2))).max() < 1e-13


def test_the_generator_alone_decides_the_draw():
    one, same, other = (neumann_field(np.random.default_rng(seed), 9) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one, same)
    assert not np.allclose(one, other)
