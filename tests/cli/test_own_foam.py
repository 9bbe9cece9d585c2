"""A folder of OpenFOAM cases on the command line: the chosen model, and warnings outside of its training."""

import csv
import json

import numpy as np
import pytest
import torch
import yaml

from linearno import load
from linearno.inference.on_meshes import MeshModel
from linearno.meshes.discover import one_case
from tests.commands import linearno, refused
from tests.meshes.foam_examples import slab, write_foam_output
from tests.meshes.mesh_examples import READER

pyvista = pytest.importorskip("pyvista")
pytest.importorskip("sklearn")

CASES = 16


def parameters():
    """Angles and speeds of the cases."""
    draws = np.random.default_rng(0).random((CASES, 2))
    return [(float(-4 + 14 * a), float(15 + 25 * b)) for a, b in draws]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder as `foamToVTK` leaves it, with a table of the parameters."""
    root = tmp_path_factory.mktemp("foam") / "sims"
    rows = ["case,angle [degree],speed [m/s]"]
    for number, (angle, speed) in enumerate(parameters()):
        name = f"case_{number:02d}"
        write_foam_output(root / name / "VTK", name, n=6, angle=angle, speed=speed)
        rows.append(f"{name},{angle},{speed}")
    (root / "cases.csv").write_text("\n".join(rows))
    return root


@pytest.fixture(scope="module")
def dataset(folder):
    path = folder.parent / "dataset.yaml"
    code, output = linearno("init", folder, "--out", path)
    assert code == 0, output
    assert "16 cases of 49 to 49 points" in output
    assert "one cell thick along z: reduced to the plane x, y" in output
    values = yaml.safe_load(path.read_text())
    values["quantities"] = {
        "lift": {"force": "p", "patch": "walls", "direction": [0, 1]},
        "outflow": {"average": "U_x", "patch": "outlet", "factor": 2.0},
    }
    path.write_text(yaml.safe_dump(values))
    return path


@pytest.fixture(scope="module")
def run(dataset, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "chosen"
    code, output = linearno("train", dataset, "--out", out, "--device", "cpu")
    assert code == 0, output
    assert "nearest case: p" in output
    assert "chosen: pod-gp has the smallest mean error" in output
    return out


def test_init_takes_the_folder_as_it_is(dataset):
    values = yaml.safe_load(dataset.read_text())
    assert (values["targets"], values["globals"]) == (["p", "U"], ["angle", "speed"])
    assert (values["surface"], values["coords"]) == ("walls", ["x", "y"])
    assert values["units"] == {"angle": "degree", "speed": "m/s"}


def test_the_model_is_chosen_on_validation_cases_and_is_better_than_the_nearest(run):
    choice = json.loads((run / "choice.json").read_text())
    metrics = json.loads((run / "metrics.json").read_text())
    assert choice["chosen"] == "pod-gp"
    names = [one["name"] for one in choice["validation"]]
    assert names == ["mean field", "nearest case", "pod-gp"]
    for name, field in metrics["relative_l2_by_field"].items():
        assert field["mean"] < 0.05
        assert field["mean"] < metrics["nearest_case"][name] / 4
    with (run / "per_sample.csv").open() as file:
        assert {row["name"][:5] for row in csv.DictReader(file)} == {"case_"}


def test_intervals_are_calibrated_and_their_coverage_is_reported(run):
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["coverage"]["level"] == 0.9
    assert all(0.5 < metrics["coverage"][name] <= 1 for name in ("p", "U_x", "U_y"))
    assert load(run).intervals.cases == 13


def test_integral_quantities_are_scored_for_each_test_case(run):
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["quantities"].keys() == {"lift", "outflow"}
    assert metrics["quantities"]["outflow"]["relative_error"] < 0.02
    with (run / "quantities.csv").open() as file:
        rows = {row["case"]: row for row in csv.DictReader(file)}
    for name, row in rows.items():
        angle, speed = parameters()[int(name[-2:])]
        expected = 2 * speed * np.cos(np.radians(angle)) * (1 + 0.3 * np.sin(np.radians(angle) + 1.5) * 0.66)
        assert float(row["outflow"]) == pytest.approx(expected, rel=0.05)


def test_a_prediction_is_written_to_the_mesh_in_space_with_interval_and_score(run, tmp_path):
    case = write_foam_output(tmp_path / "new" / "VTK", "new", n=6, angle=2.0, speed=25.0)
    out = tmp_path / "out.vtu"
    given = ("--given", "angle=2", "--given", "speed=25")
    code, output = linearno("predict", run, case, "-o", out, *given, "--device", "cpu")
    assert code == 0, output
    assert "outside" not in output
    grid = pyvista.read(out)
    assert grid.n_points == 98
    assert grid.n_cells == 36
    predicted, truth = grid.point_data["p_predicted"], grid.point_data["p"]
    np.testing.assert_allclose(predicted, truth, atol=0.1 * np.abs(truth).max())
    assert (grid["p_interval"] > 0).all()
    assert (grid["p_std"] > 0).all()
    assert 0 < grid.field_data["novelty"][0] <= 2
    folder = tmp_path / "new"
    code, output = linearno("predict", run, folder, "-o", tmp_path / "many", *given, "--device", "cpu")
    assert code == 0, output
    with (tmp_path / "many" / "summary.csv").open() as file:
        row = next(csv.DictReader(file))
    assert float(row["novelty"]) <= 2
    assert float(row["outflow"]) == pytest.approx(50, rel=0.3)


def test_probes_of_a_model_with_fixed_points_are_interpolated(run, tmp_path):
    case = write_foam_output(tmp_path / "VTK", "new", n=6, angle=2.0, speed=25.0)
    (tmp_path / "probes.csv").write_text("x,y,z\n0.25,0.25,0.05\n0.75,0.5,0.05\n")
    given = ("--given", "angle=2", "--given", "speed=25")
    values = tmp_path / "values.csv"
    words = ("query", run, case, "--points", tmp_path / "probes.csv", *given, "-o", values, "--device", "cpu")
    code, output = linearno(*words)
    assert code == 0, output
    rows = np.loadtxt(values, delimiter=",", skiprows=1)
    assert np.ptp(rows[:, 2]) > 1
    (tmp_path / "probes.csv").write_text("x,y,z\n0.25,0.25,0\n400,0.5,0\n")
    assert "1 of 2 query points lie outside the box of the training points" in refused(*words, "--strict")
    assert "does not contain 1 of 2 query points" in refused(*words)


class TestOutsideOfTheTrainingCases:
    """Each of these is named by a warning, and refused with --strict."""

    @pytest.fixture
    def findings(self, run, tmp_path):
        def of(change=None, *, angle=2.0, speed=25.0, **options):
            path = write_foam_output(tmp_path / "VTK", "new", n=6, **options)
            model = MeshModel.of(load(run))
            if change is not None:
                grid = pyvista.read(tmp_path / "VTK/new_100/internal.vtu")
                change(grid)
                path = tmp_path / "changed.vtu"
                grid.save(path)
            case = model.read(READER, one_case(path), {"angle": angle, "speed": speed})
            return "; ".join(model.findings(case)), model.novelty(case)

        return of

    def test_a_case_like_them_is_not_named(self, findings):
        assert findings()[0] == ""

    def test_an_angle_of_80_degrees(self, findings):
        text, novelty = findings(angle=80.0)
        assert text.startswith("angle is 80, the training cases have -3.")
        assert novelty > 5

    def test_a_speed_of_900(self, findings):
        assert "speed is 900, the training cases have" in findings(speed=900.0)[0]

    def test_a_mesh_in_millimetres(self, findings):
        text, novelty = findings(scale=1000.0)
        assert "1000 times as large as the training cases: is it in millimetres?" in text
        assert novelty > 5

    def test_a_missing_patch(self, findings):
        assert findings(without=("outlet",))[0] == "patch outlet of the training cases is missing"

    def test_a_missing_patch_that_the_inputs_need_is_an_error(self, run, tmp_path):
        case = write_foam_output(tmp_path / "VTK", "new", n=6, without=("walls",))
        message = refused(
            "predict", run, case, "--given", "angle=2", "--given", "speed=25", "--device", "cpu"
        )
        assert "holds no 'walls'" in message

    def test_strict_refuses_and_writes_nothing(self, run, tmp_path):
        case = write_foam_output(tmp_path / "VTK", "new", n=6)
        out = tmp_path / "out.vtu"
        words = ("predict", run, case, "-o", out, "--given", "angle=80", "--given", "speed=900")
        message = refused(*words, "--strict", "--device", "cpu")
        assert "angle is 80" in message
        assert "speed is 900" in message
        assert not out.exists()
        code, output = linearno(*words, "--device", "cpu")
        assert (code, out.exists()) == (0, True), output


def test_swapped_axes_are_recognised(tmp_path):
    from linearno.data import FieldData, FieldSpec
    from linearno.inference.training_ranges import TrainingRanges

    rng = np.random.default_rng(0)
    points = np.stack([rng.normal(size=500), 0.1 * rng.normal(size=500) + 3], axis=1)
    spec = FieldSpec.make({"coords": ("x", "y"), "outputs": ("p",)})
    train = FieldData(spec, torch.from_numpy(points).float(), None, torch.zeros(4, 500, 1))
    ranges = TrainingRanges.of(train, (), ())
    none = np.empty((500, 0))
    assert ranges.findings(points, none, (), ()) == []
    (text, *_) = ranges.findings(points[:, ::-1], none, (), ())
    assert text == "the axes look swapped: the mesh fits the training cases as (y, x)"
    assert "geometry differs" in ranges.findings(points * [1, 4], none, (), ())[0]


@pytest.mark.slow
def test_a_network_is_trained_where_the_cases_share_no_mesh(tmp_path):
    root = tmp_path / "sims"
    root.mkdir()
    for number in range(6):
        slab(3 + number % 3, angle=float(number)).save(root / f"case_{number}.vtu")
    (root / "cases.csv").write_text("case,angle\n" + "".join(f"case_{n},{n}\n" for n in range(6)))
    assert linearno("init", root, "--out", tmp_path / "d.yaml")[0] == 0
    words = ("train", tmp_path / "d.yaml", "--minutes", "0.01", "--out", tmp_path / "run", "--device", "cpu")
    code, output = linearno(*words)
    assert code == 0, output
    assert "pod-gp: not tried, the cases do not share a mesh" in output
    assert "linearno: 20 epochs, about" in output
    choice = json.loads((tmp_path / "run" / "choice.json").read_text())
    assert choice["chosen"] == "linearno"
    assert len(load(tmp_path / "run").intervals.deviations) == 3
