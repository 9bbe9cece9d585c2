"""Measurements of the lattice Boltzmann solver and of the random cars."""

import numpy as np

from benchmarks.lattice_cars import compare
from benchmarks.lattice_flows import pipe_error, vortex_error
from benchmarks.solids import cube_sphere
from linearno.core.device import resolve_device
from linearno.reproduce.records import read_record
from linearno.solvers.surface_distance import ClosedSurface
from tests.commands import measure, refused_measurement

CPU = resolve_device("cpu")


def test_updates_per_second_are_recorded(tmp_path):
    options = ["--flows", 1, "--steps", 2, "--spacing", 0.17, "--device", "cpu", "--out", tmp_path]
    code, output = measure("lattice-speed", *options)
    assert (code, "billion cell updates a second" in output) == (0, True), output
    record = read_record(tmp_path / "bench" / "lbm.json")
    cells = np.prod(record.details["cells"])
    np.testing.assert_allclose(record.value * 1e9 * record.details["seconds"], 2 * cells)


def test_flows_with_known_solutions_are_reproduced_in_single_precision():
    assert np.log2(vortex_error(8, CPU) / vortex_error(16, CPU)) > 1.9
    assert pipe_error(4.3, CPU) < 0.003


def test_equal_pressures_agree_completely():
    surface = ClosedSurface(*cube_sphere(4))
    pressure = surface.vertices[:, 2] * -50 + 3
    row = compare(surface, pressure, pressure)
    assert (row["relative_l2"], row["drag_error"]) == (0, 0)
    assert row["reference_drag"] > 0
    np.testing.assert_allclose([row["correlation"], row["slope"], row["offset"]], [1, 1, 0], atol=1e-9)


def test_sizes_of_bodies_are_recorded_with_those_of_other_cars(tmp_path):
    vertices, quads = cube_sphere(4)
    np.savez(tmp_path / "cars.npz", points=vertices[None], pressure=vertices[None, :, 0], quads=quads)
    options = ["--bodies", 3, "--reference", tmp_path / "cars.npz", "--out", tmp_path]
    code, output = measure("car-shapes", *options)
    assert code == 0, output
    rows = read_record(tmp_path / "solver" / "lbm" / "shapes.json").details["rows"]
    np.testing.assert_allclose(rows[0]["reference"], [2, 2])
    assert rows[0]["least"] < rows[0]["most"]


def test_files_without_cars_are_refused(tmp_path):
    assert "does not exist" in refused_measurement("lattice-cars", tmp_path / "cars.npz")
    np.savez(tmp_path / "cars.npz", points=np.zeros((1, 3, 3)))
    assert "has no array pressure" in refused_measurement("lattice-cars", tmp_path / "cars.npz")
    (tmp_path / "text.npz").write_text("cars")
    assert "is no .npz file" in refused_measurement("lattice-cars", tmp_path / "text.npz")
