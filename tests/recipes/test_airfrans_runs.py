"""Every model of AirfRANS is trained, tested and reported at toy size, on made-up flows."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from linearno.core.atomic_io import read_json
from linearno.core.config import override
from linearno.core.errors import UserError
from linearno.data import DATASETS
from linearno.data.airfoil_nodes import CellFields
from linearno.data.airfrans import field_data
from linearno.data.airfrans_metrics import force_table
from linearno.data.airfrans_names import simulation_name
from linearno.data.airfrans_sets import grid_cells, refined_simulations
from linearno.experiment import evaluate, run
from linearno.inference.bundle import load
from linearno.initialization import open_splits
from linearno.recipes import recipe
from linearno.report import write_report
from linearno.report.benchmark_figures import benchmark_figures
from linearno.report.run_folder import read_run
from linearno.run_config import RunConfig
from linearno.solvers.rans import AirfoilCase, airfoil_flows
from tests.data.airfrans_toy import NODES, make_set

SMALLER = {"width": 16, "depth": 1, "heads": 2, "slices": 4, "modes": 2, "latent": 8}
MODELS = sorted(DATASETS["airfrans"].models)


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return make_set(tmp_path_factory.mktemp("airfrans"), files=False)


@pytest.fixture
def config(toy):
    def make(name: str, *changes: str) -> RunConfig:
        found = recipe(*name.split("/"))
        settings = found.model.model_dump()
        keep = {"graphunet": {"depth"}, "lsm": set()}.get(found.model.name, set())
        smaller = [
            f"model.{key}={value}" for key, value in SMALLER.items() if key in settings and key not in keep
        ]
        data = [f"data.root={toy}", "data.train=4", "data.test=3", "data.holdout=0", f"data.nodes={NODES}"]
        training = ["training.epochs=1", "training.points=200", "training.precision=fp32"]
        task = ["task.points=5000"] if found.task.name == "covering" else []
        return override(found, [*smaller, *data, *training, *task, *changes])

    return make


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_a_recipe_is_trained_and_tested(config, model, tmp_path):
    results = run(config(f"airfrans/{model}"), tmp_path, torch.device("cpu"))
    for metric in DATASETS["airfrans"].metrics:
        assert np.isfinite(results[metric]["mean"]), metric
    assert set(results["summaries"]) == {"lift_spearman", "drag_spearman"}


def test_a_run_keeps_the_wall_its_cells_and_the_forces(config, tmp_path):
    folder = tmp_path / "run"
    results = run(config("airfrans/linearno"), folder, torch.device("cpu"))
    assert results["metric"] == "volume"
    found = read_run(folder, "a")
    for coords, inputs, fields, cells in zip(
        found.cases.coords, found.cases.inputs, found.cases.predictions, found.cases.cells, strict=True
    ):
        wall = inputs[:, 3:].any(axis=1)
        assert (fields[wall][:, [0, 1, 3]] == 0).all()  # as published
        assert (fields[wall][:, 2] != 0).any()
        assert cells.shape[1] == 4
        assert cells.max() == len(coords) - 1
    table = found.test_set
    error = abs(table["lift"] / table["true_lift"] - 1).mean()
    assert error == pytest.approx(results["lift_error"]["mean"], rel=1e-4)
    assert benchmark_figures(found).count("<img") == 2


@pytest.mark.slow
def test_a_report_shows_fields_on_the_mesh_pressures_and_polars(config, tmp_path):
    run(config("airfrans/linearno"), tmp_path / "run", torch.device("cpu"))
    write_report([tmp_path / "run"], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "Figures of the benchmark" in page
    assert "Lift and drag against the angle of attack of run" in page
    assert "input distance" in page  # the first input that is not the same at all points


def test_errors_are_in_units_of_the_training_data_on_any_data(config, tmp_path):
    """As in an evaluation of new samples, which come with few training samples."""
    chosen = config("airfrans/mlp")
    before = run(chosen, tmp_path / "run", torch.device("cpu"))
    splits = open_splits(chosen.data)
    test = replace(splits.test, aux={**splits.test.aux, "scale": 10 * splits.test.aux["scale"]})
    after = evaluate(load(tmp_path / "run"), chosen, splits._replace(test=test), tmp_path / "other")
    assert after["volume"] == before["volume"]


@pytest.mark.parametrize("variant", ["airfrans-reynolds", "airfrans-covering"])
def test_variants_are_tested_as_they_say(config, variant, tmp_path):
    run(config(f"{variant}/mlp"), tmp_path, torch.device("cpu"))
    metrics = read_json(tmp_path / "metrics.json", how="")
    expected = "reynolds_test" if variant == "airfrans-reynolds" else "full_test"
    assert expected in metrics["data"]
    assert read_run(tmp_path, "a").cases.observed is None


def test_damaged_figures_of_a_test_set_are_one_line(config, tmp_path):
    run(config("airfrans/mlp"), tmp_path, torch.device("cpu"))
    (tmp_path / "figures" / "test_set.npz").write_bytes(b"none")
    with pytest.raises(UserError, match=r"test_set.npz is damaged .*; evaluate the run again"):
        read_run(tmp_path, "a")


@pytest.mark.slow
def test_forces_of_refined_fields_are_those_of_the_solver():
    cases, cells = [AirfoilCase((2.0, 4.0, 12.0), 60.0, 4.0)], grid_cells(40)
    flow = airfoil_flows(cases, cells, turbulence="sa")
    assert flow.steady.all()
    fields = CellFields(*(part[0].numpy() for part in (flow.velocity, flow.pressure, flow.nut)))
    simulations = refined_simulations(cases, cells, [fields], nodes=20_000)
    data = field_data([simulation_name(cases[0])], simulations, torch.ones(4))
    table = force_table(data.targets, data)
    assert table["true_lift"][0] == pytest.approx(flow.lift.item(), rel=2e-3)
    assert table["true_drag"][0] == pytest.approx(flow.drag.item(), rel=0.02)
