"""`linearno models` lists every model with what it can do."""

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from linearno import LinearNO
from linearno.cli import app
from linearno.models import MODELS, model
from linearno.nn.protocol import capabilities

BUILT_IN = [name for name in MODELS if MODELS[name].cls.__module__.startswith("linearno.models.")]


@pytest.fixture(scope="module")
def listed():
    found = CliRunner().invoke(app, ["models"], env={"COLUMNS": "140"})
    assert found.exit_code == 0, found.output
    return {line.split()[0]: line for line in found.output.splitlines() if line.startswith("  ")}


def test_every_model_is_listed_with_its_paper(listed):
    assert listed.keys() >= set(BUILT_IN)
    for name in BUILT_IN:
        assert MODELS[name].family != "other", name
        assert MODELS[name].paper[0] in listed[name]


def test_parameters_are_those_of_the_published_settings(listed):
    assert listed["linearno"].split()[-4:] == ["1.77", "M", "0.59", "M"]
    assert listed["transolver"].split()[-4:] == ["2.83", "M", "0.71", "M"]


@pytest.mark.parametrize(
    ("name", "able"),
    [
        ("linearno", "mesh, ragged, query, stream"),
        ("fno", "grid "),
        ("graphsage", "mesh, graph, ragged"),
        ("deeponet", "mesh, query"),
    ],
)
def test_capabilities_are_listed(listed, name, able):
    assert able in listed[name]


def test_a_setting_can_take_a_capability_away():
    sizes = {"coords": 2, "inputs": 1, "outputs": 1, "width": 16, "depth": 1, "heads": 2, "slices": 4}
    assert capabilities(LinearNO(**sizes)) == ("mesh", "ragged", "query", "stream")
    assert capabilities(LinearNO(**sizes, stem="conv", grid=(4, 4))) == ("grid",)


def test_a_name_shows_the_settings():
    found = CliRunner().invoke(app, ["models", "fno"], env={"COLUMNS": "140"})
    assert found.exit_code == 0
    assert "spectral; grid; https://arxiv.org/abs/2010.08895" in found.output
    assert "modes" in found.output


def test_models_whose_constructors_read_values_or_fail_are_listed_too():
    @model("listed-reading")
    class Reading(nn.Module):
        """A model whose constructor reads a value, which has none on the meta device."""

        def __init__(self, *, coords: int, inputs: int, outputs: int):
            super().__init__()
            self.scale = torch.linspace(0, 1, 4).max().item()
            self.net = nn.Linear(coords + inputs, outputs)

    @model("listed-failing")
    class Failing(nn.Module):
        """A model that cannot be built for most data."""

        def __init__(self, *, coords: int, inputs: int, outputs: int):
            raise RuntimeError("only for 7 coordinates")

    try:
        lines = CliRunner().invoke(app, ["models"], env={"COLUMNS": "140"}).output.splitlines()
    finally:
        for name in ("listed-reading", "listed-failing"):
            del MODELS._entries[name]
    rows = {line.split()[0]: line.split()[1:] for line in lines if line.startswith("  listed")}
    assert rows == {"listed-reading": ["mesh", "0.00", "M", "0.00", "M"], "listed-failing": []}
