"""Folders as programs write them: one case for each simulation, with its patches, parameters and times."""

import json
from pathlib import Path

import numpy as np
import pytest

from linearno.core.errors import UserError
from linearno.meshes.cases import open_cases
from linearno.meshes.config import CasesConfig
from linearno.meshes.discover import case_file, find_cases, split_cases
from linearno.meshes.expressions import evaluate
from linearno.meshes.infer_schema import InitOptions, infer_schema, summarise_folder
from linearno.meshes.reader import commands
from linearno.meshes.reader.commands import MeshRequest
from linearno.meshes.reader.mesh import CaseFile
from linearno.meshes.reader.quantities import Functional
from linearno.meshes.tables import Table, read_table
from linearno.training.setup import split_validation
from tests.meshes.foam_examples import slab, write_foam_case, write_foam_output
from tests.meshes.mesh_examples import READER, box, case_of, plane

pyvista = pytest.importorskip("pyvista")


def summary_of(case):
    return READER.call(commands.summarise, case)


def values_of(case, **request):
    return READER.call(commands.read, case, MeshRequest(**request))


class TestOpenFoam:
    def test_a_case_folder_is_one_case_with_its_patches(self, tmp_path):
        for number in range(3):
            write_foam_case(tmp_path / f"run_{number}")
        (tmp_path / "run_0" / "postProcessing").mkdir()
        box().save(tmp_path / "run_0" / "postProcessing" / "slice.vtu")
        cases = find_cases(tmp_path)
        assert [case.name for case in cases] == ["run_0", "run_1", "run_2"]
        found = summary_of(cases[0])
        assert found.patches == {"inlet": 4, "outlet": 4, "walls": 8}
        assert (found.cells, found.axes, found.thin) == (16, ["x", "y"], "one cell thick along z")
        assert found.times == [100.0]

    def test_output_of_foam_to_vtk_is_one_case_in_the_case_folder_and_alone(self, tmp_path):
        write_foam_case(tmp_path / "sims" / "a")
        write_foam_output(tmp_path / "sims" / "a" / "VTK", "a")
        write_foam_output(tmp_path / "sims" / "b" / "VTK", "b")
        cases = find_cases(tmp_path / "sims")
        assert [case.name for case in cases] == ["a", "b"]
        assert cases[0].path.name == "a.vtm.series"
        assert find_cases(tmp_path / "sims" / "a")[0].name == "a"
        both = (CaseFile("a", tmp_path / "sims/a"), cases[0])
        native, written = (values_of(case, location="cells", fields=["p"]) for case in both)
        order = [np.lexsort(values.points.T.round(6)) for values in (native, written)]
        np.testing.assert_allclose(
            native.fields["p"][order[0]], written.fields["p"][order[1]], rtol=1e-4, atol=1e-3
        )

    def test_the_path_may_have_dots_and_hidden_parents(self, tmp_path, monkeypatch):
        folder = tmp_path / ".data" / "sims"
        write_foam_output(folder / "a" / "VTK", "a")
        (folder / ".old").mkdir()
        box().save(folder / ".old" / "b.vtu")
        (tmp_path / "work").mkdir()
        monkeypatch.chdir(tmp_path / "work")
        assert [case.name for case in find_cases(tmp_path / "work" / ".." / ".data" / "sims")] == ["a"]
        assert [case.name for case in find_cases(Path("../.data/sims"))] == ["a"]

    def test_the_distance_is_that_from_the_named_patch(self, tmp_path):
        case = find_cases(write_foam_output(tmp_path / "VTK", "a"))[0]
        values = values_of(case, derived=["unsigned_distance"], surface="walls", mark_surface=True)
        y = values.points[:, 1]
        np.testing.assert_allclose(values.derived["unsigned_distance"], np.minimum(y, 1 - y), atol=1e-6)
        assert (values.surface == np.isin(y.round(6), (0, 1))).all()
        with pytest.raises(UserError, match=r"holds no 'hull'.*its patches are inlet, outlet, walls"):
            values_of(case, derived=["unsigned_distance"], surface="hull")

    def test_a_run_that_crashed_before_its_first_time_is_named(self, tmp_path):
        write_foam_case(tmp_path / "a", times=())
        with pytest.raises(UserError, match="has no results after time 0: its run has crashed"):
            summary_of(case_file(tmp_path / "a"))

    def test_times_are_frames_of_one_simulation_and_stay_in_one_split(self, tmp_path):
        for name in "abcd":
            write_foam_case(tmp_path / name, times=("50", "100"))
        cases = find_cases(tmp_path, frames="all")
        assert [case.name for case in cases][:3] == ["a@0", "a@1", "b@0"]
        train, test = split_cases(cases, 1.0, 0.25, 0)
        assert len(test) == 2
        assert not {case.simulation for case in train} & {case.simulation for case in test}
        config = {"coords": ["x", "y"], "targets": ["p"], "globals": ["time"], "components": {}}
        summary = summarise_folder(cases, Table({}, {}))
        assert "time" in infer_schema(summary, InitOptions())["globals"]
        first = values_of(cases[0], fields=["p"]).fields["p"]
        last = values_of(cases[1], fields=["p"]).fields["p"]
        np.testing.assert_allclose(4 * first, last, rtol=1e-3, atol=1e-2)
        assert CasesConfig.make(config).globals == ("time",)
        splits = open_cases(CasesConfig.make(config | {"root": tmp_path, "frames": "all", "test": ["d"]}))
        assert splits.train.groups == (0, 0, 1, 1, 2, 2)
        kept, held = split_validation(splits.train, 1, 0)
        assert (len(kept), len(held)) == (4, 2)
        assert held.inputs[:, 0, 0].tolist() == [50, 100]

    def test_parameters_come_from_its_dictionaries(self, tmp_path):
        case = case_file(write_foam_case(tmp_path / "a", angle=30.0, speed=10.0))
        vector = 'foam("0/U", "internalField")'
        assert evaluate("speed", f"norm({vector})", case, {}) == pytest.approx(10)
        angle = f"degrees(atan2({vector}[1], {vector}[0]))"
        assert evaluate("angle", angle, case, {}) == pytest.approx(30)
        assert evaluate("u", 'foam("0/U", "boundaryField.inlet.value")[1]', case, {}) == pytest.approx(5)
        assert evaluate("re", "2 * speed / pi", case, {"speed": 3.0}) == pytest.approx(6 / np.pi)
        found = case_of(
            tmp_path / "a", targets=["p"], globals=["speed"], expressions={"speed": f"norm({vector})"}
        )
        np.testing.assert_allclose(found.inputs, 10, rtol=1e-5)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("__import__('os')", "may contain arithmetic and the functions"),
            ("speed.real", "may contain arithmetic"),
            ("2 *", "is no expression"),
            ("missing + 1", "missing is no parameter"),
            ('foam("0/U", "no")', "has no entry 'no'"),
            ('foam("0/T", "x")', "the case has no file 0/T"),
            ("1 / 0", "cannot be computed"),
        ],
    )
    def test_an_expression_that_cannot_be_computed_is_named(self, tmp_path, text, message):
        case = case_file(write_foam_case(tmp_path / "a"))
        with pytest.raises(UserError, match=message):
            evaluate("speed", text, case, {})

    def test_without_a_table_the_inflow_that_differs_is_proposed(self, tmp_path):
        for number, angle in enumerate((0.0, 5.0, 8.0)):
            write_foam_case(tmp_path / f"run_{number}", angle=angle)
        summary = summarise_folder(find_cases(tmp_path), Table({}, {}))
        values = infer_schema(summary, InitOptions())
        assert values["globals"] == ("inflow_x", "inflow_y")
        assert values["surface"] == "walls"
        assert values["components"] == {"U": ("x", "y")}


