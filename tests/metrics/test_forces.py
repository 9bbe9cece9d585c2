"""Forces on cylinders: exact potential flows for the pressure, a shear flow for the friction."""

import math

import numpy as np
import pytest
import torch

from linearno.metrics import lift_and_drag, wall_force

RADIUS = 0.5


def ring(sectors: int, layers: int = 3, height: float = 0.02, centre: tuple[float, float] = (0.3, -0.2)):
    """Nodes and quadrilaterals around a cylinder, half of them clockwise; the wall is the first ring."""
    angle = torch.arange(sectors, dtype=torch.float64) * 2 * math.pi / sectors
    radius = RADIUS + height * torch.arange(layers, dtype=torch.float64)
    unit = torch.stack([angle.cos(), angle.sin()], dim=-1)
    nodes = (radius[:, None, None] * unit).flatten(0, 1) + torch.tensor(centre, dtype=torch.float64)
    number = torch.arange(layers * sectors).reshape(layers, sectors)
    corners = [number[:-1], number[:-1].roll(-1, 1), number[1:].roll(-1, 1), number[1:]]
    quads = torch.stack([part.flatten() for part in corners], dim=-1)
    quads[::2] = quads[::2].flip(1).roll(1, 1)
    return (
        nodes,
        quads,
        torch.arange(len(nodes)) < sectors,
        angle.repeat(layers),
        radius.repeat_interleave(sectors),
    )


def potential_pressure(z: np.ndarray, speed: float, angle: float, circulation: float) -> torch.Tensor:
    """p/ρ of the flow past a cylinder at 0 with this clockwise circulation."""
    velocity = speed * np.exp(-1j * angle) - speed * np.exp(1j * angle) * RADIUS**2 / z**2
    velocity = velocity + 1j * circulation / (2 * np.pi * z)
    return torch.from_numpy((speed**2 - abs(velocity) ** 2) / 2)


def forces_past_a_cylinder(sectors: int, speed: float, angle: float, circulation: float):
    nodes, quads, wall, theta, radius = ring(sectors)
    pressure = potential_pressure((radius * torch.exp(1j * theta)).numpy(), speed, angle, circulation)
    force = wall_force(nodes, quads, wall, pressure, torch.zeros_like(nodes), viscosity=1.0)
    stream = torch.tensor([[speed], [angle]], dtype=torch.float64)
    return lift_and_drag(force.total, *stream)


def test_a_cylinder_with_circulation_has_the_lift_of_kutta_and_joukowski_and_no_drag():
    speed, angle, circulation = 30.0, 0.15, 12.0
    exact = 2 * circulation / speed  # of ρ U Γ
    errors = []
    for sectors in (40, 80):
        lift, drag = forces_past_a_cylinder(sectors, speed, angle, circulation)
        errors.append(abs(lift.item() / exact - 1))
        assert abs(drag.item()) < 1e-10
    assert errors[1] < 2e-3
    assert math.log2(errors[0] / errors[1]) == pytest.approx(2, abs=0.05)


def shear_flow(radius, theta, away: float = 0.0):
    """A velocity of (r − R) cos θ along the wall, and `away` of it away from the wall."""
    along, normal = torch.stack([-theta.sin(), theta.cos()]), torch.stack([theta.cos(), theta.sin()])
    return ((radius - RADIUS) * theta.cos() * (along + away * normal)).T


@pytest.mark.parametrize("away", [0.0, 1.5])
def test_friction_is_the_integral_of_the_wall_shear_stress(away):
    """ν cos θ along the wall, 4/3 ν cos θ away from it: π ν R along y, and 4/3 of it along x."""
    errors = []
    for sectors in (30, 60):
        nodes, quads, wall, theta, radius = ring(sectors, height=1 / sectors)
        velocity = shear_flow(radius, theta, away)
        force = wall_force(nodes, quads, wall, torch.ones_like(radius), velocity, viscosity=0.02)
        exact = math.pi * 0.02 * RADIUS * torch.tensor([away * 4 / 3, 1.0], dtype=torch.float64)
        errors.append(((force.friction[0] - exact).norm() / exact.norm()).item())
        assert force.pressure.abs().max() < 1e-12  # of a constant pressure
    assert errors[1] < 2e-3
    assert math.log2(errors[0] / errors[1]) > 1.8


def test_packed_samples_have_the_forces_of_each():
    nodes, quads, wall, theta, radius = ring(24)
    velocity, pressure = shear_flow(radius, theta), theta.cos()
    alone = wall_force(nodes, quads, wall, pressure, velocity, viscosity=0.1)
    packed = wall_force(
        torch.cat([nodes, 2 * nodes]),
        torch.cat([quads, quads + len(nodes)]),
        wall.repeat(2),
        torch.cat([pressure, 3 * pressure]),
        torch.cat([velocity, velocity]),
        viscosity=0.1,
        owner=torch.arange(2).repeat_interleave(len(quads)),
        samples=2,
    )
    torch.testing.assert_close(packed.pressure, torch.cat([alone.pressure, 6 * alone.pressure]))
    torch.testing.assert_close(packed.friction, alone.friction.repeat(2, 1))


def test_forces_are_differentiable_in_fields_and_nodes():
    nodes, quads, wall, theta, radius = ring(12)
    velocity, pressure = shear_flow(radius, theta), theta.sin()

    def lift(*arguments):
        moved, p, u = arguments
        return wall_force(moved, quads, wall, p, u, viscosity=0.1).total

    arguments = [part.clone().requires_grad_() for part in (nodes, pressure, velocity)]
    assert torch.autograd.gradcheck(lift, arguments)
