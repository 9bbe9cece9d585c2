"""Mesh files in and out: what was written is read, nothing is lost, damage is named."""

import os
import threading
import time

import h5py
import numpy as np
import pytest

from linearno.core.errors import UserError
from linearno.meshes.reader.ipc import receive, send
from linearno.meshes.reader_process import Reader, results_of
from tests.meshes.mesh_examples import ask, ball, box, plane, refusal, scattered
from tests.patience import PATIENCE

pyvista = pytest.importorskip("pyvista")
vtkDataArray = pytest.importorskip("vtkmodules.vtkCommonCore").vtkDataArray


@pytest.mark.parametrize("ending", [".vtu", ".vtk"])
@pytest.mark.parametrize("binary", [True, False])
def test_a_volume_mesh_is_read_as_it_was_written(tmp_path, ending, binary):
    grid = box()
    grid.save(tmp_path / f"a{ending}", binary=binary)
    words, arrays = ask("read", tmp_path / f"a{ending}", fields=["p", "U"], values=["speed"])
    np.testing.assert_allclose(arrays["places"], grid.points, rtol=1e-6)
    for name in ("p", "U"):
        np.testing.assert_allclose(arrays[f"field:{name}"], grid.point_data[name], rtol=1e-6)
    assert arrays["value:speed"] == [3.0]
    assert words["axes"] == ["x", "y", "z"]
    assert words["cells"] == grid.n_cells
    assert words["names"] == {"points": ["p", "U"], "cells": ["q"], "case": ["speed"]}


@pytest.mark.parametrize("ending", [".vtp", ".stl", ".vtk"])
def test_a_surface_is_read_as_it_was_written(tmp_path, ending):
    ball(size=8).save(tmp_path / f"a{ending}")
    words, _ = ask("look", tmp_path / f"a{ending}")
    assert (words["points"], words["cells"], words["is_surface"]) == (50, 96, True)
    assert words["open_sides"] == {"own": 0}


@pytest.mark.parametrize("ending", [".vts", ".vti", ".vtr"])
def test_grids_with_sides_are_meshes_too(tmp_path, ending):
    grid = pyvista.ImageData(dimensions=(3, 4, 5))
    if ending == ".vtr":
        grid = pyvista.RectilinearGrid([0.0, 1.0, 2.0], np.arange(4.0), np.arange(5.0))
    grid = grid.cast_to_structured_grid() if ending == ".vts" else grid
    grid.point_data["p"] = np.arange(60.0)
    grid.save(tmp_path / f"a{ending}")
    _, arrays = ask("read", tmp_path / f"a{ending}", fields=["p"])
    assert (arrays["field:p"] == np.arange(60.0)).all()
    assert arrays["places"][1].tolist() == [1.0, 0.0, 0.0]


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
    words, found = ask("read", tmp_path / f"a{ending}", fields=["p", "U"], values=["speed"])
    np.testing.assert_array_equal(found["places"], np.pad(arrays["points"], ((0, 0), (0, 1))))
    np.testing.assert_array_equal(found["field:p"], arrays["p"])
    np.testing.assert_array_equal(found["field:U"], arrays["U"])
    assert words["axes"] == ["x", "y"]
    assert words["units"] == ({} if ending == ".npz" else {"p": "Pa"})
    if ending != ".csv":
        assert found["value:speed"] == [3.0]


def test_arrays_with_cells_are_a_mesh_with_a_boundary(tmp_path):
    grid = plane(4)
    quads = np.asarray(grid.cell_connectivity).reshape(-1, 4)[:, [0, 1, 2, 3]]
    quads = quads[:, [0, 1, 3, 2]] if grid.celltypes[0] == 8 else quads
    np.savez(tmp_path / "a.npz", points=grid.points[:, :2], cells=quads, q=np.arange(len(quads)))
    words, _ = ask("look", tmp_path / "a.npz")
    assert words["open_sides"] == {"own": 0}
    assert [each["location"] for each in words["fields"]] == ["cells"]
    assert words["faults"] == {}


