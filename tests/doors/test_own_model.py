"""A model in a user's own file, from the command line and from Python: all that ours can do, or one line."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from linearno import load
from linearno.core.atomic_io import read_tensors
from linearno.core.config import override
from linearno.core.errors import UserError
from linearno.data import Scaler
from linearno.experiment import run
from linearno.inference.bundle import Bundle
from linearno.models import MODELS, build_model, import_definitions, model
from linearno.nn.protocol import fixed_grid, needs_of, spec_of
from linearno.recipes import RECIPES
from linearno.run_folder import extend_run
from tests.commands import in_a_new_process, linearno, refused
from tests.doors.nets import POINTWISE

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "own_model.py"
CPU = torch.device("cpu")
DARCY = ["data.train=6", "data.test=3", "data.stride=4", "training.epochs=2"]


@pytest.fixture(scope="module")
def own_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "pointwise_net_file.py"
    path.write_text(POINTWISE)
    import_definitions([str(path)])
    return path


@pytest.fixture(scope="module")
def example():
    import_definitions([str(EXAMPLE)])
    return "local-conv"


def settings(darcy_folder, *changes):
    return [f"--set={change}" for change in [*DARCY, f"data.root={darcy_folder}", *changes]]


def test_the_example_trains_loads_predicts_reports_and_exports_from_the_command_line(darcy_folder, tmp_path):
    out, mine = tmp_path / "run", ["--import", EXAMPLE]
    ended = in_a_new_process(
        "train", "darcy/local-conv", *mine, *settings(darcy_folder, "model.width=8"), "--out", out
    )
    assert ended.returncode == 0, ended.stderr
    assert "test relative L2" in ended.stdout
    card = json.loads((out / "model.json").read_text())
    assert card["model"]["settings"] == {"width": 8, "depth": 4}
    assert card["model"]["grid"] == [9, 9]
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["flops"] == 2 * 81 * (3 * 8 + 4 * 25 * 8 * 8 + 8)
    np.savez(tmp_path / "new.npz", coeff=np.ones((2, 33, 33)))
    predicted = in_a_new_process(
        "predict", out, tmp_path / "new.npz", "-o", tmp_path / "u.npz", "--stride", 4, *mine
    )
    assert predicted.returncode == 0, predicted.stderr
    assert np.load(tmp_path / "u.npz")["sol"].shape == (2, 9, 9)
    for command in (["evaluate", out, *mine], ["report", out], ["export", out, "--format", "torch", *mine]):
        ended = in_a_new_process(*command)
        assert ended.returncode == 0, (command, ended.stderr)
    assert (out / "report.html").exists()


def test_a_run_of_a_model_that_is_not_imported_names_the_module(darcy_folder, tmp_path, own_file):
    out = tmp_path / "run"
    run(
        override(
            RECIPES["darcy/pointwise-net"](),
            [*DARCY, f"data.root={darcy_folder}", "training.loss.gradient_weight=0"],
        ),
        out,
        CPU,
    )
    ended = in_a_new_process("evaluate", out)
    assert ended.returncode == 2
    assert ended.stderr.strip().splitlines()[-1] == (
        f"error: {out} needs the model 'pointwise-net' (module 'pointwise_net_file'), which is not "
        "registered: import the module that defines it first, or give its file with --import FILE.py"
    )
    assert in_a_new_process("evaluate", out, "--import", own_file).returncode == 0


def test_a_resumed_run_equals_an_uninterrupted_one_to_the_bit(darcy_folder, tmp_path, own_file):
    """With dropout, so that the random state matters; extended by epochs at a constant rate."""
    changes = [*DARCY, f"data.root={darcy_folder}", "training.schedule=constant", "training.ema=0.9"]
    long = override(RECIPES["darcy/pointwise-net"](), [*changes, "training.epochs=4"])
    run(long, tmp_path / "whole", CPU)
    run(override(RECIPES["darcy/pointwise-net"](), changes), tmp_path / "parts", CPU)
    run(extend_run(tmp_path / "parts", 2), tmp_path / "parts", CPU)
    whole, parts = (
        read_tensors(tmp_path / name / "model.safetensors", how="") for name in ("whole", "parts")
    )
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_what_a_model_cannot_do_is_one_line(darcy_folder, tmp_path, own_file):
    config = override(RECIPES["darcy/pointwise-net"](), [*DARCY, f"data.root={darcy_folder}"])
    run(config, tmp_path / "run", CPU)
    bundle = load(tmp_path / "run")
    xy, a = bundle.coords, torch.ones(1, 81, 1)
    with pytest.raises(UserError, match="model 'pointwise-net' does not support queries at other points"):
        bundle.encode(xy, a)
    with pytest.raises(UserError, match="model 'pointwise-net' does not support streaming"):
        bundle.predict(a, xy, memory="1GB")
    with pytest.raises(UserError, match="'pointwise-net' cannot recompute its blocks"):
        run(override(config, ["training.recompute=true"]), tmp_path / "other", CPU)
    assert not (tmp_path / "other").exists()


def test_the_signature_is_the_configuration(own_file):
    entry = MODELS["pointwise-net"]
    assert list(entry.config.model_fields) == ["name", "width", "dropout"]
    assert entry.documented() == {
        "width": "of the hidden layer.",
        "dropout": "fraction of hidden features that are dropped in training.",
    }
    with pytest.raises(UserError, match=r"model\.widht: no such field; did you mean 'width'"):
        override(RECIPES["darcy/pointwise-net"](), ["model.widht=3"])
    with pytest.raises(UserError, match=r"model\.width: input should be a valid integer.*got 'wide'"):
        override(RECIPES["darcy/pointwise-net"](), ["model.width=wide"])
    built = entry.cls(coords=2, inputs=1, outputs=3, width=4)
    assert spec_of(built).config.model_dump() == {"name": "pointwise-net", "width": 4, "dropout": 0.1}
    assert dict(spec_of(built).sizes) == {"coords": 2, "inputs": 1, "outputs": 3}
    code, output = linearno("models", "pointwise-net")
    assert code == 0
    assert "fraction of hidden features" in output


def test_a_grid_of_the_data_reaches_the_constructor(example):
    spec = RECIPES["darcy/local-conv"]().model
    fields = _darcy_spec((5, 7))
    built = build_model(spec, fields)
    assert (built.grid, fixed_grid(built), needs_of(built)) == ((5, 7), (5, 7), ("grid",))
    with pytest.raises(UserError, match="model 'local-conv' needs data on a grid"):
        build_model(spec, fields.model_copy(update={"grid": None}))


def _darcy_spec(grid):
    from linearno.data import FieldSpec

    return FieldSpec(coords=("x", "y"), inputs=("coeff",), outputs=("sol",), grid=grid)


def test_switching_the_model_leaves_the_fields_of_the_other_behind(own_file):
    config = override(
        RECIPES["darcy/linearno"](), ["model.width=8", "model.name=pointwise-net", "training.epochs=3"]
    )
    assert config.model.model_dump() == {"name": "pointwise-net", "width": 8, "dropout": 0.1}
    assert config.training.epochs == 3
    back = override(config, ["model.name=transolver"])
    assert back.model == RECIPES["darcy/transolver"]().model  # with its published settings here


def test_a_model_of_an_installed_package_is_found(tmp_path):
    (tmp_path / "plugin_nets.py").write_text(POINTWISE)
    meta = tmp_path / "plugin_nets-1.0.dist-info"
    meta.mkdir()
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin-nets\nVersion: 1.0\n")
    (meta / "entry_points.txt").write_text("[linearno.models]\nnets = plugin_nets\nbroken = no_such_module\n")
    code = "import sys; sys.path.append(sys.argv[1]); from linearno.models import MODELS; print(list(MODELS))"
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, cwd=ROOT
    )
    assert ended.returncode == 0, ended.stderr
    assert "pointwise-net" in ended.stdout
    assert "plugin broken = no_such_module cannot be loaded" in ended.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nothing_like_this", "does not import: ModuleNotFoundError in line 1: No module named"),
        ("x = (", "does not import: SyntaxError in line 1"),
        ("1 / 0", "does not import: ZeroDivisionError in line 1: division by zero"),
        ("x = 1", 'defines no model: put @model("name") above a class'),
        (
            POINTWISE.replace("pointwise-net", "linearno"),
            "model 'linearno' is registered already",
        ),
        (POINTWISE.replace("pointwise-net", "kw").replace("dropout: float = 0.1", "**more"), "takes *more"),
        (POINTWISE.replace("pointwise-net", "untyped").replace("width: int", "width"), "width has no type"),
        (POINTWISE.replace("pointwise-net", "silent").replace("outputs: int, ", ""), "takes no outputs"),
    ],
)
def test_a_bad_model_file_is_one_line_before_any_work(tmp_path, text, message, request):
    path = tmp_path / f"bad_{abs(hash(request.node.name))}.py"
    path.write_text(text)
    line = refused("train", "darcy/mine", "--import", path, "--out", tmp_path / "run")
    assert str(path) in line
    assert message in line, line
    assert not (tmp_path / "run").exists()


def test_a_missing_model_file_and_an_unknown_model_are_one_line(tmp_path):
    assert "nowhere.py does not exist" in refused("train", "darcy/mine", "--import", tmp_path / "nowhere.py")
    assert "no module 'no_such_module' is installed" in refused("models", "--import", "no_such_module")
    line = refused("train", "darcy/mynet")
    assert "unknown recipe 'darcy/mynet'" in line
    assert "--import FILE.py" in line


@model("wrong-shape")
class WrongShape(nn.Module):
    """One channel too many, or no tensor at all."""

    def __init__(self, *, coords: int, inputs: int, outputs: int, kind: str = "channels"):
        super().__init__()
        self.kind, self.net = kind, nn.Linear(coords + inputs, outputs + (kind == "channels"))

    def forward(self, coords, inputs=None):
        out = self.net(torch.cat([coords, inputs], dim=-1))
        return {"channels": out, "list": [out], "points": out[:, :-1], "whole": out.long()}[self.kind]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("channels", r"returned \(1, 81, 2\).*expected \(batch, points, channels\) = \(1, 81, 1\)"),
        ("points", r"returned \(1, 80, 1\)"),
        ("list", "returned list"),
        ("whole", "of torch.int64"),
    ],
)
def test_a_wrong_output_is_refused_before_training(darcy_folder, tmp_path, kind, message):
    changes = [*DARCY, f"data.root={darcy_folder}", f"model.kind={kind}"]
    with pytest.raises(UserError, match=message):
        run(override(RECIPES["darcy/wrong-shape"](), changes), tmp_path / "run", CPU)
    assert not (tmp_path / "run").exists()


@model("edge-net", needs=("edges",))
class EdgeNet(nn.Module):
    """One step of message passing."""

    def __init__(self, *, coords: int, inputs: int, outputs: int, width: int = 8):
        super().__init__()
        self.lift, self.head = nn.Linear(coords + inputs, width), nn.Linear(2 * width, outputs)

    def forward(self, coords, inputs=None, *, edges):
        h = self.lift(coords if inputs is None else torch.cat([coords, inputs], dim=-1))
        flat = h.flatten(0, 1)
        heard = torch.zeros_like(flat).index_add(0, edges[1], flat[edges[0]])
        return self.head(torch.cat([h, heard.view_as(h)], dim=-1))


def test_a_need_that_the_benchmark_lacks_is_refused_when_the_run_is_built(darcy_folder, tmp_path):
    with pytest.raises(UserError, match="model 'edge-net' needs edges, which the data do not have"):
        run(
            override(RECIPES["darcy/edge-net"](), [*DARCY, f"data.root={darcy_folder}"]),
            tmp_path / "run",
            CPU,
        )
    assert not (tmp_path / "run").exists()
    with pytest.raises(UserError, match=r"task=timed does not fit model=edge-net: set model\.name="):
        override(RECIPES["darcy/edge-net"](), ["task.name=timed"]).require_task_fits_model()


def test_a_class_that_is_not_registered_cannot_be_saved(tmp_path):
    class Plain(nn.Module):
        pass

    from linearno.data import FieldSpec

    spec = FieldSpec(coords=("x",), outputs=("u",))
    with pytest.raises(UserError, match=r'Plain is not registered: put @linearno\.model\("name"\) above'):
        Bundle(Plain(), Scaler.blank(spec), spec, None, "r", 0).save(tmp_path)
    assert not list(tmp_path.iterdir())


def test_raw_positions_reach_the_model_through_training_streaming_and_queries(darcy_folder, tmp_path):
    """Scaled coordinates and distances measured from unscaled ones, as on AirfRANS."""
    unified = "{ref: 3, place: positions, box: [[0, 1], [0, 1]]}"
    small = ["model.width=8", "model.depth=1", "model.heads=2", "model.slices=3", "model.stem=linear"]
    changes = [*DARCY, f"data.root={darcy_folder}", *small, f"model.unified={unified}"]
    run(override(RECIPES["darcy/linearno"](), changes), tmp_path / "run", CPU)
    bundle = load(tmp_path / "run")
    assert needs_of(bundle.model) == ("positions",)
    xy, a = bundle.coords, torch.rand(1, 81, 1)
    whole = bundle.predict(a)
    torch.testing.assert_close(bundle.predict(a, xy, memory="1GB"), whole, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(bundle.encode(xy, a).query(xy, a), whole, rtol=1e-4, atol=1e-6)
