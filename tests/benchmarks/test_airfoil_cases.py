"""Comparisons of the RANS solver with NASA, AirfRANS and NeuralFoil, on tiny grids."""

import numpy as np
import pytest

from benchmarks.tables import TABLES
from linearno.reproduce.records import read_record
from linearno.solvers.rans import AirfoilCase, GridCells, airfoil_flows
from tests.commands import measure, refused_measurement

GRID = "6:10:14"


@pytest.mark.slow
def test_naca0012_is_compared_with_nasa_and_recorded(tmp_path):
    options = ("--grids", GRID, "--models", "sa", "--angles", "0,10", "--out", tmp_path)
    code, output = measure("naca0012", *options)
    assert code == 0, output
    assert "sa, 10°, 32×14: C_L" in output
    record = read_record(tmp_path / "solver/rans/naca0012.json")
    still, steep = record.details["rows"]
    assert steep["nasa_lift"] == pytest.approx(1.0786, abs=1e-4)
    assert record.value == pytest.approx(
        max(abs(row["drag"] / row["nasa_drag"] - 1) for row in (still, steep))
    )
    table = TABLES["naca0012"]({record.id: record})
    assert f"| Spalart–Allmaras | 10° | 32×14 | {steep['lift']:.4f} (" in table


@pytest.mark.slow
def test_a_surface_with_the_pressure_of_the_solver_differs_by_the_interpolation_only(tmp_path):
    pyvista = pytest.importorskip("pyvista")
    case = AirfoilCase((2.0, 4.0, 0.0, 12.0), 50.0, 1.5)
    flows = airfoil_flows([case], GridCells(6, 10, 14), turbulence="sa")
    wall = flows.nodes[0, 6:-6, 0]
    middle = ((wall[1:] + wall[:-1]) / 2).numpy()
    surface = pyvista.PolyData(np.column_stack([middle, np.full(len(middle), 0.5)]))
    surface.point_data["p"] = flows.pressure[0, 6:-6, 0].numpy()
    surface.save(tmp_path / "airFoil2D_SST_50.0_1.5_2.0_4.0_0.0_12.0_aerofoil.vtp")
    out = tmp_path / "results"
    code, output = measure("airfrans-surfaces", tmp_path, "--grids", GRID, "--models", "sa", "--out", out)
    assert code == 0, output
    record = read_record(out / "solver/rans/airfrans_surfaces.json")
    assert record.value < 0.01
    assert record.details["rows"][0]["distance"] < 0.01
    assert "| 50.0, 1.5, 2.0, 4.0, 0.0, 12.0 | Spalart–Allmaras |" in TABLES["airfrans_surfaces"](
        {record.id: record}
    )


@pytest.mark.slow
def test_random_airfoils_are_compared_with_neuralfoil(tmp_path):
    pytest.importorskip("neuralfoil")
    options = ("--airfoils", 1, "--grids", GRID, "--models", "sa", "--out", tmp_path)
    code, output = measure("random-airfoils", *options)
    assert code == 0, output
    record = read_record(tmp_path / "solver/rans/random_airfoils.json")
    row = record.details["rows"][0]
    assert row["lift"] == pytest.approx(row["neuralfoil_lift"], abs=0.2)
    assert "1 random airfoils with Spalart–Allmaras" in TABLES["random_airfoils"]({record.id: record})


def test_wrong_options_are_one_line(tmp_path):
    assert "expected wake:side:outward" in refused_measurement("naca0012", "--grids", "1:2")
    assert "expected sst, sa or sa,sst" in refused_measurement("naca0012", "--models", "ke")
    assert "found none" in refused_measurement("airfrans-surfaces", tmp_path)
    assert "expected some of 0, 10, 15" in refused_measurement("naca0012", "--angles", "5")
