import numpy as np
import pytest
import scipy.sparse as sp
from numpy import cos, pi, sin
from scipy.sparse.linalg import spsolve

from linearno.core.errors import UserError
from linearno.solvers import darcy
from linearno.solvers.darcy import darcy_sample, solve_between_centres, solve_darcy, spline_matrix


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


def manufactured(points: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """u = sin πx sin 2πy and a = 1 + x + 2y² give f by hand."""
    x, y = np.meshgrid(points, points, indexing="ij")
    u, a = sin(pi * x) * sin(2 * pi * y), 1 + x + 2 * y**2
    drift = pi * cos(pi * x) * sin(2 * pi * y) + 8 * pi * y * sin(pi * x) * cos(2 * pi * y)
    return u, a, 5 * pi**2 * a * u - drift


def order(sizes: list[int], errors: list[float]) -> float:
    return -np.polyfit(np.log(sizes), np.log(errors), 1)[0]


def test_second_order_on_a_manufactured_solution():
    sizes, errors = [16, 32, 64, 128], []
    for intervals in sizes:
        u, a, f = manufactured(np.linspace(0, 1, intervals + 1))
        errors.append(np.abs(solve_darcy(a, f) - u).max())
    assert abs(order(sizes, errors) - 2) < 0.1, f"order {order(sizes, errors):.2f}, errors {errors}"


def test_published_pipeline_is_second_order_between_cell_centres_of_a_smooth_coefficient():
    """Also that nothing is transposed on the way: the solution is not symmetric in x and y."""
    sizes, errors = [32, 64, 128, 256], []
    for cells in sizes:
        u, a, f = manufactured((np.arange(cells) + 0.5) / cells)
        errors.append(np.abs(solve_between_centres(a, f) - u).max())
    assert abs(order(sizes, errors) - 2) < 0.1, f"order {order(sizes, errors):.2f}, errors {errors}"


def test_agrees_with_a_direct_solve_of_the_assembled_matrix():
    rng = np.random.default_rng(0)
    a, f = rng.choice([3.0, 12.0], (23, 23)), rng.standard_normal((23, 23))
    direct = np.pad(spsolve(assembled(a), f[1:-1, 1:-1].ravel()).reshape(21, 21), 1)
    np.testing.assert_allclose(solve_darcy(a, f), direct, rtol=0, atol=1e-8 * np.abs(direct).max())


def test_benchmark_coefficients_below_zero_on_the_border_are_solved_as_the_recipe_does():
    for seed in range(20):
        coeff, sol = darcy_sample(np.random.default_rng(seed), 17)
        to_nodes, to_centres = darcy._between(17)
        nodes = to_nodes @ coeff @ to_nodes.T
        u = np.pad(spsolve(assembled(nodes), np.ones(15 * 15)).reshape(15, 15), 1)
        np.testing.assert_allclose(sol, to_centres @ u @ to_centres.T, rtol=0, atol=1e-8 * u.max())


def test_operator_is_symmetric():
    rng = np.random.default_rng(0)
    faces = darcy.face_coefficients(rng.uniform(1, 9, (15, 15)))
    u, v = rng.standard_normal((2, 13, 13))
    left, right = np.vdot(u, darcy.apply_darcy(faces, v)), np.vdot(darcy.apply_darcy(faces, u), v)
    assert left == pytest.approx(right, rel=1e-12)


def test_preconditioner_inverts_the_operator_of_a_constant_coefficient():
    u = np.random.default_rng(0).standard_normal((13, 13))
    f = darcy.apply_darcy(darcy.face_coefficients(np.ones((15, 15))), u)
    np.testing.assert_allclose(darcy.solve_poisson(f, darcy.poisson_eigenvalues(13)), u, atol=1e-12)


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
        darcy_sample(np.random.default_rng(1), resolution)


def test_spline_reproduces_cubics_within_and_beyond_its_points():
    source, target = np.linspace(0.1, 0.9, 9), np.linspace(0, 1, 23)
    for power in range(4):
        np.testing.assert_allclose(spline_matrix(source, target) @ source**power, target**power, atol=1e-13)


def test_benchmark_sample_has_the_two_permeabilities_and_the_published_magnitudes():
    """The published file: 5.17e-5 on the border and 6.95e-3 inside, means over its samples, at 421."""
    samples = [darcy_sample(np.random.default_rng(seed), 421) for seed in range(2)]
    assert all(set(np.unique(coeff)) == {3.0, 12.0} for coeff, _ in samples)
    border = np.mean([np.abs([u[0], u[-1], u[:, 0], u[:, -1]]).mean() for _, u in samples])
    inside = np.mean([np.sqrt((u[1:-1, 1:-1] ** 2).mean()) for _, u in samples])
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


def test_a_solve_that_does_not_converge_says_so(monkeypatch):
    monkeypatch.setattr(darcy, "MAX_ITERATIONS", 3)
    with pytest.raises(UserError, match="did not converge in 3 iterations"):
        darcy_sample(np.random.default_rng(0), 33)


def test_a_resolution_too_small_for_the_spline_is_refused():
    with pytest.raises(UserError, match="at least 5"):
        darcy_sample(np.random.default_rng(0), 4)
