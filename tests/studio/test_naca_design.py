"""NACA airfoils of a run of AirfRANS in the studio, without a browser."""

import numpy as np
import pytest
import torch

from linearno.core.config import override
from linearno.core.errors import UserError
from linearno.data.airfoil_nodes import CellFields
from linearno.data.airfrans import field_data
from linearno.data.airfrans_metrics import force_table
from linearno.data.airfrans_names import simulation_name
from linearno.data.airfrans_sets import refined_simulations
from linearno.experiment import run
from linearno.recipes import recipe
from linearno.studio.designs import FiveDigitDesign, FourDigitDesign, naca
from linearno.studio.model import StudioModel
from linearno.studio.panels import design_panels
from tests.data.airfoil_flows import made_up_flows
from tests.data.airfrans_toy import NODES, make_set
from tests.studio.conftest import open_runs


@pytest.fixture(scope="module")
def airfrans_folder(tmp_path_factory):
    """A run of one epoch on made-up flows."""
    root = make_set(tmp_path_factory.mktemp("airfrans"), files=False)
    changes = ["width=16", "depth=1", "heads=2", "slices=4"]
    data = [f"data.root={root}", "data.train=4", "data.test=3", "data.holdout=0", f"data.nodes={NODES}"]
    training = ["training.epochs=1", "training.points=200", "training.precision=fp32"]
    config = override(recipe("airfrans", "linearno"), [*(f"model.{c}" for c in changes), *data, *training])
    folder = tmp_path_factory.mktemp("airfrans-run")
    run(config, folder, torch.device("cpu"))
    return folder


@pytest.fixture
def model(airfrans_folder):
    return StudioModel(open_runs([airfrans_folder], "cpu"))


def lift(model):
    return float(next(row for row in model.quantities() if "lift" in row["name"])["surrogate"])


def benchmark_sample(design):
    """Sample of a design as the benchmark reads it, with zero fields, and its quadrilaterals."""
    cells = naca.CELLS
    shape = 2 * (cells.wake + cells.side), cells.outward
    blank = CellFields(np.zeros((*shape, 2)), np.zeros(shape), np.zeros(shape))
    simulations = refined_simulations([design.case], cells, [blank], len(design.coords()) // 2)
    return field_data([simulation_name(design.case)], simulations, torch.ones(4)), simulations[0].quads


@pytest.mark.parametrize("title", [FourDigitDesign.title, FiveDigitDesign.title])
def test_mesh_and_inputs_are_those_of_the_benchmark(model, title):
    model.choose_design(title)
    model.draw(3)
    data, quads = benchmark_sample(model.design)
    np.testing.assert_array_equal(model.design.coords(), data.coords.numpy())
    np.testing.assert_array_equal(model.design.inputs(), data.inputs.numpy())
    assert model.geometry().surface.n_cells == len(quads)


def test_the_angle_changes_the_lift_as_predict_says(model):
    found = []
    for angle in (2.0, 8.0):
        model.set_parameter("angle", angle)
        data, _ = benchmark_sample(model.design)
        outputs = model.run.bundle.predict(data.inputs[None], data.coords[None])[0]
        np.testing.assert_allclose(model.update().prediction, outputs.numpy(), rtol=1e-4, atol=1e-4)
        found.append(lift(model))
        assert found[-1] == pytest.approx(force_table(outputs, data)["lift"][0], rel=1e-3)
    assert found[0] != found[1]


def test_solver_and_difference_are_shown_with_both_times(model, monkeypatch):
    monkeypatch.setattr(naca, "airfoil_flows", made_up_flows)
    model.set_parameter("speed", 50.0)
    fields = model.solve()
    assert [panel.title for panel in design_panels(model)] == ["Surrogate", "Solver", "Surrogate − solver"]
    assert all(panel.note for panel in design_panels(model))
    wall = model.design.inputs()[:, 3:].any(axis=1)
    assert (fields.truth[wall][:, [0, 1, 3]] == 0).all()
    cp = model.line_plot().series[1]
    np.testing.assert_allclose(min(cp.x), 0, atol=0.01)
    pressure = fields.truth[wall, 2]
    assert max(cp.y) == pytest.approx(2 * pressure.max() / 50.0**2, rel=1e-5)
    assert all(row["truth"] for row in model.quantities())


@pytest.mark.slow
def test_solve_has_the_lift_and_drag_of_the_solver(model):
    model.solve()
    flow = naca.airfoil_flows([model.design.case], naca.CELLS, turbulence="sa")
    rows = {row["name"]: float(row["truth"]) for row in model.quantities()}
    assert rows["lift coefficient"] == pytest.approx(float(flow.lift), rel=5e-3)
    assert rows["drag coefficient"] == pytest.approx(float(flow.drag), rel=0.05)


@pytest.mark.parametrize(
    ("title", "values", "expected"),
    [
        (FourDigitDesign.title, {"camber": 9.5, "position": 0.1}, "NACA"),
        (FiveDigitDesign.title, {"position": 9.0}, "expected a second digit above 0 and below 8.45"),
    ],
)
def test_digits_without_an_airfoil_are_one_message(model, title, values, expected):
    model.choose_design(title)
    for name, value in values.items():
        model.set_parameter(name, value)
    for work in (model.update, model.geometry, model.solve):
        with pytest.raises(UserError, match=expected) as caught:
            work()
        assert "\n" not in str(caught.value)
        assert "sample" not in str(caught.value)


def test_numbers_outside_the_law_are_said_in_words(model):
    assert model.verdict().level == "inside"
    model.set_parameter("angle", 16.0)
    assert "angle of attack = 16 ° is outside the training range, -5 to 15 °" in model.verdict().sentences[0]
    model.set_parameter("angle", 4.0)
    model.set_parameter("position", 1.0)
    assert "the training airfoils have 0 (no camber) or at least 1.5" in model.verdict().sentences[0]


def test_a_split_by_a_rule_has_narrower_ranges(model):
    spec = model.run.bundle.spec
    trained = {
        split: {name: each.trained for name, each in FourDigitDesign(spec, split=split).parameters.items()}
        for split in ("full", "aoa", "reynolds")
    }
    assert trained["full"]["angle"] == trained["reynolds"]["angle"] == (-5.0, 15.0)
    assert trained["aoa"]["angle"] == (-2.5, 12.5)
    assert trained["reynolds"]["speed"] == pytest.approx((3e6 * 1.56e-5, 5e6 * 1.56e-5))
    assert trained["full"]["speed"] == trained["aoa"]["speed"] == pytest.approx((31.2, 93.6))


def test_a_random_airfoil_is_of_the_family(model):
    for title, count in ((FourDigitDesign.title, 3), (FiveDigitDesign.title, 4)):
        model.choose_design(title)
        for seed in range(4):
            model.draw(seed)
            assert len(model.design.case.digits) == count
            assert model.design.warnings() == []
    model.fill("straight")
    assert model.design.digits[0] == 0
