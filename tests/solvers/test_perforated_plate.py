"""Pulled plates on meshes of their own."""

import numpy as np
import pytest

from linearno.solvers.elasticity import gauss_points
from linearno.solvers.perforated_plate import MAX_PULL_ANGLE, _average_at_nodes, random_plate
from linearno.solvers.unit_cell import TRACTION, UnitCell, layered_mesh


@pytest.fixture(scope="module")
def plates():
    return [random_plate(np.random.default_rng(i), 8) for i in range(12)]


def test_every_plate_has_a_mesh_of_its_own_that_fills_the_square_around_its_void(plates):
    sizes = [len(plate.nodes) for plate in plates]
    assert len(set(sizes)) > 6
    assert max(sizes) > 1.5 * min(sizes)
    for plate in plates:
        (x, y), after = plate.nodes[plate.quads].transpose(2, 0, 1), [1, 2, 3, 0]
        areas = (x * y[:, after] - x[:, after] * y).sum(axis=1) / 2
        assert (areas > 0).all()
        assert np.pi * 0.2**2 < 1 - areas.sum() < np.pi * 0.4**2
        assert len(np.unique(plate.quads)) == len(plate.nodes)


def test_plates_are_held_at_the_bottom_and_stressed(plates):
    for plate in plates:
        assert (plate.displacement[plate.nodes[:, 1] == 0] == 0).all()
        assert (plate.stress >= 0).all()
        assert plate.stress.max() > 100
        assert abs(plate.angle) <= MAX_PULL_ANGLE


def test_what_holds_a_plate_is_opposite_to_the_pull():
    angle = 0.4
    cell = UnitCell(layered_mesh((7, 10), (3, 6)), poisson=0.3, angle=angle)
    forces = cell.body.forces(cell.mesh.nodes, cell.displacement(cell.mesh.nodes))
    bottom = cell.mesh.nodes[:, 1] == 0
    expected = -TRACTION * np.array([np.sin(angle), np.cos(angle)])
    np.testing.assert_allclose(forces[bottom].sum(axis=0), expected, rtol=1e-9)


def test_a_stress_that_is_quadratic_reaches_the_nodes_as_it_is():
    nodes, quads, _ = layered_mesh((6, 8), (2, 4))
    nodes = np.round(nodes, 12)
    points = gauss_points(nodes, quads)

    def field(x):
        """Linear: quadratic in the coordinates of a curved quad."""
        return np.stack([x[..., 0], 2 * x[..., 1] - x[..., 0], 1 + 0 * x[..., 0]], axis=-1)

    np.testing.assert_allclose(_average_at_nodes(field(points), quads, len(nodes)), field(nodes), atol=1e-10)


def test_the_same_seed_gives_the_same_plate(plates):
    again = random_plate(np.random.default_rng(3), 8)
    assert all(np.array_equal(one, other) for one, other in zip(again, plates[3], strict=True))
