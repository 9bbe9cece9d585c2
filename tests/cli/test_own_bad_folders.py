"""Folders with something wrong in them: named in one line, counted, and left out where that is asked for."""

import pytest
import yaml

from tests.commands import linearno, refused
from tests.meshes.foam_examples import write_foam_case, write_foam_output
from tests.meshes.mesh_examples import SET, ball, box, plane

pyvista = pytest.importorskip("pyvista")


@pytest.fixture
def sims(tmp_path):
    """Four OpenFOAM cases with different inflow."""
    for number in range(4):
        write_foam_case(tmp_path / "sims" / f"run_{number}", angle=float(number), n=3)
    return tmp_path / "sims"


def test_a_crashed_case_stops_or_is_skipped_and_counted(sims, tmp_path):
    write_foam_case(sims / "run_4", times=(), n=3)
    message = refused("init", sims, "--out", tmp_path / "d.yaml")
    assert "run_4 has no results after time 0" in message
    assert "add --skip-bad" in message
    code, output = linearno("init", sims, "--out", tmp_path / "d.yaml", "--skip-bad")
    assert code == 0, output
    assert "1 case skipped" in output
    assert "4 cases of 16" in output


def test_a_field_that_is_missing_in_the_last_time_of_a_case_is_named(sims, tmp_path):
    (sims / "run_2" / "100" / "p").unlink()
    code, output = linearno("init", sims, "--out", tmp_path / "d.yaml")
    assert code == 0, output
    assert "missing in 1 cases" in output
    assert yaml.safe_load((tmp_path / "d.yaml").read_text())["targets"] == ["U"]
    values = yaml.safe_load((tmp_path / "d.yaml").read_text()) | {"targets": ["p"], "components": {}}
    (tmp_path / "d.yaml").write_text(yaml.safe_dump(values))
    message = refused("train", tmp_path / "d.yaml", *SET, "--out", tmp_path / "run", "--device", "cpu")
    assert "run_2: it holds no 'p'" in message


def test_a_patch_that_some_cases_lack_is_named_and_no_surface(sims, tmp_path):
    write_foam_output(tmp_path / "sims" / "other" / "VTK", "other", n=3, without=("walls",))
    code, output = linearno("init", sims, "--out", tmp_path / "d.yaml", "--globals", "")
    assert code == 0, output
    assert "note: patch walls is missing in 1 of 5 cases: other" in output
    assert yaml.safe_load((tmp_path / "d.yaml").read_text())["surface"] == "own"


def test_meshes_of_two_programs_are_named(sims, tmp_path):
    for name in "ab":
        ball().save(sims / f"{name}.stl")
    message = refused("init", sims, "--out", tmp_path / "d.yaml")
    assert "the cases are of several formats (.stl, OpenFOAM), choose one with --files" in message


def test_meshes_of_other_dimensions_are_named_and_counted(tmp_path):
    for name in "abc":
        plane(4).save(tmp_path / f"{name}.vtu")
    box(4).save(tmp_path / "d.vtu")
    code, output = linearno("init", tmp_path, "--out", tmp_path / "d.yaml")
    assert code == 0, output
    assert "note: meshes differ in their axes: not x, y in 1 of 4 cases: d" in output


def test_parameters_of_text_and_rows_that_match_nothing_are_named(sims, tmp_path):
    (sims / "cases.csv").write_text("case,speed,solver\nrun_0,1,kOmega\nrun_1,2,SA\nrun_7,3,SA\n")
    code, output = linearno("init", sims, "--out", tmp_path / "d.yaml")
    assert code == 0, output
    text = " ".join(output.split())
    assert "1 of 3 rows match no case: run_7" in text
    assert "2 of 4 cases have no row: run_2, run_3" in text
    assert "columns of text are left out: solver" in text
    (sims / "cases.csv").write_text("case,speed\nrun_0,1\nrun_1,fast\n")
    message = refused("init", sims, "--out", tmp_path / "e.yaml")
    assert "speed of run_1 is 'fast', expected a number" in message


def test_two_files_of_one_name_are_named(tmp_path):
    plane(4).save(tmp_path / "a.vtu")
    plane(4).save(tmp_path / "a.vtk")
    assert "holds 'a' in several formats" in refused("init", tmp_path, "--out", tmp_path / "d.yaml")
