"""A bundle: saved, loaded, and asked in physical units, at once, in chunks or at other points."""

import logging
from dataclasses import replace

import pytest
import torch

from linearno import CrossLinearNO, LinearNO, load, model
from linearno.core.errors import UserError
from linearno.data import Batch, FieldSpec, Scaler, box_of, outside_box
from linearno.inference.bundle import Bundle
from linearno.models import MODELS
from linearno.training import Rollout, Timed

SPEC = FieldSpec(
    coords=("x", "t"), inputs=("u observed",), outputs=("u",), standardised=("coords", "inputs", "outputs")
)
SMALL = {"width": 24, "depth": 2, "heads": 3, "slices": 5}


@pytest.fixture
def bundle():
    torch.manual_seed(0)
    coords = torch.rand(50, 2) * torch.tensor([4.0, 0.5]) + torch.tensor([-1.0, 0.25])
    values = 3 + 2 * torch.randn(6, 50, 1)
    scaler = Scaler.fit(SPEC, Batch(coords.expand(6, -1, -1), values, values - 1))
    return Bundle(CrossLinearNO(coords=2, inputs=1, outputs=1, **SMALL), scaler, SPEC, coords, "test", 0)


def test_a_saved_completer_answers_the_same_when_it_is_loaded(bundle, tmp_path):
    bundle.save(tmp_path)
    seen, values, points = bundle.coords[:9], torch.randn(2, 9, 1), bundle.coords[20:]
    there = load(tmp_path)
    assert isinstance(there.model, CrossLinearNO)
    before, after = (each.encode(seen, values).query(points) for each in (bundle, there))
    assert torch.equal(before, after)


def test_a_field_is_predicted_in_physical_units_at_any_points(bundle):
    seen, values, points = bundle.coords[:9], torch.randn(2, 9, 1), bundle.coords[20:]
    scaler = bundle.scaler
    with torch.no_grad():
        whole = bundle.model(
            scaler.coords.encode(seen).expand(2, -1, -1),
            scaler.inputs.encode(values),
            points=scaler.coords.encode(points).expand(2, -1, -1),
        )
    field = bundle.encode(seen.double(), values.double())  # any type will do
    torch.testing.assert_close(field.query(points), scaler.outputs.decode(whole))
    torch.testing.assert_close(field.query(points, chunk=7), field.query(points))
    each = torch.stack([points, points.flip(0)])
    torch.testing.assert_close(field.query(each)[1], field.query(points)[1].flip(0))
    torch.testing.assert_close(field.query(bundle.coords), bundle.predict(values, seen))


def test_points_outside_the_training_box_are_answered_with_one_warning(bundle, caplog):
    field = bundle.encode(bundle.coords[:9], torch.randn(1, 9, 1))
    with caplog.at_level(logging.WARNING):
        field.query(bundle.coords)
        assert not caplog.records
        points = torch.cat([bundle.coords, torch.tensor([[9.0, 0.5], [0.0, 0.9]])])
        assert field.query(points, chunk=10).isfinite().all()
    (record,) = caplog.records
    lows, highs = box_of(bundle.coords)
    x, t = (f"{name} from {lows[i]:g} to {highs[i]:g}" for i, name in enumerate("xt"))
    place = f"outside the box of the training points ({x}, {t})"
    assert record.getMessage() == f"2 of 52 query points lie {place}: extrapolated"


def test_where_the_training_points_are_not_known_nothing_is_said(bundle, caplog):
    unknown = Bundle(bundle.model, bundle.scaler, SPEC, None, "test", 0)
    with caplog.at_level(logging.WARNING):
        unknown.encode(bundle.coords[:9], torch.randn(1, 9, 1)).query(torch.full((3, 2), 99.0))
    assert not caplog.records


def test_a_box_holds_its_faces():
    points = torch.tensor([[[0.0, 1.0], [2.0, 3.0]], [[1.0, 5.0], [0.5, 2.0]]])
    box = box_of(points)
    assert box.tolist() == [[0.0, 1.0], [2.0, 5.0]]
    assert not outside_box(points, box).any()
    assert outside_box(torch.tensor([[0.0, 0.9], [2.1, 3.0], [2.0, 5.0]]), box).tolist() == [
        True,
        True,
        False,
    ]