class TestOtherFormats:
    def test_a_pvd_collection_is_one_case_whose_last_time_is_read(self, tmp_path):
        for number in range(3):
            grid = plane(4)
            grid.point_data["p"] = np.full(grid.n_points, float(number))
            grid.save(tmp_path / f"flow_{number}.vtu")
        sets = "".join(f"<DataSet timestep='{n}' file='flow_{n}.vtu'/>" for n in range(3))
        (tmp_path / "flow.pvd").write_text(
            f"<VTKFile type='Collection'><Collection>{sets}</Collection></VTKFile>"
        )
        (case,) = find_cases(tmp_path)
        assert (values_of(case, fields=["p"]).fields["p"] == 2).all()
        assert [case.name for case in find_cases(tmp_path, frames="all")] == ["flow@0", "flow@1", "flow@2"]

    def test_ensight_is_one_case_without_the_files_that_it_refers_to(self, tmp_path):
        for name, text in ENSIGHT.items():
            (tmp_path / name).write_text(text)
        plane(3).save(tmp_path / "other.vtu")
        assert [case.name for case in find_cases(tmp_path)] == ["flow", "other"]
        case = find_cases(tmp_path)[0]
        found = summary_of(case)
        assert (found.points, found.cells, found.patches) == (4, 1, {"floor": 1})
        assert values_of(case, fields=["p"]).fields["p"].tolist() == [1, 2, 3, 4]

    def test_exodus_is_read(self, tmp_path):
        writer = pytest.importorskip("vtkmodules.vtkIOExodus").vtkExodusIIWriter()
        writer.SetInputData(box())
        writer.SetFileName(str(tmp_path / "beam.exo"))
        writer.Write()
        (case,) = find_cases(tmp_path)
        values = values_of(case, fields=["p"])
        x, y, z = values.points.T
        np.testing.assert_allclose(values.fields["p"], x + 2 * y + 3 * z, atol=1e-6)

    def test_calculix_results_have_displacements_stresses_and_steps(self, tmp_path):
        (tmp_path / "beam.frd").write_text(FRD)
        (tmp_path / "beam.inp").write_text("*NODE\n")
        (case,) = find_cases(tmp_path)
        values = values_of(case, fields=["displacement", "von_mises"])
        assert values.time == 2.0
        np.testing.assert_allclose(values.fields["displacement"][3], [-2e-3, 4e-3, 2e-4])
        np.testing.assert_allclose(values.fields["von_mises"], 100.0)
        first = values_of(CaseFile("beam", case.path, frame=0), fields=["displacement"])
        np.testing.assert_allclose(first.fields["displacement"][3], [-1e-3, 2e-3, 1e-4])
        (tmp_path / "short.frd").write_text(FRD[: len(FRD) // 2])
        with pytest.raises(UserError, match="is damaged or truncated"):
            summary_of(case_file(tmp_path / "short.frd"))

    def test_gmsh_names_its_boundaries(self, tmp_path):
        meshio = pytest.importorskip("meshio")
        points = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1.0]])
        mesh = meshio.Mesh(
            points,
            [("triangle", np.array([[0, 1, 2]])), ("tetra", np.array([[0, 1, 2, 3]]))],
            point_data={"T": np.arange(4.0)},
            cell_data={"gmsh:physical": [np.array([7]), np.array([1])], "gmsh:geometrical": [[1], [1]]},
            field_data={"floor": np.array([7, 2]), "body": np.array([1, 3])},
        )
        meshio.write(tmp_path / "a.msh", mesh, file_format="gmsh22", binary=True)
        found = summary_of(case_file(tmp_path / "a.msh"))
        assert (found.patches, found.cells) == ({"floor": 1}, 1)
        (tmp_path / "b.msh").write_text("no mesh\n")
        with pytest.raises(UserError, match="is damaged, or not of its format"):
            summary_of(case_file(tmp_path / "b.msh"))

    def test_a_series_that_lists_nothing_that_exists_is_named(self, tmp_path):
        (tmp_path / "a.vtm.series").write_text(json.dumps({"files": [{"name": "gone.vtm", "time": 1}]}))
        with pytest.raises(UserError, match="lists no file that exists"):
            summary_of(case_file(tmp_path / "a.vtm.series"))


