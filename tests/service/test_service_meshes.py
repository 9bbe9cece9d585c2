"""Meshes in, the same meshes with fields out."""

import numpy as np
import pytest
import torch

from tests.meshes.mesh_examples import plane

pyvista = pytest.importorskip("pyvista")


@pytest.fixture
def mesh(tmp_path):
    """A mesh with a hole, and its file in each format."""
    grid = plane(7, hole=True)
    grid.save(tmp_path / "mesh.vtu")
    grid.save(tmp_path / "mesh.vtk")
    return grid, tmp_path


def expected(bundle, grid, speed):
    points = torch.from_numpy(np.asarray(grid.points)[:, :2].astype(np.float32))
    return bundle.predict(torch.full((1, len(points), 1), speed), points)[0, :, 0].numpy()


@pytest.mark.parametrize("kind", ["vtu", "vtk"])
def test_a_mesh_comes_back_with_the_predicted_field(mesh_client, mesh_bundle, mesh, kind):
    grid, folder = mesh
    reply = mesh_client.request("POST", "/predict", (folder / f"mesh.{kind}").read_bytes(), f"x-{kind}")
    assert reply.status == 200, reply.body
    (folder / f"out.{kind}").write_bytes(reply.body)
    found = pyvista.read(folder / f"out.{kind}")
    assert found.n_cells == grid.n_cells
    np.testing.assert_allclose(found["p_predicted"], expected(mesh_bundle, grid, 7.0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["p"], grid["p"])


def test_a_given_number_goes_before_that_of_the_mesh(mesh_client, mesh_bundle, mesh):
    grid, folder = mesh
    reply = mesh_client.request("POST", "/predict?given=speed=2", (folder / "mesh.vtu").read_bytes(), "x-vtu")
    (folder / "out.vtu").write_bytes(reply.body)
    found = pyvista.read(folder / "out.vtu")["p_predicted"]
    np.testing.assert_allclose(found, expected(mesh_bundle, grid, 2.0), rtol=1e-4, atol=1e-5)


def test_an_encoded_mesh_is_queried_at_points(mesh_client, mesh_bundle, mesh):
    grid, folder = mesh
    state = mesh_client.request("POST", "/encode", (folder / "mesh.vtu").read_bytes(), "x-vtu").json
    points = np.asarray(grid.points)[:5].astype(np.float32)
    found = mesh_client.npz(f"/query?state={state['state']}", points=points).arrays["p"]
    np.testing.assert_allclose(found, expected(mesh_bundle, grid, 7.0)[:5], rtol=1e-4, atol=1e-5)


def test_a_mesh_without_a_number_is_refused(mesh_client, mesh):
    grid, folder = mesh
    grid.field_data.clear()
    grid.save(folder / "without.vtu")
    reply = mesh_client.request("POST", "/predict", (folder / "without.vtu").read_bytes(), "x-vtu")
    assert reply.status == 400
    assert "'speed'" in reply.json["error"]


def test_arrays_of_a_mesh_model_need_coordinates(mesh_client, mesh_bundle):
    coords = np.random.default_rng(0).random((9, 2)).astype(np.float32)
    speed = np.full(9, 3, np.float32)
    assert "coords" in mesh_client.npz("/predict", speed=speed).json["error"]
    found = mesh_client.npz("/predict", speed=speed, coords=coords).arrays["p"]
    direct = mesh_bundle.predict(torch.from_numpy(speed)[None, :, None], torch.from_numpy(coords))
    np.testing.assert_allclose(found, direct[0, :, 0].numpy(), rtol=1e-5, atol=1e-6)
