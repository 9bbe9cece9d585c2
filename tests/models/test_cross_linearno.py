"""Observations become a small state, and any point may ask it."""

import pytest
import torch
from torch import nn

from linearno import CrossLinearNO
from linearno.core.errors import UserError
from linearno.data import FieldSpec
from linearno.models import build_model
from linearno.nn import layers
from linearno.nn.layers import add_norm
from linearno.ops import merge
from linearno.ops.layers import Residual
from linearno.recipes import RECIPES

SMALL = {"width": 24, "depth": 2, "heads": 3, "slices": 5}
BURGERS = FieldSpec(coords=("x", "t"), inputs=("u observed",), outputs=("u",))


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def build(**sizes):
    model = CrossLinearNO(**{"coords": 2, "inputs": 1, "outputs": 1} | sizes, **SMALL).double()
    for weight in model.parameters():
        if weight.dim() > 1:  # as drawn, φ and ψ are all but uniform
            nn.init.normal_(weight, std=0.3)
    return model


def observed(k=23, values=1, batch=2):
    return torch.rand(batch, k, 2).double(), torch.randn(batch, k, values).double()


def asked(n=41, batch=2):
    return torch.rand(batch, n, 2).double()


def test_one_call_is_encode_then_query():
    model, seen, points = build(inputs=2, outputs=3), observed(values=2), asked()
    whole = model(*seen, points=points)
    assert whole.shape == (2, 41, 3)
    assert torch.equal(model.query(points, model.encode(*seen)), whole)
    assert torch.equal(model(*seen), model(*seen, points=seen[0]))


@pytest.mark.parametrize("k", [1, 7, 1000])
def test_the_state_is_as_small_for_any_number_of_observations(k):
    state = build().encode(*observed(k))
    assert sum(part.numel() for part in state) == 2 * 3 * 5 * (8 + 2)  # B H M (D + 2)


def test_points_queried_in_chunks_get_the_values_of_one_query():
    model, seen, points = build(), observed(), asked()
    state = model.encode(*seen)
    parts = [model.query(part, state) for part in points.split([1, 9, 31], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), model.query(points, state))


def test_the_order_of_the_observations_does_not_matter():
    model, (coords, values), points = build(), observed(), asked()
    order = torch.randperm(23)
    shuffled = model(coords[:, order], values[:, order], points=points)
    torch.testing.assert_close(shuffled, model(coords, values, points=points))


def test_observing_everything_twice_changes_nothing():
    model, (coords, values), points = build(), observed(), asked()
    twice = model(coords.repeat(1, 2, 1), values.repeat(1, 2, 1), points=points)
    torch.testing.assert_close(twice, model(coords, values, points=points))


def test_the_crossing_gathers_parts_that_merge_and_the_blocks_before_it_do_not():
    """The blocks compare all observations with each other: only what comes after them is a plain sum."""
    model, (coords, values), points = build(), observed(), asked()
    h = torch.randn(2, 23, 24).double()
    whole = model.cross.gather(Residual(h))
    merged = merge(*(model.cross.gather(Residual(part)) for part in h.split([9, 14], dim=1)))
    torch.testing.assert_close(merged.value, whole.value)
    torch.testing.assert_close(merged.max + merged.sum.log(), whole.max + whole.sum.log())
    apart = [model.encode(coords[:, n], values[:, n]) for n in (slice(9), slice(9, None))]
    difference = model.query(points, merge(*apart)) - model(coords, values, points=points)
    assert difference.abs().max() > 1e-3


def test_blocks_of_points_give_what_all_points_give(monkeypatch):
    model, seen, points = build(), observed(150), asked(200)
    whole = model(*seen, points=points).detach()  # with gradients: all points at once
    before = [part.clone() for part in (*seen, points)]
    monkeypatch.setitem(layers.BLOCK_ELEMENTS, "cpu", 1)  # 64 points at a time
    with torch.no_grad():
        torch.testing.assert_close(model(*seen, points=points), whole)
    assert all(torch.equal(now, then) for now, then in zip((*seen, points), before, strict=True))


