"""`linearno.fit`: a model on arrays, from Python; numpy in and numpy out, torch in and torch out."""

import numpy as np
import pytest
import torch
from torch import nn

import linearno
from linearno import LinearNO, fit, load, model
from linearno.core.errors import UserError
from linearno.training import Interrupted

SMALL = {"width": 16, "depth": 1, "heads": 2, "slices": 4}
QUICK = {"epochs": 2, "batch": 4, "device": "cpu"}


def arrays(samples=8, points=20, seed=0):
    rng = np.random.default_rng(seed)
    xy = rng.random((points, 2))
    a = rng.normal(size=(samples, points, 1))
    return {"coords": xy, "inputs": a, "targets": 100 + 10 * a**2 * xy[:, :1]}


def test_a_fitted_model_predicts_in_the_units_of_the_data_and_improves():
    data = arrays(64)
    short, long = (
        fit("linearno", data, settings=SMALL, batch=8, lr=1e-2, device="cpu", epochs=n) for n in (1, 30)
    )
    errors = [np.abs(found.predict(data["inputs"]) - data["targets"]).mean() for found in (short, long)]
    assert errors[1] < 0.5 * errors[0]
    assert errors[1] < np.abs(data["targets"] - data["targets"].mean()).mean()


def test_numpy_gives_numpy_and_torch_gives_torch():
    data = arrays()
    bundle = fit("linearno", data, settings=SMALL, **QUICK)
    a, xy = data["inputs"][:2], data["coords"]
    by_numpy, by_torch = bundle.predict(a), bundle.predict(torch.from_numpy(a))
    assert isinstance(by_numpy, np.ndarray)
    assert isinstance(by_torch, torch.Tensor)
    np.testing.assert_array_equal(by_numpy, by_torch.numpy())
    assert isinstance(bundle.predict(a, xy, memory="1GB"), np.ndarray)
    field = bundle.encode(xy, a)
    there = field.query(xy[:3], a[:, :3])
    assert isinstance(there, np.ndarray)
    np.testing.assert_allclose(there, by_numpy[:, :3], rtol=1e-4)
    strided = np.asfortranarray(a)[:, ::-1]
    np.testing.assert_array_equal(bundle.predict(strided, xy), bundle.predict(strided.copy(), xy))


def test_a_seed_fixes_the_result_and_torch_data_give_the_same_as_numpy():
    data = arrays()
    tensors = {name: torch.from_numpy(part) for name, part in data.items()}
    found = [fit("linearno", given, settings=SMALL, seed=3, **QUICK) for given in (data, tensors)]
    one, other = (bundle.predict(data["inputs"]) for bundle in found)
    np.testing.assert_array_equal(one, other)


def test_a_model_that_is_built_is_trained_in_place():
    net = LinearNO(coords=2, inputs=1, outputs=1, **SMALL)
    before = net.head.weight.detach().clone()
    bundle = fit(net, arrays(), **QUICK)
    assert bundle.model is net
    assert not torch.equal(net.head.weight, before)
    with pytest.raises(UserError, match="the model expects 3 inputs, the data have 1"):
        fit(LinearNO(coords=2, inputs=3, outputs=1, **SMALL), arrays(), **QUICK)
    with pytest.raises(UserError, match="settings apply to a model given by name"):
        fit(net, arrays(), settings=SMALL, **QUICK)


def test_meshes_of_different_sizes_are_a_list():
    meshes = [
        {name: part[0] if part.ndim == 3 else part for name, part in arrays(1, points, points).items()}
        for points in (7, 12, 9, 20)
    ]
    bundle = fit("linearno", meshes, settings=SMALL, **QUICK)
    assert bundle.predict(meshes[1]["inputs"][None], meshes[1]["coords"]).shape == (1, 12, 1)


def test_a_grid_is_set_and_a_saved_bundle_loads(tmp_path):
    data = arrays(points=20)
    settings = SMALL | {"stem": "conv"}
    fit("linearno", data, settings=settings, grid=(4, 5), out=tmp_path / "run", **QUICK)
    again = load(tmp_path / "run")
    assert again.spec.grid == (4, 5)
    assert again.spec.outputs == ("output_0",)
    assert again.predict(data["inputs"][:1]).shape == (1, 20, 1)
    with pytest.raises(UserError, match="needs grid="):
        fit("linearno", data, settings=settings, **QUICK)


def test_a_stopped_fit_resumes_to_the_bit(tmp_path):
    data = arrays()
    whole = fit("linearno", data, settings=SMALL, **QUICK)

    def stop(record):
        raise KeyboardInterrupt

    with pytest.raises((KeyboardInterrupt, Interrupted)):
        fit("linearno", data, settings=SMALL, out=tmp_path / "run", on_epoch=stop, **QUICK)
    seen = []
    resumed = fit("linearno", data, settings=SMALL, out=tmp_path / "run", on_epoch=seen.append, **QUICK)
    assert [record.epoch for record in seen] == [2]
    np.testing.assert_array_equal(resumed.predict(data["inputs"]), whole.predict(data["inputs"]))
    with pytest.raises(UserError, match="holds a run of another configuration"):
        fit("linearno", arrays(seed=1), settings=SMALL, out=tmp_path / "run", **QUICK)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"targets": None}, "data has no 'targets'"),
        (
            {"pressure": np.zeros((8, 20, 1))},
            "data has 'pressure'; expected coords, inputs, targets, surface",
        ),
        ({"inputs": np.zeros((8, 19, 1))}, r"inputs have shape \(8, 19, 1\), expected .* = \(8, 20, 1\)"),
        ({"inputs": np.zeros((7, 20, 1))}, "inputs are of 7 samples, the targets of 8"),
        ({"targets": np.full((8, 20, 1), np.nan)}, "targets contain NaN or infinite numbers"),
        ({"targets": np.zeros(8)}, r"outputs have shape \(8,\), expected \(samples, points, channels\)"),
    ],
)
def test_arrays_that_do_not_fit_are_named(change, message):
    with pytest.raises(UserError, match=message):
        fit("linearno", arrays() | change, settings=SMALL, **QUICK)
    with pytest.raises(UserError, match="unknown model 'linearon'; did you mean 'linearno'"):
        fit("linearon", arrays(), **QUICK)
    with pytest.raises(UserError, match="epcohs: no such field; did you mean 'epochs'"):
        fit("linearno", arrays(), epcohs=3)


def test_a_module_of_ones_own_is_fitted():
    @model("fitted-by-hand")
    class Net(nn.Module):
        def __init__(self, *, coords: int, inputs: int, outputs: int):
            super().__init__()
            self.net = nn.Linear(coords + inputs, outputs)

        def forward(self, coords, inputs=None):
            return self.net(torch.cat([coords, inputs], dim=-1))

    bundle = fit(Net(coords=2, inputs=1, outputs=1), arrays(), **QUICK)
    assert bundle.recipe == "fit/fitted-by-hand"


def test_the_package_names_what_it_offers():
    assert {"LinearNO", "Transolver", "CrossLinearNO", "fit", "load", "model", "stream"} <= set(dir(linearno))


def test_coordinates_on_a_line_may_be_a_view_of_a_vector():
    x = np.linspace(0, 1, 9)[:, None]  # numpy gives this axis of length one a stride of zero
    data = {"coords": x, "targets": np.sin(x)[None]}
    assert linearno.fit("linearno", data, settings=SMALL, **QUICK).predict().shape == (1, 9, 1)
