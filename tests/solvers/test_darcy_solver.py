import numpy as np
import pytest
import scipy.sparse as sp
import torch
from numpy import cos, pi, sin
from scipy.fft import dstn
from scipy.sparse.linalg import spsolve

from linearno.core.errors import SampleError, UserError
from linearno.solvers import darcy
from linearno.solvers.darcy import darcy_samples, spline_matrix

CPU = torch.device("cpu")


def samples(seeds, resolution: int, device: torch.device = CPU) -> tuple[np.ndarray, np.ndarray]:
    return darcy_samples([np.random.default_rng(seed) for seed in seeds], resolution, device)


def solve_darcy(a: np.ndarray, f: np.ndarray) -> np.ndarray:
    return darcy.solve_darcy(torch.from_numpy(a), torch.from_numpy(f)).numpy()


def solve_at_cell_centres(a: np.ndarray, f: np.ndarray) -> np.ndarray:
    return darcy.solve_at_cell_centres(torch.from_numpy(a), torch.from_numpy(f)).numpy()


def assembled(a: np.ndarray) -> sp.csc_array:
    """The slow twin: the five-point matrix written out node by node."""
    size = len(a)
    matrix = sp.lil_array(((size - 2) ** 2, (size - 2) ** 2))
    for i in range(1, size - 1):
        for j in range(1, size - 1):
            row = (i - 1) * (size - 2) + j - 1
            for k, m in ((i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1)):
                face = (size - 1) ** 2 * (a[i, j] + a[k, m]) / 2
                matrix[row, row] += face
                if 0 < k < size - 1 and 0 < m < size - 1:
                    matrix[row, (k - 1) * (size - 2) + m - 1] -= face
    return matrix.tocsc()


def plain_solve(a: np.ndarray, f: np.ndarray) -> np.ndarray:
    """The numpy twin for one sample: the same iteration, with scipy's sine transform."""
    size = len(a)
    rows, columns = (a[1:] + a[:-1])[:, 1:-1] / 2, (a[:, 1:] + a[:, :-1])[1:-1] / 2
    one = (2 * (size - 1) * sin(np.arange(1, size - 1) * pi / (2 * (size - 1)))) ** 2

    def operator(u):
        x, y = rows * np.diff(u, axis=0, prepend=0, append=0), columns * np.diff(u, prepend=0, append=0)
        return -((size - 1) ** 2) * (np.diff(x, axis=0) + np.diff(y))

    def precondition(f):
        return dstn(dstn(f, type=1, norm="ortho") / (one[:, None] + one), type=1, norm="ortho")

    residual = f[1:-1, 1:-1].copy()
    u, direction, last = np.zeros_like(residual), np.zeros_like(residual), np.inf
    target = 1e-10 * np.linalg.norm(residual)
    while np.linalg.norm(residual) > target:
        correction = precondition(residual)
        now = np.vdot(residual, correction)
        direction = correction + now / last * direction
        image = operator(direction)
        step = now / np.vdot(direction, image)
        u, residual, last = u + step * direction, residual - step * image, now
    return np.pad(u, 1)


