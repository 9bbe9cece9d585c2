"""Meshes beside other models, in the gallery and the example, and cases from a function of one's own."""

import csv
import os
import sys

import numpy as np
import pytest
import torch
import yaml

from linearno import LinearNO, load
from linearno.core.config import override
from linearno.core.registry import Registry
from linearno.data import Batch, FieldSpec, Scaler
from linearno.inference import predict_mesh, query_mesh
from linearno.inference.bundle import Bundle
from linearno.recipes import RECIPES
from linearno.recipes.gallery import GalleryEntry
from tests.commands import linearno, refused
from tests.meshes.mesh_examples import SET, TINY, plane

pyvista = pytest.importorskip("pyvista")
from examples import own_data  # noqa: E402 (the example imports pyvista)

pytestmark = pytest.mark.slow


def test_a_model_of_arrays_finds_its_inputs_on_a_mesh_by_their_names(tmp_path):
    spec = FieldSpec(coords=("x", "y"), inputs=("p",), outputs=("q", "T"), standardised=("inputs",))
    samples = Batch(torch.rand(2, 30, 2), torch.rand(2, 30, 1), torch.rand(2, 30, 2))
    model = LinearNO(coords=2, inputs=1, outputs=2, width=8, depth=1, heads=2, slices=4)
    Bundle(model, Scaler.fit(spec, samples), spec, None, "elasticity/linearno", 0).save(tmp_path / "run")
    mesh = plane(4)
    mesh.save(tmp_path / "a.vtu")
    errors = predict_mesh(tmp_path / "run", tmp_path / "a.vtu", tmp_path / "b.vtu")
    assert set(errors) == {"q"}  # of cells: compared at the points
    answer = load(tmp_path / "run").predict(
        torch.from_numpy(np.asarray(mesh["p"], np.float32))[None, :, None],
        torch.from_numpy(np.asarray(mesh.points, np.float32)[None, :, :2].copy()),
    )
    np.testing.assert_allclose(pyvista.read(tmp_path / "b.vtu")["T_predicted"], answer[0, :, 1], rtol=1e-5)


def test_a_model_tied_to_its_grid_refuses_a_mesh(tiny_run, tmp_path):
    mesh = plane(4)
    mesh.point_data["coeff"] = np.ones(mesh.n_points)
    mesh.save(tmp_path / "a.vtu")
    assert "81 points" in refused("predict", tiny_run, tmp_path / "a.vtu", "-o", tmp_path / "b.vtu")


@pytest.mark.parametrize("height", [0.0, 3.0])
def test_probes_of_a_plane_mesh_lie_in_its_plane_whichever_that_is(tmp_path, height):
    root = tmp_path / "cases"
    root.mkdir()
    for n in (4, 5, 6, 7):
        mesh = plane(n)
        x, y, _ = np.asarray(mesh.points).T
        mesh.points = np.stack([x, np.full_like(x, height), y], axis=1)
        mesh.point_data.remove("U")
        mesh.save(root / f"{n}.vtu")
    flags = ["--targets", "q", "--inputs", "p", "--derived", "distance"]
    code, output = linearno("init", root, "--out", tmp_path / "d.yaml", *flags)
    assert code == 0, output
    assert yaml.safe_load((tmp_path / "d.yaml").read_text())["coords"] == ["x", "z"]
    code, output = linearno("train", tmp_path / "d.yaml", *SET, "--out", tmp_path / "run", "--device", "cpu")
    assert code == 0, output
    (tmp_path / "probes.csv").write_text("x,z\n0.25,0.5\n")
    arguments = ["query", tmp_path / "run", root / "5.vtu", "--points", tmp_path / "probes.csv"]
    code, output = linearno(*arguments, "-o", tmp_path / "v.csv")
    assert code == 0, output
    (row,) = csv.DictReader((tmp_path / "v.csv").open())
    assert (row["x"], row["z"]) == ("0.25", "0.5")
    expected = query_mesh(tmp_path / "run", root / "5.vtu", np.array([[0.25, 99.0, 0.5]]))
    assert float(row["q"]) == pytest.approx(float(expected[0, 0]), rel=1e-5)


def test_the_gallery_has_a_card_for_meshes_of_any_size(tmp_path, monkeypatch):
    def tiny():
        """Stress on any mesh."""
        return override(RECIPES["gallery/meshes"](), [*TINY, "data.train=4", "data.test=2"])

    entries = Registry("benchmark of the gallery")
    entries.register("meshes")(GalleryEntry("Meshes of any size", tiny, resolution=5, seconds=1))
    monkeypatch.setattr("linearno.cli.gallery.GALLERY", entries)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    code, output = linearno(
        "gallery", "--out", tmp_path, "--device", "cpu", "--figures", tmp_path / "figures"
    )
    assert code == 0, output
    page = (tmp_path / "index.html").read_text()
    assert "Meshes of any size, median case: truth, prediction and absolute error" in page
    assert "4 training and 2 test samples" in page
    assert (tmp_path / "figures" / "meshes.png").exists()


def test_the_example_runs_from_nothing_to_a_picture(tmp_path, capsys):
    settings = dict(pair.split("=") for pair in TINY)
    own_data.main(tmp_path / "out", plates=6, settings=settings, size=5)
    assert (tmp_path / "out" / "picture.png").read_bytes()[:4] == b"\x89PNG"
    assert len(list((tmp_path / "out" / "predicted").glob("*.vtu"))) == 3
    assert "$ linearno init" in capsys.readouterr().out


def test_a_function_of_ones_own_yields_cases(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "def cases():\n"
        "    for n in (5, 6, 7, 8):\n"
        "        points = np.random.default_rng(n).random((n, 2))\n"
        "        yield {'name': f'c{n}', 'points': points, 'p': points[:, 0], 'speed': n}\n"
        "def wrong():\n"
        "    yield {'points': np.zeros((3, 5))}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    code, output = linearno("init", "mine:cases")
    assert code == 0, output
    values = yaml.safe_load((tmp_path / "dataset.yaml").read_text())
    assert (values["targets"], values["globals"], values["root"]) == (["p"], ["speed"], "dataset_cases")
    assert len(list((tmp_path / "dataset_cases").glob("c*.npz"))) == 4
    code, output = linearno("train", "dataset.yaml", *SET, "--out", "run")
    assert code == 0, output
    code, output = linearno("predict", "run", "dataset_cases/c7.npz", "-o", "a.npz")
    assert code == 0, output
    with np.load("a.npz") as answer:
        assert set(answer.files) == {"points", "p", "speed", "p_predicted", "p_error"}
    assert "points of shape (3, 5)" in refused("init", "mine:wrong", "-o", "e.yaml")
    assert "has no function 'caes'; did you mean 'cases'" in refused("init", "mine:caes", "-o", "e.yaml")
    assert "cannot import 'mein'" in refused("init", "mein:cases", "-o", "e.yaml")
    sys.modules.pop("mine", None)
