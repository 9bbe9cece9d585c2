from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.sparse.linalg import spsolve

from linearno.core.errors import SampleError, UserError
from linearno.solvers import pipe, taylor_hood
from linearno.solvers.linalg.nested_dissection import ELEMENT, is_fixed, plan_merges, solve_by_dissection
from linearno.solvers.pipe import pipe_nodes, pipe_samples, poiseuille, solve_flow, solve_pipe
from linearno.solvers.taylor_hood import Flow, build_mesh, element_systems, newton_step

CPU = torch.device("cpu")
ROUNDING = 1e-13  # of velocities up to one: 500 float64 roundings, where LAPACKs of other hosts leave dozens
HEIGHTS, SLOPES = np.array([0, 0.8, -0.5, 0.3, -0.9]), np.array([0.5, -0.7, 0.2, 0.8, -0.4])


def grid(heights=HEIGHTS, slopes=SLOPES, resolution: int = 17) -> torch.Tensor:
    return torch.from_numpy(pipe_nodes(heights, slopes, resolution))[None]


def samples(seeds, resolution: int = 17, device: torch.device = CPU) -> dict[str, np.ndarray]:
    return pipe_samples([np.random.default_rng(seed) for seed in seeds], resolution, device)


def order(sizes: list[int], errors: list[float]) -> float:
    return -np.polyfit(np.log(sizes), np.log(errors), 1)[0]


def bent_channel(size: int) -> torch.Tensor:
    """Two units long, and no grid line but the outlet is straight."""
    ticks = torch.linspace(0, 1, size, dtype=torch.float64)
    a, b = torch.meshgrid(ticks, ticks, indexing="ij")
    x = 2 * a + 0.1 * torch.sin(torch.pi * a) * torch.cos(2 * b)
    return torch.stack([x, b - 0.5 + 0.2 * torch.sin(3 * a)], dim=-1)[None]


def manufactured(places: torch.Tensor, viscosity: float) -> tuple[torch.Tensor, ...]:
    """Velocity, force and pressure of ψ = (1 + s³) sin 4y, p = 50 s cos 4y, s = 2 − x: no pull at x = 2."""
    x, y = places.unbind(-1)
    s, sine, cosine = 2 - x, (4 * y).sin(), (4 * y).cos()
    g, g1, g2, g3 = 1 + s**3, -3 * s**2, 6 * s, -6.0  # and the derivatives by x
    u, v = 4 * g * cosine, -g1 * sine
    ux, uy, vx, vy = 4 * g1 * cosine, -16 * g * sine, -g2 * sine, -4 * g1 * cosine
    fx = u * ux + v * uy - viscosity * (4 * g2 - 64 * g) * cosine - 50 * cosine
    fy = u * vx + v * vy + viscosity * (g3 - 16 * g1) * sine - 200 * s * sine
    return torch.stack([u, v], dim=-1), torch.stack([fx, fy], dim=-1), 50 * s * cosine


def errors_in_l2(nodes: torch.Tensor, flow: Flow, viscosity: float) -> tuple[float, float]:
    """Of velocity and pressure against `manufactured`, summed at points inside the elements."""
    shapes, area = taylor_hood.shape_functions(CPU), build_mesh(nodes).area
    u, _, p = manufactured(shapes.phi @ taylor_hood._at_element_nodes(nodes), viscosity)
    speed = shapes.phi @ taylor_hood._at_element_nodes(flow.velocity) - u
    push = (shapes.psi @ taylor_hood._at_corners(flow.pressure)[..., None])[..., 0] - p
    return float((speed**2 * area[..., None]).sum().sqrt()), float((push**2 * area).sum().sqrt())


def test_the_flow_through_a_straight_pipe_is_poiseuilles_to_rounding():
    nodes = grid(np.zeros(5), np.zeros(5))
    flow = solve_pipe(nodes)
    x, y = nodes.unbind(-1)
    parabola = torch.stack([0.25 * (1 - 4 * y**2), torch.zeros_like(y)], dim=-1)
    torch.testing.assert_close(flow.velocity, parabola, rtol=0, atol=ROUNDING)
    falls = 8 * 0.25 * 0.005 * (10 - x)[:, ::2, ::2]  # −Δu times the way to the outlet
    torch.testing.assert_close(flow.pressure, falls, rtol=0, atol=1e-13)


def test_order_three_in_velocity_and_two_in_pressure_on_a_manufactured_flow():
    sizes, errors = [8, 16, 32], []
    for size in sizes:
        nodes = bent_channel(2 * size + 1)
        velocity, force, _ = manufactured(nodes, 1.0)
        found = solve_flow(nodes, velocity, viscosity=1.0, force=force)
        errors.append(errors_in_l2(nodes, found, 1.0))
    for part, expected, values in zip(("velocity", "pressure"), (3, 2), np.array(errors).T, strict=True):
        measured = order(sizes, values)
        assert abs(measured - expected) < 0.1, f"{part}: measured order {measured:.2f}, errors {values}"


