"""The lattice Boltzmann method: order, conservation, walls, symmetry, and its fused kernels."""

from itertools import product
from math import pi

import numpy as np
import pytest
import torch

from linearno.core.errors import UserError
from linearno.solvers.lattice_boltzmann import VELOCITIES, WEIGHTS, LatticeFlow, equilibrium
from linearno.solvers.lattice_walls import walls_from_distance

PERIODIC = ("periodic",) * 6
CHANNEL = ("mirror", "damped", "damped", "mirror", "inlet", "outlet")


def taylor_green(n, viscosity=0.02):
    """Error of decaying vortices at half of their decay time, with velocity ∝ 1/n."""
    speed = 0.8 / n
    x = (torch.arange(n, dtype=torch.float64) + 0.5) * 2 * pi / n
    a, b = torch.meshgrid(x, x, indexing="ij")
    u, v = speed * a.cos() * b.sin(), -speed * a.sin() * b.cos()
    r = -0.75 * speed**2 * ((2 * a).cos() + (2 * b).cos())
    start = torch.stack([r, 0 * u, u, v])[:, None].expand(4, 2, n, n)
    flow = LatticeFlow((2, n, n), PERIODIC, viscosity=viscosity, initial=start, dtype=torch.float64)
    mass = flow.moments()[0, 0].sum()
    rate = 2 * viscosity * (2 * pi / n) ** 2
    steps = round(0.5 / rate)
    flow.run(steps)
    found = flow.moments()[0]
    assert abs(found[0].sum() - mass) < 1e-12 * n**2
    exact = torch.stack([u, v])[:, None] * np.exp(-rate * steps)
    return float((found[2:] - exact).norm() / exact.expand_as(found[2:]).norm())


def test_taylor_green_vortices_decay_with_second_order_and_conserve_mass():
    errors = [taylor_green(n) for n in (8, 16, 32)]
    assert np.log2(errors[1] / errors[2]) == pytest.approx(2, abs=0.05), errors
    assert errors[2] < 0.007


def pipe(radius, viscosity=0.05):
    """Relative error of the decay rate of flow in a circular pipe, between curved walls."""
    n = int(2 * radius + 6)
    x = np.arange(-1, n + 1) + 0.5 - n / 2 + 0.137
    a, b = np.meshgrid(x, x, indexing="ij")
    distance = np.repeat((radius - np.hypot(a, b))[:, :, None], 4, axis=2)
    walls = walls_from_distance(distance, np.zeros((*distance.shape, 3)))
    start = torch.zeros(4, n, n, 2, dtype=torch.float64)
    start[3] = 0.02 * torch.from_numpy(np.clip(distance[1:-1, 1:-1, 1:-1], 0, None)) / radius
    flow = LatticeFlow(
        (n, n, 2), PERIODIC, walls=[walls], viscosity=viscosity, initial=start, dtype=torch.float64
    )
    fluid = torch.from_numpy(~walls.solid[1:-1, 1:-1, 1:-1])
    steps = int(0.3 * radius**2 / viscosity / 5.783)
    flow.run(2 * steps)  # higher modes decay at least five times as fast
    before = flow.moments()[0][:, fluid].mean(dim=1)
    flow.run(steps)
    after = flow.moments()[0][:, fluid].mean(dim=1)
    assert abs(after[0] - before[0]) < 1e-5
    rate = float(torch.log(before[3] / after[3])) / steps
    return abs(rate / (viscosity * (2.404826 / radius) ** 2) - 1)


def test_flow_between_curved_walls_decays_at_the_exact_rate():
    assert pipe(4.3) < 0.012  # 9 % with walls half-way between cells
    assert pipe(8.6) < 0.004


def ball(shape, centre, radius):
    """Walls of a sphere, in cells."""
    axes = [np.arange(-1, size + 1) + 0.5 - middle for size, middle in zip(shape, centre, strict=True)]
    position = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
    gap = np.linalg.norm(position, axis=-1)
    return walls_from_distance(gap - radius, position / gap[..., None], slip=0.1)


def channel(shape=(7, 9, 14), flows=2, **options):
    walls = [ball(shape, (0, 4.3 + flow, 5.2), 2.7) for flow in range(flows)]
    return LatticeFlow(
        shape, CHANNEL, walls=walls, viscosity=0.01, smagorinsky=0.17, speed=0.1, sponge=3, **options
    )