ENSIGHT = {
    "flow.case": "FORMAT\ntype: ensight gold\nGEOMETRY\nmodel: flow.geo\n"
    "VARIABLE\nscalar per node: p flow.p\n",
    "flow.geo": "a\nb\nnode id off\nelement id off\npart\n         1\nbody\ncoordinates\n         4\n"
    + "".join(f"{value:12.5e}\n" for value in (0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1))
    + "tetra4\n         1\n         1         2         3         4\n"
    + "part\n         2\nfloor\ncoordinates\n         3\n"
    + "".join(f"{value:12.5e}\n" for value in (0, 1, 0, 0, 0, 1, 0, 0, 0))
    + "tria3\n         1\n         1         2         3\n",
    "flow.p": "p\npart\n         1\ncoordinates\n"
    + "".join(f"{value:12.5e}\n" for value in (1, 2, 3, 4))
    + "part\n         2\ncoordinates\n"
    + "".join(f"{value:12.5e}\n" for value in (1, 2, 3)),
}
FRD = (
    """    1C
    2C                             4                                     1
 -1         1 0.00000E+00 0.00000E+00 0.00000E+00
 -1         2 1.00000E+00 0.00000E+00 0.00000E+00
 -1         3 0.00000E+00 1.00000E+00 0.00000E+00
 -1         4 0.00000E+00 0.00000E+00 1.00000E+00
 -3
    3C                             1                                     1
 -1         1    3    0    1
 -2         1         2         3         4
 -3
"""
    + "".join(
        f"""    1PSTEP                         {step}           1           1
  100CL  101 {step}.00000000           4                     0    1           1
 -4  DISP        4    1
 -5  D1          1    2    1    0
 -5  D2          1    2    2    0
 -5  D3          1    2    3    0
 -5  ALL         1    2    0    0    1ALL
 -1         1 0.00000E+00 0.00000E+00 0.00000E+00
 -1         2 0.00000E+00 0.00000E+00 0.00000E+00
 -1         3 0.00000E+00 0.00000E+00 0.00000E+00
 -1         4-{step}.00000E-03 {2 * step}.00000E-03 {step}.00000E-04
 -3
  100CL  101 {step}.00000000           4                     0    1           1
 -4  STRESS      6    1
 -5  SXX         1    4    1    1
 -5  SYY         1    4    2    2
 -5  SZZ         1    4    3    3
 -5  SXY         1    4    1    2
 -5  SYZ         1    4    2    3
 -5  SZX         1    4    3    1
"""
        + "".join(f" -1{n:10d}{100:12.5E}{' 0.00000E+00' * 5}\n" for n in range(1, 5))
        + " -3\n"
        for step in (1, 2)
    )
    + " 9999\n"
)


