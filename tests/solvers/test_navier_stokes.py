from math import pi

import numpy as np
import pytest
import torch

from linearno.core.errors import SampleError, UserError
from linearno.solvers import navier_stokes
from linearno.solvers.navier_stokes import (
    benchmark_force,
    build_flow,
    navier_stokes_samples,
    solve_navier_stokes,
)
from linearno.solvers.random_fields import periodic_field

CPU = torch.device("cpu")


def grid(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.arange(size, dtype=torch.float64) / size
    return x[:, None], x[None]


def smooth(size: int) -> torch.Tensor:
    """Modes up to 3, none of them a steady flow of its own: advection does real work."""
    x, y = grid(size)
    slow = torch.sin(2 * pi * x) * torch.cos(2 * pi * y) + torch.cos(4 * pi * x + 1)
    return slow + 0.5 * torch.sin(2 * pi * (x + 3 * y)) - 0.3 * torch.cos(6 * pi * (x - y))


def still(size: int) -> torch.Tensor:
    return torch.zeros(size, size, dtype=torch.float64)


def solve(w, f=None, **settings) -> torch.Tensor:
    """The last frame."""
    f = benchmark_force(w.shape[-1]) if f is None else f
    return solve_navier_stokes(w, f, **{"viscosity": 1e-3, "frames": 1} | settings)[..., -1]


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return ((found - exact).norm() / exact.norm()).item()


def order(sizes, errors) -> float:
    return -np.polyfit(np.log(sizes), np.log(errors), 1)[0]


def plain_step(w: np.ndarray, f: np.ndarray, nu: float, dt: float) -> np.ndarray:
    """The slow twin: the published step with complex transforms of u, v, ∂w/∂x, ∂w/∂y and u·∇w."""
    size = len(w)
    k = np.fft.fftfreq(size, 1 / size)
    x, y = np.broadcast_arrays(2 * pi * k[:, None], 2 * pi * k)
    square = x**2 + y**2
    w_hat = np.fft.fft2(w)
    stream = w_hat / np.where(square > 0, square, 1)
    u, v, w_x, w_y = (
        np.fft.ifft2(1j * k * z).real for k, z in ((y, stream), (-x, stream), (x, w_hat), (y, w_hat))
    )
    smooth = np.maximum(abs(x), abs(y)) <= 2 * pi * 2 / 3 * (size // 2)
    change = np.fft.fft2(f) - smooth * np.fft.fft2(u * w_x + v * w_y)
    diffusion = dt * nu * square / 2
    return np.fft.ifft2(((1 - diffusion) * w_hat + dt * change) / (1 + diffusion)).real


@pytest.mark.parametrize(
    ("scheme", "steps", "expected"), [("euler", (20, 40, 80), 1), ("rk4", (5, 10, 20), 4)]
)
def test_the_error_in_time_falls_at_the_order_of_the_scheme(scheme, steps, expected):
    w = smooth(24)
    exact = solve(w, scheme="rk4", dt=1 / 400)
    errors = [error(solve(w, scheme=scheme, dt=1 / count), exact) for count in steps]
    assert abs(order(steps, errors) - expected) < 0.15, f"order {order(steps, errors):.2f}, errors {errors}"


@pytest.mark.parametrize("scheme", ["euler", "rk4"])
def test_a_taylor_green_vortex_decays_at_its_rate(scheme):
    """w = sin 2πx sin 2πy is advected along itself: exp(−8π²νt) w for all times."""
    x, y = grid(16)
    w = torch.sin(2 * pi * x) * torch.sin(2 * pi * y)
    found = solve(w, still(16), viscosity=0.01, scheme=scheme, dt=1e-3)
    exact = np.exp(-8 * pi**2 * 0.01) * w
    assert error(found, exact) < {"euler": 1e-7, "rk4": 1e-12}[scheme]  # Crank–Nicolson is of order 2


def test_published_steps_agree_with_a_plain_write_up():
    """Also that nothing is transposed: neither flow nor force is symmetric in x and y."""
    x, y = grid(20)
    f = torch.sin(2 * pi * (x + 2 * y)).expand(20, 20)
    w = smooth(20)
    slow = w.numpy()
    for _ in range(5):
        slow = plain_step(slow, f.numpy(), 1e-3, 1e-2)
    found = solve(w, f, interval=0.05, scheme="euler", dt=1e-2)
    np.testing.assert_allclose(found, slow, rtol=0, atol=1e-12)


def test_a_flow_with_all_modes_takes_the_published_step_but_for_the_aliasing_of_the_highest():
    """Products of modes beyond two thirds alias, in each form of the advection in its own way."""
    w = torch.from_numpy(periodic_field(np.random.default_rng(0), 32))
    slow = plain_step(w.numpy(), benchmark_force(32).numpy(), 1e-5, 1e-4)
    found = solve(w, viscosity=1e-5, interval=1e-4, scheme="euler", dt=1e-4)
    assert np.abs(found.numpy() - slow).max() < 1e-6 * np.abs(slow).max()


def test_the_published_scheme_takes_ten_thousand_steps_a_unit_of_time_by_default():
    slow = smooth(16).numpy()
    for _ in range(20):
        slow = plain_step(slow, benchmark_force(16).numpy(), 1e-3, 1e-4)
    found = solve(smooth(16), interval=20e-4, scheme="euler")
    np.testing.assert_allclose(found, slow, rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [8, 9])
def test_the_velocity_is_the_real_part_of_a_complex_transform_with_its_nyquist_modes(size):
    w = torch.from_numpy(
        np.random.default_rng(0).standard_normal((size, size))
    )  # as strong there as anywhere
    k = 2 * pi * torch.fft.fftfreq(size, 1 / size, dtype=torch.float64)
    square = k[:, None] ** 2 + k**2
    stream = torch.fft.fft2(w) / torch.where(square > 0, square, torch.inf)
    expected = [torch.fft.ifft2(1j * k * stream).real, torch.fft.ifft2(-1j * k[:, None] * stream).real]
    found = torch.fft.irfft2(build_flow(still(size), 0.0).curl[:, 0] * torch.fft.rfft2(w), s=(size, size))
    torch.testing.assert_close(found, torch.stack(expected), rtol=0, atol=1e-14)


def test_both_schemes_go_to_the_same_flow():
    w = torch.from_numpy(periodic_field(np.random.default_rng(0), 32))
    ours = solve(w, scheme="rk4")
    apart = [error(solve(w, scheme="euler", dt=1 / steps), ours) for steps in (100, 200)]
    assert apart[1] < 1e-3
    assert apart[0] / apart[1] == pytest.approx(2, abs=0.05)


def test_the_error_in_space_falls_faster_than_any_power():
    """Each doubling of the points gains more than the one before: no order holds it."""
    sizes, fine = (12, 24, 48), solve(smooth(96), viscosity=1e-2, dt=1 / 100)
    every = [96 // size for size in sizes]
    errors = [
        error(solve(smooth(size), viscosity=1e-2, dt=1 / 100), fine[::skip, ::skip])
        for size, skip in zip(sizes, every, strict=True)
    ]
    gains = np.divide(errors[:-1], errors[1:])
    assert gains[0] > 2**5, errors
    assert gains[1] > 2**12, errors


def enstrophy(w: torch.Tensor) -> torch.Tensor:
    return (w**2).mean(dim=(-2, -1)) / 2


def test_enstrophy_changes_by_diffusion_and_force_alone():
    """d/dt ½∫w² = −ν∫|∇w|² + ∫wf at t = 1: central differences in time come to it at order 2."""
    f, nu, gaps, steps = benchmark_force(24), 1e-3, [], (10, 20, 40)
    k = 2 * pi * torch.fft.fftfreq(24, 1 / 24, dtype=torch.float64)
    for count in steps:
        frames = solve_navier_stokes(smooth(24), f, viscosity=nu, frames=count + 1, interval=1 / count)
        before, now, after = frames[..., count - 2 :].unbind(-1)
        slope = ((k[:, None] ** 2 + k**2) * torch.fft.fft2(now).abs() ** 2).sum() / 24**4
        rate = (enstrophy(after) - enstrophy(before)) * count / 2
        gaps.append((rate - (now * f).mean() + nu * slope).abs().item())
    assert abs(order(steps, gaps) - 2) < 0.1, gaps


def test_advection_alone_changes_neither_enstrophy_nor_energy():
    w, flow = smooth(24), build_flow(still(24), 0.0)
    w_hat = torch.fft.rfft2(w)
    tendency = flow.tendency(torch.view_as_real(w_hat[None]))
    change = torch.fft.irfft2(torch.view_as_complex(tendency), s=(24, 24))[0]
    k = 2 * pi * torch.fft.fftfreq(24, 1 / 24, dtype=torch.float64)
    square = k[:, None] ** 2 + k[:13] ** 2
    stream = torch.fft.irfft2(w_hat / torch.where(square > 0, square, torch.inf), s=(24, 24))
    assert change.abs().max() > 0.1
    assert abs((w * change).mean()) < 1e-13
    assert abs((stream * change).mean()) < 1e-13


def test_mean_vorticity_is_conserved():
    w = smooth(24) + 0.7
    for scheme in ("euler", "rk4"):
        assert solve(w, scheme=scheme, dt=1 / 50).mean() == pytest.approx(w.mean().item(), abs=1e-13)


def test_a_shift_of_the_start_and_the_force_shifts_the_flow():
    w, f = smooth(24), benchmark_force(24)
    shifted = solve(w.roll((5, 2), (0, 1)), f.roll((5, 2), (0, 1)))
    torch.testing.assert_close(shifted, solve(w, f).roll((5, 2), (0, 1)))


def samples(seeds, resolution: int) -> tuple[np.ndarray, np.ndarray]:
    return navier_stokes_samples([np.random.default_rng(seed) for seed in seeds], resolution, CPU)


@pytest.mark.parametrize("resolution", [16, 24, 32])
@pytest.mark.usefixtures("one_thread")
def test_a_sample_has_the_same_bytes_alone_and_in_any_batch(resolution):
    a, u = samples(range(3), resolution)
    for batch in ([0], [2], [2, 1]):
        part = samples(batch, resolution)
        np.testing.assert_array_equal(part[0], a[batch])
        np.testing.assert_array_equal(part[1], u[batch])


def test_any_batch_axes_are_kept():
    w = torch.stack([smooth(8), smooth(8).T, -smooth(8)])
    frames = solve_navier_stokes(w[:, None], benchmark_force(8), viscosity=1e-3, frames=2)
    assert frames.shape == (3, 1, 8, 8, 2)
    torch.testing.assert_close(frames[1, 0, ..., 1], solve(w[1], frames=2))


def test_frames_are_the_flow_at_whole_intervals():
    w = smooth(16)
    frames = solve_navier_stokes(w, benchmark_force(16), viscosity=1e-3, frames=3, dt=0.05)
    torch.testing.assert_close(frames[..., 1], solve(frames[..., 0], dt=0.05), rtol=0, atol=1e-13)
    torch.testing.assert_close(frames[..., 2], solve(w, interval=3.0, dt=0.05), rtol=0, atol=1e-13)


def test_float32_follows_float64_to_rounding():
    w = torch.from_numpy(periodic_field(np.random.default_rng(0), 32))
    for scheme, near in (("rk4", 2e-6), ("euler", 1e-4)):
        settings = {"viscosity": 1e-5, "scheme": scheme, "dt": None if scheme == "rk4" else 1e-3}
        found = solve(w.float(), benchmark_force(32).float(), **settings)
        assert found.dtype == torch.float32
        assert error(found.double(), solve(w, **settings)) < near


def test_a_benchmark_sample_has_the_published_magnitudes():
    """Deviation of w about 0.2 at the start; extremes of about 3 at t = 20, which forcing has brought."""
    a, u = samples(range(3), 64)
    assert a.shape == (3, 32, 32)
    assert u.shape == (3, 32, 32, 20)
    assert a.dtype == u.dtype == np.float32
    assert a.std() == pytest.approx(0.2, rel=0.3)
    assert np.abs(u[..., -1]).max() == pytest.approx(3, rel=0.4)


def test_a_sample_is_the_published_flow_at_every_other_point():
    """ν = 1e-5 and f = 0.1 (sin 2π(x + y) + cos 2π(x + y)), marched to t = 1 by 1,000 plain steps of order 1.

    They are 8e-5 off; a viscosity of 2e-5 would be off by 2e-3.
    """
    a, u = samples([5], 32)
    w = periodic_field(np.random.default_rng(5), 32)
    np.testing.assert_allclose(a[0], w[::2, ::2], rtol=0, atol=1e-6)
    i = np.arange(32)
    phase = 2 * pi * (i[:, None] + i) / 32
    for _ in range(1000):
        w = plain_step(w, 0.1 * (np.sin(phase) + np.cos(phase)), 1e-5, 1e-3)
    np.testing.assert_allclose(u[0, ..., 0], w[::2, ::2], rtol=0, atol=2e-4)


@pytest.mark.parametrize(
    ("resolution", "points"), [(256, 64), (128, 64), (192, 64), (64, 32), (16, 8), (512, 64)]
)
def test_fields_are_kept_at_64_points_a_side_or_at_half_of_fewer(resolution, points):
    assert navier_stokes.stored_points(resolution) == points


@pytest.mark.parametrize("resolution", [1, 6, 33, 130, 200])
def test_a_resolution_that_has_no_such_points_is_refused(resolution):
    with pytest.raises(UserError, match=f"resolution {resolution} does not fit"):
        navier_stokes.stored_points(resolution)


@pytest.mark.parametrize("shape", [(8, 9), (16,), (4, 4)])
def test_a_field_that_is_not_on_a_square_grid_is_refused(shape):
    with pytest.raises(UserError, match="one K×K grid"):
        solve_navier_stokes(torch.zeros(shape), torch.zeros(shape[-1], shape[-1]), viscosity=0.1, frames=1)


def test_a_force_on_another_grid_is_refused():
    with pytest.raises(UserError, match=r"got shapes \(16, 16\) and \(8, 8\)"):
        solve(smooth(16), still(8))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_start_or_a_force_that_is_not_finite_is_refused(bad):
    w, f = smooth(8), still(8)
    w[3, 3] = f[3, 3] = bad
    for pair in ((w, still(8)), (smooth(8), f)):
        with pytest.raises(UserError, match="finite vorticity and a finite force"):
            solve(*pair)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"dt": 0.0}, "dt=0.0 does not fit"),
        ({"dt": -0.1}, "above zero"),
        ({"dt": np.nan}, "above zero"),
        ({"dt": 0.3}, "divides 1"),
        ({"viscosity": -1.0}, "viscosity ≥ 0"),
        ({"viscosity": np.nan}, "viscosity ≥ 0"),
        ({"frames": 0}, "frames ≥ 1"),
        ({"interval": 0.0}, "interval above zero"),
        ({"scheme": "rk5"}, "unknown scheme 'rk5'; did you mean 'rk4'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, complaint):
    with pytest.raises(UserError, match=complaint):
        solve(smooth(8), **settings)


def test_a_step_too_large_is_reported_with_the_sample_and_the_time():
    w = torch.stack([still(32), 1e4 * smooth(32)])
    with pytest.raises(SampleError, match=r"not finite at t = 1 with dt = 0.1") as caught:
        solve(w, still(32), dt=0.1, frames=2)
    assert caught.value.index == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("scheme", ["euler", "rk4"])
def test_a_recorded_step_on_a_gpu_gives_the_flow_of_the_cpu(scheme):
    w = torch.stack([torch.from_numpy(periodic_field(np.random.default_rng(seed), 64)) for seed in range(3)])
    settings = {"viscosity": 1e-5, "frames": 2, "scheme": scheme, "dt": 0.01}
    near = solve_navier_stokes(w.cuda(), benchmark_force(64).cuda(), **settings).cpu()
    torch.testing.assert_close(
        near, solve_navier_stokes(w, benchmark_force(64), **settings), rtol=0, atol=1e-10
    )
