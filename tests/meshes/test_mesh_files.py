"""Mesh files in and out: what was written is read, nothing is lost, damage is named."""

import os
import signal
import threading
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from linearno.core.errors import UserError
from linearno.meshes.discover import case_file
from linearno.meshes.reader import commands
from linearno.meshes.reader.commands import MeshRequest
from linearno.meshes.reader.mesh import CaseFile
from linearno.meshes.reader_process import Reader, read_in_parallel
from tests.meshes.mesh_examples import READER, ball, box, plane, read, refusal, scattered, summarise
from tests.patience import PATIENCE

pyvista = pytest.importorskip("pyvista")
vtkDataArray = pytest.importorskip("vtkmodules.vtkCommonCore").vtkDataArray


@pytest.mark.parametrize("ending", [".vtu", ".vtk"])
@pytest.mark.parametrize("binary", [True, False])
def test_a_volume_mesh_is_read_as_it_was_written(tmp_path, ending, binary):
    grid = box()
    grid.save(tmp_path / f"a{ending}", binary=binary)
    values = read(tmp_path / f"a{ending}", fields=["p", "U"], numbers=["speed"])
    np.testing.assert_allclose(values.points, grid.points, rtol=1e-6)
    for name in ("p", "U"):
        np.testing.assert_allclose(values.fields[name], grid.point_data[name], rtol=1e-6)
    assert values.numbers["speed"] == [3.0]
    assert values.axes == ["x", "y", "z"]
    assert values.known == ["p", "U", "q"]
    assert summarise(tmp_path / f"a{ending}").cells == grid.n_cells


@pytest.mark.parametrize("ending", [".vtp", ".stl", ".vtk"])
def test_a_surface_is_read_as_it_was_written(tmp_path, ending):
    ball(size=8).save(tmp_path / f"a{ending}")
    mesh = summarise(tmp_path / f"a{ending}")
    assert (mesh.points, mesh.cells, mesh.is_surface) == (50, 96, True)
    assert mesh.open_edges == {"own": 0}


@pytest.mark.parametrize("ending", [".vts", ".vti", ".vtr"])
def test_grids_with_sides_are_meshes_too(tmp_path, ending):
    grid = pyvista.ImageData(dimensions=(3, 4, 5))
    if ending == ".vtr":
        grid = pyvista.RectilinearGrid([0.0, 1.0, 2.0], np.arange(4.0), np.arange(5.0))
    grid = grid.cast_to_structured_grid() if ending == ".vts" else grid
    grid.point_data["p"] = np.arange(60.0)
    grid.save(tmp_path / f"a{ending}")
    values = read(tmp_path / f"a{ending}", fields=["p"])
    assert (values.fields["p"] == np.arange(60.0)).all()
    assert values.points[1].tolist() == [1.0, 0.0, 0.0]


def write_npz(path, arrays):
    np.savez(path, **arrays)


def write_h5(path, arrays):
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file[f"group/{name}"] = values
        file["group/p"].attrs["units"] = "Pa"


def write_csv(path, arrays):
    columns = {"x": arrays["points"][:, 0], "y": arrays["points"][:, 1], "p [Pa]": arrays["p"]}
    columns |= {f"U:{i}": arrays["U"][:, i] for i in (0, 1)}
    rows = zip(*columns.values(), strict=True)
    lines = [",".join(columns), *(",".join(repr(float(cell)) for cell in row) for row in rows)]
    path.write_text("\n".join(lines))


@pytest.mark.parametrize(("ending", "write"), [(".npz", write_npz), (".h5", write_h5), (".csv", write_csv)])
def test_a_file_of_arrays_is_a_case(tmp_path, ending, write):
    rng = np.random.default_rng(0)
    arrays = {
        "points": rng.random((7, 2)),
        "p": rng.random(7),
        "U": rng.random((7, 2)),
        "speed": np.array(3.0),
    }
    write(tmp_path / f"a{ending}", arrays)
    found = read(tmp_path / f"a{ending}", fields=["p", "U"], numbers=["speed"])
    np.testing.assert_array_equal(found.points, np.pad(arrays["points"], ((0, 0), (0, 1))))
    np.testing.assert_array_equal(found.fields["p"], arrays["p"])
    np.testing.assert_array_equal(found.fields["U"], arrays["U"])
    assert found.axes == ["x", "y"]
    assert found.units == ({} if ending == ".npz" else {"p": "Pa"})
    if ending != ".csv":
        assert found.numbers["speed"] == [3.0]