class TestTables:
    def cases(self, tmp_path, names=("case_01", "case_02", "case_03")):
        for name in names:
            (tmp_path / name).mkdir()
            plane(4).save(tmp_path / name / "flow.vtu")
        return find_cases(tmp_path)

    def test_rows_name_the_folders_of_the_cases_in_a_column_of_any_name(self, tmp_path):
        cases = self.cases(tmp_path)
        (tmp_path / "runs.csv").write_text(
            "Nr;Simulation run;speed [m/s];remark\n1;Case_02;2,5;fine\n2;case_03;3;\n"
        )
        table = read_table(tmp_path, cases)
        assert table.of(cases[1]) == {"Nr": 1.0, "speed": 2.5}
        assert table.units == {"speed": "m/s"}
        lines = "\n".join(table.mismatches(cases))
        assert "1 of 3 cases have no row: case_01/flow" in lines
        assert "columns of text are left out: remark" in lines

    def test_numbers_name_cases_by_their_last_number(self, tmp_path):
        cases = self.cases(tmp_path)
        (tmp_path / "parameters.csv").write_text("id,angle\n1,10\n2,20\n9,90\n")
        table = read_table(tmp_path, cases)
        assert [table.of(case).get("angle") for case in cases] == [10, 20, None]
        assert "1 of 3 rows match no case: 9" in table.mismatches(cases)[0]

    def test_a_workbook_is_a_table(self, tmp_path):
        openpyxl = pytest.importorskip("openpyxl")
        cases = self.cases(tmp_path)
        book = openpyxl.Workbook()
        for row in (["case", "load [N]"], ["case_01", 1.5], ["case_02", 2], ["case_03", None]):
            book.active.append(row)
        book.save(tmp_path / "anything.xlsx")
        table = read_table(tmp_path, cases)
        assert [table.of(case).get("load") for case in cases] == [1.5, 2.0, None]

    def test_a_named_table_must_name_a_case(self, tmp_path):
        cases = self.cases(tmp_path)
        path = tmp_path / "other.csv"
        path.write_text("case,speed\nx,1\ny,2\n")
        with pytest.raises(
            UserError, match="none of its 2 rows names a case; rows: x, y; cases: case_01/flow"
        ):
            read_table(tmp_path, cases, path)
        assert read_table(tmp_path, cases).path is None

    def test_a_case_with_two_rows_is_named(self, tmp_path):
        cases = self.cases(tmp_path)
        (tmp_path / "cases.csv").write_text("case,speed\ncase_01,1\ncase_01,2\n")
        with pytest.raises(UserError, match="'case_01' has two rows"):
            read_table(tmp_path, cases)

    def test_a_table_of_points_is_a_case_and_no_table(self, tmp_path):
        (tmp_path / "a.csv").write_text("x,y,p\n0,0,1\n1,0,2\n0,1,3\n")
        assert [case.name for case in find_cases(tmp_path)] == ["a"]


