"""A folder of cases as a data set: which files, which numbers, which fields, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from linearno.core.errors import UserError
from linearno.meshes.cases import open_cases
from linearno.meshes.config import CasesConfig, read_dataset
from linearno.meshes.dataset_yaml import dataset_text
from linearno.meshes.discover import find_cases, split_cases
from linearno.meshes.infer_schema import InitOptions, infer_schema, summarise_folder
from linearno.meshes.tables import read_table
from tests.meshes.mesh_examples import ball, box, case_of, plane, scattered

PLANE = {"targets": ["p"], "coords": ["x", "y"]}


@pytest.fixture
def folder(tmp_path):
    """Ten planes of different sizes."""
    root = tmp_path / "cases"
    root.mkdir()
    for n in range(3, 13):
        plane(n).save(root / f"plane_{n:02d}.vtu")
    return root


class TestFiles:
    def test_cases_are_found_by_name_with_the_surface_beside_them(self, tmp_path):
        for name in ("b.npz", "sub/a.npz", "cases.csv", ".hidden.npz", "notes.txt", "c.stl", "b.stl"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(b"")
        found = find_cases(tmp_path)
        assert [case.name for case in found] == ["b", "c", "sub/a"]
        assert found[0].surface == tmp_path / "b.stl"
        assert found[1].path == tmp_path / "c.stl"

    def test_what_is_no_folder_of_cases_is_named(self, tmp_path):
        with pytest.raises(UserError, match="holds no case"):
            find_cases(tmp_path)
        with pytest.raises(UserError, match="does not exist"):
            find_cases(tmp_path / "no")
        for name in ("a.vtu", "a.npz"):
            (tmp_path / name).write_bytes(b"")
        with pytest.raises(UserError, match="holds 'a' in several formats"):
            find_cases(tmp_path)

    def test_a_split_by_fraction_depends_on_the_seed_alone(self, folder):
        cases = find_cases(folder)
        train, test = split_cases(cases, 1.0, 0.2, 0)
        assert len(test) == 2
        assert sorted([*train, *test], key=lambda case: case.name) == cases
        assert split_cases(list(reversed(cases)), 1.0, 0.2, 0) != split_cases(cases, 1.0, 0.2, 1)
        assert split_cases(cases, 1.0, 0.2, 0) == (train, test)
        fewer, same = split_cases(cases, 3, 2, 0)
        assert same == test
        assert set(fewer) < set(train)

    def test_one_pattern_is_a_list_of_one(self):
        assert CasesConfig.make({"targets": ["p"], "test": "wing_*"}).test == ("wing_*",)

    def test_a_split_by_patterns_goes_by_name(self, folder):
        train, test = split_cases(find_cases(folder), ("plane_0*",), ("*_1[02]",), 0)
        assert [case.name for case in test] == ["plane_10", "plane_12"]
        assert len(train) == 7
        train, _ = split_cases(find_cases(folder), 1.0, ("*_1[02]",), 0)
        assert len(train) == 8

    @pytest.mark.parametrize(
        ("train", "test", "message"),
        [
            (1.0, ("nothing",), "data.test leaves no case of 10"),
            (("plane*",), ("plane_03",), "both match 'plane_03'"),
            (9, 2, "data.train=9, but only 8 of 10 cases are left"),
            (1.0, 10, "data.train leaves no case"),
        ],
    )
    def test_a_split_that_leaves_nothing_is_named(self, folder, train, test, message):
        with pytest.raises(UserError, match=message):
            split_cases(find_cases(folder), train, test, 0)


class TestNumbersOfACase:
    def test_a_table_names_them_by_case_with_units(self, tmp_path):
        np.savez(tmp_path / "a.npz", points=scattered(5, 2), p=np.ones(5))
        (tmp_path / "cases.csv").write_text("file,speed [m/s],angle\na.npz,3.5,\n")
        table = read_table(tmp_path)
        case = case_of(tmp_path / "a.npz", **PLANE, globals=["speed"], table=table)
        assert (case.inputs == 3.5).all()
        assert table.units == {"speed": "m/s"}
        with pytest.raises(UserError, match=r"holds no number 'angle' and .*cases\.csv has no row for it"):
            case_of(tmp_path / "a.npz", **PLANE, globals=["angle"], table=table)

    def test_json_does_too(self, tmp_path):
        np.savez(tmp_path / "a.npz", points=scattered(5, 2), p=np.ones(5))
        (tmp_path / "cases.json").write_text(json.dumps({"a": {"speed": 3}}))
        case = case_of(tmp_path / "a.npz", **PLANE, globals=["speed"], table=read_table(tmp_path))
        assert (case.inputs == 3).all()

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("speed\n3\n", "expected a column case or file or name"),
            ("case,speed\na,fast\n", "speed of a is 'fast', expected a number"),
            ("case,speed\na,nan\n", "speed of a is nan, expected a finite number"),
        ],
    )
    def test_a_table_that_cannot_be_understood_is_named(self, tmp_path, text, message):
        (tmp_path / "cases.csv").write_text(text)
        with pytest.raises(UserError, match=message):
            read_table(tmp_path)

    def test_field_data_and_constant_fields_tell_them_and_what_is_given_goes_first(self, tmp_path):
        grid = plane(4)
        grid.point_data["angle"] = np.full(grid.n_points, 7.0)
        grid.save(tmp_path / "a.vtu")
        case = case_of(tmp_path / "a.vtu", **PLANE, globals=["speed", "angle"])
        assert (case.inputs == [4, 7]).all()
        case = case_of(tmp_path / "a.vtu", **PLANE, globals=["speed", "angle"], given={"speed": 9.0})
        assert (case.inputs == [9, 7]).all()
        with pytest.raises(UserError, match="has a field p that varies; expected one number of the case"):
            case_of(tmp_path / "a.vtu", targets=["U"], components={"U": ["x"]}, globals=["p"])


class TestFields:
    def test_vectors_have_a_channel_for_each_component_asked_for(self, tmp_path):
        plane(4).save(tmp_path / "a.vtu")
        config = {"targets": ["p", "U"], "components": {"U": ["y", "x"]}}
        case = case_of(tmp_path / "a.vtu", **config)
        assert CasesConfig.make(config).spec.outputs == ("p", "U_y", "U_x")
        np.testing.assert_allclose(case.targets[:, 1:], case.coords * [-1, 1], atol=1e-6)
        with pytest.raises(
            UserError, match=r"U has 3 components; choose some, as in components: {U: \[x, y\]}"
        ):
            case_of(tmp_path / "a.vtu", targets=["U"])
        with pytest.raises(UserError, match="named x, y, z or 0, 1"):
            case_of(tmp_path / "a.vtu", targets=["U"], components={"U": ["w"]})

    def test_cells_are_places_as_well_as_points(self, tmp_path):
        plane(4).save(tmp_path / "a.vtu")
        case = case_of(tmp_path / "a.vtu", targets=["q"], inputs=["p"], location="cells")
        assert len(case.coords) == plane(4).n_cells
        np.testing.assert_allclose(case.targets[:, 0], case.coords[:, 0], rtol=1e-6)

    def test_a_field_of_the_surface_alone_is_not_known_elsewhere(self, tmp_path):
        grid = plane(5)
        edge = ((grid.points == 0) | (grid.points == 1))[:, :2].any(axis=1)
        grid.point_data["wss"] = np.where(edge, 1 + grid.points[:, 0], np.nan)
        grid.save(tmp_path / "a.vtu")
        case = case_of(tmp_path / "a.vtu", targets=["p", "wss"], surface_targets=["wss"], surface="own")
        assert (case.surface == edge).all()
        assert (np.isnan(case.targets[:, 1]) == ~edge).all()
        assert np.isfinite(case.targets[:, 0]).all()
        with pytest.raises(UserError, match="wss has NaN or infinite values at 12 of 30 points"):
            case_of(tmp_path / "a.vtu", targets=["wss"])

    def test_without_the_truth_a_mesh_is_still_a_question(self, tmp_path):
        plane(4).save(tmp_path / "a.vtu")
        case = case_of(tmp_path / "a.vtu", targets=["p", "T"], truth=False)
        assert case.found == ("p",)
        assert np.isnan(case.targets[:, 1]).all()
        with pytest.raises(UserError, match="holds no 'T'; known: U, p, q"):
            case_of(tmp_path / "a.vtu", targets=["p", "T"])


class TestRefused:
    def test_other_dimensions(self, tmp_path):
        box().save(tmp_path / "a.vtu")
        with pytest.raises(UserError, match="expected a mesh in a plane, without z"):
            case_of(tmp_path / "a.vtu", targets=["p"], coords=["x", "y"])
        plane().save(tmp_path / "b.vtu")
        with pytest.raises(UserError, match=r"has an extent along x, y, .* with as many dimensions"):
            case_of(tmp_path / "b.vtu", targets=["p"], coords=["x", "y", "z"])

    def test_other_units(self, tmp_path):
        grid = plane(4)
        grid.rename_array("p", "p [kPa]")
        grid.save(tmp_path / "a.vtu")
        case_of(tmp_path / "a.vtu", targets=["p"], units={"p": "kPa"})
        with pytest.raises(UserError, match="p is in kPa, expected Pa; convert it"):
            case_of(tmp_path / "a.vtu", targets=["p"], units={"p": "Pa"})

    def test_values_that_are_no_numbers(self, tmp_path):
        grid = plane(4)
        grid.point_data["p"][3] = np.nan
        grid.save(tmp_path / "a.vtu")
        with pytest.raises(UserError, match="p has NaN or infinite values at 1 of 20 points"):
            case_of(tmp_path / "a.vtu", targets=["p"])

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({"targets": []}, "name one field or more to predict"),
            ({"targets": ["p"], "inputs": ["p"]}, "'p' is a target and an input"),
            ({"targets": ["p"], "derived": ["distance"]}, "set surface"),
            ({"targets": ["p"], "surface_targets": ["q"]}, "'q' is not one of the targets"),
            ({"targets": ["p"], "test": 1.5}, "expected a fraction up to 1.0"),
            ({"targets": ["p"], "coords": ["x", "x"]}, "two or three different axes"),
            ({"targets": ["p", "x"]}, "field names must be distinct"),
            ({"targets": ["p"], "trgets": ["p"]}, "trgets: no such field; did you mean 'targets'"),
        ],
    )
    def test_a_configuration_that_makes_no_sense(self, values, message):
        with pytest.raises(UserError, match=message):
            CasesConfig.make(values)


class TestOpen:
    def test_meshes_of_different_sizes_come_packed(self, folder):
        config = CasesConfig.make(PLANE | {"root": folder, "components": {}, "globals": ["speed"]})
        train, test, source = open_cases(config)
        sizes = train.offsets.diff().tolist() + test.offsets.diff().tolist()
        assert sorted(sizes) == [n * (n + 1) for n in range(3, 13)]
        assert source == f"10 cases in {folder}"
        for data in (train, test):
            points = data.offsets.diff()
            n = data.inputs[data.offsets[:-1], 0]
            assert (points == n * (n + 1)).all()

    def test_bad_cases_are_named_counted_and_left_out_on_demand(self, folder, caplog):
        (folder / "plane_05.vtu").write_bytes(b"<VTKFile")
        values = PLANE | {"root": folder, "components": {}, "test": 2}
        with pytest.raises(
            UserError, match=r"plane_05.vtu is damaged.*data.skip_bad=true leaves such cases out"
        ):
            open_cases(CasesConfig.make(values))
        train, test, source = open_cases(CasesConfig.make(values | {"skip_bad": True}))
        assert len(train) + len(test) == 9
        assert "without 1 that were skipped" in source
        assert "1 case skipped" in caplog.text
        assert "plane_05.vtu is damaged" in caplog.text


class TestLook:
    def test_a_guess_reads_back_from_its_own_text(self, folder):
        summary = summarise_folder(find_cases(folder), read_table(folder))
        config = CasesConfig.make(infer_schema(summary, InitOptions()) | {"root": Path("cases")})
        assert config.targets == ("p", "U")
        assert config.components == {"U": ("x", "y")}
        assert (config.globals, config.surface, config.derived) == (("speed",), "own", ("distance",))
        text = dataset_text(config, summary)
        assert CasesConfig.make(yaml.safe_load(text)) == config
        (folder.parent / "dataset.yaml").write_text(text)
        assert read_dataset(folder.parent / "dataset.yaml").root == folder
        assert len(open_cases(read_dataset(folder.parent / "dataset.yaml")).test) == 2

    def test_what_is_known_beforehand_is_an_input_and_what_never_changes_is_left_out(self, tmp_path):
        for n in (3, 4, 5):
            grid = plane(n)
            grid.point_data["thickness"] = 1 + n * np.asarray(grid.points)[:, 0]
            grid.point_data["density"] = np.ones(grid.n_points)
            grid.point_data["angle"] = np.full(grid.n_points, float(n))
            if n < 5:
                grid.point_data["rare"] = np.arange(grid.n_points, dtype=float)
            grid.save(tmp_path / f"{n}.vtu")
        values = infer_schema(summarise_folder(find_cases(tmp_path), read_table(tmp_path)), InitOptions())
        assert values["inputs"] == ("thickness",)
        assert values["targets"] == ("p", "U")
        assert set(values["globals"]) == {"angle", "speed"}

    def test_wishes_go_before_guesses_and_unknown_names_are_answered(self, folder):
        summary = summarise_folder(find_cases(folder), read_table(folder))
        values = infer_schema(summary, InitOptions(targets=("q",), inputs=("p",), globals=(), derived=()))
        assert (values["location"], values["targets"], values["inputs"]) == ("cells", ("q",), ("p",))
        assert (values["globals"], values["derived"]) == ((), ())
        with pytest.raises(UserError, match="no case holds 'speeed'; did you mean 'speed'"):
            infer_schema(summary, InitOptions(globals=("speeed",)))

    def test_surfaces_are_told_their_normals_and_bodies_beside_their_distance(self, tmp_path):
        surfaces, clouds = tmp_path / "surfaces", tmp_path / "clouds"
        for n in (6, 8):
            skin = ball(1.0, n)
            skin.point_data["cp"] = np.asarray(skin.points)[:, 0]
            for root in (surfaces, clouds):
                root.mkdir(exist_ok=True)
            skin.save(surfaces / f"{n}.vtp")
            skin.save(clouds / f"{n}.stl")
            points = scattered(n, 3)
            np.savez(clouds / f"{n}.npz", points=points, cp=points[:, 0])
        values = infer_schema(summarise_folder(find_cases(surfaces), read_table(surfaces)), InitOptions())
        assert (values["surface"], values["derived"], values["targets"]) == ("own", ("normals",), ("cp",))
        values = infer_schema(summarise_folder(find_cases(clouds), read_table(clouds)), InitOptions())
        assert (values["surface"], values["derived"]) == ("beside", ("distance",))

    def test_a_table_without_coordinates_is_of_the_triangles_of_the_surface_beside(self, tmp_path):
        skin = ball(1.0, 6)
        skin.save(tmp_path / "a.stl")
        rows = "\n".join(str(float(i)) for i in range(skin.n_cells))
        (tmp_path / "a.csv").write_text(f"cp\n{rows}\n")
        case = case_of(tmp_path / "a.csv", targets=["cp"], coords=["x", "y", "z"], location="cells")
        np.testing.assert_allclose(case.coords, skin.cell_centers().points, atol=1e-6)
        assert (case.targets[:, 0] == np.arange(skin.n_cells)).all()