def test_arrays_with_cells_are_a_mesh_with_a_boundary(tmp_path):
    grid = plane(4)
    quads = np.asarray(grid.cell_connectivity).reshape(-1, 4)[:, [0, 1, 2, 3]]
    quads = quads[:, [0, 1, 3, 2]] if grid.celltypes[0] == 8 else quads
    np.savez(tmp_path / "a.npz", points=grid.points[:, :2], cells=quads, q=np.arange(len(quads)))
    mesh = summarise(tmp_path / "a.npz")
    assert mesh.open_edges == {"own": 0}
    assert [field.location for field in mesh.fields] == ["cells"]
    assert mesh.faults == {}


def test_a_field_of_cells_is_at_a_point_the_mean_of_those_around_and_the_other_way_round(tmp_path):
    grid = plane(4)
    grid.save(tmp_path / "a.vtu")
    values = read(tmp_path / "a.vtu", fields=["q"])
    np.testing.assert_allclose(values.fields["q"][:, 0], grid.cell_data_to_point_data()["q"], rtol=1e-6)
    values = read(tmp_path / "a.vtu", location="cells", fields=["p", "q"])
    np.testing.assert_allclose(values.fields["p"][:, 0], grid.point_data_to_cell_data()["p"], rtol=1e-6)
    np.testing.assert_allclose(values.points, grid.cell_centers().points, rtol=1e-6)


def test_units_are_read_from_labels_and_brackets(tmp_path):
    grid = plane(3)
    grid.point_data["T [K]"] = np.ones(grid.n_points)
    grid.GetPointData().GetArray("p").GetInformation().Set(vtkDataArray.UNITS_LABEL(), "Pa")
    grid.save(tmp_path / "a.vtu")
    values = read(tmp_path / "a.vtu", fields=["T"])
    assert values.units == {"p": "Pa", "T": "K"}
    assert (values.fields["T"] == 1).all()


@pytest.mark.parametrize("ending", [".vtu", ".vtk"])
def test_a_written_mesh_keeps_all_that_it_had(tmp_path, ending):
    grid = box()
    grid.point_data["names"] = np.array([f"n{i}" for i in range(grid.n_points)])
    grid.save(tmp_path / "a.vtu")
    added = {"p_predicted": np.arange(grid.n_points, dtype=np.float32)}
    file, out = case_file(tmp_path / "a.vtu"), tmp_path / f"b{ending}"
    READER.call(commands.annotate, file, out, ending, "points", added, {"p_predicted": "Pa"})
    back = pyvista.read(tmp_path / f"b{ending}")
    assert (back.points == grid.points).all()
    assert (back.cells == grid.cells).all()
    for name in ("p", "U", "names"):
        assert (back.point_data[name] == grid.point_data[name]).all()
    assert (back.cell_data["q"] == grid.cell_data["q"]).all()
    assert back.field_data["speed"] == [3.0]
    assert (back.point_data["p_predicted"] == added["p_predicted"]).all()
    label = back.GetPointData().GetArray("p_predicted").GetInformation().Get(vtkDataArray.UNITS_LABEL())
    assert label == "Pa"


def test_a_mesh_is_not_written_into_a_file_that_cannot_hold_it(tmp_path):
    box().save(tmp_path / "a.vtu")
    message = "holds a UnstructuredGrid, which a .vtp file cannot; write one of .vtu, .vtk"
    with pytest.raises(UserError, match=message):
        READER.call(
            commands.annotate, case_file(tmp_path / "a.vtu"), tmp_path / "part", ".vtp", "points", {}, {}
        )
    assert not (tmp_path / "part").exists()


