import numpy as np
import pytest
from numpy import pi, sin
from scipy.integrate import odeint

from linearno.core.errors import UserError
from linearno.solvers.burgers import burgers_rate, burgers_sample, solve_burgers
from linearno.solvers.random_fields import circle_field

SPEED, VISCOSITY, END = 0.3, 0.01, 0.1  # before the wave breaks at 1/2π


def wave(points: int) -> np.ndarray:
    return SPEED + sin(2 * pi * np.arange(points) / points)


def cole_hopf(points: int, fine: int = 4096) -> np.ndarray:
    """The exact solution from `wave`, in the frame that moves with it: u = c − 2ν θ'/θ with θ_t = ν θ''."""
    k = 2j * pi * np.fft.fftfreq(fine, 1 / fine)
    theta = np.exp((np.cos(2 * pi * np.arange(fine) / fine) - 1) / (4 * pi * VISCOSITY))
    modes = np.fft.fft(theta) * np.exp((VISCOSITY * k**2 - SPEED * k) * END)
    theta, slope = np.fft.ifft(modes).real, np.fft.ifft(k * modes).real
    return (SPEED - 2 * VISCOSITY * slope / theta)[:: fine // points]


def assembled_rate(u: np.ndarray, t: float, spacing: float) -> np.ndarray:
    """The slow twin: the Laplacian as a matrix, both differences of u at every point."""
    eye = np.eye(len(u))
    laplacian = (np.roll(eye, 1, axis=0) - 2 * eye + np.roll(eye, -1, axis=0)) / spacing**2
    backward, forward = (u - np.roll(u, 1)) / spacing, (np.roll(u, -1) - u) / spacing
    return 0.01 * laplacian @ u - np.maximum(u, 0) * backward - np.minimum(u, 0) * forward


def order(sizes: list[int], errors: list[float]) -> float:
    return -np.polyfit(np.log(sizes), np.log(errors), 1)[0]


@pytest.fixture(scope="module")
def trajectories() -> np.ndarray:
    return np.stack([burgers_sample(np.random.default_rng(seed), 128) for seed in range(8)])


def test_the_solution_and_its_mean_converge_at_first_order():
    """A wave that changes sign, so that both upwind sides are at work."""
    sizes, errors, drifts = [128, 256, 512], [], []
    for n in sizes:
        u = solve_burgers(wave(n), np.array([0, END]), spacing=1 / n)[-1]
        errors.append(np.abs(u - cole_hopf(n)).max())
        drifts.append(abs(u.mean() - SPEED))
    assert abs(order(sizes, errors) - 1) < 0.05, f"order {order(sizes, errors):.2f}, errors {errors}"
    assert abs(order(sizes, drifts) - 1) < 0.05, f"order {order(sizes, drifts):.2f}, drifts {drifts}"
    assert errors[-1] < 0.01


def test_the_rate_is_that_of_the_assembled_scheme():
    rng = np.random.default_rng(0)
    rate = burgers_rate(33, 1 / 32, 0.01)
    for u in (rng.standard_normal(33), np.zeros(33), np.abs(rng.standard_normal(33))):
        np.testing.assert_allclose(rate(u, 0.0), assembled_rate(u, 0.0, 1 / 32), rtol=0, atol=1e-11)


def test_a_sample_is_the_published_recipe_to_its_tolerance(trajectories):
    """128 points 1/127 apart, 128 times from 0 to 1, and the ODE solver's own settings."""
    for seed, sample in enumerate(trajectories[:3]):
        initial = circle_field(np.random.default_rng(seed), 128)
        recipe = odeint(assembled_rate, initial, np.linspace(0, 1, 128), args=(1 / 127,))
        np.testing.assert_array_equal(sample[0], initial)
        np.testing.assert_allclose(sample, recipe, rtol=0, atol=2e-6)


def test_no_value_leaves_the_range_of_the_values_before_it(trajectories):
    highest, lowest = trajectories.max(axis=2), trajectories.min(axis=2)
    assert np.diff(highest).max() < 1e-6
    assert np.diff(lowest).min() > -1e-6
    assert (highest[:, -1] - lowest[:, -1] < 0.9 * (highest[:, 0] - lowest[:, 0])).all()


def test_a_constant_stays_as_it_is():
    for value in (-0.7, 0.0, 1.3):
        u = solve_burgers(np.full(17, value), np.linspace(0, 1, 5), spacing=1 / 17)
        np.testing.assert_allclose(u, value, rtol=0, atol=1e-12)


def test_turning_the_circle_or_seeing_it_in_a_mirror_does_the_same_to_the_solution(trajectories):
    sample, times = trajectories[0], np.linspace(0, 1, 128)
    for change in (lambda u: np.roll(u, 5, axis=-1), lambda u: -u[..., ::-1]):
        changed = solve_burgers(np.ascontiguousarray(change(sample[0])), times, spacing=1 / 127)
        np.testing.assert_allclose(changed, change(sample), rtol=0, atol=2e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_initial_velocity_that_is_not_finite_is_refused(bad):
    initial = wave(16)
    initial[3] = bad
    with pytest.raises(UserError, match="finite initial velocity"):
        solve_burgers(initial, np.linspace(0, 1, 3), spacing=1 / 16)


def test_a_velocity_too_large_for_the_solver_is_refused_and_not_answered_with_nonsense():
    with pytest.raises(UserError, match=r"took more than 500 steps between two of 128 times; give"):
        solve_burgers(1e4 * wave(128), np.linspace(0, 1, 128), spacing=1 / 127)


def test_a_resolution_that_is_too_small_is_refused():
    with pytest.raises(UserError, match="at least 4"):
        burgers_sample(np.random.default_rng(0), 3)
