"""What only OFormer does."""

import pytest
import torch

from linearno import fit
from linearno.core.errors import UserError
from linearno.data import FieldData, FieldSpec
from linearno.models.oformer import OFormer
from linearno.nn.protocol import Queryable, Recomputable, completes
from linearno.ops.ragged import offsets_of

SIZES = {"coords": 2, "inputs": 1, "outputs": 1, "width": 16, "depth": 3, "heads": 2, "latent": 12}


def tiny(**more):
    torch.manual_seed(0)
    model = OFormer(**SIZES | {"resolution": 8} | more)
    return model.double().eval()


def points(*shape):
    torch.manual_seed(1)
    return torch.rand(shape, dtype=torch.float64)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": 18}, "width=18 is not a multiple of 4, a pair .* each of 2 coordinates; .* is: 20"),
        ({"coords": 3, "width": 12, "latent": 16}, "latent=16 is not a multiple of 6, .* that is: 18"),
        ({"scales": (8.0, 1.0)}, r"scales=\(8.0, 1.0\) are 2, but there are depth=3 blocks"),
        ({"scales": (8.0, 0.0, 1.0)}, "scales.* greater than 0"),
        ({"march": 2}, "march=2 steps cannot share 1 outputs evenly"),
        ({"dropout": 1.0}, "dropout: input should be less than 1"),
    ],
)
def test_settings_that_make_no_model_are_refused_in_one_line(settings, message):
    with pytest.raises(UserError, match=message) as error:
        OFormer(**SIZES | settings)
    assert "\n" not in str(error.value)


def test_inputs_that_do_not_fit_are_refused_in_one_line():
    model = tiny()
    with pytest.raises(UserError, match="takes 3 features a point, got 2: 2 coordinates and 0 inputs"):
        model(points(2, 7, 2))
    states = model.encode(points(2, 7, 2), points(2, 7, 1))
    with pytest.raises(UserError, match="takes 2 coordinates, got 3"):
        model.query(points(2, 5, 3), states)


def test_it_encodes_once_and_is_queried_anywhere():
    model = tiny()
    coords, inputs, where = points(2, 9, 2), points(2, 9, 1), points(2, 20, 2)
    assert isinstance(model, Queryable)
    assert not completes(model)
    states = model.encode(coords, inputs)
    assert states.shape == (2, 4, 12, 12)
    torch.testing.assert_close(model.query(coords, states), model(coords, inputs))
    parts = [model.query(part, states) for part in where.split(7, dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), model.query(where, states))


def test_a_trained_surrogate_is_queried_at_points_off_its_mesh():
    spec = FieldSpec(coords=("x", "y"), inputs=("a",), outputs=("u",))
    data = FieldData(spec, torch.rand(9, 2), torch.rand(4, 9, 1), torch.rand(4, 9, 1))
    settings = {"width": 16, "depth": 1, "heads": 2, "latent": 12, "resolution": 8}
    bundle = fit("oformer", data, settings=settings, epochs=1, batch=2, device="cpu")
    field = bundle.encode(data.coords, data.inputs)
    torch.testing.assert_close(field.query(data.coords), bundle.predict_data(data, batch=2))
    assert field.query(torch.rand(5, 2)).shape == (4, 5, 1)


@pytest.mark.parametrize("march", [0, 3])
def test_packed_meshes_have_a_time_each(march):
    model, sizes = tiny(march=march, outputs=3, time=True), [5, 1, 24]
    coords, inputs, time = points(1, 30, 2), points(1, 30, 1), points(3, 1)
    parts = zip(coords.split(sizes, dim=1), inputs.split(sizes, dim=1), time[:, None], strict=True)
    apart = torch.cat([model(x, a, time=t) for x, a, t in parts], dim=1)
    torch.testing.assert_close(model(coords, inputs, time=time, segments=offsets_of(sizes)), apart)


def test_each_step_of_the_march_continues_the_one_before():
    """The first frames of a longer march are those of a shorter one, and a march by itself is causal."""
    long, short = tiny(march=3, outputs=3), tiny(march=1, outputs=1)
    short.load_state_dict(long.state_dict())
    coords, inputs = points(2, 9, 2), points(2, 9, 1)
    frames = long(coords, inputs)
    torch.testing.assert_close(frames[..., :1], short(coords, inputs))
    assert not torch.allclose(frames[..., 1:2], frames[..., :1])
    head, seen = long.decoder.head, []
    head.norm_head.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    long(coords, inputs)
    step = head.propagator(torch.cat([head.norm_propagator(seen[1]), coords], dim=-1))
    torch.testing.assert_close(seen[2], seen[1] + step)


def test_blocks_have_the_published_scales_unless_others_are_given():
    def scales(model):
        return [block.attention.rotary.frequencies[0].item() / 8 for block in model.blocks]

    assert scales(tiny()) == [8, 2, 1]
    assert scales(tiny(scales=(4.0, 2.0, 0.5))) == [4, 2, 0.5]


def test_recomputed_blocks_have_the_same_gradients():
    model = tiny(dropout=0.3).train()
    coords, inputs, found = points(2, 9, 2), points(2, 9, 1), []
    assert isinstance(model, Recomputable)
    for recompute in (False, True):
        model.recompute = recompute
        torch.manual_seed(3)
        out = model(coords, inputs)
        found.append((out, torch.autograd.grad(out.square().sum(), list(model.parameters()))))
    torch.testing.assert_close(*found)


def test_dropout_acts_in_training_alone():
    model, given = tiny(dropout=0.5), (points(2, 9, 2), points(2, 9, 1))
    assert torch.equal(model(*given), model(*given))
    model.train()
    assert not torch.equal(model(*given), model(*given))