def test_a_field_of_cells_is_at_a_point_the_mean_of_those_around_and_the_other_way_round(tmp_path):
    grid = plane(4)
    grid.save(tmp_path / "a.vtu")
    _, arrays = ask("read", tmp_path / "a.vtu", fields=["q"])
    np.testing.assert_allclose(arrays["field:q"][:, 0], grid.cell_data_to_point_data()["q"], rtol=1e-6)
    _, arrays = ask("read", tmp_path / "a.vtu", location="cells", fields=["p", "q"])
    np.testing.assert_allclose(arrays["field:p"][:, 0], grid.point_data_to_cell_data()["p"], rtol=1e-6)
    np.testing.assert_allclose(arrays["places"], grid.cell_centers().points, rtol=1e-6)


def test_units_are_told_by_labels_and_by_brackets(tmp_path):
    grid = plane(3)
    grid.point_data["T [K]"] = np.ones(grid.n_points)
    grid.GetPointData().GetArray("p").GetInformation().Set(vtkDataArray.UNITS_LABEL(), "Pa")
    grid.save(tmp_path / "a.vtu")
    words, arrays = ask("read", tmp_path / "a.vtu", fields=["T"])
    assert words["units"] == {"p": "Pa", "T": "K"}
    assert (arrays["field:T"] == 1).all()


@pytest.mark.parametrize("ending", [".vtu", ".vtk"])
def test_a_written_mesh_keeps_all_that_it_had(tmp_path, ending):
    grid = box()
    grid.point_data["names"] = np.array([f"n{i}" for i in range(grid.n_points)])
    grid.save(tmp_path / "a.vtu")
    added = {"p_predicted": np.arange(grid.n_points, dtype=np.float32)}
    words = {"out": str(tmp_path / "part"), "ending": ending, "units": {"p_predicted": "Pa"}}
    ask("annotate", tmp_path / "a.vtu", added, **words)
    os.rename(tmp_path / "part", tmp_path / f"b{ending}")
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
    words = {"out": str(tmp_path / "part"), "ending": ".vtp", "units": {}}
    line = refusal("annotate", tmp_path / "a.vtu", **words)
    assert "holds a UnstructuredGrid, which a .vtp file cannot; write one of .vtu, .vtk" in line
    assert not (tmp_path / "part").exists()


class TestFaults:
    def test_a_mesh_without_points(self, tmp_path):
        pyvista.UnstructuredGrid().save(tmp_path / "a.vtu")
        assert "holds no points" in refusal("read", tmp_path / "a.vtu")

    def test_cells_without_volume_are_counted_and_may_be_tolerated(self, tmp_path):
        grid = box()
        flat = np.asarray(grid.points)
        flat[grid.get_cell(5).point_ids, 2] = 0.25
        grid.points = flat
        grid.save(tmp_path / "a.vtu")
        line = refusal("read", tmp_path / "a.vtu", tolerate=["duplicates"])
        assert "cells have no length, area or volume: the first is" in line
        ask("read", tmp_path / "a.vtu", tolerate=["duplicates", "degenerate"])

    def test_points_at_the_same_place_are_counted_and_may_be_tolerated(self, tmp_path):
        points = np.array([[0.0, 0], [1, 0], [0, 1], [1, 0], [1, 0]])
        np.savez(tmp_path / "a.npz", points=points)
        assert "2 of 5 points lie where another one does: the first is 3" in refusal(
            "read", tmp_path / "a.npz"
        )
        ask("read", tmp_path / "a.npz", tolerate=["duplicates"])

    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_points_that_are_nowhere(self, tmp_path, bad):
        np.savez(tmp_path / "a.npz", points=np.array([[0.0, 0], [1, bad]]))
        assert "NaN or infinite coordinates" in refusal("read", tmp_path / "a.npz", tolerate=["duplicates"])

    def test_cells_of_points_that_are_not_there(self, tmp_path):
        np.savez(tmp_path / "a.npz", points=np.eye(3)[:, :2], cells=np.array([[0, 1, 3]]))
        assert "none of the 3 points" in refusal("read", tmp_path / "a.npz")

    def test_arrays_that_fit_nothing(self, tmp_path):
        np.savez(tmp_path / "a.npz", points=np.eye(3)[:, :2], p=np.ones((4, 4)))
        assert "p has shape (4, 4): expected 3 rows" in refusal("read", tmp_path / "a.npz")
        np.savez(tmp_path / "b.npz", p=np.ones(4))
        assert "has no coordinates; expected one of points, coords" in refusal("read", tmp_path / "b.npz")

    def test_what_is_pickled_is_not_opened(self, tmp_path):
        np.savez(tmp_path / "a.npz", points=np.array([{}, []], dtype=object))
        assert "holds no plain arrays" in refusal("read", tmp_path / "a.npz")

    def test_an_array_in_another_file_is_not_followed(self, tmp_path):
        (tmp_path / "secret").write_bytes(bytes(64))
        with h5py.File(tmp_path / "a.h5", "w") as file:
            outside = [(str(tmp_path / "secret"), 0, 64)]
            file.create_dataset("points", shape=(4, 2), dtype="f8", external=outside)
        assert "lies in another file" in refusal("read", tmp_path / "a.h5")

    def test_a_small_file_that_asks_for_all_memory(self, tmp_path):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file.create_dataset("points", shape=(2**28, 2), dtype="f8", chunks=(1024, 2))
        assert "more memory than its size suggests" in refusal("read", tmp_path / "a.h5")


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
        assert str(kept) in refusal("read", kept, fields=["p"]) or name == "text.vtk"
    if name == "text.vtk":  # a text has no last word; what is missing is missing
        kept.write_bytes(content[: content.index(b"POINT_DATA") + 60])
        assert "damaged" in refusal("read", kept)


