"""A user's own simulations on the command line: look, train, predict on new meshes, ask at probes."""

import csv
import json
import shutil

import numpy as np
import pytest
import yaml

from linearno import load
from linearno.inference import predict_mesh, query_mesh
from linearno.meshes import generate_cases
from tests.commands import linearno, refused
from tests.meshes.mesh_examples import SET, ball, box, plane, scattered

pyvista = pytest.importorskip("pyvista")
vtkDataArray = pytest.importorskip("vtkmodules.vtkCommonCore").vtkDataArray

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def plates(tmp_path_factory):
    """Eight pulled plates on meshes of different sizes, as VTU files."""
    root = tmp_path_factory.mktemp("own") / "plates"
    sizes = {"train": 6, "test": 2}
    generate_cases(root, sizes=sizes, resolution=5, seed=0, workers=1, tick=lambda n: None)
    return root


@pytest.fixture(scope="module")
def dataset(plates):
    path = plates.parent / "dataset.yaml"
    code, output = linearno("init", plates, "--out", path)
    assert code == 0, output
    return path, output


@pytest.fixture(scope="module")
def run(dataset, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "plates"
    code, output = linearno("train", dataset[0], *SET, "--out", folder, "--device", "cpu")
    assert code == 0, output
    assert "displacement: " in output
    return folder


def test_init_lists_the_fields_and_writes_its_guesses(dataset, plates):
    path, output = dataset
    table = {line.split()[0]: line.split() for line in output.splitlines() if line}
    assert table["displacement"][1:3] == ["points", "3"]
    assert table["stress"][-1] == "target"
    assert "degree" in table["angle"]
    values = yaml.safe_load(path.read_text())
    assert (values["root"], values["targets"], values["globals"]) == (
        "plates",
        ["displacement", "stress"],
        ["angle"],
    )
    assert values["units"] == {"displacement": "mm", "stress": "MPa", "angle": "degree"}
    assert path.read_text().count("#") > 20
    assert "exists already" in refused("init", plates, "--out", path)


def test_a_run_from_a_dataset_is_a_run_like_any(run, tmp_path):
    metrics = json.loads((run / "metrics.json").read_text())
    assert set(metrics["relative_l2_by_field"]) == {"displacement", "stress"}
    assert metrics["samples"] == 2
    assert load(run).spec.outputs == ("displacement_x", "displacement_y", "stress")
    for verb in (["evaluate", run], ["report", run, "-o", tmp_path / "page.html"]):
        code, output = linearno(*verb)
        assert code == 0, output


def test_a_bundle_knows_how_to_read_a_mesh_and_one_of_an_earlier_version_asks_its_run(run, plates, tmp_path):
    card = json.loads((run / "model.json").read_text())
    fields = card.pop("mesh_fields")
    assert (fields["location"], fields["globals"]) == ("points", ["angle"])
    assert not {"root", "files", "train", "test"} & fields.keys()
    bundle, former = tmp_path / "bundle", shutil.copytree(run, tmp_path / "former")
    bundle.mkdir()
    for name in ("model.json", "model.safetensors"):
        shutil.copy(run / name, bundle)
    (former / "model.json").write_text(json.dumps(card))
    assert load(former).mesh_fields == load(run).mesh_fields
    errors = [
        predict_mesh(each, plates / "plate_0001.vtu", tmp_path / "a.vtu") for each in (run, bundle, former)
    ]
    assert errors[0] == errors[1] == errors[2]
    assert set(errors[0]) == {"displacement", "stress"}


def test_defaults_follow_the_size_of_the_data(dataset, tmp_path):
    from linearno.cli.train import open_recipe

    small = open_recipe(str(dataset[0]))
    assert (small.model.width, small.training.points, small.training.loss.scaled) == (32, None, True)
    root = tmp_path / "large"
    for n in range(10):
        root.mkdir(exist_ok=True)
        np.savez(root / f"{n}.npz", points=scattered(40_000, 2), p=scattered(40_000, 1))
    code, output = linearno("init", root, "--out", tmp_path / "d.yaml")
    assert code == 0, output
    large = open_recipe(str(tmp_path / "d.yaml"))
    assert (large.model.width, large.training.points, large.training.batch) == (64, 32768, 1)


def test_a_prediction_is_written_on_the_mesh_with_all_its_fields(run, plates, tmp_path):
    path = plates / "plate_0003.vtu"
    before = pyvista.read(path)
    before.cell_data["quality"] = np.arange(before.n_cells)
    before.save(tmp_path / "q.vtu")
    code, output = linearno("predict", run, tmp_path / "q.vtu", "-o", tmp_path / "a.vtu", "--device", "cpu")
    assert code == 0, output
    after = pyvista.read(tmp_path / "a.vtu")
    for name in before.point_data:
        assert (after.point_data[name] == before.point_data[name]).all()
    assert (after.cell_data["quality"] == before.cell_data["quality"]).all()
    assert (after.cells == before.cells).all()
    assert after.field_data["angle"] == before.field_data["angle"]
    difference = after["stress_predicted"] - after["stress"]
    np.testing.assert_allclose(after["stress_error"], difference, rtol=1e-4, atol=1e-2)
    assert after["displacement_predicted"].shape == (before.n_points, 3)
    assert (after["displacement_predicted"][:, 2] == 0).all()
    label = after.GetPointData().GetArray("stress_predicted").GetInformation()
    assert label.Get(vtkDataArray.UNITS_LABEL()) == "MPa"
    error = np.linalg.norm(difference) / np.linalg.norm(after["stress"])
    assert f"stress relative L2 {error:.4g}" in " ".join(output.split())


def test_a_mesh_without_the_truth_is_answered_without_an_error(run, plates, tmp_path):
    bare = pyvista.read(plates / "plate_0003.vtu")
    whole = predict_mesh(run, plates / "plate_0003.vtu", tmp_path / "whole.vtu")
    bare.clear_point_data()
    bare.save(tmp_path / "bare.vtu")
    assert set(whole) == {"displacement", "stress"}
    assert predict_mesh(run, tmp_path / "bare.vtu", tmp_path / "out.vtu") == {}
    one, other = (pyvista.read(tmp_path / name) for name in ("whole.vtu", "out.vtu"))
    assert (one["stress_predicted"] == other["stress_predicted"]).all()
    assert set(other.point_data) == {"stress_predicted", "displacement_predicted"}


def test_a_number_that_the_mesh_does_not_tell_can_be_given(run, plates, tmp_path):
    bare = pyvista.read(plates / "plate_0003.vtu")
    angle = float(bare.field_data["angle"][0])
    bare.clear_field_data()
    bare.save(tmp_path / "bare.vtu")
    assert "holds no number 'angle'" in refused(
        "predict", run, tmp_path / "bare.vtu", "-o", tmp_path / "a.vtu"
    )
    given = ["predict", run, tmp_path / "bare.vtu", "-o", tmp_path / "a.vtu", "--given"]
    assert linearno(*given, f"angle={angle!r}")[0] == 0
    predict_mesh(run, plates / "plate_0003.vtu", tmp_path / "b.vtu")
    one, other = (pyvista.read(tmp_path / name)["stress_predicted"] for name in ("a.vtu", "b.vtu"))
    assert (one == other).all()
    assert "expected NAME=NUMBER" in refused(*given, "angle")
    assert "'speed' is no number of a case that the model takes; those are: angle" in refused(
        *given, "speed=3"
    )


def test_a_folder_is_answered_in_a_folder_with_a_summary(run, plates, tmp_path):
    code, output = linearno("predict", run, plates, "-o", tmp_path / "out")
    assert code == 0, output
    rows = list(csv.DictReader((tmp_path / "out" / "summary.csv").open()))
    assert [row["case"] for row in rows] == [f"plate_{i:04d}" for i in range(8)]
    for row in rows:
        mesh = pyvista.read(tmp_path / "out" / f"{row['case']}.vtu")
        assert int(row["points"]) == mesh.n_points
        error = np.linalg.norm(mesh["stress_error"]) / np.linalg.norm(mesh["stress"])
        assert float(row["relative_l2_stress"]) == pytest.approx(error, rel=1e-3)
        assert float(row["seconds"]) > 0
    code, output = linearno("predict", run, plates / "plate_000[12].*", "-o", tmp_path / "some")
    assert code == 0, output
    assert sorted(path.name for path in (tmp_path / "some").iterdir()) == [
        "plate_0001.vtu",
        "plate_0002.vtu",
        "summary.csv",
    ]


def test_a_bad_mesh_in_a_folder_stops_all_before_anything_is_written_or_is_skipped(run, plates, tmp_path):
    root = shutil.copytree(plates, tmp_path / "cases")
    (root / "plate_0002.vtu").write_bytes((root / "plate_0002.vtu").read_bytes()[:900])
    plane(4).save(root / "plate_0005.vtu")
    line = refused("predict", run, root, "-o", tmp_path / "out")
    assert "plate_0002.vtu is damaged" in line
    assert "(and 1 more of 8 meshes); add --skip-bad to skip such meshes" in line
    assert not list((tmp_path / "out").iterdir())
    code, output = linearno("predict", run, root, "-o", tmp_path / "out", "--skip-bad")
    assert code == 0, output
    assert "6 meshes" in output
    assert "2 skipped" in output
    rows = list(csv.DictReader((tmp_path / "out" / "summary.csv").open()))
    assert [row["case"] for row in rows if row["skipped"]] == ["plate_0002", "plate_0005"]
    assert not (tmp_path / "out" / "plate_0002.vtu").exists()
    line = refused("init", root, "--out", tmp_path / "d.yaml")
    assert "plate_0002.vtu is damaged" in line
    assert "--skip-bad" in line
    code, output = linearno("init", root, "--out", tmp_path / "d.yaml", "--skip-bad", "--targets", "stress")
    assert "skipped: " in output
    line = refused(
        "train", tmp_path / "d.yaml", *SET, "--set", "data.skip_bad=false", "--out", tmp_path / "no"
    )
    assert "(and 1 more of 8 cases; data.skip_bad=true leaves such cases out)" in line


def test_all_meshes_bad_is_nothing_done(run, tmp_path):
    (tmp_path / "cases").mkdir()
    plane(4).save(tmp_path / "cases" / "a.vtu")
    line = refused("predict", run, tmp_path / "cases", "-o", tmp_path / "out", "--skip-bad")
    assert "none of the 1 meshes could be used" in line


def test_a_query_at_the_points_of_the_mesh_equals_the_prediction(run, plates, tmp_path):
    path = plates / "plate_0001.vtu"
    predict_mesh(run, path, tmp_path / "a.vtu")
    mesh = pyvista.read(tmp_path / "a.vtu")
    values = query_mesh(run, path, np.asarray(mesh.points)[:, :2])
    np.testing.assert_allclose(values[:, 2], mesh["stress_predicted"], rtol=1e-4, atol=1e-3)
    (tmp_path / "probes.csv").write_text("x,y\n0.05,0.05\n0.9,0.1\n")
    arguments = ["query", run, path, "--points", tmp_path / "probes.csv", "-o", tmp_path / "values.csv"]
    code, output = linearno(*arguments)
    assert code == 0, output
    rows = list(csv.DictReader((tmp_path / "values.csv").open()))
    assert list(rows[0]) == ["x", "y", "displacement_x [mm]", "displacement_y [mm]", "stress [MPa]"]
    asked = query_mesh(run, path, np.array([[0.05, 0.05], [0.9, 0.1]]))
    np.testing.assert_allclose([float(row["stress [MPa]"]) for row in rows], asked[:, 2], rtol=1e-5)
    (tmp_path / "probes.csv").write_text("a,b\n0.05,0.05\n")
    assert "has no coordinates" in refused(*arguments)
    assert "expected a name that ends in .csv" in refused(*arguments[:-1], tmp_path / "values.vtu")


@pytest.fixture(scope="module")
def boxes(tmp_path_factory):
    """Volumes with a field in their cells and one on their surface alone, and a model of both."""
    root = tmp_path_factory.mktemp("boxes")
    (root / "cases").mkdir()
    for n in (3, 4, 5, 6):
        grid = box(n)
        marks = np.zeros(grid.n_points)
        points = np.asarray(grid.points)
        skin = ((points == 0) | (points == points.max(axis=0))).any(axis=1)
        marks[skin] = 1 + points[skin, 0]
        grid.point_data["wss"] = marks
        grid.save(root / "cases" / f"box_{n}.vtu")
    return root


def learned(root, *flags):
    folder = root / "-".join(["run", *map(str, flags)])
    path = folder.with_suffix(".yaml")
    if folder.exists():
        return folder, yaml.safe_load(path.read_text())
    code, output = linearno("init", root / "cases", "--out", path, "--test", "box_5", *flags)
    assert code == 0, output
    code, output = linearno("train", path, *SET, "--out", folder, "--device", "cpu")
    assert code == 0, output
    return folder, yaml.safe_load(path.read_text())


def test_fields_of_cells_are_learned_and_written_in_cells(boxes, tmp_path):
    run, values = learned(boxes, "--targets", "q", "--inputs", "p")
    assert (values["location"], values["test"]) == ("cells", ["box_5"])
    assert set(predict_mesh(run, boxes / "cases" / "box_4.vtu", tmp_path / "a.vtu")) == {"q"}
    mesh = pyvista.read(tmp_path / "a.vtu")
    assert mesh.cell_data["q_predicted"].shape == (mesh.n_cells,)
    assert "q_predicted" not in mesh.point_data
    probes = np.asarray(mesh.cell_centers().points)
    values = query_mesh(run, boxes / "cases" / "box_4.vtu", probes)
    np.testing.assert_allclose(values[:, 0], mesh.cell_data["q_predicted"], rtol=1e-3, atol=1e-3)
    (tmp_path / "probes.csv").write_text("x,y,z\n50,50,50\n")
    line = refused(
        "query",
        run,
        boxes / "cases" / "box_4.vtu",
        "--points",
        tmp_path / "probes.csv",
        "-o",
        tmp_path / "v.csv",
    )
    assert "1 of 1 points lie outside the mesh, where p is not known" in line


def test_a_field_of_the_surface_is_learned_and_answered_there_alone(boxes, tmp_path):
    run, values = learned(boxes, "--targets", "p,wss")
    assert values["surface_targets"] == ["wss"]
    metrics = json.loads((run / "metrics.json").read_text())
    assert np.isfinite(metrics["relative_l2_by_field"]["wss"]["mean"])
    predict_mesh(run, boxes / "cases" / "box_4.vtu", tmp_path / "a.vtu")
    mesh = pyvista.read(tmp_path / "a.vtu")
    assert (np.isnan(mesh["wss_predicted"]) == (mesh["wss"] == 0)).all()
    assert np.isfinite(mesh["p_predicted"]).all()
    code, output = linearno("report", run, "-o", tmp_path / "page.html")
    assert code == 0, output


class TestBadMeshes:
    """Each in one line, with exit code 2, and nothing written."""

    def line(self, run, mesh, tmp_path, *more):
        line = refused("predict", run, mesh, "-o", tmp_path / "out.vtu", *more)
        assert not (tmp_path / "out.vtu").exists()
        return line

    def test_without_what_the_model_needs(self, boxes, tmp_path):
        run, _ = learned(boxes, "--targets", "q", "--inputs", "p")
        grid = box(4)
        grid.rename_array("p", "pp")
        grid.save(tmp_path / "a.vtu")
        assert "holds no 'p'; did you mean 'pp'?" in self.line(run, tmp_path / "a.vtu", tmp_path)

    def test_of_another_dimension(self, run, tmp_path):
        box(4).save(tmp_path / "a.vtu")
        assert "expected a mesh in a plane, without z" in self.line(run, tmp_path / "a.vtu", tmp_path)

    def test_in_other_units(self, run, plates, tmp_path):
        mesh = pyvista.read(plates / "plate_0001.vtu")
        mesh.rename_array("stress", "stress [kPa]")
        mesh.GetPointData().GetArray("stress [kPa]").GetInformation().Clear()
        mesh.save(tmp_path / "a.vtu")
        assert "stress is in kPa, expected MPa" in self.line(run, tmp_path / "a.vtu", tmp_path)

    def test_empty(self, run, tmp_path):
        pyvista.UnstructuredGrid().save(tmp_path / "a.vtu")
        assert "holds no points" in self.line(run, tmp_path / "a.vtu", tmp_path)

    def test_with_faults_that_may_be_tolerated(self, run, plates, tmp_path):
        mesh = pyvista.read(plates / "plate_0001.vtu")
        points = np.asarray(mesh.points)
        points[mesh.get_cell(0).point_ids[1]] = points[mesh.get_cell(0).point_ids[0]]
        mesh.points = points
        mesh.save(tmp_path / "a.vtu")
        line = self.line(run, tmp_path / "a.vtu", tmp_path)
        assert "1 of" in line
        assert "repair the mesh, or tolerate it: duplicates" in line
        code, output = linearno(
            "predict",
            run,
            tmp_path / "a.vtu",
            "-o",
            tmp_path / "b.vtu",
            "--tolerate",
            "duplicates,degenerate",
        )
        assert code == 0, output

    def test_with_points_that_are_no_numbers(self, run, plates, tmp_path):
        mesh = pyvista.read(plates / "plate_0001.vtu")
        points = np.asarray(mesh.points)
        points[5] = np.nan
        mesh.points = points
        mesh.save(tmp_path / "a.vtu")
        assert "NaN or infinite coordinates" in self.line(run, tmp_path / "a.vtu", tmp_path)

    def test_with_an_answer_that_could_not_be_kept(self, run, plates, tmp_path):
        mesh = plates / "plate_0001.vtu"
        assert "are written as one of .vtu" in refused("predict", run, mesh, "-o", tmp_path / "a.npz")
        assert "is the mesh itself" in refused("predict", run, mesh, "-o", mesh)
        assert "expected a folder for the predictions" in refused(
            "predict", run, plates, "-o", tmp_path / "a.vtu"
        )
        (tmp_path / "file").write_text("in the way")
        assert "cannot write" in refused("predict", run, mesh, "-o", tmp_path / "file" / "a.vtu")
        assert "cannot; write one of .vtu, .vtk" in refused("predict", run, mesh, "-o", tmp_path / "a.vtp")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]

    def test_an_open_surface_where_a_distance_is_asked_for(self, tmp_path):
        root = tmp_path / "cases"
        root.mkdir()
        for n in (6, 8, 10, 12):
            np.savez(root / f"{n}.npz", points=scattered(n, 3), p=scattered(n, 1))
            ball(1.0, n).clip("z", origin=(0, 0, 0.5)).save(root / f"{n}.stl")
        code, output = linearno("init", root, "--out", tmp_path / "d.yaml")
        assert code == 0, output
        assert yaml.safe_load((tmp_path / "d.yaml").read_text())["derived"] == ["unsigned_distance"]
        line = refused(
            "train", tmp_path / "d.yaml", *SET, "--set", "data.derived=[distance]", "--out", tmp_path / "r"
        )
        assert "has a surface that is not closed" in line
        assert not (tmp_path / "r").exists()
