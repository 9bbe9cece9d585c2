"""GINO: what its box and its grid do, queries at other points, and settings that do not fit."""

import pytest
import torch

from linearno import fit, from_published
from linearno.core.errors import UserError
from linearno.data import Batch, FieldData, FieldSpec
from linearno.models.gino import GINO
from linearno.nn.protocol import Queryable, capabilities, needs_of
from linearno.ops.ragged import offsets_of

SMALL = {
    **{"width": 8, "modes": 2, "depth": 2, "latent": 7},
    **{"kernel_in": (8,), "kernel_out": (8,), "frequencies": 4},
}
SPEC = FieldSpec(coords=("x", "y"), inputs=("a",), outputs=("u",))


def build(coords=2, **settings):
    torch.manual_seed(0)
    return GINO(coords=coords, inputs=1, outputs=1, **SMALL | settings).double().eval()


def question(points=30, coords=2, samples=2):
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(samples, points, n, generator=generator).double() for n in (coords, 1)]


@pytest.mark.parametrize("coords", [1, 2, 3])
def test_predicts_on_meshes_of_any_dimension_and_size(coords):
    model = build(coords)
    for points in (1, 40):
        out = model(*question(points, coords))
        assert out.shape == (2, points, 1)
        assert out.isfinite().all()


def test_with_the_box_of_each_mesh_its_position_and_size_do_not_matter():
    model, (x, a) = build(), question()
    moved = x * torch.tensor([1e3, 1e-2]) + 7
    torch.testing.assert_close(model(x, a, positions=moved), model(x, a))
    boxed = build(box=((0.0, 2.0), (0.0, 2.0)))
    assert (boxed(x, a, positions=x + 0.5) - boxed(x, a)).abs().max() > 1e-4
    wide = build(box=((7.0, 2007.0), (7.0, 7.02)))
    torch.testing.assert_close(wide(x, a, positions=moved), boxed(x, a))


def test_outside_of_the_box_nothing_is_seen():
    model, (x, a) = build(box=((0.0, 1.0), (0.0, 1.0))), question()
    blank = model.query(torch.full((1, 1, 2), 5.0, dtype=torch.float64), model.encode(x[:1], a[:1]))
    torch.testing.assert_close(blank[0, 0], model.head(torch.zeros(8, dtype=torch.float64)))
    beyond = torch.cat([x, x + 9], dim=1)
    torch.testing.assert_close(model(beyond, torch.cat([a, a], dim=1))[:, :30], model(x, a))


def test_samples_that_share_a_mesh_are_computed_as_each_on_its_own():
    """Also the neighbours and the kernels, which are found once."""
    model, (x, a) = build(), question()
    shared = x[:1].expand(2, -1, -1)
    apart = shared.clone()
    assert model.encode(shared, a, positions=shared).box.low.shape[0] == 1
    out = model(shared, a, positions=shared)
    torch.testing.assert_close(out, model(apart, a, positions=apart))
    torch.testing.assert_close(out, model(shared, a))


def test_queries_at_the_points_of_the_mesh_are_the_prediction():
    model, (x, a) = build(), question()
    assert isinstance(model, Queryable)
    states = model.encode(x, a)
    torch.testing.assert_close(model.query(x, states), model(x, a))
    torch.testing.assert_close(model.query(x[:, 3:9], states), model(x, a)[:, 3:9])
    with pytest.raises(UserError, match="takes 2 coordinates, got 3"):
        model.query(torch.rand(2, 4, 3), states)


@pytest.mark.parametrize("box", [None, ((1.0, 4.0), (1.0, 2.0))])
def test_a_trained_model_is_queried_in_physical_units(box):
    x, a = torch.rand(40, 2) * torch.tensor([3.0, 1.0]) + 1, torch.rand(6, 40, 1)
    spec = SPEC.model_copy(update={"standardised": ("coords", "inputs", "outputs")})
    data = FieldData(spec, x, a, a * x[:, :1])
    bundle = fit("gino", data, settings=SMALL | {"box": box}, epochs=2, device="cpu")
    assert "query" in capabilities(bundle.model)
    encoded, expected = bundle.encode(x, a), bundle.predict(a, x)
    torch.testing.assert_close(encoded.query(x), expected)
    torch.testing.assert_close(encoded.query(x[5:9], chunk=3), expected[:, 5:9])