def test_a_reader_that_dies_is_an_error_with_a_name_and_the_next_file_is_read(tmp_path):
    box().save(tmp_path / "a.vtu")
    os.mkfifo(tmp_path / "b.csv")  # nobody writes to it
    with Reader() as reader:
        reader.ask("look", tmp_path / "a.vtu", {"beside": None})
        process = reader._process

        def kill():
            with (tmp_path / "b.csv").open("wb"):  # opens once the reader does
                process.kill()
                process.wait()

        threading.Thread(target=kill, daemon=True).start()
        with pytest.raises(UserError, match=r"b\.csv made the reader crash"):
            reader.ask("look", tmp_path / "b.csv", {"beside": None})
        assert reader.ask("look", tmp_path / "a.vtu", {"beside": None})[0]["points"] == 60
        assert reader._process.pid != process.pid


def test_a_file_that_takes_forever_is_given_up(tmp_path):
    os.mkfifo(tmp_path / "b.csv")
    began = time.monotonic()
    with Reader(patience=0.8) as reader, pytest.raises(UserError, match=r"b\.csv was not read within 0.8 s"):
        reader.ask("look", tmp_path / "b.csv", {"beside": None})
    assert time.monotonic() - began < PATIENCE


def test_several_readers_answer_in_order_and_end_together(tmp_path):
    paths = [tmp_path / f"{n}.npz" for n in range(3, 9)]
    for n, path in enumerate(paths, start=3):
        np.savez(path, points=scattered(n, 2))

    def points(reader, path):
        return reader.ask("look", path, {"beside": None})[0]["points"]

    with results_of(points, paths, 2) as results:
        assert list(results) == [3, 4, 5, 6, 7, 8]
    with pytest.raises(UserError), results_of(points, [tmp_path / "no.npz", *paths], 2) as results:
        list(results)


def test_messages_hold_numbers_and_words_only():
    reading, writing = (os.fdopen(end, mode) for end, mode in zip(os.pipe(), ("rb", "wb"), strict=True))
    arrays = {
        "a": np.arange(6.0).reshape(2, 3),
        "b": np.zeros((0, 3), np.int32),
        "c": np.array([True, False]),
    }
    send(writing, {"job": "look", "n": 3}, arrays)
    words, back = receive(reading)
    assert words == {"job": "look", "n": 3}
    assert all(
        (back[name] == arrays[name]).all() and back[name].dtype == arrays[name].dtype for name in arrays
    )
    send(writing, {}, {"a": np.array(["text"])})
    with pytest.raises(ValueError, match="is not sent"):
        receive(reading)
    writing.close()
    reading.read()
    assert receive(reading) is None
