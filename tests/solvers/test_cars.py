"""Random car bodies and the meshes around them."""

import re
from dataclasses import replace

import numpy as np
import pytest

from linearno.core.errors import UserError
from linearno.solvers import car_shapes
from linearno.solvers.car_mesh import (
    CORNERS,
    OUTER_CORNERS,
    SHARED_POINTS,
    SURFACE_POINTS,
    SURFACE_QUADS,
    VOLUME_POINTS,
    surface_mesh,
    volume_mesh,
    volume_points,
)
from linearno.solvers.car_shapes import BASE, REARS, Car, car_points, displaced, problem, random_car
from linearno.solvers.surface_distance import ClosedSurface

QUADS = surface_mesh().quads


@pytest.fixture(scope="module")
def bodies():
    return [random_car(np.random.default_rng(seed)) for seed in range(12)]


def test_the_surface_mesh_has_the_published_counts_and_is_closed():
    place, quads = surface_mesh()
    assert (len(place), len(quads)) == (SURFACE_POINTS, SURFACE_QUADS)
    assert len(np.unique(place, axis=0)) == SURFACE_POINTS
    box = ClosedSurface(place.astype(float), quads)
    assert box.volume == pytest.approx(16 * 16 * 48)
    assert (place[:CORNERS] % 16 == 0).all()
    assert (place[:SHARED_POINTS] % 2 == 0).all()


def test_the_volume_mesh_has_the_published_counts_and_fills_the_block_around_the_box():
    mesh = volume_mesh()
    assert (len(mesh.step), len(mesh.hexahedra)) == (VOLUME_POINTS, 8**3 * (3 * 3 * 6 - 3))
    assert len(np.unique(mesh.step, axis=0)) == VOLUME_POINTS
    corners = mesh.step[mesh.hexahedra]
    assert (corners[:, 6] - corners[:, 0] == 1).all()
    np.testing.assert_array_equal(mesh.shared[:CORNERS], np.arange(CORNERS))
    assert (mesh.step[: CORNERS + OUTER_CORNERS] % 8 == 0).all()


def test_volume_nodes_on_a_car_are_its_points_and_no_cell_is_inverted(bodies):
    points, mesh = volume_points(bodies[0].points), volume_mesh()
    np.testing.assert_array_equal(points[mesh.shared], bodies[0].points[:SHARED_POINTS])
    for corner, *others in ((0, 1, 3, 4), (6, 7, 5, 2)):
        a, b, c = (points[mesh.hexahedra[:, k]] - points[mesh.hexahedra[:, corner]] for k in others)
        assert ((np.cross(a, b) * c).sum(axis=1) * (1 if corner == 0 else -1) > 0).all()


def test_random_bodies_are_plausible_symmetric_and_different(bodies):
    mirrored = (
        np.lexsort((surface_mesh().place * [-1, 1, 1] + [16, 0, 0]).T),
        np.lexsort(surface_mesh().place.T),
    )
    lengths = []
    for body in bodies:
        assert problem(body.points) is None
        length, width, height = np.ptp(body.points, axis=0)[[2, 0, 1]]
        assert 3.4 < length < 5.3
        assert 1.5 < width < 2.0
        assert 1.0 < height < 1.6
        np.testing.assert_allclose(body.points[mirrored[0]] * [-1, 1, 1], body.points[mirrored[1]], atol=1e-9)
        lengths.append(length)
    assert len({body.car.rear for body in bodies}) >= 3
    assert np.std(lengths) > 0.1


def test_the_same_random_numbers_give_the_same_body(bodies):
    np.testing.assert_array_equal(random_car(np.random.default_rng(3)).points, bodies[3].points)


def test_rears_differ_where_they_should():
    """Height above the tail, at 85 % of the length: estate, then hatchback, then notchback."""
    tops = {}
    for rear in REARS:
        points = car_points(Car(rear, **BASE[rear] | {"length": 4.5}))
        near = np.abs(points[:, 2] - 1.6) < 0.1
        tops[rear] = points[near, 1].max()
    assert tops["estate"] > tops["hatchback"] + 0.02
    assert tops["hatchback"] > tops["notchback"] + 0.1


def test_waves_move_points_along_normals_by_their_amplitude():
    points = car_points(Car("estate"))
    rng = np.random.default_rng(0)
    moved = [displaced(points, 0.02, rng) - points for _ in range(20)]
    assert np.sqrt(np.mean(np.square(moved)) * 3) == pytest.approx(0.02, rel=0.35)


@pytest.mark.parametrize(("change", "message"), [
    (lambda points: points * 0.5, "volume"),
    (lambda points: points * [1, -1, 1], "inverted"),
    (lambda points: points[:-1], "expected 3586"),
    (lambda points: np.where(np.arange(3586)[:, None] == 3000, points[2999], points), "quadrilateral"),
    (lambda points: np.where(points[:, 2:] > 1.9, points - [0, 0, 1.5], points), "folded|intersects|quadril"),
])  # fmt: skip
def test_implausible_bodies_are_refused(change, message):
    assert re.search(message, problem(change(car_points(Car("notchback")))))


def test_a_surface_that_passes_through_itself_is_found(monkeypatch):
    monkeypatch.setattr(car_shapes, "MIN_COSINE", -2.0)
    monkeypatch.setattr(car_shapes, "MIN_QUAD_AREA", 0.0)
    points = car_points(Car("estate"))
    low = np.clip(0.6 - points[:, 1], 0, None)
    folded = points + np.stack([0 * low, 2.2 * low, 0 * low], axis=-1)  # the floor rises through the flanks
    dented = points.copy()
    dented[:, 0] *= 1 - 2.5 * np.exp(-((points[:, 2] / 0.3) ** 2)) * (np.abs(points[:, 1] - 0.6) < 0.1)
    assert problem(points) is None
    assert {problem(folded), problem(dented)} & {"the surface intersects itself"}


def test_the_winding_number_of_a_body_is_one_inside():
    surface = ClosedSurface(car_points(Car("estate")), QUADS)
    low, high = surface.bounds
    grid = [np.arange(a - 0.1, b + 0.1, 0.05) for a, b in zip(low, high, strict=True)]
    winding = surface.winding_columns(*grid)
    assert set(np.unique(winding)) == {0, 1}
    assert winding.sum() * 0.05**3 == pytest.approx(surface.volume, rel=0.04)


def test_parameters_that_are_not_numbers_are_refused():
    with pytest.raises(UserError, match="height=nan: expected a finite number"):
        car_points(replace(Car("estate"), height=float("nan")))


def test_a_generator_without_plausible_bodies_says_so(monkeypatch):
    monkeypatch.setattr(car_shapes, "VOLUME", (100.0, 200.0))
    monkeypatch.setattr(car_shapes, "MAX_ATTEMPTS", 2)
    with pytest.raises(UserError, match="no plausible body"):
        random_car(np.random.default_rng(0))
