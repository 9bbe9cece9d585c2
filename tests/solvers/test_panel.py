"""The panel method against the exact flow around a cylinder."""

import math

import torch

from linearno.solvers.panel import panel_flow, panel_velocity

POINTS = torch.tensor([[[1.5, 0.3], [0.0, 1.7], [-2.0, 0.5], [0.4, -1.3]]], dtype=torch.float64)
ANGLE = torch.tensor([0.1], dtype=torch.float64)


def errors(panels):
    """Of the velocity and the lift of a circle with Kutta's condition at (1, 0)."""
    around = torch.linspace(0, -2 * math.pi, panels + 1, dtype=torch.float64)
    flow = panel_flow(torch.stack([around.cos(), around.sin()], dim=-1)[None], ANGLE)
    stream = complex(math.cos(0.1), -math.sin(0.1))
    z = torch.complex(POINTS[..., 0], POINTS[..., 1])
    swirl = 2j * math.sin(0.1) / z  # clockwise circulation 4 π sin α
    exact = stream - stream.conjugate() / z**2 + swirl
    velocity = panel_velocity(flow, POINTS)
    lift = 8 * math.pi * math.sin(0.1)
    error = (torch.complex(velocity[..., 0], -velocity[..., 1]) - exact).abs().max()
    return float(error), abs(float(flow.lift[0]) - lift) / lift


def test_velocity_and_lift_of_a_cylinder_are_exact_to_first_order():
    coarse, fine = errors(40), errors(160)
    for before, after in zip(coarse, fine, strict=True):
        assert after < 0.4 * before
        assert after < 0.02


def test_circulation_can_be_reduced():
    around = torch.linspace(0, -2 * math.pi, 61, dtype=torch.float64)
    wall = torch.stack([around.cos(), around.sin()], dim=-1)[None]
    full, half = panel_flow(wall, ANGLE), panel_flow(wall, ANGLE, share=0.5)
    limited = panel_flow(wall, ANGLE, max_lift=0.1)
    torch.testing.assert_close(half.vortex, 0.5 * full.vortex)
    torch.testing.assert_close(limited.vortex, 0.1 / full.lift * full.vortex)
    none = panel_velocity(panel_flow(wall, ANGLE * 0, share=0.0), POINTS)
    mirrored = panel_velocity(panel_flow(wall, ANGLE * 0, share=0.0), POINTS * torch.tensor([1.0, -1.0]))
    torch.testing.assert_close(none, mirrored * torch.tensor([1.0, -1.0]))


def test_points_in_parts_have_the_velocity_of_all_points(monkeypatch):
    around = torch.linspace(0, -2 * math.pi, 31, dtype=torch.float64)
    flow = panel_flow(torch.stack([around.cos(), around.sin()], dim=-1)[None], ANGLE)
    whole = panel_velocity(flow, POINTS)
    monkeypatch.setattr("linearno.solvers.panel.MAX_PAIRS", 31)
    torch.testing.assert_close(panel_velocity(flow, POINTS), whole)
