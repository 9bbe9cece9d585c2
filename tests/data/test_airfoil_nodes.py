"""Flows interpolated to finer nodes, compared with smooth fields that are known everywhere."""

import numpy as np
import pytest

from linearno.data.airfoil_nodes import (
    BOX,
    CellFields,
    cell_positions,
    cubic,
    distance_from,
    refine_flow,
    wall_normals,
)
from linearno.solvers.rans import AirfoilCase, GridCells, refined_nodes
from tests.data.airfoil_flows import LAYER, SLOPE, exact_fields, made_up_flows

CASE = AirfoilCase((2.0, 4.0, 12.0), 60.0, 5.0)


def refined(cells: GridCells, refinement: int):
    flows = made_up_flows([CASE], cells)
    fields = CellFields(*(part[0].numpy() for part in (flows.velocity, flows.pressure, flows.nut)))
    fine = refined_nodes([CASE], cells, refinement)[0].numpy()
    return refine_flow(flows.nodes[0].numpy(), fine, cells.wake, fields)


@pytest.fixture(scope="module")
def flow():
    return refined(GridCells(20, 32, 32), 3)


def test_fields_are_interpolated_with_high_order(flow):
    errors = []
    for mesh, values in (flow, refined(GridCells(40, 64, 64), 3)):
        exact = exact_fields(CASE, mesh.nodes, mesh.distance)
        near = (abs(mesh.nodes - np.array([0.4, 0])) < 0.5).all(axis=1)  # around the airfoil, before its edge
        scale = np.array([CASE.speed, CASE.speed, CASE.speed**2, exact[:, 3].max()])
        errors.append((np.sqrt(((values - exact)[near] ** 2).mean(axis=0)) / scale).max())
    assert errors[1] < 1e-3
    assert errors[0] / errors[1] > 4


def test_velocity_and_viscosity_are_exactly_zero_on_the_wall_and_nowhere_else(flow):
    mesh, values = flow
    assert set(np.flatnonzero(values[:, 0] == 0)) == set(mesh.wall)
    assert (values[mesh.wall][:, [0, 1, 3]] == 0).all()
    assert (mesh.distance[mesh.wall] < 1e-12).all()
    assert (values[:, 3] >= 0).all()


def test_the_slope_of_the_velocity_on_the_wall_survives(flow):
    """Also at the first nodes off the wall, closer than the first cell of the flow."""
    mesh, values = flow
    columns = mesh.nodes[mesh.wall]
    first = np.argsort(mesh.distance)[len(mesh.wall) : 2 * len(mesh.wall)]
    first = first[(mesh.nodes[first, 0] < 0.9) & (mesh.distance[first] < 2e-4)]
    assert len(first) > 0.5 * len(columns)
    slope = values[first, 0] / mesh.distance[first]
    bend = np.exp(-((mesh.nodes[first] - np.array([0.2, 0.1])) ** 2).sum(axis=1))
    exact = SLOPE / LAYER * CASE.speed * np.cos(np.deg2rad(CASE.angle)) * (1 + 0.2 * bend)
    np.testing.assert_allclose(slope, exact, rtol=0.03)


def test_the_mesh_covers_the_box_once_and_shares_the_nodes_of_the_wake(flow):
    mesh, _ = flow
    assert len(np.unique(mesh.nodes, axis=0)) == len(mesh.nodes)
    corners = mesh.nodes[mesh.quads]
    (x, y), (u, v) = (corners[:, 2] - corners[:, 0]).T, (corners[:, 3] - corners[:, 1]).T
    area = (x * v - y * u) / 2
    assert (area > 0).all() or (area < 0).all()
    centre = corners.mean(axis=1)
    (low, high) = np.array(BOX).T
    assert ((low <= centre) & (centre <= high)).all()
    box = (BOX[0][1] - BOX[0][0]) * (BOX[1][1] - BOX[1][0])
    wall = mesh.nodes[mesh.wall]
    airfoil = abs((wall[:, 0] * np.roll(wall[:, 1], -1) - wall[:, 1] * np.roll(wall[:, 0], -1)).sum()) / 2
    assert abs(area).sum() == pytest.approx(box - airfoil, rel=0.02)


def test_normals_and_distances_of_a_circle():
    angle = np.linspace(0, -2 * np.pi, 200, endpoint=False)  # clockwise, as around an airfoil
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    np.testing.assert_allclose(wall_normals(circle), circle, atol=1e-12)
    points = np.random.default_rng(0).uniform(1.1, 2, (50, 1)) * circle[::4]
    np.testing.assert_allclose(distance_from(circle, points), np.linalg.norm(points, axis=1) - 1, atol=1e-12)


def test_cubics_are_exact_and_cells_that_grow_are_placed_by_their_growth():
    knots = np.sort(np.random.default_rng(0).uniform(0, 9, (2, 8)), axis=1)
    targets = np.array([0.0, 0.5, 4.2, 9.0])
    powers = np.arange(4)
    values = knots[..., None] ** powers
    np.testing.assert_allclose(
        cubic(knots, values, targets), np.stack([targets[:, None] ** powers] * 2), atol=1e-9
    )
    edges = 1.3 ** np.arange(7)
    middle = np.log((edges[1:] + edges[:-1]) / 2) / np.log(1.3)  # index at which 1.3^index is the middle
    np.testing.assert_allclose(cell_positions(np.diff(edges)[None])[0], middle, atol=1e-12)
    np.testing.assert_allclose(cell_positions(np.ones((1, 4)))[0], np.arange(4) + 0.5)