def test_mirror_images_of_bodies_have_mirrored_flows():
    """A half with a plane of symmetry equals the whole; a body above equals one below."""
    sides = ("damped", "damped", "damped", "damped", "inlet", "outlet")
    shape = (12, 9, 14)
    settings = {"viscosity": 0.01, "smagorinsky": 0.17, "speed": 0.1, "dtype": torch.float64}
    walls = [ball(shape, (6, y, 5.2), 2.7) for y in (4.0, 5.0)]
    whole = LatticeFlow(shape, sides, walls=walls, **settings)
    half = LatticeFlow(
        (6, 9, 14), ("mirror", *sides[1:]), walls=[ball((6, 9, 14), (0, 4.0, 5.2), 2.7)], **settings
    )
    whole.run(40)
    half.run(40)
    both = whole.moments()
    fluid = torch.from_numpy(~walls[0].solid[1:-1, 1:-1, 1:-1])
    sign = torch.tensor([1, 1, -1, 1.0], dtype=torch.float64)[:, None, None, None]
    torch.testing.assert_close(both[0] * fluid, both[1].flip(2) * sign * fluid, rtol=0, atol=1e-13)
    torch.testing.assert_close((both[0] * fluid)[:, 6:], half.moments()[0] * fluid[6:], rtol=0, atol=1e-13)
    force = whole.forces()
    assert abs(force[0, 0]) < 1e-13
    assert force[0, 1] == pytest.approx(-float(force[1, 1]), abs=1e-13)
    assert 2 * half.forces()[0, 2] == pytest.approx(float(force[0, 2]), rel=1e-10)


def test_a_flow_does_not_depend_on_the_others_of_its_batch():
    alone, together = channel(flows=1, dtype=torch.float64), channel(flows=2, dtype=torch.float64)
    alone.run(25)
    together.run(25)
    assert torch.equal(alone.moments()[0], together.moments()[0])


def test_an_undisturbed_stream_is_steady():
    flow = LatticeFlow((4, 5, 9), CHANNEL, viscosity=0.01, speed=0.1, sponge=3, dtype=torch.float64)
    flow.run(30)
    still = torch.tensor([0, 0, 0, 0.1], dtype=torch.float64)[:, None, None, None].expand(4, 4, 5, 9)
    torch.testing.assert_close(flow.moments()[0], still, rtol=0, atol=1e-14)


def test_the_equilibrium_has_the_moments_of_its_state():
    u = (0.03, -0.02, 0.05)
    g = np.array(equilibrium(0.01, u)) + WEIGHTS
    c = np.array(VELOCITIES)
    assert g.sum() == pytest.approx(1.01)
    np.testing.assert_allclose(g @ c, u, atol=1e-15)
    stress = np.einsum("q,qa,qb->ab", g, c, c)
    np.testing.assert_allclose(stress, np.outer(u, u) + 1.01 / 3 * np.eye(3), atol=1e-15)


def test_fused_kernels_agree_with_plain_pytorch():
    pytest.importorskip("triton")
    fused, plain = channel(backend="kernel"), channel(backend="plain")
    exact = channel(dtype=torch.float64)
    for flow in (fused, plain, exact):
        flow.run(5)
    fluid = torch.from_numpy(~ball((7, 9, 14), (0, 4.3, 5.2), 2.7).solid[1:-1, 1:-1, 1:-1])
    error, rounding = (
        ((flow.moments()[0] - exact.moments()[0]) * fluid).abs().max() for flow in (fused, plain)
    )
    assert error < max(3 * rounding, 3e-7), (error, rounding)
    torch.testing.assert_close(fused.forces(), plain.forces(), rtol=1e-4, atol=1e-6)


def test_kernels_of_periodic_flows_agree_with_plain_pytorch():
    pytest.importorskip("triton")
    torch.manual_seed(0)
    start = 0.02 * torch.randn(4, 3, 5, 4, dtype=torch.float64)
    flows = [
        LatticeFlow((3, 5, 4), PERIODIC, viscosity=0.03, smagorinsky=0.1, initial=start, backend=name)
        for name in ("kernel", "plain")
    ]
    for flow in flows:
        flow.run(4)
    torch.testing.assert_close(flows[0].moments(), flows[1].moments(), rtol=0, atol=1e-7)


@pytest.mark.parametrize(("options", "message"), [
    ({"speed": 0.5}, "expected 0 to 0.3"),
    ({"sides": ("mirror", "open", *PERIODIC[2:])}, "unknown side 'open'"),
])  # fmt: skip
def test_impossible_settings_are_refused_in_one_line(options, message):
    settings = {"shape": (3, 3, 3), "sides": PERIODIC, "viscosity": 0.1} | options
    with pytest.raises(UserError, match=message):
        LatticeFlow(**settings)


def test_every_velocity_is_followed_or_preceded_by_its_opposite():
    assert len({*VELOCITIES}) == 19
    assert {c for c in product((-1, 0, 1), repeat=3) if np.abs(c).sum() < 3} == {*VELOCITIES}
    for q in range(1, 19, 2):
        assert np.add(VELOCITIES[q], VELOCITIES[q + 1]).tolist() == [0, 0, 0]


def test_populations_inside_of_bodies_are_cleared():
    flow = channel(flows=2)
    flow.run(99)
    inside = torch.stack([torch.from_numpy(ball((7, 9, 14), (0, 4.3 + i, 5.2), 2.7).solid) for i in range(2)])
    populations = flow.populations.transpose(1, 0)
    assert populations[:, inside].abs().max() > 0
    flow.run(1)
    assert not flow.populations.transpose(1, 0)[:, inside].any()
