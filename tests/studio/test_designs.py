"""Designs, fields and panels of the studio, without a browser."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from linearno.core.errors import UserError
from linearno.inference.training_ranges import TrainingRanges
from linearno.solvers.airfoil import forces, solve_airfoil, wake_nodes
from linearno.solvers.darcy import solve_at_cell_centres
from linearno.studio import comparison, engine, export, panels
from linearno.studio.designs import CaseDesign, SampleDesign
from linearno.studio.designs.airfoil import pressure_coefficient, pressure_force
from linearno.studio.model import StudioModel
from linearno.studio.runs import StudioRun
from linearno.training.history import EpochRecord, append_history
from tests.meshes.mesh_examples import box, plane
from tests.studio.conftest import COARSE


@pytest.fixture
def darcy(darcy_runs):
    return StudioModel(darcy_runs)


@pytest.fixture
def airfoil(airfoil_runs):
    return StudioModel(airfoil_runs)


@pytest.fixture
def cases(cases_runs):
    return StudioModel(cases_runs)


def test_the_brush_changes_the_medium_under_it_alone(darcy):
    darcy.fill("low")
    darcy.set_parameter("radius", 0.1)
    darcy.paint([(0.25, 0.75)])
    medium, axis = darcy.design.medium, np.linspace(0, 1, 21)
    inside = (axis[None, :] - 0.25) ** 2 + (axis[:, None] - 0.75) ** 2 <= 0.01
    assert (medium[inside] == 12).all()
    assert (medium[~inside] == 3).all()


def test_a_stroke_leaves_no_gaps(darcy):
    darcy.fill("low")
    darcy.paint([(0.1, 0.5), (0.9, 0.5)])
    assert (darcy.design.medium[10, 2:19] == 12).all()


def test_the_prediction_is_that_of_the_surrogate_for_what_was_painted(darcy):
    before = darcy.update().prediction
    darcy.paint([(0.5, 0.5)])
    after = darcy.update().prediction
    assert not np.allclose(before, after)
    inputs = torch.from_numpy(darcy.design.medium[::2, ::2].reshape(1, -1, 1).astype(np.float32))
    np.testing.assert_allclose(after, darcy.run.bundle.predict(inputs)[0].numpy(), rtol=1e-5, atol=1e-7)


def test_solve_gives_the_flow_of_the_benchmark(darcy):
    darcy.paint([(0.2, 0.2), (0.8, 0.6)])
    fields = darcy.solve()
    a = torch.from_numpy(darcy.design.medium.copy())
    expected = solve_at_cell_centres(a, torch.ones_like(a))[::2, ::2].reshape(-1, 1).numpy()
    np.testing.assert_allclose(fields.truth, expected, rtol=1e-12)
    assert fields.solver_seconds > 0
    shown = panels.design_panels(darcy)
    assert [panel.title for panel in shown] == ["Medium", "Surrogate", "Solver", "Surrogate − solver"]
    np.testing.assert_allclose(shown[3].values, shown[1].values - shown[2].values)
    assert shown[1].scale == shown[2].scale


def test_a_change_forgets_the_solution(darcy):
    darcy.solve()
    darcy.paint([(0.5, 0.5)])
    assert darcy.update().truth is None


def test_a_medium_outside_of_the_solvers_law_is_one_message(darcy):
    darcy.design.medium[4, 4] = np.nan
    with pytest.raises(UserError, match="above zero everywhere"):
        engine.solve(darcy.design)
    with pytest.raises(UserError, match="NaN or infinite"):
        darcy.update()


def test_a_medium_unlike_the_training_samples_is_outside(darcy):
    assert darcy.verdict().level == "inside"
    darcy.set_parameter("brush", 40.0)
    darcy.paint([(0.5, 0.5)])
    verdict = darcy.verdict()
    assert verdict.level == "outside"
    assert any("40" in sentence for sentence in verdict.sentences)


def test_a_test_sample_shows_its_truth_and_error(darcy):
    darcy.choose_design(SampleDesign.title)
    darcy.set_parameter("sample", 2.0)
    fields = darcy.update()
    test = darcy.run.splits().test
    np.testing.assert_array_equal(fields.truth, test.targets[2].numpy())
    truth, found = test.targets[2].numpy(), fields.prediction
    assert fields.relative_error == pytest.approx(np.linalg.norm(found - truth) / np.linalg.norm(truth))


def test_a_control_point_moves_the_airfoil_and_the_prediction(airfoil):
    before = airfoil.update().prediction
    airfoil.drag("θ6", 0.1 + 0.03)
    assert airfoil.design.heights[5] == pytest.approx(0.03)
    assert not np.allclose(before, airfoil.update().prediction)
    coords = torch.from_numpy(airfoil.design.coords())[None]
    expected = airfoil.run.bundle.predict(coords=coords)[0].numpy()
    np.testing.assert_allclose(airfoil.update().prediction, expected, rtol=1e-5, atol=1e-6)


def test_handles_lie_on_the_control_points(airfoil):
    airfoil.drag("θ2", -0.1 + 0.02)
    handle = next(handle for handle in airfoil.design.handles() if handle.name == "θ2")
    assert (handle.x, handle.y) == pytest.approx((0.25, -0.08))
    assert [handle.name for handle in airfoil.design.handles() if handle.fixed] == ["θ1"]


def test_a_height_outside_the_training_range_is_said_in_words(airfoil):
    airfoil.set_parameter("θ6", 0.05)
    assert airfoil.verdict().level == "inside"
    airfoil.set_parameter("θ6", 0.06)
    verdict = airfoil.verdict()
    assert verdict.level == "outside"
    assert "θ6 = 0.06 is outside the training range, -0.05 to 0.05" in verdict.sentences[0]


def test_a_slider_ends_where_the_law_of_the_solver_does(airfoil):
    airfoil.drag("θ6", 55.0)
    assert abs(airfoil.design.heights).max() < 0.1
    with pytest.raises(UserError, match="expected a number"):
        airfoil.set_parameter("θ6", float("nan"))


@pytest.mark.slow
def test_lift_and_drag_of_a_pressure_are_those_of_the_solver(airfoil):
    airfoil.draw(4)
    nodes = torch.from_numpy(airfoil.design.nodes())[None]
    flow = solve_airfoil(nodes)
    end = wake_nodes(COARSE) - 1
    wall = flow.state[0, 3, end : COARSE - end, 0].numpy()
    found = pressure_force(nodes[0, end : COARSE - end, 0].numpy(), (wall - 1) / (1.4 * 0.64 / 2))
    np.testing.assert_allclose(found, forces(nodes, flow.state)[0].numpy(), atol=1e-6)


def test_the_free_stream_has_no_pressure_coefficient():
    np.testing.assert_allclose(pressure_coefficient(np.array([0.8])), 0, atol=1e-12)
    assert pressure_coefficient(np.array([0.0]))[0] == pytest.approx(1.1703, abs=1e-3)  # stagnation


def test_any_case_of_the_folder_is_shown_with_its_fields(cases):
    assert isinstance(cases.design, CaseDesign)
    assert list(cases.design.files) == ["case5", "case6", "case7"]
    cases.choose_case("case7")
    fields, geometry = cases.update(), cases.geometry()
    assert len(fields.prediction) == len(cases.design.coords())
    assert geometry.surface.n_cells == plane(7, hole=True).n_cells
    assert np.isfinite(fields.truth).all()
    cases.set_parameter("speed", 6.5)
    assert cases.update().truth is None


def test_a_number_outside_the_training_range_is_said_in_words(cases):
    trained = cases.design.parameters["speed"].trained
    cases.set_parameter("speed", trained[1] + 0.4)
    assert cases.verdict().level == "outside"
    assert "speed" in cases.verdict().sentences[0]


@pytest.fixture
def ranged_cases(cases_runs):
    """Cases of a run with the ranges of its training cases, which its data folder holds."""
    run = cases_runs[0]
    fields, train = run.bundle.mesh_fields, run.splits().train
    ranges = TrainingRanges.of(train, fields.globals, ())
    bundle = replace(run.bundle, ranges=ranges)
    return StudioModel([StudioRun(run.folder, run.name, bundle=bundle, config=run.config)])


def test_ranges_of_the_surrogate_decide_about_trust(ranged_cases):
    model, ranges = ranged_cases, ranged_cases.run.bundle.ranges
    low, high = ranges.parameters["speed"]
    assert model.design.parameters["speed"].trained == (low, high)
    assert model.verdict().level == "inside"
    assert model.verdict().score == model.design.novelty() <= 1
    model.set_parameter("speed", high + 0.4 * (high - low))
    names, case = model.run.bundle.spec.inputs, model.design
    expected = ranges.novelty(case.coords(), case.inputs(), names)
    assert model.verdict().score == pytest.approx(expected)
    assert f"speed is {high + 0.4 * (high - low):.4g}, the training cases have" in " ".join(
        model.verdict().sentences
    )


def test_an_uploaded_mesh_is_shown(cases, tmp_path):
    plane(9).save(tmp_path / "mine.vtu")
    cases.upload("../../mine.vtu", (tmp_path / "mine.vtu").read_bytes())
    assert cases.design.chosen == "upload: mine.vtu"
    assert len(cases.update().prediction) == 90
    assert cases.design.value("speed") == 9


@pytest.mark.parametrize(
    ("name", "content"), [("x.vtu", b"<VTKFile"), ("x.exe", b"MZ"), ("x.vtk", b"\x00" * 99)]
)
def test_a_damaged_upload_is_one_message(cases, name, content):
    before = cases.design.chosen
    with pytest.raises(UserError) as caught:
        cases.upload(name, content)
    assert "\n" not in str(caught.value)
    assert "/tmp" not in str(caught.value)
    assert cases.design.chosen == before


def test_a_run_on_arrays_takes_no_mesh(darcy):
    with pytest.raises(UserError, match="takes no meshes"):
        darcy.upload("mesh.vtu", b"")


def test_probes_read_the_nearest_point(darcy):
    darcy.probes.append((0.501, 0.999))
    row = darcy.probe_rows()[0]
    found = darcy.update().prediction.reshape(11, 11)[10, 5]
    assert float(row["surrogate"]) == pytest.approx(found, rel=1e-3, abs=1e-12)


def test_slice_weights_are_those_of_the_model(darcy):
    inspector = darcy.inspector(0)
    np.testing.assert_allclose(inspector.phi_at(1, 0, 17).sum(), 1, rtol=1e-5)
    assert panels.inside_panels(darcy)[1].title == darcy.runs[1].name
    gather = inspector.layers[1][1][1, :, 2]
    np.testing.assert_allclose(inspector.map("gather", 1, 1, 2), (gather / gather.max()).numpy())
    assert inspector.ranks().shape == (2, 2)
    assert inspector.ranks().max() <= 4


def test_several_runs_give_a_spread(darcy):
    std, name = engine.spread(darcy.runs, darcy.run, darcy.design)
    values = [engine.predict(run, darcy.design) for run in darcy.runs]
    np.testing.assert_allclose(std, np.std(values, axis=0, ddof=1), rtol=1e-5)
    assert "2 runs" in name
    assert engine.spread(darcy.runs[:1], darcy.run, darcy.design) is None


def test_cases_side_by_side_share_one_scale(darcy):
    shown = comparison.side_by_side(darcy)
    assert [panel.title for panel in shown] == ["Truth", *(run.name for run in darcy.runs)]
    assert len({panel.scale for panel in shown}) == 1


def test_a_run_that_is_training_is_followed(darcy_folders, tmp_path):
    from linearno.studio.runs import open_runs

    folder = tmp_path / "training"
    folder.mkdir()
    (folder / "config.yaml").write_bytes((darcy_folders[0] / "config.yaml").read_bytes())
    model = StudioModel(open_runs([folder], "cpu"))
    assert model.run.bundle is None
    assert "not trained to the end" in model.run.parts_off[0]
    record = EpochRecord(
        epoch=1, step=2, loss=0.5, lr=1e-3, grad_norm=1.0, seconds=1.0, samples_per_second=8.0
    )
    append_history(folder / "history.jsonl", record)
    assert comparison.table(model.runs)[0]["epochs"] == "1 / 3"
    assert comparison.table(model.runs)[0]["status"] == "training"
    assert list(comparison.curves(model.runs).series[0].y) == [0.5]


def test_what_is_shown_is_exported(darcy, tmp_path):
    import pyvista

    darcy.solve()
    shown = panels.design_panels(darcy)[1:]
    assert export.png(shown).startswith(b"\x89PNG")
    (tmp_path / "shown.vtu").write_bytes(export.vtu(shown))
    grid = pyvista.read(tmp_path / "shown.vtu")
    np.testing.assert_allclose(grid["Surrogate: sol"], darcy.update().prediction[:, 0], rtol=1e-6)


def test_a_volume_is_clipped():
    from linearno.meshes.reader.mesh import Cells
    from linearno.studio.geometry import geometry_of

    grid = box(4)
    offsets = grid.cell_offsets if hasattr(grid, "cell_offsets") else grid.offset  # before 0.49
    cells = Cells(grid.celltypes, grid.cell_connectivity, offsets)
    whole = geometry_of(np.asarray(grid.points), None, cells)
    part = whole.clipped(((1.5, 0.0, 0.0), (1.0, 0.0, 0.0)))
    assert part.box[0][0] >= 1.0
    np.testing.assert_allclose(np.asarray(grid.points)[part.rows], part.surface.points, atol=1e-6)
