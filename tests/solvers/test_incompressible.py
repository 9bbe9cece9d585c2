"""The flow scheme: free stream, conservation, order of accuracy."""

import math

import numpy as np
import pytest
import torch

from linearno.solvers.airfoil_grid import GridCells, airfoil_grid
from linearno.solvers.c_grid_cells import build_cells
from linearno.solvers.incompressible import (
    Stream,
    far_field,
    flow_residual,
    pad_flow,
    roe,
    roe_jacobians,
)
from linearno.solvers.naca import naca_sections
from linearno.solvers.turbulence import face_viscosity

CELLS = GridCells(8, 12, 10)


@pytest.fixture(scope="module")
def airfoil():
    """Cells around a cambered airfoil in a stream without circulation."""
    angle = torch.tensor([0.1], dtype=torch.float64)
    nodes = airfoil_grid(naca_sections([(4.0, 4.0, 12.0)]), angle, torch.full_like(angle, 4e6), CELLS)
    viscosity = torch.full_like(angle, 1e-3)
    return build_cells(nodes, CELLS.wake), Stream(angle, viscosity, torch.zeros_like(angle))


def residual(grid, stream, flow):
    viscosity = face_viscosity(grid, stream, torch.zeros_like(grid.volume))
    return flow_residual(grid, flow, pad_flow(grid, stream, flow), viscosity)


def test_a_free_stream_is_preserved_to_rounding(airfoil):
    grid, stream = airfoil
    one = torch.ones_like(grid.volume)
    flow = torch.stack([0 * one, stream.angle.cos() * one, stream.angle.sin() * one], dim=1)
    outflow = residual(grid, stream, flow)
    area = grid.along.norm(dim=1)[:, 1:] + grid.outward.norm(dim=1)[..., 1:]
    away_from_wall = torch.ones_like(grid.volume, dtype=torch.bool)
    away_from_wall[:, grid.wall, :2] = False  # two cells reach the wall
    assert float((outflow / area[:, None]).abs().movedim(1, -1)[away_from_wall].max()) < 1e-12
    assert float(outflow[..., 0].abs().max()) > 1e-3  # the wall is no free stream


def test_mass_crosses_the_outer_borders_only(airfoil):
    """Any change away from them leaves the mass that leaves the grid as it was."""
    grid, stream = airfoil
    torch.manual_seed(0)
    flow = torch.randn(1, 3, *grid.volume.shape[1:], dtype=torch.float64)
    changed = flow.clone()
    changed[:, :, 3:-3, :-3] = torch.randn_like(changed[:, :, 3:-3, :-3])
    first, second = (residual(grid, stream, state)[:, 0] for state in (flow, changed))
    assert float((first - second).abs().max()) > 0.1
    scale = grid.along.norm(dim=1).sum()
    assert abs(float((first.sum() - second.sum()) / scale)) < 1e-13


def exponential_flow(z):
    """Potential flow with u - iv = e^z/2, a solution of the Navier–Stokes equations for any viscosity."""
    w = torch.exp(z) / 2
    return torch.stack([(1 - w.abs() ** 2) / 2, w.real, -w.imag], dim=1)


def largest_error(cells):
    """Net outflow per volume of an exact solution on a conformal grid; the exact one is zero."""
    x = torch.linspace(1, 1.5, cells + 1, dtype=torch.float64)[:, None].expand(-1, cells + 1)
    w = torch.complex(x, x.T - 0.5)
    nodes = torch.stack([(w * w).real, (w * w).imag], dim=-1)[None]
    grid = build_cells(nodes, cells // 2 - 1)
    centres = torch.complex(grid.centre[..., 0], grid.centre[..., 1])
    zero = torch.zeros(1, dtype=torch.float64)
    outflow = residual(grid, Stream(zero, zero + 1e-2, zero), exponential_flow(centres))
    inner = slice(cells // 4, -cells // 4)
    return float((outflow / grid.volume[:, None])[..., inner, inner].abs().max())


def test_second_order_on_an_exact_solution_of_the_navier_stokes_equations():
    sizes = [16, 32, 64]
    errors = [largest_error(cells) for cells in sizes]
    order = -np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert order > 1.8, f"measured order {order:.2f}, errors {errors}"
    assert errors[-1] < 1e-3


def test_jacobians_of_equal_states_are_the_derivatives_of_the_flux():
    torch.manual_seed(0)
    left, area = torch.randn(1, 3, 2, 3, dtype=torch.float64), torch.randn(1, 2, 2, 3, dtype=torch.float64)
    by_left, by_right = roe_jacobians(left, left, area)
    step = torch.randn_like(left) * 1e-6
    for jacobian, moved in ((by_left, (left + step, left)), (by_right, (left, left + step))):
        change = roe(*moved, area) - roe(left, left, area)
        torch.testing.assert_close(
            change, torch.einsum("bmnij,bnij->bmij", jacobian, step), rtol=0, atol=1e-10
        )


def test_a_vortex_at_the_far_field_has_the_circulation_of_the_lift(airfoil):
    around = torch.linspace(0, 2 * math.pi, 200, dtype=torch.float64)[:-1]
    points = torch.stack([0.25 + 3 * around.cos(), 3 * around.sin()], dim=-1)[None]
    _, u, v = far_field(airfoil[1]._replace(lift=torch.tensor([0.8], dtype=torch.float64)), points)[0]
    clockwise = (u * around.sin() - v * around.cos()).mean() * 2 * math.pi * 3
    assert float(clockwise) == pytest.approx(0.4)  # Γ = C_L/2
