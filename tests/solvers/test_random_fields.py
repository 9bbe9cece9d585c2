import numpy as np
import pytest
from scipy.fft import dctn, fft2
from scipy.linalg import eigh
from scipy.special import ive

from linearno.solvers import random_fields
from linearno.solvers.random_fields import circle_field, circle_root, neumann_field, periodic_field


def draws(count: int, size: int, draw=neumann_field) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.stack([draw(rng, size) for _ in range(count)])


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


def test_fourier_modes_have_the_variance_of_the_inverse_operator():
    """E|mode (i, j)|² = K⁴ 7³ (4π²(i² + j²) + 49)^−2.5, Nyquist modes too."""
    size, count = 16, 4000
    variance = (np.abs(fft2(draws(count, size, periodic_field))) ** 2).mean(axis=0)
    k = np.fft.fftfreq(size, 1 / size)
    expected = size**4 * 7**3 / (4 * np.pi**2 * (k[:, None] ** 2 + k**2) + 49) ** 2.5
    ratio = (variance / expected).ravel()[1:]
    assert np.abs(ratio - 1).max() < 5 * np.sqrt(2 / count)  # as above, for the modes that are real


def test_a_periodic_field_has_about_the_deviation_of_the_published_start():
    assert draws(200, 64, periodic_field).std() == pytest.approx(0.2, rel=0.1)


def test_distinct_fourier_modes_are_uncorrelated():
    modes = fft2(draws(2000, 6, periodic_field))[:, :3, 1:3].reshape(2000, 6)  # no two conjugate
    correlation = np.corrcoef(np.concatenate([modes.real, modes.imag], axis=1).T) - np.eye(12)
    assert np.abs(correlation).max() < 5 / np.sqrt(2000)


both = pytest.mark.parametrize("draw", [neumann_field, periodic_field])


@both
def test_every_draw_has_mean_zero(draw):
    assert np.abs(draws(5, 33, draw).mean(axis=(1, 2))).max() < 1e-13


@both
def test_the_generator_alone_decides_the_draw(draw):
    one, same, other = (draw(np.random.default_rng(seed), 9) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one, same)
    assert not np.allclose(one, other)


@pytest.fixture(scope="module")
def circles() -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.stack([circle_field(rng, 32) for _ in range(600)])


def test_a_field_on_the_circle_has_the_covariance_of_the_kernel(circles):
    """To five deviations of the estimate; the recipe's stretch by 1000/999 is far below them."""
    count, size = circles.shape
    x = np.arange(size) / size
    expected = np.exp(-2 * np.sin(np.pi * (x[:, None] - x)) ** 2)
    deviation = np.sqrt((1 + expected**2) / count)
    assert (np.abs(circles.T @ circles / count - expected) < 5 * deviation).all()


def test_the_root_has_the_covariance_of_the_published_cholesky_factor():
    x = np.linspace(0, 1, 1000)
    covariance = np.exp(-2 * np.sin(np.pi * (x[:, None] - x)) ** 2) + 1e-13 * np.eye(1000)
    np.testing.assert_allclose(circle_root() @ circle_root().T, covariance, rtol=0, atol=1e-12)


def test_rounding_errors_of_the_covariance_change_a_draw_by_rounding_only(monkeypatch):
    before = circle_field(np.random.default_rng(0), 128)
    monkeypatch.setattr(random_fields, "circle_root", random_fields.circle_root.__wrapped__)
    monkeypatch.setattr(random_fields.np.linalg, "eigh", lambda a: eigh(a + 1e-15 * np.cos(1e6 * a)))
    after = circle_field(np.random.default_rng(0), 128)
    assert 0 < np.abs(after - before).max() < 1e-5


def test_modes_on_the_circle_have_the_variances_of_the_kernels_fourier_series(circles):
    """exp(−2 sin² πd) = Σ e⁻¹ I_k(1) cos 2πkd, with Bessel's I: far modes show what the covariance hides."""
    k = np.arange(1, 5)
    variance = (np.abs(np.fft.rfft(circles, norm="forward")[:, k]) ** 2).mean(axis=0)
    assert np.abs(variance / ive(k, 1) - 1).max() < 5 / np.sqrt(len(circles))


def test_a_field_on_the_circle_goes_over_its_seam_as_over_any_other_place(circles):
    steps = np.abs(circles - np.roll(circles, 1, axis=1)).mean(axis=0)
    assert steps[0] == pytest.approx(steps[1:].mean(), rel=0.1)


def test_the_generator_alone_decides_the_draw_on_the_circle():
    one, same, other = (circle_field(np.random.default_rng(seed), 9) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one, same)
    assert not np.allclose(one, other)
