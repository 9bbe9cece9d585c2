"""What would fail after training is refused before it, and auxiliary fields reach predictions as they are."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from linearno import fit, load, model
from linearno.core.config import override
from linearno.core.errors import UserError
from linearno.data import DATASETS, Benchmark, FieldData, FieldSpec
from linearno.experiment import run
from linearno.nn import ReferenceDistances
from linearno.recipes import RECIPES
from linearno.run_config import apply_changes
from tests.commands import linearno, refused

CPU = torch.device("cpu")
SPEC = FieldSpec(coords=("x", "y"), inputs=("a",), outputs=("u",), aux={"edges": "edge", "speed": "sample"})
QUICK = {"epochs": 1, "batch": 2, "device": "cpu"}


@model("neighbour-net", needs=("edges", "speed"))
class NeighbourNet(nn.Module):
    """Each point hears its neighbours."""

    def __init__(self, *, coords: int, inputs: int, outputs: int):
        super().__init__()
        self.net = nn.Linear(coords + 2 * inputs, outputs)

    def forward(self, coords, inputs=None, *, edges, speed, segments=None):
        flat = inputs.flatten(0, 1)
        heard = torch.zeros_like(flat).index_add(0, edges[1], flat[edges[0]]).view_as(inputs)
        size = coords.shape[1] if segments is None else segments.diff()
        fast = speed.repeat_interleave(torch.as_tensor(size), dim=0).view(*coords.shape[:2], -1)
        return fast * self.net(torch.cat([coords, inputs, heard], dim=-1))


def data(samples=4, points=6):
    torch.manual_seed(0)
    ring = torch.stack([torch.arange(points), (torch.arange(points) + 1) % points])
    aux = {"edges": ring, "speed": torch.rand(samples, 1)}
    fields = torch.rand(samples, points, 1)
    return FieldData(SPEC, torch.rand(points, 2), fields, 2 * fields, aux=aux)


def test_edges_of_a_shared_mesh_are_kept_with_the_model(tmp_path):
    train = data()
    bundle = fit("neighbour-net", train, out=tmp_path, **QUICK)
    again = load(tmp_path)
    speed = train.aux["speed"].double().numpy()  # another type than the model's
    found = again.predict(train.inputs.numpy(), batch=4, aux={"speed": speed})
    np.testing.assert_allclose(found, bundle.predict_data(train, batch=2).numpy(), rtol=1e-6)


def test_predict_reads_auxiliary_fields_from_the_file_of_the_inputs(tmp_path):
    train = data()
    bundle = fit("neighbour-net", train, out=tmp_path / "run", **QUICK)
    edges = train.aux["edges"].flip(0).numpy()
    arrays = {"a": train.inputs[..., 0].numpy(), "coords": train.coords.numpy(), "edges": edges}
    np.savez(tmp_path / "a.npz", speed=train.aux["speed"], **arrays)
    code, output = linearno("predict", tmp_path / "run", tmp_path / "a.npz", "-o", tmp_path / "u.npz")
    assert code == 0, output
    expected = bundle.predict(
        train.inputs, train.coords, aux={"edges": edges, "speed": train.aux["speed"].numpy()}
    )
    with np.load(tmp_path / "u.npz") as found:
        np.testing.assert_allclose(found["u"], expected[..., 0], rtol=1e-6)
    np.savez(tmp_path / "b.npz", **arrays)
    line = refused("predict", tmp_path / "run", tmp_path / "b.npz", "-o", tmp_path / "u.npz")
    assert "this model needs speed" in line


def test_meshes_with_edges_of_their_own_are_predicted_together(tmp_path):
    bundle = fit("neighbour-net", data(), **QUICK)
    sizes, rng = [3, 5], np.random.default_rng(0)
    coords, inputs = rng.random((8, 2)), rng.random((8, 1))
    edges = [np.array([[0, 1], [1, 2]]), np.array([[0, 4], [3, 0]])]
    speed = np.array([[1.0], [2.0]])
    packed = bundle.predict(inputs, coords, segments=[0, 3, 8], aux={"edges": edges, "speed": speed})
    start = 0
    for i, size in enumerate(sizes):
        own = slice(start, start + size)
        aux = {"edges": edges[i], "speed": speed[i : i + 1]}
        alone = bundle.predict(inputs[None, own], coords[own], aux=aux)
        np.testing.assert_allclose(packed[own], alone[0], rtol=1e-5)
        start += size
    with pytest.raises(UserError, match="'edges' name points that the samples do not have"):
        bundle.predict(inputs[None, :3], coords[:3], aux={"edges": edges[1], "speed": speed[:1]})
    with pytest.raises(UserError, match="batch=0: expected one sample or more"):
        bundle.predict(inputs[None], coords, batch=0, aux={"edges": edges[0], "speed": speed[:1]})


@pytest.mark.parametrize("clash", ["seconds", "samples"])
def test_a_metric_may_not_take_the_name_of_another_number(clash):
    bench = vars(DATASETS["darcy"])
    with pytest.raises(UserError, match=f"no metric may be called {clash!r}"):
        Benchmark(**{**bench, "metrics": {clash: next(iter(bench["metrics"].values()))}})


def test_a_loss_without_a_gradient_is_refused_before_training(darcy_folder, tmp_path, monkeypatch):
    def detached(prediction, batch):
        return (prediction - batch.targets).detach().square().mean(dim=(1, 2))

    bench = Benchmark(**{**vars(DATASETS["darcy"]), "loss": detached})
    monkeypatch.setitem(DATASETS._entries, "darcy", bench)
    changes = ["data.train=4", "data.test=2", "data.stride=4", f"data.root={darcy_folder}"]
    changes += ["training.loss.kind=benchmark", "training.loss.gradient_weight=0"]
    with pytest.raises(UserError, match="the loss has no gradient"):
        run(override(RECIPES["darcy/linearno"](), changes), tmp_path / "run", CPU)
    assert not (tmp_path / "run").exists()


def test_summaries_of_a_benchmark_are_shown(darcy_folder, tmp_path, monkeypatch):
    summaries = {"largest_value": lambda prediction, data: prediction.max().item()}
    bench = Benchmark(**{**vars(DATASETS["darcy"]), "summaries": summaries})
    monkeypatch.setitem(DATASETS._entries, "darcy", bench)
    small = ["data.train=4", "data.test=2", "data.stride=4", f"data.root={darcy_folder}", "training.epochs=1"]
    small += ["model.width=8", "model.depth=1", "model.heads=2", "model.slices=3"]
    folder = tmp_path / "run"
    code, output = linearno("train", "darcy/linearno", *(f"--set={s}" for s in small), "--out", folder)
    value = json.loads((folder / "metrics.json").read_text())["summaries"]["largest_value"]
    assert code == 0
    assert f"largest value: {value:.4g}" in output
    assert "largest value" in linearno("evaluate", folder)[1]
    assert linearno("report", folder)[0] == 0
    assert "Largest value" in (folder / "report.html").read_text()


def test_a_recipe_is_named_after_the_model_that_it_has():
    assert apply_changes(RECIPES["darcy/linearno"](), ["model.name=transolver"]).recipe == "darcy/transolver"
    assert apply_changes(RECIPES["darcy/linearno"](), ["model.width=64"]).recipe == "darcy/linearno"
    named = apply_changes(RECIPES["darcy/linearno"](), ["model.name=transolver", "recipe=mine"])
    assert named.recipe == "mine"


def test_needs_are_a_tuple_of_arguments_of_forward():
    with pytest.raises(UserError, match=r"needs='time' is a text; give a tuple, \('time',\)"):
        model("text-needs", needs="time")(type("TextNeeds", (nn.Module,), {}))
    with pytest.raises(UserError, match="needs 'edges', but its forward has no argument of that name"):

        @model("no-keyword", needs=("edges",))
        class NoKeyword(nn.Module):
            def __init__(self, *, outputs: int):
                super().__init__()

            def forward(self, coords, inputs=None): ...


def test_positional_arguments_are_taken_where_the_signature_allows_them_and_never_dropped():
    @model("by-position")
    class ByPosition(nn.Module):
        def __init__(self, coords: int, outputs: int, width: int = 3):
            super().__init__()
            self.width = width

    assert ByPosition(2, 1, 5).width == 5
    with pytest.raises(TypeError, match="ByPosition takes 3 positional arguments, got 4"):
        ByPosition(2, 1, 5, 7)
    with pytest.raises(TypeError, match="NeighbourNet takes 0 positional arguments, got 3"):
        NeighbourNet(2, 1, 1)


def test_a_model_without_parameters_cannot_be_trained():
    @model("no-parameters")
    class NoParameters(nn.Module):
        def __init__(self, *, outputs: int):
            super().__init__()

        def forward(self, coords, inputs=None):
            return inputs

    arrays = {
        "coords": np.linspace(0, 1, 10).reshape(5, 2),
        "inputs": np.ones((3, 5, 1)),
        "targets": np.ones((3, 5, 1)),
    }
    with pytest.raises(UserError, match="NoParameters has no parameters to train"):
        fit("no-parameters", arrays, **QUICK)


def test_bounds_of_reference_points_are_ordered_pairs():
    with pytest.raises(ValueError, match="expected pairs of bounds, low < high"):
        ReferenceDistances(ref=2, box=((1.0, 0.0), (0.0, 1.0)))
    arrays = {"coords": np.linspace(0, 1, 10).reshape(5, 2), "targets": np.ones((3, 5, 1))}
    unified = {"ref": 2, "place": "coords", "box": [[0, 1]]}
    with pytest.raises(UserError, match="expected 2 pairs of bounds"):
        fit("linearno", arrays, settings={"unified": unified}, **QUICK)


def test_a_fit_leaves_a_run_of_the_command_line_alone(tiny_run):
    arrays = {"coords": np.linspace(0, 1, 10).reshape(5, 2), "targets": np.ones((3, 5, 1))}
    before = (tiny_run / "model.json").read_bytes()
    with pytest.raises(UserError, match="contains a run of `linearno train`"):
        fit("linearno", arrays, out=tiny_run, **QUICK)
    assert (tiny_run / "model.json").read_bytes() == before
