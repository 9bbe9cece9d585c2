"""Distance to closed surfaces, their winding number, and the refusal of surfaces that are none."""

import numpy as np
import pytest

from benchmarks.solids import cube_sphere
from linearno.core.errors import UserError
from linearno.solvers.surface_distance import ClosedSurface

BOX = np.array([[x, y, z] for x in (0, 1) for y in (0, 2) for z in (0, 3)], float)
FACES = [[0, 1, 3, 2], [4, 6, 7, 5], [0, 4, 5, 1], [2, 3, 7, 6], [0, 2, 6, 4], [1, 5, 7, 3]]


def test_distances_of_a_box_are_exact():
    points = np.random.default_rng(0).uniform(-2, 4, (200, 3))
    distance, normal = ClosedSurface(BOX, np.array(FACES)).distance(points)
    outside = np.maximum(np.maximum(-points, points - [1, 2, 3]), 0)
    inside = np.minimum(points, np.array([1, 2, 3]) - points).min(axis=1)
    exact = np.where((outside == 0).all(axis=1), inside, np.linalg.norm(outside, axis=1))
    np.testing.assert_allclose(distance, exact, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(normal, axis=1), 1)


def test_the_normal_next_to_a_sphere_points_away_from_its_centre():
    surface = ClosedSurface(*cube_sphere(12))
    points = np.random.default_rng(1).normal(size=(50, 3))
    points *= 1.3 / np.linalg.norm(points, axis=1, keepdims=True)
    distance, normal = surface.distance(points)
    np.testing.assert_allclose(distance, 0.3, atol=0.006)
    np.testing.assert_allclose(normal, points / 1.3, atol=0.03)


def test_columns_cross_a_surface_through_vertices_and_edges_exactly_once():
    x = np.linspace(-1.5, 1.5, 25)  # meets vertices, edges and centres of the polygons
    surface = ClosedSurface(*cube_sphere(8))
    inside = surface.inside_columns(x, x, x + 0.013)
    radius = np.sqrt(x[:, None, None] ** 2 + x[:, None] ** 2 + (x + 0.013) ** 2)
    assert inside[radius < 0.98].all()
    assert not inside[radius > 1].any()


def test_the_volume_and_normals_of_a_sphere():
    surface = ClosedSurface(*cube_sphere(16))
    assert surface.volume == pytest.approx(4 / 3 * np.pi, rel=0.02)
    np.testing.assert_allclose(surface.area_vectors.sum(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(surface.vertex_normals, surface.vertices, atol=0.02)
    triangles = surface.polygons[:, [0, 1, 2, 0, 2, 3]].reshape(-1, 3)
    divided = ClosedSurface(surface.vertices, triangles)
    assert divided.volume == pytest.approx(surface.volume, rel=0.01)
    np.testing.assert_allclose(divided.vertex_normals, surface.vertices, atol=0.03)


@pytest.mark.parametrize(("faces", "message"), [
    (FACES[:-1], r"box is not closed: 4 of its 20 edges"),
    ([face[::-1] for face in FACES], "box is inverted"),
    ([FACES[0][::-1], *FACES[1:]], "box is not closed"),
])  # fmt: skip
def test_open_and_inverted_surfaces_are_refused(faces, message):
    with pytest.raises(UserError, match=message):
        ClosedSurface(BOX, np.array(faces), "box")


def test_vertices_that_are_not_numbers_are_refused():
    broken = BOX.copy()
    broken[3, 1] = np.nan
    with pytest.raises(UserError, match="NaN or infinite"):
        ClosedSurface(broken, np.array(FACES))


def test_overlapping_bodies_have_a_winding_number_of_two():
    both = np.concatenate([BOX, BOX + 0.5])
    surface = ClosedSurface(both, np.concatenate([np.array(FACES), np.array(FACES) + 8]))
    grid = [np.array([0.25, 0.75, 1.25, 1.75])] * 3
    winding = surface.winding_columns(*grid)
    assert (winding[0, 0, 0], winding[1, 1, 1], winding[2, 2, 2], winding[3, 3, 3]) == (1, 2, 1, 0)