class TestFaults:
    def test_a_mesh_without_points(self, tmp_path):
        pyvista.UnstructuredGrid().save(tmp_path / "a.vtu")
        assert "holds no points" in refusal(tmp_path / "a.vtu")

    def test_cells_without_volume_are_counted_and_may_be_tolerated(self, tmp_path):
        grid = box()
        flat = np.asarray(grid.points)
        flat[grid.get_cell(5).point_ids, 2] = 0.25
        grid.points = flat
        grid.save(tmp_path / "a.vtu")
        line = refusal(tmp_path / "a.vtu", tolerate=["duplicates"])
        assert "cells without length, area or volume: the first is" in line
        read(tmp_path / "a.vtu", tolerate=["duplicates", "degenerate"])

    def test_points_at_the_same_place_are_counted_and_may_be_tolerated(self, tmp_path):
        points = np.array([[0.0, 0], [1, 0], [0, 1], [1, 0], [1, 0]])
        np.savez(tmp_path / "a.npz", points=points)
        assert "2 of 5 points at the coordinates of another one: the first is 3" in refusal(
            tmp_path / "a.npz"
        )
        read(tmp_path / "a.npz", tolerate=["duplicates"])

    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_points_that_are_nowhere(self, tmp_path, bad):
        np.savez(tmp_path / "a.npz", points=np.array([[0.0, 0], [1, bad]]))
        assert "NaN or infinite coordinates" in refusal(tmp_path / "a.npz", tolerate=["duplicates"])

    def test_cells_of_points_that_are_not_there(self, tmp_path):
        np.savez(tmp_path / "a.npz", points=np.eye(3)[:, :2], cells=np.array([[0, 1, 3]]))
        assert "none of the 3 points" in refusal(tmp_path / "a.npz")

    def test_arrays_that_fit_nothing(self, tmp_path):
        np.savez(tmp_path / "a.npz", points=np.eye(3)[:, :2], p=np.ones((4, 4)))
        assert "has p of shape (4, 4): expected 3 rows" in refusal(tmp_path / "a.npz")
        np.savez(tmp_path / "b.npz", p=np.ones(4))
        assert "has no coordinates; expected one of points, coords" in refusal(tmp_path / "b.npz")

    def test_what_is_pickled_is_not_opened(self, tmp_path):
        np.savez(tmp_path / "a.npz", points=np.array([{}, []], dtype=object))
        assert "holds no plain arrays" in refusal(tmp_path / "a.npz")

    def test_an_array_in_another_file_is_not_followed(self, tmp_path):
        (tmp_path / "secret").write_bytes(bytes(64))
        with h5py.File(tmp_path / "a.h5", "w") as file:
            outside = [(str(tmp_path / "secret"), 0, 64)]
            file.create_dataset("points", shape=(4, 2), dtype="f8", external=outside)
        assert "refers to another file" in refusal(tmp_path / "a.h5")

    def test_a_small_file_that_asks_for_all_memory(self, tmp_path):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file.create_dataset("points", shape=(2**28, 2), dtype="f8", chunks=(1024, 2))
        assert "more memory than its size suggests" in refusal(tmp_path / "a.h5")


@pytest.mark.parametrize(
    "name", ["a.vtu", "a.vtp", "a.vts", "a.stl", "a.npz", "a.h5", "text.vtk", "text.stl"]
)
def test_a_file_that_was_cut_short_is_named(tmp_path, name):
    path, kept = tmp_path / name, tmp_path / f"cut.{name.rpartition('.')[2]}"
    grid = plane(4)
    if name.endswith((".npz", ".h5")):
        (write_npz if name.endswith("npz") else write_h5)(path, {"points": scattered(9, 2), "p": np.ones(9)})
    elif name.endswith((".vtp", ".stl")):
        ball(size=6).save(path, binary=not name.startswith("text"))
    elif name.endswith(".vts"):
        pyvista.ImageData(dimensions=(3, 4, 5)).cast_to_structured_grid().save(path)
    else:
        grid.save(path, binary=not name.startswith("text"))
    content = path.read_bytes()
    for share in (0.3, 0.6, 0.9):
        kept.write_bytes(content[: int(share * len(content))])
        assert "damaged" in refusal(kept) or "truncated" in refusal(kept)
    if name == "text.vtk":  # VTK fills up a text file that is cut short
        kept.write_bytes(content[: content.index(b"POINT_DATA") + 60])
        assert "damaged" in refusal(kept)


