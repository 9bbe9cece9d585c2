"""Flow around bodies in a channel: drag of a sphere, symmetry, interpolation, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.solids import cube_sphere
from linearno.core.errors import SampleError, UserError
from linearno.solvers import wind_tunnel
from linearno.solvers.lattice_walls import VELOCITIES
from linearno.solvers.surface_distance import ClosedSurface
from linearno.solvers.wind_tunnel import MeanFlow, Tunnel, pressure_drag, solve_wind_tunnel, surface_walls

SPHERE = cube_sphere(10, radius=0.5)
COARSE = Tunnel(
    spacing=0.125, half_width=2.0, height=4.0, below=2.0, upstream=2.0, downstream=3.0,
    speed=1.0, viscosity=0.01, smagorinsky=0.0, slip=0.0, seconds=8.0, lattice_speed=0.1, sponge=1.0,
)  # fmt: skip


def ball(name="ball", shift=(0.0, 0.0, 0.0), scale=1.0):
    return ClosedSurface(scale * SPHERE[0] + shift, SPHERE[1], name)


@pytest.mark.slow
def test_drag_of_a_sphere_at_reynolds_100():
    """C_D = 1.09 in an infinite fluid; 8 cells a diameter and the sides of the channel at 4 add a quarter."""
    flow = solve_wind_tunnel([ball()], COARSE)
    drag = flow.drag[0] / (0.5 * np.pi / 4)
    assert float(drag[-5:].mean()) == pytest.approx(1.37, abs=0.07), drag
    assert float(drag[-5:].mean() / drag[-15:-10].mean()) == pytest.approx(1, abs=0.02)


def test_the_flow_around_a_sphere_stagnates_in_front_and_is_symmetric():
    tunnel = replace(
        COARSE, half_width=1.25, height=2.5, below=1.25, upstream=1.5, downstream=2.0, seconds=2.0
    )
    surface = ball()
    flow = solve_wind_tunnel([surface], tunnel)
    pressure = flow.surface_pressure(0, surface)
    front = surface.vertices[pressure.argmax()]
    assert front[2] < -0.45
    mirrored = (
        np.lexsort(np.round(surface.vertices * [1, -1, 1], 6).T),
        np.lexsort(np.round(surface.vertices, 6).T),
    )
    np.testing.assert_allclose(pressure[mirrored[0]], pressure[mirrored[1]], atol=1e-4)
    assert pressure_drag(surface, pressure) > 0
    velocity = flow.velocity(0, np.array([[0.7, 0.2, 0.3], [-0.7, 0.2, 0.3]]))
    np.testing.assert_allclose(velocity[0], velocity[1] * [-1, 1, 1], atol=1e-6)
    assert velocity[0, 2] > 1  # faster beside the body


def test_fields_are_interpolated_between_fluid_cells_only():
    tunnel = Tunnel(spacing=0.5, half_width=2.0, height=2.0, below=1.0, upstream=1.0, downstream=1.0)
    x, y, z = (torch.from_numpy(tunnel.centres(axis)[1:-1]) for axis in range(3))
    linear = torch.stack(torch.meshgrid(x, y, z, indexing="ij"))
    fields = torch.cat([linear[:1] + 2 * linear[1:2] - linear[2:], linear])[None].float()
    fluid = torch.ones(1, *tunnel.shape, dtype=torch.bool)
    flow = MeanFlow(tunnel, fields, fluid, torch.zeros(1, 1))
    points = np.array([[0.6, 0.1, -0.3], [1.2, -0.4, 0.2]])
    exact = np.concatenate([points @ [[1], [2], [-1]], points], axis=1)
    np.testing.assert_allclose(flow.at(0, points), exact, atol=1e-6)
    fluid[0, 0], fields[0, :, 0] = False, 1e9  # a body in the first cells along x
    assert flow.at(0, points)[0].isfinite().all()
    assert flow.at(0, points)[0, 1] == pytest.approx(0.75)
    assert flow.at(0, np.array([[0.1, 0.1, 0.1]])).isnan().all()


def test_walls_lie_at_the_surface():
    whole = replace(COARSE, symmetric=False)
    walls = surface_walls(ball(), whole)
    volume = walls.solid.sum() * COARSE.spacing**3
    assert volume == pytest.approx(np.pi / 6, rel=0.06)
    centre = (walls.cell - 0.5) * COARSE.spacing + whole.origin
    np.testing.assert_allclose(walls.normal, centre / np.linalg.norm(centre, axis=1)[:, None], atol=0.15)
    step = np.array(VELOCITIES)[walls.direction] * COARSE.spacing * walls.distance[:, None]
    np.testing.assert_allclose(np.linalg.norm(centre + step, axis=1), 0.5, atol=0.03)


@pytest.mark.parametrize(("surface", "tunnel", "message"), [
    (ball(scale=6), COARSE, "ball extends from -3 to 3 m along x, and the channel has room from -1.5 to 1.5"),
    (ball(shift=(0.3, 0, 0)), COARSE, r"ball extends from -0.2 to 0.8 m along x; half of the channel needs"),
    (ball(shift=(0, 1.2, 0)), COARSE, "ball extends from 0.7 to 1.7 m along y"),
    (ball(), replace(COARSE, spacing=0.25), r"cells of 0.25 m are too coarse for ball, which is 1 m across; "
     r"cells of 0.125 m or smaller would do"),
])  # fmt: skip
def test_bodies_that_do_not_fit_are_refused_before_the_solution(surface, tunnel, message, monkeypatch):
    monkeypatch.setattr(wind_tunnel, "LatticeFlow", None)
    with pytest.raises(UserError, match=message):
        solve_wind_tunnel([surface], tunnel)


def test_a_run_that_diverges_names_its_body(monkeypatch):
    tunnel = replace(
        COARSE, half_width=1.25, height=2.5, below=1.25, upstream=1.5, downstream=1.5, seconds=1.0,
        viscosity=0.0, lattice_speed=0.3,
    )  # fmt: skip
    still = replace(tunnel, lattice_speed=0.05, seconds=0.2)
    assert solve_wind_tunnel([ball()], still).fields.isfinite().any()
    walls = wind_tunnel.surface_walls

    def broken(surface, tunnel):
        found = walls(surface, tunnel)
        return found if surface.name == "first" else replace(found, slip=1e4)

    monkeypatch.setattr(wind_tunnel, "surface_walls", broken)
    with pytest.raises(SampleError, match="the flow around second diverged") as caught:
        solve_wind_tunnel([ball("first"), ball("second")], tunnel)
    assert caught.value.index == 1