def manufactured(points: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """u = sin πx sin 2πy and a = 1 + x + 2y² give f by hand."""
    x, y = np.meshgrid(points, points, indexing="ij")
    u, a = sin(pi * x) * sin(2 * pi * y), 1 + x + 2 * y**2
    drift = pi * cos(pi * x) * sin(2 * pi * y) + 8 * pi * y * sin(pi * x) * cos(2 * pi * y)
    return u, a, 5 * pi**2 * a * u - drift


def order(sizes: list[int], errors: list[float]) -> float:
    return -np.polyfit(np.log(sizes), np.log(errors), 1)[0]


def test_second_order_on_a_manufactured_solution():
    """In a batch whose other sample is the transposed problem."""
    sizes, errors = [16, 32, 64, 128], []
    for intervals in sizes:
        u, a, f = manufactured(np.linspace(0, 1, intervals + 1))
        both = solve_darcy(np.stack([a, a.T]), np.stack([f, f.T]))
        errors.append(np.abs(both - np.stack([u, u.T])).max())
    assert abs(order(sizes, errors) - 2) < 0.1, f"order {order(sizes, errors):.2f}, errors {errors}"


def test_published_pipeline_is_second_order_between_cell_centres_of_a_smooth_coefficient():
    """Also that nothing is transposed on the way: the solution is not symmetric in x and y."""
    sizes, errors = [32, 64, 128, 256], []
    for cells in sizes:
        u, a, f = manufactured((np.arange(cells) + 0.5) / cells)
        errors.append(np.abs(solve_at_cell_centres(a, f) - u).max())
    assert abs(order(sizes, errors) - 2) < 0.1, f"order {order(sizes, errors):.2f}, errors {errors}"


def test_agrees_with_a_direct_solve_of_the_assembled_matrix():
    rng = np.random.default_rng(0)
    a, f = rng.choice([3.0, 12.0], (23, 23)), rng.standard_normal((23, 23))
    direct = np.pad(spsolve(assembled(a), f[1:-1, 1:-1].ravel()).reshape(21, 21), 1)
    np.testing.assert_allclose(solve_darcy(a, f), direct, rtol=0, atol=1e-8 * np.abs(direct).max())


def test_benchmark_coefficients_below_zero_on_the_border_are_solved_as_the_recipe_does():
    to_nodes, to_centres = (matrix.numpy() for matrix in darcy._spline_matrices(17, CPU))
    for coeff, sol in zip(*samples(range(20), 17), strict=True):
        nodes = to_nodes @ coeff @ to_nodes.T
        u = np.pad(spsolve(assembled(nodes), np.ones(15 * 15)).reshape(15, 15), 1)
        np.testing.assert_allclose(sol, to_centres @ u @ to_centres.T, rtol=0, atol=1e-8 * u.max())


def inner(count: int, size: int) -> torch.Tensor:
    """Noise that is zero on the border."""
    noise = torch.from_numpy(np.random.default_rng(0).standard_normal((count, size - 2, size - 2)))
    return torch.nn.functional.pad(noise, (1, 1, 1, 1))


def test_operator_is_symmetric():
    a = torch.from_numpy(np.random.default_rng(1).uniform(1, 9, (15, 15)))
    faces = darcy.face_coefficients(a)
    u, v = inner(2, 15)
    left, right = (u * darcy.apply_darcy(faces, v)).sum(), (darcy.apply_darcy(faces, u) * v).sum()
    assert left.item() == pytest.approx(right.item(), rel=1e-12)


def test_preconditioner_inverts_the_operator_of_a_constant_coefficient():
    u = inner(3, 15)
    f = darcy.apply_darcy(darcy.face_coefficients(torch.ones(3, 15, 15, dtype=torch.float64)), u)
    torch.testing.assert_close(darcy.solve_poisson(f, darcy.inverse_eigenvalues(15, CPU)), u)


def test_sine_transform_is_that_of_scipy_transposed():
    u = inner(3, 15)
    expected = dstn(u.numpy()[:, 1:-1, 1:-1], type=1, axes=(1, 2)) / 4
    np.testing.assert_allclose(darcy.sine_transform(u).mT[:, 1:-1, 1:-1], expected, atol=1e-12)


def test_pressure_is_positive_inside_zero_on_the_border_and_falls_as_the_medium_opens():
    rng = np.random.default_rng(0)
    a, ones = rng.choice([3.0, 12.0], (33, 33)), np.ones((33, 33))
    u, easier = solve_darcy(a, ones), solve_darcy(2 * a, ones)
    assert u[1:-1, 1:-1].min() > 0
    assert not np.any([u[0], u[-1], u[:, 0], u[:, -1]])
    np.testing.assert_allclose(easier, u / 2, atol=1e-9 * u.max())


def test_iterations_do_not_grow_with_the_resolution(monkeypatch):
    monkeypatch.setattr(darcy, "MAX_ITERATIONS", 40)
    for resolution in (17, 65, 257):
        samples([1], resolution)


def test_spline_reproduces_cubics_within_and_beyond_its_points():
    source, target = np.linspace(0.1, 0.9, 9), np.linspace(0, 1, 23)
    for power in range(4):
        np.testing.assert_allclose(spline_matrix(source, target) @ source**power, target**power, atol=1e-13)


def test_benchmark_sample_has_the_two_permeabilities_and_the_published_magnitudes():
    """The published file: 5.17e-5 on the border and 6.95e-3 inside, means over its samples, at 421."""
    coeff, sol = samples(range(2), 421)
    assert all(set(np.unique(a)) == {3.0, 12.0} for a in coeff)
    border = np.mean([np.abs([u[0], u[-1], u[:, 0], u[:, -1]]).mean() for u in sol])
    inside = np.mean([np.sqrt((u[1:-1, 1:-1] ** 2).mean()) for u in sol])
    assert border == pytest.approx(5.17e-5, rel=0.15)
    assert inside == pytest.approx(6.95e-3, rel=0.15)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_a_coefficient_that_is_not_positive_and_finite_is_refused(bad):
    a = np.ones((9, 9))
    a[4, 4] = bad
    with pytest.raises(UserError, match="coefficient above zero"):
        solve_darcy(a, np.ones((9, 9)))


def test_a_right_hand_side_that_is_not_finite_is_refused():
    with pytest.raises(UserError, match="right-hand side"):
        solve_darcy(np.ones((9, 9)), np.full((9, 9), np.nan))


def test_a_solve_that_does_not_converge_says_which_sample_it_was(monkeypatch):
    monkeypatch.setattr(darcy, "MAX_ITERATIONS", 3)
    with pytest.raises(UserError, match="did not converge in 3 iterations"):
        samples([0], 33)
    ones = torch.ones(4, 33, 33, dtype=torch.float64)
    a = ones.clone()
    a[2, 9:, 9:] = 100
    with pytest.raises(SampleError, match="from 1 to 100") as caught:
        darcy.solve_darcy(a.reshape(2, 2, 33, 33), ones.reshape(2, 2, 33, 33))
    assert caught.value.index == 2


def test_a_resolution_too_small_for_the_spline_is_refused():
    with pytest.raises(UserError, match="at least 5"):
        samples([0], 4)


def test_agrees_with_the_numpy_twin():
    rng = np.random.default_rng(0)
    a, f = rng.choice([3.0, 12.0], (3, 65, 65)), rng.standard_normal((3, 65, 65))
    plain = np.stack([plain_solve(*pair) for pair in zip(a, f, strict=True)])
    assert np.linalg.norm(solve_darcy(a, f) - plain) < 1e-12 * np.linalg.norm(plain)


@pytest.mark.parametrize("resolution", [17, 65])
@pytest.mark.usefixtures("one_thread")
def test_a_sample_has_the_same_bytes_alone_and_in_any_batch(resolution):
    coeff, sol = samples(range(5), resolution)
    for batch in ([0], [3], [4, 1], [2, 0, 3]):
        part = samples(batch, resolution)
        np.testing.assert_array_equal(part[0], coeff[batch])
        np.testing.assert_array_equal(part[1], sol[batch])


@pytest.mark.parametrize("every", [1, 4, 7])
@pytest.mark.usefixtures("one_thread")
def test_easy_samples_keep_their_bytes_while_hard_ones_go_on(monkeypatch, every):
    """Zero iterations, one, and many; asked after each or, as on a GPU, now and then."""
    monkeypatch.setattr(darcy, "CHECK_EVERY", every)
    monkeypatch.setattr(darcy, "_is_asynchronous", lambda device: True)
    a, f = torch.ones(3, 17, 17, dtype=torch.float64), torch.ones(3, 17, 17, dtype=torch.float64)
    f[0], a[2, 5:, 5:] = 0, 50.0
    u = darcy.solve_darcy(a, f)
    assert not u[0].any()
    monkeypatch.undo()
    for i in range(3):
        torch.testing.assert_close(darcy.solve_darcy(a[i], f[i]), u[i], rtol=0, atol=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_the_same_coefficients_and_the_same_solutions_to_rounding():
    (coeff, sol), (same, near) = samples(range(5), 129), samples(range(5), 129, torch.device("cuda"))
    np.testing.assert_array_equal(coeff, same)
    assert np.linalg.norm(near - sol) < 1e-9 * np.linalg.norm(sol)
