"""Pictures and VTK files of the cars of a run."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from linearno.core.config import override
from linearno.data import DATASETS
from linearno.data.benchmark import Splits
from linearno.data.shapenet_car import _field_data, _loss_scale, shapenet_car_layout
from linearno.data.shapenet_car_points import car_rows, cells_of_rows
from linearno.experiment import run
from linearno.recipes import recipe
from linearno.report import bodies
from linearno.viz import png_bytes
from linearno.viz.bodies import Body, draw_body, force_scatter
from tests.commands import linearno, refused
from tests.data.toy_cars import toy_car

pyvista = pytest.importorskip("pyvista")


@pytest.fixture
def car_run(monkeypatch, tmp_path):
    """A short run on ellipsoids."""
    rng = np.random.default_rng(0)
    cars = [toy_car(rng, n=4, nodes=60) for _ in range(5)]
    rows = [car_rows(car) for car in cars]
    benchmark = DATASETS["shapenet-car"]

    def open_small(config):
        spec, scale = shapenet_car_layout(config).spec, _loss_scale(rows[:2], config.statistics)
        parts = [_field_data(spec, part, scale, config.statistics) for part in (rows[:2], rows[2:])]
        return Splits(*parts, "ellipsoids")

    monkeypatch.setitem(DATASETS._entries, "shapenet-car", replace(benchmark, open=open_small))
    hexahedra = np.arange(16).reshape(2, 8) + len(cars[0].nodes) - 16
    monkeypatch.setattr(bodies, "car_cells", lambda config: cells_of_rows(cars[2], hexahedra))
    small = ["training.epochs=1", "model.width=16", "model.depth=2", "model.heads=2", "model.slices=4"]
    run(override(recipe("shapenet-car", "linearno"), small), tmp_path / "run", torch.device("cpu"))
    return tmp_path / "run"


@pytest.mark.slow
def test_a_run_on_cars_is_drawn_and_written_for_paraview(car_run):
    code, output = linearno("bodies", car_run)
    assert (code, "14 files" in output) == (0, True), output
    folder = car_run / "bodies"
    names = {path.name for path in folder.iterdir()}
    assert {
        "best.vtp",
        "median.vtu",
        "worst-pressure.png",
        "median-velocity.png",
        "slices.png",
        "drag.png",
    } <= names
    with np.load(car_run / "figures" / "cases.npz") as cases:
        truth, predicted = cases["targets"][1], cases["predictions"][1]
    surface, volume = pyvista.read(folder / "median.vtp"), pyvista.read(folder / "median.vtu")
    assert (surface.n_points, surface.n_cells, volume.n_cells) == (98, 96, 2)
    np.testing.assert_array_equal(surface.point_data["pressure"], truth[-98:, 3])
    error = surface.point_data["pressure_predicted"] - surface.point_data["pressure"]
    np.testing.assert_allclose(surface.point_data["pressure_error"], error, atol=1e-5)
    np.testing.assert_array_equal(volume.point_data["velocity_predicted"], predicted[:, :3])


def test_other_runs_have_no_bodies(tiny_run):
    assert "expected one on shapenet-car" in refused("bodies", tiny_run)


def test_a_body_is_drawn_from_a_fixed_camera_with_its_values():
    car = toy_car(np.random.default_rng(1), n=6)
    body = Body(car.points, car.quads, car.pressure)
    front, again, rear = (draw_body(body, view) for view in ("front", "front", "rear"))
    np.testing.assert_array_equal(front, again)
    assert front.shape == (260, 420, 3)
    assert (front != 255).any(axis=-1).mean() > 0.05
    assert (front != rear).any()
    plain = draw_body(body._replace(values=None))
    assert (plain != front).any()


def test_the_scatter_of_forces_names_the_rank_correlation():
    truth = np.linspace(0.3, 0.5, 9)
    figure = force_scatter(truth, truth + 0.01, name="C_D", correlation=0.987)
    assert "0.987, 9 bodies" in figure.axes[0].get_title()
    assert png_bytes(figure).startswith(b"\x89PNG")
