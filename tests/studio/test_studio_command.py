"""`linearno studio` refuses in one line, and the page says what is off, without a browser."""

import json
import shutil
import socket

import numpy as np
import pytest

from linearno import fit
from linearno.studio.app import StudioApp
from linearno.studio.runs import open_runs
from tests.commands import refused


def test_no_run_is_one_line(tmp_path):
    assert "nowhere does not exist" in refused("studio", tmp_path / "nowhere", "--no-browser")
    assert "config.yaml" in refused("studio", tmp_path, "--no-browser")


def test_a_run_of_another_version_is_one_line(airfoil_folder, tmp_path):
    folder = shutil.copytree(airfoil_folder, tmp_path / "run")
    card = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps(card | {"format": 99}))
    assert "format 99" in refused("studio", folder, "--no-browser")


def test_a_taken_port_is_one_line(airfoil_folder):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"port {port} on 127.0.0.1 cannot be used" in refused("studio", airfoil_folder, "--port", port)


@pytest.fixture
def app(darcy_runs):
    return StudioApp(darcy_runs)


def test_events_of_the_page_change_its_state(app):
    before = app.state.panels
    app.fill("high")
    assert [panel["title"] for panel in app.state.panels] == ["Medium", "Surrogate"]
    assert app.state.panels != before
    app.open_page("inside")
    app.hover(0.5, 0.5)
    assert np.sum(app.state.bars[0]["values"]) == pytest.approx(1, rel=1e-4)
    assert app.state.mark == pytest.approx([0.5, 0.5], abs=1e-6)
    app.open_page("runs")
    assert len(app.state.panels) == 3
    app.set_parameter("sample", 1)
    assert app.state.panels[0]["note"] == "test sample 1"
    app.open_page("design")
    assert app.state.panels[0]["title"] == "Medium"


def test_an_error_is_a_message_and_the_page_stays_in_use(app):
    app.model.design.medium[4, 4] = np.nan
    app.model.changed()
    app.update()
    assert "NaN" in app.state.error
    assert app.state.panels == []
    app.fill("low")
    assert app.state.error == ""
    assert len(app.state.panels) == 2


def test_an_unknown_fault_is_a_message_without_a_traceback(app, monkeypatch):
    def fail():
        raise ZeroDivisionError

    monkeypatch.setattr(app.model, "update", fail)
    app.update()
    assert app.state.error == "this page could not be computed (ZeroDivisionError); the log has the reason"


def test_a_model_without_slices_says_what_is_off(tmp_path):
    rng = np.random.default_rng(0)
    shapes = {"coords": (9, 2), "inputs": (3, 9, 1), "targets": (3, 9, 1)}
    data = {name: rng.random(shape).astype(np.float32) for name, shape in shapes.items()}
    fit("mlp", data, epochs=1, out=tmp_path / "run", device="cpu")
    app = StudioApp(open_runs([tmp_path / "run"], "cpu"))
    assert "mlp has no slices to show" in app.state.error
    assert app.state.panels == []
    app.open_page("runs")
    assert app.state.error == ""
    assert app.state.table[0]["model"] == "mlp"
