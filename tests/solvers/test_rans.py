"""Turbulent flows around airfoils: symmetry, law of the wall, friction, forces, batches, refusals."""

import math

import pytest
import torch

from linearno.core.errors import SampleError, UserError
from linearno.solvers import rans
from linearno.solvers.implicit_march import MarchPlan
from linearno.solvers.naca import VISCOSITY
from linearno.solvers.rans import (
    AirfoilCase,
    GridCells,
    airfoil_flows,
    memory_per_flow,
    refined_nodes,
)

TINY = GridCells(6, 10, 14)
SYMMETRIC = AirfoilCase((0.0, 0.0, 12.0), 4e6 * VISCOSITY, 0.0)
CAMBERED = AirfoilCase((4.0, 4.0, 12.0), 3e6 * VISCOSITY, 2.0)
STEEP = AirfoilCase((2.0, 3.0, 0.0, 15.0), 5e6 * VISCOSITY, 9.0)


@pytest.fixture(scope="module")
def flows():
    return airfoil_flows([SYMMETRIC, STEEP, CAMBERED], TINY, turbulence="sa")


@pytest.fixture(scope="module")
def plate():
    """Flow along an airfoil of 1 % thickness."""
    cells = GridCells(8, 16, 36)
    return airfoil_flows([AirfoilCase((0.0, 0.0, 1.0), 5e6 * VISCOSITY, 0.0)], cells, turbulence="sa")


def test_every_flow_is_steady_with_its_shapes(flows):
    assert flows.steady.all()
    along, outward = 2 * (TINY.wake + TINY.side), TINY.outward
    assert flows.nodes.shape == (3, along + 1, outward + 1, 2)
    assert flows.velocity.shape == (3, along, outward, 2)
    assert flows.pressure.shape == flows.nut.shape == (3, along, outward)
    assert flows.friction.shape == (3, 2 * TINY.side)
    assert (flows.nut > 0).all()


def test_a_symmetric_airfoil_has_no_lift(flows):
    assert abs(float(flows.lift[0])) < 1e-6
    torch.testing.assert_close(flows.pressure[0], flows.pressure[0].flip(0), rtol=0, atol=1e-3)
    assert float(flows.lift[2]) > 0.5  # camber


def test_lift_and_drag_are_the_sums_of_pressure_and_friction(flows):
    for index, case in enumerate((SYMMETRIC, STEEP, CAMBERED)):
        wall = slice(flows.wake, flows.pressure.shape[1] - flows.wake)
        line = flows.nodes[index, flows.wake : flows.nodes.shape[1] - flows.wake, 0]
        edge = line.diff(dim=0)
        into_body = torch.stack([edge[:, 1], -edge[:, 0]], dim=1)
        dynamic = case.speed**2 / 2
        force = (flows.pressure[index, wall, 0, None] / dynamic * into_body).sum(dim=0)
        force += (flows.friction[index, :, None] * edge).sum(dim=0)
        angle = math.radians(case.angle)
        lift = force[1] * math.cos(angle) - force[0] * math.sin(angle)
        drag = force[0] * math.cos(angle) + force[1] * math.sin(angle)
        expected = torch.stack([flows.lift, flows.drag])[:, index]
        torch.testing.assert_close(torch.stack([lift, drag]), expected, rtol=1e-5, atol=1e-6)


def test_the_results_of_a_flow_do_not_depend_on_its_batch(flows):
    alone = airfoil_flows([CAMBERED], TINY, turbulence="sa")
    for name in ("velocity", "pressure", "nut", "lift", "drag", "friction"):
        one, many = getattr(alone, name)[0], getattr(flows, name)[2]
        torch.testing.assert_close(one, many, rtol=1e-4, atol=1e-4 * float(many.abs().max()))
    assert alone.steps[0] == flows.steps[2]


def test_a_march_with_float32_matrices_has_the_result_of_float64(flows):
    double = airfoil_flows([CAMBERED], TINY, turbulence="sa", precision=torch.float64)
    assert abs(int(double.steps[0]) - int(flows.steps[2])) <= 1
    torch.testing.assert_close(double.lift[0], flows.lift[2], rtol=1e-4, atol=0)
    torch.testing.assert_close(double.drag[0], flows.drag[2], rtol=1e-4, atol=0)