def test_the_weights_that_are_drawn_are_the_weights_that_act():
    model, seen, points = build(), observed(), asked()
    *_, (phi, psi) = model.slice_weights(*seen, points=points)
    assert phi.shape == (2, 3, 41, 5)
    assert psi.shape == (2, 3, 23, 5)
    stream = model._observe(*seen)
    for block in model.blocks:
        stream, _ = block(stream)
    attention = model.cross.attention
    keys = attention.key_stem(add_norm(model.cross.norm_mlp, stream)[1]).unflatten(-1, (3, 8))
    torch.testing.assert_close(psi.mT @ attention.value(keys).transpose(1, 2), model.encode(*seen).value)
    torch.testing.assert_close(phi.sum(dim=-1), torch.ones(2, 3, 41).double())
    assert len(list(model.slice_weights(*seen))) == 3  # two blocks and the crossing


def test_every_parameter_learns():
    model = build()
    model(*observed(), points=asked()).square().mean().backward()
    assert not [name for name, weight in model.named_parameters() if weight.grad is None]


@pytest.mark.parametrize(("sizes", "count"), [("linearno", 474_097), ("linearno-paper", 860_209)])
def test_the_published_sizes_have_the_published_number_of_parameters(sizes, count):
    """The second by the closed form: no weights of the paper's own sizes were published."""
    config = RECIPES[f"burgers20/{sizes}"]().model
    model = build_model(config, BURGERS)
    assert sum(weight.numel() for weight in model.parameters()) == count
    c, d, m, r = config.width, config.width // config.heads, config.slices, config.mlp_ratio
    lifts = 2 * (2 * c * c + c) + 2 * (2 * c) + 2 * c * (1 + 2)
    block = 3 * (c * c + c) + 2 * d * m + d * d + 4 * c + 2 * r * c * c + r * c + c
    assert count == lifts + (config.depth + 1) * block + c * c + c + 2 * c + c + 1


def test_bad_observations_are_named_in_one_line():
    model, (coords, values) = build(), observed()
    with pytest.raises(UserError, match="there are no observations"):
        model.encode(coords[:, :0], values[:, :0])
    with pytest.raises(UserError, match="takes 1 values an observation, got 2"):
        model.encode(coords, values.repeat(1, 1, 2))
    with pytest.raises(UserError, match=r"coords \(2, 5, 2\) and inputs \(2, 4, 1\) do not fit together"):
        model._observe(torch.rand(2, 5, 2), torch.rand(2, 4, 1))  # `encode` is typed, and tests look at that
    known = model.encode(coords, values)
    with pytest.raises(UserError, match=r"points are \(3, 5, 2\), but the observations are of 2 samples"):
        model.query(torch.rand(3, 5, 2, dtype=coords.dtype), known)
    with pytest.raises(UserError, match="takes 2 coordinates, got 1"):
        model.encode(coords[..., :1], values)
    values[0, 3], values[1, 5] = torch.nan, torch.inf
    with pytest.raises(UserError, match="2 observations have values that are NaN or infinite"):
        model.encode(coords, values)
    coords[0, 0, 0] = torch.nan
    with pytest.raises(UserError, match="1 points have coordinates that are NaN or infinite"):
        model(*observed(), points=coords)
    with pytest.raises(UserError, match="needs inputs=1 or more"):
        CrossLinearNO(coords=2, inputs=0, outputs=1)
    with pytest.raises(UserError, match="stem: no such field"):
        CrossLinearNO(coords=2, inputs=1, outputs=1, stem="conv")


def test_a_grid_of_the_data_is_no_concern_of_this_model():
    spec = FieldSpec(coords=("x", "t"), inputs=("u observed",), outputs=("u",), grid=(4, 6))
    model = build_model(RECIPES["burgers20/linearno"]().model, spec)
    assert model(torch.rand(1, 5, 2), torch.rand(1, 5, 1), points=torch.rand(1, 24, 2)).shape == (1, 24, 1)