class TestThinMeshes:
    def test_a_slab_is_reduced_to_its_plane_and_written_back(self, tmp_path):
        grid = slab()
        grid.save(tmp_path / "a.vtu")
        case = case_file(tmp_path / "a.vtu")
        values = values_of(case, fields=["p", "U"])
        assert len(values.points) == 25
        assert values.axes == ["x", "y"]
        doubled = {"p2": 2 * values.fields["p"]}
        READER.call(commands.annotate, case, tmp_path / "b.vtu", ".vtu", "points", doubled, {})
        out = pyvista.read(tmp_path / "b.vtu")
        np.testing.assert_allclose(out.point_data["p2"], 2 * grid.point_data["p"])
        cells = values_of(case, location="cells", fields=["p"])
        assert len(cells.points) == 16
        READER.call(
            commands.annotate, case, tmp_path / "c.vtu", ".vtu", "cells", {"p2": cells.fields["p"]}, {}
        )
        np.testing.assert_allclose(pyvista.read(tmp_path / "c.vtu").cell_data["p2"], grid.cell_data["p"])

    def test_a_slab_stays_in_space_where_its_layers_differ_or_all_axes_are_asked_for(self, tmp_path):
        grid = slab()
        grid.save(tmp_path / "a.vtu")
        assert len(values_of(case_file(tmp_path / "a.vtu"), plane=False).points) == 50
        grid.point_data["p"] = np.asarray(grid.points)[:, 2]
        grid.save(tmp_path / "b.vtu")
        assert summary_of(case_file(tmp_path / "b.vtu")).axes == ["x", "y", "z"]

    def test_a_wedge_is_reduced_and_its_vectors_are_turned(self, tmp_path):
        n, half = 4, np.radians(2.5)
        grid = pyvista.ImageData(dimensions=(n + 1, n + 1, 2)).cast_to_unstructured_grid()
        x, r, side = np.asarray(grid.points, float).T
        r = r + 1
        angle = half * (2 * side - 1)
        grid.points = np.stack([x, r * np.cos(angle), r * np.sin(angle)], axis=1)
        radial = np.stack([0 * x, np.cos(angle), np.sin(angle)], axis=1)
        grid.point_data["U"] = r[:, None] * radial + np.array([2.0, 0, 0])
        grid.save(tmp_path / "a.vtu")
        case = case_file(tmp_path / "a.vtu")
        found = summary_of(case)
        assert (found.thin, found.axes) == ("a wedge of 5° around x", ["x", "y"])
        values = values_of(case, fields=["U"])
        plane_r = values.points[:, 1]
        expected = np.stack([0 * plane_r + 2, plane_r, 0 * plane_r], axis=1)
        np.testing.assert_allclose(values.fields["U"], expected, atol=1e-5)
        back = {"V": values.fields["U"]}
        READER.call(commands.annotate, case, tmp_path / "b.vtu", ".vtu", "points", back, {})
        out = pyvista.read(tmp_path / "b.vtu")
        np.testing.assert_allclose(out.point_data["V"], grid.point_data["U"], atol=1e-5)


class TestQuantities:
    """Force, average and probe of p = 1 + 2x + 3y on a square of side 2."""

    def weights(self, tmp_path, location="points", **functional):
        path = write_foam_output(tmp_path / "VTK", "a", scale=2.0)
        request = {"location": location, "quantities": {"q": Functional(**functional)}}
        values = values_of(case_file(path), **request)
        x, y, _ = values.points.T
        return values.weights["q"] @ (1 + 2 * x + 3 * y)

    def test_a_constant_pressure_pushes_outwards_and_a_gradient_pulls_the_walls(self, tmp_path):
        force = self.weights(tmp_path, kind="force", patch="walls", direction=(0.0, 1.0, 0.0))
        assert force == pytest.approx(3 * 2 * 2)  # ∫ (p(y=2) − p(y=0)) dx

    def test_the_force_on_an_inlet_points_out_of_the_mesh(self, tmp_path):
        force = self.weights(tmp_path, kind="force", patch="inlet", direction=(1.0, 0.0, 0.0))
        assert force == pytest.approx(-(1 + 3) * 2)

    @pytest.mark.parametrize(("location", "expected"), [("points", 1 + 2 * 2 + 3), ("cells", 7.5)])
    def test_an_average_over_a_patch(self, tmp_path, location, expected):
        average = self.weights(tmp_path, location, kind="average", patch="outlet")
        assert average == pytest.approx(expected)  # of cells: their centres are half a cell inside

    def test_a_probe_is_the_value_of_the_nearest_point(self, tmp_path):
        value = self.weights(tmp_path, kind="probe", point=(1.1, 0.4, 0.0))
        assert value == pytest.approx(1 + 2 * 1 + 3 * 0.5)

    def test_a_missing_patch_is_named(self, tmp_path):
        path = write_foam_output(tmp_path / "VTK", "a")
        quantities = {"q": {"average": "p", "patch": "hull"}}
        with pytest.raises(UserError, match=r"quantities\.q: no patch 'hull'; its patches are inlet, outlet"):
            case_of(path, targets=["p"], quantities=quantities)