def test_a_crash_is_an_error_with_the_name_of_the_file_and_the_next_file_is_read(tmp_path):
    box().save(tmp_path / "a.vtu")
    mesh, table = case_file(tmp_path / "a.vtu"), CaseFile("b", tmp_path / "b.csv")
    os.mkfifo(table.path)  # nobody writes to it
    with Reader() as reader:
        reader.call(commands.summarise, mesh)
        process = reader._process

        def crash():
            with table.path.open("wb"):  # opens once the reader does
                process.send_signal(signal.SIGSEGV)
                process.wait()

        threading.Thread(target=crash, daemon=True).start()
        with pytest.raises(UserError, match=r"b\.csv made the reader crash"):
            reader.call(commands.summarise, table)
        assert reader.call(commands.summarise, mesh).points == 60
        assert reader._process.pid != process.pid


def test_a_file_that_takes_too_long_is_given_up(tmp_path):
    os.mkfifo(tmp_path / "b.csv")
    began = time.monotonic()
    with Reader(0.8) as reader, pytest.raises(UserError, match=r"b\.csv was not read within 0.8 s"):
        reader.call(commands.summarise, CaseFile("b", tmp_path / "b.csv"))
    assert time.monotonic() - began < PATIENCE


def test_the_reader_process_does_not_import_pytorch(tmp_path):
    box().save(tmp_path / "a.vtu")
    file = case_file(tmp_path / "a.vtu")
    with Reader() as reader:
        reader.call(commands.summarise, file)
        reader.call(commands.read, file, MeshRequest(fields=["p"], derived=["distance"]))
        modules = Path(f"/proc/{reader._process.pid}/maps").read_text()
    assert "vtkCommon" in modules
    assert "libtorch" not in modules


def test_an_error_in_a_function_keeps_its_traceback(tmp_path):
    np.savez(tmp_path / "a.npz", points=scattered(5, 2))
    with pytest.raises(RuntimeError, match=r"(?s)a\.npz: the reader failed.*Traceback.*TypeError"):
        READER.call(commands.read, case_file(tmp_path / "a.npz"), None, "too many arguments")


def test_a_mesh_is_read_once_to_be_predicted_on_and_written(tmp_path):
    box().save(tmp_path / "a.vtu")
    file, out = case_file(tmp_path / "a.vtu"), tmp_path / "b.vtu"
    with Reader() as reader:
        reader.call(commands.read, file, MeshRequest())
        stat = file.path.stat()
        file.path.write_bytes(bytes(stat.st_size))
        os.utime(file.path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as if it had not changed
        reader.call(commands.annotate, file, out, ".vtu", "points", {"p_predicted": np.zeros(60)}, {})
    assert "p_predicted" in pyvista.read(out).point_data


def test_files_are_read_in_parallel_and_returned_in_order(tmp_path):
    paths = [tmp_path / f"{n}.npz" for n in range(3, 9)]
    for n, path in enumerate(paths, start=3):
        np.savez(path, points=scattered(n, 2))
    paths.insert(1, tmp_path / "damaged.npz")
    paths[1].write_bytes(b"PK")

    def points(reader, file):
        return reader.call(commands.summarise, file).points

    done = []
    files = [CaseFile(path.stem, path) for path in paths]
    first, bad, *others = read_in_parallel(points, files, done.append)
    assert [first, *others] == [3, 4, 5, 6, 7, 8]
    assert bad.file == files[1]
    assert "damaged.npz is truncated" in bad.reason
    assert done == [1] * 7


def test_an_interrupt_ends_all_reader_processes(tmp_path):
    os.mkfifo(tmp_path / "b.csv")
    np.savez(tmp_path / "a.npz", points=scattered(5, 2))
    readers = []

    def interrupted(reader, file):
        readers.append(reader)
        return reader.call(commands.summarise, file)

    def stop(count):
        raise KeyboardInterrupt

    files = [CaseFile(path.stem, path) for path in (tmp_path / "a.npz", tmp_path / "b.csv")]
    with pytest.raises(KeyboardInterrupt):
        read_in_parallel(interrupted, files, stop)
    assert readers
    assert all(reader._process is None for reader in readers)