def test_questions_that_do_not_fit_are_refused(bundle):
    coords, values = bundle.coords[:9], torch.randn(2, 9, 1)
    with pytest.raises(UserError, match="9 coordinates for inputs at 8 points"):
        bundle.encode(coords, values[:, :8])
    with pytest.raises(UserError, match=r"takes inputs \(samples, points, 1\): u observed, got \(9, 1\)"):
        bundle.encode(coords, values[0])
    with pytest.raises(UserError, match=r"takes coords \(… points, 2\): x, t, got \(9, 1\)"):
        bundle.encode(coords[:, :1], values)
    with pytest.raises(UserError, match=r"takes points \(… points, 2\): x, t, got \(4, 1\)"):
        bundle.encode(coords, values).query(torch.rand(4, 1))
    for chunk in (0, -1):
        with pytest.raises(UserError, match=f"chunk={chunk}: expected one point or more"):
            bundle.encode(coords, values).query(coords, chunk=chunk)
    with pytest.raises(UserError, match="1 numbers of the inputs are NaN or infinite"):
        bundle.encode(coords, values.index_fill(1, torch.tensor([3]), torch.nan)[:1])
    with pytest.raises(UserError, match="points for 3 samples and inputs of 2"):
        bundle.encode(coords, values).query(torch.rand(3, 4, 2))
    with pytest.raises(UserError, match="reconstructed from observations: give their values"):
        bundle.encode(coords)
    with pytest.raises(UserError, match="is queried at points alone: leave the inputs out"):
        bundle.encode(coords, values).query(coords, values)
    with pytest.raises(UserError, match="takes its observations at once: leave memory out"):
        bundle.predict(values, coords, memory="2GB")


@pytest.fixture
def surrogate(bundle):
    """Of a pointwise model, with statistics of another set."""
    model = LinearNO(coords=2, inputs=1, outputs=1, **SMALL)
    return Bundle(model, bundle.scaler, SPEC, bundle.coords, "test", 0)


def test_a_prediction_within_a_given_memory_is_the_same(surrogate):
    values, told = torch.randn(3, 50, 1), []
    whole = surrogate.predict(values)
    parts = surrogate.predict(values, memory="20MB", on_chunk=lambda *progress: told.append(progress))
    torch.testing.assert_close(parts, whole)
    assert told == [(50 * k, 150) for k in (1, 2, 3)] * 3


def test_a_field_of_any_model_is_encoded_once_and_queried_elsewhere(surrogate, tmp_path):
    surrogate.save(tmp_path)
    coords, values = surrogate.coords, torch.randn(2, 50, 1)
    field, some = load(tmp_path).encode(coords.double(), values), slice(7, 30)
    there = field.query(coords[some], values[:, some], chunk=7)
    torch.testing.assert_close(there, surrogate.predict(values, coords)[:, some])
    assert not there.requires_grad
    with pytest.raises(UserError, match="takes 1 inputs a point, got 0"):
        field.query(coords)
    with pytest.raises(UserError, match="points for 3 samples and inputs of 2"):
        field.query(coords.expand(3, -1, -1), values)


def test_frames_fewer_than_a_model_takes_are_refused_and_not_repeated(surrogate):
    frames = tuple(f"w{i}" for i in range(10))
    spec = FieldSpec(coords=("x", "t"), inputs=frames, outputs=("w10", "w11"))
    model = LinearNO(coords=2, inputs=10, outputs=1, **SMALL)
    marching = Bundle(
        model, Scaler.blank(Rollout().spec(spec)), spec, surrogate.coords, "test", 0, task=Rollout()
    )
    assert marching.predict(torch.rand(1, 50, 10).double(), steps=3).shape == (1, 50, 3)
    for count in (1, 9):
        with pytest.raises(
            UserError, match=rf"inputs \(samples, points, 10\): w0, w1, …, w9, got .* {count}\)"
        ):
            marching.predict(torch.rand(1, 50, count))
    with pytest.raises(UserError, match="this model takes inputs: give w0, w1, …, w9"):
        marching.predict()
    with pytest.raises(UserError, match="50 coordinates for inputs at 49 points"):
        marching.predict(torch.rand(1, 49, 10))