def test_fields_of_equal_reynolds_number_scale_with_the_speed(flows, monkeypatch):
    """A flow at twice the speed in twice the viscosity."""
    monkeypatch.setattr(rans, "VISCOSITY", 2 * VISCOSITY)
    monkeypatch.setattr("linearno.solvers.naca.VISCOSITY", 2 * VISCOSITY)
    fast = airfoil_flows([CAMBERED._replace(speed=2 * CAMBERED.speed)], TINY, turbulence="sa")
    torch.testing.assert_close(fast.velocity[0], 2 * flows.velocity[2], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(fast.pressure[0], 4 * flows.pressure[2], rtol=1e-3, atol=1e-2)
    torch.testing.assert_close(fast.nut[0], 2 * flows.nut[2], rtol=1e-3, atol=1e-8)


@pytest.mark.slow
def test_the_boundary_layer_of_a_plate_obeys_the_law_of_the_wall(plate):
    """u⁺ = y⁺ in the viscous layer, ln(y⁺)/0.41 + 5 in the logarithmic layer."""
    face = plate.friction.shape[1] * 7 // 8
    cell = plate.wake + face
    speed = 5e6 * VISCOSITY
    friction_speed = math.sqrt(float(plate.friction[0, face]) / 2) * speed
    corners = plate.nodes[0, cell : cell + 2]
    heights = (corners[:, 1:] + corners[:, :-1]).mean(dim=0)[:, 1] / 2 - corners[:, 0, 1].mean()
    y = heights * friction_speed / VISCOSITY
    u = plate.velocity[0, cell, :, 0] / friction_speed
    assert float(y[0]) < 1
    viscous, logarithmic = y < 3, (y > 30) & (y < 200)
    assert viscous.sum() >= 2
    assert logarithmic.sum() >= 4
    torch.testing.assert_close(u[viscous], y[viscous], rtol=0.02, atol=0)
    torch.testing.assert_close(u[logarithmic], y[logarithmic].log() / 0.41 + 5, rtol=0.04, atol=0)


@pytest.mark.slow
def test_the_friction_of_a_plate_is_that_of_a_turbulent_boundary_layer(plate):
    """White's formula c_f = 0.455/ln²(0.06 Re_x), within 8 %."""
    x = plate.nodes[0, plate.wake : -plate.wake, 0, 0]
    centre = (x[1:] + x[:-1]) / 2
    inside = (centre > 0.15) & (centre < 0.9)
    expected = 0.455 / (0.06 * 5e6 * centre[inside]).log() ** 2
    torch.testing.assert_close(plate.friction[0, inside].abs(), expected, rtol=0.08, atol=0)


@pytest.mark.slow
def test_k_omega_sst_gives_lift_and_drag_near_those_of_spalart_allmaras(flows):
    sst = airfoil_flows([SYMMETRIC, CAMBERED], TINY)
    assert sst.steady.all()
    assert (sst.nut > 0).all()
    assert abs(float(sst.lift[0])) < 1e-6
    torch.testing.assert_close(sst.lift[1], flows.lift[2], rtol=0.03, atol=0)
    torch.testing.assert_close(sst.drag, flows.drag[[0, 2]], rtol=0.25, atol=0)
    assert float((sst.drag / flows.drag[[0, 2]] - 1).abs().min()) > 1e-3  # another model


def test_nodes_of_a_refined_grid_coincide_with_those_of_the_flow(flows):
    fine = refined_nodes([SYMMETRIC, STEEP, CAMBERED], TINY, 3)
    torch.testing.assert_close(fine[:, ::3, ::3], flows.nodes, rtol=1e-10, atol=1e-10)


def test_memory_is_that_of_the_factors_and_the_fields():
    assert 1e8 < memory_per_flow(GridCells(40, 64, 64)) < 4e8
    assert memory_per_flow(TINY) < 2e7


def test_a_flow_that_is_not_steady_is_marked_and_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(rans, "ATTEMPTS", (MarchPlan(2, 3), MarchPlan(2, 4)))
    unsteady = airfoil_flows([SYMMETRIC, STEEP], TINY, turbulence="sa")
    assert not unsteady.steady.any()
    assert unsteady.steps.tolist() == [7, 7]
    with pytest.raises(SampleError, match="the flow did not become steady in 7 steps") as caught:
        unsteady.require_steady()
    assert caught.value.index == 0
    assert "\n" not in str(caught.value)


def test_a_flow_that_diverges_is_named_and_spoils_no_other(flows, monkeypatch):
    start = rans.initial_flows

    def spoilt(*arguments):
        flow = start(*arguments)
        flow.state[1, 0, 3, 3] = math.nan
        return flow

    monkeypatch.setattr(rans, "initial_flows", spoilt)
    found = airfoil_flows([SYMMETRIC, CAMBERED], TINY, turbulence="sa")
    assert found.steady.tolist() == [True, False]
    torch.testing.assert_close(found.drag[0], flows.drag[0], rtol=1e-4, atol=0)
    with pytest.raises(SampleError, match="sample 1: the flow diverged in") as caught:
        found.require_steady()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("cases", "options", "message"),
    [
        ([], {}, "expected at least one airfoil"),
        ([SYMMETRIC], {"turbulence": "ke"}, "unknown turbulence model 'ke'; expected one of sst, sa"),
        ([SYMMETRIC, SYMMETRIC._replace(speed=0.0)], {}, "sample 1: expected a speed above 0"),
        ([SYMMETRIC._replace(angle=math.nan)], {}, "sample 0: expected an angle of attack from"),
        ([SYMMETRIC._replace(digits=(0.0, 0.0, 0.0))], {}, "sample 0: .*expected a thickness above 0"),
    ],
)
def test_bad_input_is_refused_in_one_line(cases, options, message):
    with pytest.raises(UserError, match=message) as caught:
        airfoil_flows(cases, TINY, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_finds_the_flows_of_the_cpu(flows):
    found = airfoil_flows([SYMMETRIC, STEEP, CAMBERED], TINY, turbulence="sa", device="cuda")
    assert found.steady.all()
    for name in ("nodes", "velocity", "pressure", "nut", "lift", "drag", "friction"):
        ours, theirs = getattr(found, name).cpu(), getattr(flows, name)
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4 * float(theirs.abs().max()))
