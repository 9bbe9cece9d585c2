"""Derived distances, normals and curvatures against those of balls, discs and boxes."""

import numpy as np
import pytest

from linearno.meshes.discover import case_file
from linearno.meshes.reader import commands
from linearno.meshes.reader.commands import MeshRequest
from tests.meshes.mesh_examples import READER, ball, box, plane, read, refusal, scattered

pyvista = pytest.importorskip("pyvista")


def derived(path, *names, **request):
    """The points of a mesh, and inputs derived there."""
    values = read(path, derived=names, **request)
    return values.points, *(values.derived[name] for name in names)


def disc(n):
    """Quads between circles of radius 1 and 2."""
    turn, radius = np.meshgrid(np.linspace(0, 2 * np.pi, 4 * n, endpoint=False), np.linspace(1, 2, n))
    points = np.stack([radius * np.cos(turn), radius * np.sin(turn), 0 * turn], axis=-1).reshape(-1, 3)
    i, j = np.meshgrid(np.arange(n - 1), np.arange(4 * n), indexing="ij")
    corners = [(i, j), (i + 1, j), (i + 1, (j + 1) % (4 * n)), (i, (j + 1) % (4 * n))]
    quads = np.stack([4 * n * row + column for row, column in corners], axis=-1).reshape(-1, 4)
    return pyvista.UnstructuredGrid({pyvista.CellType.QUAD: quads}, points)


def test_the_distance_to_the_sides_of_a_box_is_exact_at_points_and_in_cells(tmp_path):
    box(5).save(tmp_path / "a.vtu")
    for location in ("points", "cells"):
        points, found = derived(tmp_path / "a.vtu", "distance", location=location)
        upper = box(5).points.max(axis=0)
        truth = np.minimum(points, upper - points).min(axis=1)
        np.testing.assert_allclose(found, truth, atol=1e-6)


def test_normals_point_out_of_the_mesh_and_are_of_length_one(tmp_path):
    box(4).save(tmp_path / "a.vtu")
    points, normals = derived(tmp_path / "a.vtu", "normals")
    inside_face = (points[:, 0] == 0) & (
        (points[:, 1:] > 0) & (points[:, 1:] < points[:, 1:].max(axis=0))
    ).all(axis=1)
    assert inside_face.any()
    np.testing.assert_allclose(normals[inside_face], [[-1, 0, 0]] * inside_face.sum(), atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(normals, axis=1), 1, atol=1e-12)


def curved_tetrahedra(n):
    """A cube of tetrahedra with a node in the middle of each edge."""
    grid = pyvista.ImageData(dimensions=(n, n, n)).cast_to_unstructured_grid().triangulate()
    tetrahedra, points = np.asarray(grid.cell_connectivity).reshape(-1, 4), np.asarray(grid.points, float)
    edges = np.sort(tetrahedra[:, [0, 1, 1, 2, 2, 0, 0, 3, 1, 3, 2, 3]].reshape(-1, 2), axis=1)
    ends, number = np.unique(edges, axis=0, return_inverse=True)
    cells = np.concatenate([tetrahedra, len(points) + number.reshape(-1, 6)], axis=1)
    nodes = np.concatenate([points, points[ends].mean(axis=1)])
    return pyvista.UnstructuredGrid({pyvista.CellType.QUADRATIC_TETRA: cells}, nodes)


def test_curved_cells_have_their_own_boundary_too(tmp_path):
    curved_tetrahedra(3).save(tmp_path / "a.vtu")
    points, distance, normals = derived(tmp_path / "a.vtu", "distance", "normals")
    np.testing.assert_allclose(distance, np.minimum(points, 2 - points).min(axis=1), atol=1e-6)
    face = (points[:, 2] == 2) & ((points[:, :2] > 0) & (points[:, :2] < 2)).all(axis=1)
    np.testing.assert_allclose(normals[face], [[0, 0, 1]] * face.sum(), atol=1e-6)
    values = read(tmp_path / "a.vtu", mark_surface=True)
    assert (values.surface == (distance < 1e-6)).all()


def test_normals_point_out_even_of_cells_that_are_turned_inside_out(tmp_path):
    grid = box(4)
    corners = np.asarray(grid.cell_connectivity).reshape(-1, 8)
    turned = pyvista.UnstructuredGrid({grid.celltypes[0]: corners[:, [1, 0, 3, 2, 5, 4, 7, 6]]}, grid.points)
    for name, mesh in (("a", grid), ("b", turned)):
        mesh.save(tmp_path / f"{name}.vtu")
    one, other = (derived(tmp_path / f"{name}.vtu", "normals")[1] for name in "ab")
    np.testing.assert_allclose(one, other, atol=1e-9)