def test_a_field_in_time_is_encoded_at_one(surrogate):
    spec = SPEC.model_copy(update={"outputs": ("u", "v", "w")})
    model = LinearNO(coords=2, inputs=1, outputs=1, time=True, **SMALL)
    timed = Bundle(model, surrogate.scaler, spec, surrogate.coords, "test", 0, task=Timed())
    values, last = torch.randn(2, 50, 1), torch.ones(2, 1)
    frames = timed.predict(values)
    torch.testing.assert_close(timed.predict(values, memory="30MB"), frames)
    there = timed.encode(timed.coords, values, time=last).query(timed.coords, values)
    torch.testing.assert_close(there, frames[..., 2:])


def test_a_rollout_within_a_given_memory_is_the_same(surrogate):
    spec = FieldSpec(coords=("x", "t"), inputs=("f1",), outputs=("f2", "f3"), standardised=SPEC.standardised)
    marching = Bundle(surrogate.model, surrogate.scaler, spec, surrogate.coords, "test", 0, task=Rollout())
    frames = torch.randn(2, 50, 1)
    whole, parts = (marching.predict(frames, steps=4, memory=memory) for memory in (None, "30MB"))
    torch.testing.assert_close(parts, whole)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_weights_may_be_cast_after_loading(surrogate, bundle, tmp_path, dtype):
    values, points = torch.randn(2, 50, 1), surrogate.coords[5:30]
    near = {"rtol": 0.1, "atol": 0.1} if dtype == torch.bfloat16 else {}
    for name, made in (("direct", surrogate), ("reconstruction", bundle)):
        made.save(tmp_path / name)
        cast = load(tmp_path / name)
        cast.model.to(dtype)
        found = cast.predict(values, cast.coords)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, made.predict(values, made.coords), **near)
        inputs = values[:, 5:30] if name == "direct" else None
        queried, expected = (each.encode(each.coords, values).query(points, inputs) for each in (cast, made))
        torch.testing.assert_close(queried, expected, **near)
        if name == "direct":
            torch.testing.assert_close(cast.predict(values, memory="20MB"), found, **near)
        assert not cast.model._forward_pre_hooks


def test_packed_meshes_are_refused_by_a_model_that_does_not_take_them(surrogate):
    without = replace(surrogate, model=Kriging(coords=2, inputs=1, outputs=1))
    with pytest.raises(UserError, match="does not support packed meshes: leave segments out"):
        without.predict(torch.randn(6, 1), torch.rand(6, 2), segments=[0, 2, 6])


class Kriging(torch.nn.Module):
    """A model that can be queried, but does not stream: means of the inputs weighted by inverse distances."""

    def __init__(self, *, coords: int, inputs: int, outputs: int, scale: float = 0.1):
        super().__init__()
        self.head = torch.nn.Linear(inputs, outputs)
        self.scale = scale

    def encode(self, coords, inputs=None):
        return coords, self.head(inputs)

    def query(self, points, states):
        coords, values = states
        return (1 / (self.scale + torch.cdist(points, coords))).softmax(dim=-1) @ values

    def forward(self, coords, inputs=None):
        return self.query(coords, self.encode(coords, inputs))


class Pointwise(torch.nn.Linear):
    """A model that can only be called."""

    def __init__(self, *, coords: int, inputs: int, outputs: int):
        super().__init__(coords + inputs, outputs)

    def forward(self, coords, inputs=None):
        return super().forward(torch.cat([coords, inputs], dim=-1))


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(MODELS, "_entries", dict(MODELS._entries))
    model("kriging")(Kriging)
    model("pointwise")(Pointwise)


def test_a_model_that_can_be_queried_needs_not_stream(surrogate, registered, tmp_path):
    made = replace(surrogate, model=Kriging(coords=2, inputs=1, outputs=1))
    made.save(tmp_path)
    values, points = torch.randn(2, 50, 1), surrogate.coords[5:30]
    encoded = load(tmp_path).encode(surrogate.coords, values)
    torch.testing.assert_close(encoded.query(points, chunk=7), made.predict(values)[:, 5:30])
    with pytest.raises(UserError, match="queried at points alone: leave the inputs out"):
        encoded.query(points, values[:, 5:30])


def test_a_model_that_cannot_be_queried_is_refused_by_name(surrogate, registered):
    made = replace(surrogate, model=Pointwise(coords=2, inputs=1, outputs=1))
    message = "model 'pointwise' does not support queries at other points: it has no `encode` and `query`"
    with pytest.raises(UserError, match=message):
        made.encode(surrogate.coords, torch.randn(2, 50, 1))