def test_bf16_leaves_coordinates_and_outputs_in_float32():
    model, (x, a) = build().float(), [part.float() for part in question()]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(x, a)
        assert model.encode(x, a).features.dtype == out.dtype == torch.float32
    torch.testing.assert_close(out, model(x, a), rtol=0.05, atol=0.05)


def test_a_field_on_the_grid_and_a_time_come_with_the_data():
    settings = SMALL | {"latent_inputs": 2, "latent": (6, 7)}
    model, (x, a) = build(**settings, time=True), question()
    assert needs_of(model) == ("time", "latent_inputs", "positions")
    given = torch.rand(2, 84).double(), torch.rand(2, 1).double()
    out = model(x, a, latent_inputs=given[0], time=given[1])
    assert not torch.allclose(model(x, a, latent_inputs=given[0] + 1, time=given[1]), out)
    assert not torch.allclose(model(x, a, latent_inputs=given[0], time=given[1] + 1), out)
    packed = [part.flatten(0, 1)[None] for part in (x, a)]
    found = model(*packed, latent_inputs=given[0], time=given[1], segments=offsets_of([30, 30]))
    torch.testing.assert_close(found.view_as(out), out)
    with pytest.raises(UserError, match=r"2 channels at 42 grid points, \(B, 84\); got 0"):
        model(x, a, time=given[1])
    with pytest.raises(UserError, match="takes a time input"):
        model(x, a, latent_inputs=given[0])
    with pytest.raises(UserError, match="takes 0 channels"):
        build()(x, a, latent_inputs=given[0])


def test_trains_on_packed_meshes_with_fields_on_the_grid():
    spec = SPEC.model_copy(update={"aux": {"latent_inputs": "sample"}})
    samples = [
        Batch(torch.rand(n, 2), torch.rand(n, 1), torch.rand(n, 1), aux={"latent_inputs": torch.rand(49)})
        for n in (12, 7, 16)
    ]
    data = FieldData.pack(spec, samples)
    bundle = fit("gino", data, settings=SMALL | {"latent_inputs": 1}, epochs=2, batch=2, device="cpu")
    assert bundle.predict_data(data, batch=2).shape == data.targets.shape


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"modes": 5}, r"modes=\(5, 5\): a grid of \(7, 7\) points.* resolves at most \(3, 4\)"),
        ({"modes": (2, 2, 2)}, "modes=.* one for each of 2 axes"),
        ({"latent": (7, 7, 7)}, r"latent=\(7, 7, 7\): .* one for each of 2 coordinates"),
        ({"latent": 1, "modes": 1}, "modes|2 points or more along each axis"),
        ({"latent": (2, 1), "modes": 1}, "2 points or more along each axis"),
        ({"radius_in": -1.0}, "radius_in"),
        ({"radius_out": 0.0}, "radius_out"),
        ({"neighbours": 0}, "neighbours"),
        ({"box": ((0.0, 1.0),)}, "box=.* one pair of bounds for each of 2"),
        ({"box": ((0.0, 1.0), (1.0, 1.0))}, "box=.* low < high"),
        ({"coords": 4}, "has 1, 2 or 3 axes, got 4 coordinates"),
        ({"kernel_in": (8, 0)}, "kernel_in"),
        ({"embedding": "fourier"}, "embedding"),
    ],
)
def test_settings_that_do_not_fit_are_refused_in_one_line(settings, message):
    with pytest.raises(UserError, match=message) as refused:
        build(**settings)
    assert "\n" not in str(refused.value)


def test_published_weights_with_odd_modes_or_factors_are_refused():
    weights = {
        "gno_in.integral_transform.channel_mlp.fcs.0.weight": torch.zeros(4, 32),
        "fno_blocks.convs.0.weight.tensor": torch.zeros(4, 4, 5, 3, dtype=torch.complex64),
    }
    with pytest.raises(UserError, match=r"\(5, 3\) modes: only even numbers"):
        from_published(weights)
    weights["fno_blocks.convs.0.weight.core"] = weights.pop("fno_blocks.convs.0.weight.tensor")
    with pytest.raises(UserError, match="have factorised spectral weights: only dense ones"):
        from_published(weights)