def test_around_a_disc_distances_and_normals_near_those_of_its_circles_and_curvature_is_that(tmp_path):
    worst = []
    for n in (10, 20):
        disc(n).save(tmp_path / f"{n}.vtu")
        points, distance, normals, curvature = derived(
            tmp_path / f"{n}.vtu", "distance", "normals", "curvature"
        )
        radius = np.linalg.norm(points, axis=1)
        inner = radius < 1.45  # nearer to the hole
        outer = radius > 1.55
        outward = points / radius[:, None]
        worst.append(np.abs(distance - np.minimum(radius - 1, 2 - radius)).max())
        assert np.abs(normals + outward)[inner].max() < 1e-6  # into the hole
        assert np.abs(normals - outward)[outer].max() < 0.2 / n
        assert np.abs(curvature[inner] + 1).max() < 1e-6
        assert np.abs(curvature[outer] - 0.5).max() < 1e-6
    assert worst[1] < worst[0] / 3.5, f"second order in the length of an edge, got {worst}"


def test_a_mesh_of_faces_in_space_is_its_own_surface(tmp_path):
    ball(2.0).save(tmp_path / "a.vtp")
    points, normals, curvature = derived(tmp_path / "a.vtp", "normals", "curvature")
    np.testing.assert_allclose(normals, points / 2, atol=0.02)
    assert abs(np.median(curvature) - 0.5) < 0.005
    turned = ball(2.0)
    turned.flip_faces(inplace=True)  # as some programs write them
    turned.save(tmp_path / "b.vtp")
    np.testing.assert_allclose(derived(tmp_path / "b.vtp", "normals")[1], normals, atol=1e-6)


def test_a_body_in_a_cloud_of_points_has_an_inside(tmp_path):
    rng = np.random.default_rng(0)
    points = rng.normal(size=(200, 3))
    np.savez(tmp_path / "a.npz", points=points)
    ball(1.0, 80).save(tmp_path / "a.stl")
    request = {"beside": tmp_path / "a.stl", "surface": "beside"}
    _, signed, plain = derived(tmp_path / "a.npz", "distance", "unsigned_distance", **request)
    truth = np.linalg.norm(points, axis=1) - 1
    np.testing.assert_allclose(signed, truth, atol=2e-3)
    np.testing.assert_allclose(plain, np.abs(truth), atol=2e-3)


def test_an_open_surface_has_no_inside_but_a_distance_without_a_sign(tmp_path):
    open_ball = ball(1.0).clip("z", origin=(0, 0, 0.5))
    open_ball.save(tmp_path / "a.stl")
    np.savez(tmp_path / "a.npz", points=np.random.default_rng(0).normal(size=(20, 3)))
    request = {"beside": tmp_path / "a.stl", "surface": "beside"}
    line = refusal(tmp_path / "a.npz", derived=["distance"], **request)
    assert "has a surface that is not closed" in line
    assert "set unsigned_distance" in line
    read(tmp_path / "a.npz", derived=["unsigned_distance"], **request)


def test_marked_points_choose_a_part_of_the_boundary(tmp_path):
    grid = plane(9, hole=True)
    x, y, _ = np.asarray(grid.points).T
    grid.point_data["hole"] = ((x > 0.01) & (x < 0.99) & (y > 0.01) & (y < 0.99)).astype(int)
    grid.save(tmp_path / "a.vtu")
    _, to_any = derived(tmp_path / "a.vtu", "distance")
    points, to_hole = derived(tmp_path / "a.vtu", "distance", surface="hole")
    corner = (points[:, :2] == 0).all(axis=1)
    assert to_any[corner] == 0
    assert to_hole[corner] > 0.3
    assert (to_hole >= to_any - 1e-12).all()
    values = read(tmp_path / "a.vtu", surface="hole", mark_surface=True)
    assert ((to_hole == 0) == values.surface).all()


def test_a_surface_that_is_not_there_is_named(tmp_path):
    np.savez(tmp_path / "a.npz", points=scattered(5, 3))
    assert "no boundary surface" in refusal(tmp_path / "a.npz", derived=["distance"])
    assert "no surface file" in refusal(tmp_path / "a.npz", derived=["distance"], surface="beside")
    plane(4).save(tmp_path / "a.vtu")
    assert "holds no 'wall'" in refusal(tmp_path / "a.vtu", derived=["distance"], surface="wall")


@pytest.mark.parametrize("dimension", [2, 3])
def test_a_field_between_points_is_that_of_its_cell_and_a_distance_is_its_own(tmp_path, dimension):
    grid = box(4) if dimension == 3 else plane(6)
    grid.point_data["linear"] = np.asarray(grid.points) @ [1.0, 2.0, 3.0]
    grid.save(tmp_path / "a.vtu")
    low, high = grid.points.min(axis=0), grid.points.max(axis=0)
    points = low + np.random.default_rng(0).random((30, 3)) * (high - low)
    file, request = case_file(tmp_path / "a.vtu"), MeshRequest(fields=["linear"], derived=["distance"])
    values = READER.call(commands.probe, file, request, points)
    assert values.inside.all()
    np.testing.assert_allclose(values.fields["linear"], points @ [1.0, 2.0, 3.0], atol=1e-5)
    sides = np.minimum(points - low, high - points)[:, :dimension].min(axis=1)
    np.testing.assert_allclose(values.derived["distance"], sides, atol=1e-6)
    assert not READER.call(commands.probe, file, request, points + 10).inside.any()