def scikit_fem_flow(nodes: np.ndarray, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """The slow twin: the same elements assembled by scikit-fem, Newton's steps from rest, a sparse solver."""
    fem = pytest.importorskip("skfem")
    from skfem.helpers import ddot, div, dot, grad, mul

    count = len(nodes) // 2
    flat = fem.MeshQuad2.from_mesh(fem.MeshQuad.init_tensor(*[np.linspace(0, 1, count + 1)] * 2))
    i, j = np.rint(flat.doflocs * 2 * count).astype(int)
    vector, scalar = fem.ElementVector(fem.ElementQuad2()), fem.ElementQuad1()
    speeds = fem.Basis(fem.MeshQuad2(nodes[i, j].T.copy(), flat.t), vector, intorder=6)
    pushes = speeds.with_element(scalar)
    shear = fem.BilinearForm(lambda u, v, w: 0.005 * ddot(grad(u), grad(v))).assemble(speeds)
    divergence = fem.BilinearForm(lambda u, q, w: -div(u) * q).assemble(speeds, pushes)
    bent = fem.BilinearForm(lambda u, v, w: dot(mul(grad(u), w["at"]) + mul(grad(w["at"]), u), v))
    carried = fem.LinearForm(lambda v, w: dot(mul(grad(w["at"]), w["at"]), v))
    i, j = np.rint(fem.Basis(flat, vector).doflocs * 2 * count).astype(int)
    kind = np.zeros(speeds.N, int)
    kind[np.hstack([dofs[1] for dofs in (speeds.nodal_dofs, speeds.facet_dofs, speeds.interior_dofs)])] = 1
    t = j / (2 * count)
    u, p = np.where((i == 0) & (kind == 0), t * (1 - t), 0), np.zeros(pushes.N)
    free = np.flatnonzero(np.append((i > 0) & (t > 0) & (t < 1), np.ones(pushes.N, bool)))
    for _ in range(steps):
        at = speeds.interpolate(u)
        matrix = sp.block_array([[shear + bent.assemble(speeds, at=at), divergence.T], [divergence, None]])
        left = np.append(shear @ u + carried.assemble(speeds, at=at) + divergence.T @ p, divergence @ u)
        change = np.zeros(len(left))
        change[free] = spsolve(matrix.tocsr()[free][:, free].tocsc(), left[free])
        u, p = u - change[: speeds.N], p - change[speeds.N :]
    velocity, pressure = np.zeros(nodes.shape), np.zeros((count + 1, count + 1))
    velocity[i, j, kind] = u
    i, j = np.rint(fem.Basis(flat, scalar).doflocs * count).astype(int)
    pressure[i, j] = p
    return velocity, pressure


def test_agrees_with_scikit_fem_on_the_same_elements():
    velocity, pressure = scikit_fem_flow(grid()[0].numpy(), steps=9)
    flow = solve_pipe(grid())
    np.testing.assert_allclose(flow.velocity[0], velocity, rtol=0, atol=1e-12)
    np.testing.assert_allclose(flow.pressure[0], pressure, rtol=0, atol=1e-12)


def test_the_flux_through_every_column_of_elements_is_that_of_the_inlet():
    nodes = grid(resolution=33)
    ux = solve_pipe(nodes).velocity[0, ..., 0]
    simpson = torch.tensor([1.0, 4.0] * 16 + [1.0], dtype=torch.float64)
    simpson[2:-1:2] = 2
    through = ux @ simpson / 96  # of each section x = const
    columns = (through[:-2:2] + 4 * through[1::2] + through[2::2]) / 6
    torch.testing.assert_close(columns, torch.full_like(columns, 1 / 6), rtol=0, atol=ROUNDING)


def test_the_divergence_is_orthogonal_to_every_pressure():
    nodes = grid()
    flow = solve_pipe(nodes)
    left = element_systems(build_mesh(nodes), flow, 0.005, torch.zeros_like(nodes))[..., 18:, 22]
    total = torch.zeros(9, 9, dtype=torch.float64)
    for at, (i, j) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
        total[i : i + 8, j : j + 8] += left[0, ..., at]
    assert total.abs().max() < 1e-15


def test_newtons_steps_shrink_quadratically():
    nodes = grid()
    flow = Flow(poiseuille(nodes, 0.25), torch.zeros(1, 9, 9, dtype=torch.float64))
    steps = []
    while len(steps) < 8 and (not steps or steps[-1] > 1e-7):
        after = newton_step(build_mesh(nodes), flow, viscosity=0.005, force=torch.zeros_like(nodes))
        steps.append(float((after.velocity - flow.velocity).abs().max()))
        flow = after
    assert len(steps) >= 4
    for before, now in pairwise(steps):
        assert now < 4 * before**2 / 0.25, steps


def test_the_mirror_image_of_a_pipe_has_the_mirror_image_of_its_flow():
    up, down = solve_pipe(grid()), solve_pipe(grid(-HEIGHTS, -SLOPES))
    mirror = torch.tensor([1.0, -1.0], dtype=torch.float64)
    torch.testing.assert_close(down.velocity, up.velocity.flip(2) * mirror, rtol=0, atol=1e-13)
    torch.testing.assert_close(down.pressure, up.pressure.flip(2), rtol=0, atol=1e-13)


def test_dissection_agrees_with_a_solver_of_the_assembled_matrix():
    nodes = grid(resolution=17)[:, :, :9].contiguous()  # 8 × 4 elements
    flow = Flow(poiseuille(nodes, 0.25), torch.zeros(1, 9, 5, dtype=torch.float64))
    systems = element_systems(build_mesh(nodes), flow, 0.005, torch.zeros_like(nodes))
    places = [[[(k, i + 2 * a, j + 2 * b) for k, i, j in ELEMENT] for b in range(4)] for a in range(8)]
    number = {u: at for at, u in enumerate(dict.fromkeys(u for row in places for box in row for u in box))}
    matrix, right = np.zeros((len(number), len(number))), np.zeros(len(number))
    for a in range(8):
        for b in range(4):
            rows = [number[u] for u in places[a][b]]
            right[rows] += systems[0, a, b, :, -1].numpy()
            matrix[np.ix_(rows, rows)] += systems[0, a, b, :, :-1].numpy()
    solution = np.linalg.solve(matrix, right)
    found = solve_by_dissection(systems)[0]
    slow = torch.tensor([[[solution[number[u]] for u in box] for box in row] for row in places])
    torch.testing.assert_close(found, slow, rtol=1e-9, atol=1e-12)
    fixed = [is_fixed(u, 4) for u in places[0][0]]
    assert sum(fixed) == 10  # five nodes of the first element
    assert not found[0, 0, fixed].any()


@pytest.mark.parametrize(("along", "across"), [(2, 2), (4, 16), (16, 2)])
def test_merging_meets_every_inner_unknown_once(along, across):
    merges = plan_merges(along, across)
    boxes, met = along * across, 2 * along * across
    for merge in merges[:-1]:
        boxes //= 2
        met += boxes * merge.inner
    nodes = (2 * along + 1) * (2 * across + 1)
    assert met + len(merges[-1].unknowns) == 2 * nodes + (along + 1) * (across + 1)


def test_a_sample_does_not_depend_on_its_batch():
    alone, together = samples([4]), samples([3, 4, 5])
    for name, one in alone.items():
        np.testing.assert_allclose(one[0], together[name][1], rtol=0, atol=ROUNDING)


def test_the_law_of_the_pipes_has_its_ranges_and_a_fixed_inlet():
    lines = [pipe.draw_centre_line(np.random.default_rng(seed)) for seed in range(500)]
    heights, slopes = (np.array(part) for part in zip(*lines, strict=True))
    assert not heights[:, 0].any()
    assert 0.98 < np.abs(heights).max() <= 1
    assert 0.78 < np.abs(slopes).max() <= 0.8  # ±2 over a piece of 2.5
    np.testing.assert_allclose(heights[:, 1:].std(), 1 / 3**0.5, rtol=0.05)
    x, y = np.moveaxis(grid()[0].numpy(), -1, 0)
    np.testing.assert_array_equal(x, np.broadcast_to(np.linspace(0, 10, 17)[:, None], (17, 17)))
    np.testing.assert_allclose(y[:, -1] - y[:, 0], 1, rtol=1e-14)
    np.testing.assert_allclose(y[::4, 8], HEIGHTS, atol=1e-14)
    fine = pipe_nodes(HEIGHTS, SLOPES, 1025)[:, 512, 1]
    np.testing.assert_allclose((fine[257] - fine[255]) / (20 / 1024), SLOPES[1], atol=5e-3)


def test_random_pipes_flow_as_fast_as_published_ones():
    """The largest ux of published samples lies near 0.29; the inlet has 0.25 and no wall lets through."""
    found = samples(range(6), 33)
    fields = found["Q"]
    peaks = fields[:, 0].max(axis=(1, 2))
    assert ((peaks > 0.26) & (peaks < 0.32)).all(), peaks
    assert (found["draws"] == 1).all()
    assert not fields[:, :2, :, [0, -1]].any()
    across = np.linspace(0, 1, 33)
    np.testing.assert_allclose(fields[:, 0, 0], np.broadcast_to(across * (1 - across), (6, 33)), atol=1e-15)
    assert not fields[:, 1, 0].any()
    np.testing.assert_allclose(fields[:, 2, 1::2], (fields[:, 2, :-1:2] + fields[:, 2, 2::2]) / 2, atol=1e-15)


def test_a_pipe_without_a_flow_is_drawn_again_from_its_own_stream(monkeypatch, caplog):
    solve, calls = pipe._newton, []

    def fails_once(nodes, *rest):
        flow, solved = solve(nodes, *rest)
        calls.append(len(nodes))
        return flow, solved & (torch.tensor([True, False, True]) if len(calls) == 1 else True)

    usual = samples([3, 4, 5])
    monkeypatch.setattr(pipe, "_newton", fails_once)
    found = samples([3, 4, 5])
    assert calls == [3, 1]
    assert found["draws"].tolist() == [1, 2, 1]
    assert "no flow found for 1 of 3 pipes at draw 1; drawn again" in caplog.text
    np.testing.assert_array_equal(found["Q"][[0, 2]], usual["Q"][[0, 2]])
    rng = np.random.default_rng(4)
    pipe.draw_centre_line(rng)
    np.testing.assert_array_equal(found["Y"][1], pipe_nodes(*pipe.draw_centre_line(rng), 17)[..., 1])


def test_a_sample_that_is_never_solved_is_named(monkeypatch, caplog):
    monkeypatch.setattr(pipe, "MAX_NEWTON_STEPS", 1)
    with pytest.raises(SampleError, match="no flow found for 10 random pipes") as caught:
        samples([3, 4], 9)
    assert caught.value.index == 0


def test_a_flow_that_does_not_converge_is_one_line_that_names_the_sample(monkeypatch):
    monkeypatch.setattr(pipe, "MAX_NEWTON_STEPS", 3)
    nodes = torch.cat([grid(np.zeros(5), np.zeros(5)), grid()])
    with pytest.raises(
        SampleError, match=r"did not converge in 3 Newton steps with viscosity 0.005"
    ) as caught:
        solve_pipe(nodes)
    assert caught.value.index == 1


def test_a_grid_that_folds_over_is_refused_with_its_sample():
    folded = grid()
    folded[0, 6] = folded[0, 9]
    with pytest.raises(SampleError, match="the grid folds over itself") as caught:
        solve_pipe(torch.cat([grid(), folded]))
    assert caught.value.index == 1
    with pytest.raises(SampleError, match="the grid folds over itself"):
        solve_pipe(grid().flip(2))
    bent = grid(np.zeros(5), np.zeros(5))
    bent[0, 5, 4, 0] += 0.375  # folds at a node alone
    with pytest.raises(SampleError, match="sample 0: the grid folds over itself"):
        solve_pipe(bent)


@pytest.mark.parametrize(
    "shape", [(1, 17, 17), (1, 17, 15, 2), (1, 16, 17, 2), (1, 3, 17, 2), (1, 17, 17, 3)]
)
def test_nodes_of_another_shape_are_refused(shape):
    with pytest.raises(UserError, match=r"expected nodes \(samples, n, m, 2\)"):
        solve_pipe(torch.zeros(shape))


def test_numbers_that_make_no_flow_are_refused():
    broken = grid()
    broken[0, 3, 4, 1] = torch.nan
    with pytest.raises(SampleError, match="expected finite nodes"):
        solve_pipe(broken)
    with pytest.raises(UserError, match="expected a viscosity above zero"):
        solve_pipe(grid(), viscosity=0.0)
    with pytest.raises(UserError, match=r"at all nodes \(1, 17, 17, 2\)"):
        solve_flow(grid(), torch.zeros(1, 17, 9, 2), viscosity=0.005)
    with pytest.raises(UserError, match=r"expected a finite force at all nodes \(1, 17, 17, 2\), got \(2,\)"):
        solve_flow(grid(), torch.zeros(1, 17, 17, 2), viscosity=0.005, force=torch.zeros(2))


@pytest.mark.parametrize("resolution", [3, 16, 18, 128])
def test_a_resolution_that_is_no_power_of_two_and_one_is_refused(resolution):
    with pytest.raises(UserError, match=f"resolution {resolution} does not fit"):
        samples([0], resolution)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_the_flow_of_the_cpu_to_rounding():
    on_cpu, on_gpu = samples([3, 4]), samples([3, 4], device=torch.device("cuda"))
    for name, values in on_cpu.items():
        np.testing.assert_allclose(values, on_gpu[name], rtol=0, atol=1e-12)
