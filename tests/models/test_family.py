"""LinearNO, Transolver and the ablations are settings of one attention."""

import inspect

import pytest
import torch
from torch import nn
from typing_extensions import get_protocol_members

from linearno import LinearNO, Transolver
from linearno.core.errors import UserError
from linearno.nn import SelfAttention
from linearno.nn.protocol import Inspectable, Queryable, Streamable
from linearno.ops import linear_attention

SMALL = {"width": 24, "depth": 2, "heads": 3, "slices": 5}
ABLATIONS = {  # Table 4: generalisation, simplification
    "neither": {"tied": True, "psi": "phi", "mix": "attention"},
    "generalised": {"mix": "attention"},
    "simplified": {"tied": True, "psi": "phi"},
    "both": {},
}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def points(n=37, x=2, batch=2):
    return torch.rand(batch, n, x)


@pytest.mark.parametrize("protocol", [Streamable, Queryable, Inspectable])
def test_no_capability_is_a_submodule(protocol):
    """From Python 3.12 on `isinstance` looks members up without `__getattr__`, where submodules live."""
    model = LinearNO(coords=2, inputs=0, outputs=1, **SMALL)
    for member in get_protocol_members(protocol):
        inspect.getattr_static(model, member)


def test_the_attention_of_transolver_is_linear_attention_with_tied_projections():
    """The thesis of the paper: Physics-Attention, written down as Transolver's authors do, is our op."""
    attention = Transolver(coords=2, inputs=0, outputs=1, **SMALL).blocks[0].attention.double()
    nn.init.normal_(attention.query.weight)
    h = torch.randn(2, 37, 24, dtype=torch.float64)
    x, fx = (stem(h).unflatten(-1, (3, 8)).transpose(1, 2) for stem in (attention.stem, attention.value_stem))
    tau = attention.temperature_query.value.view(1, 3, 1, 1)
    weights = ((x @ attention.query.weight.T + attention.query.bias) / tau).softmax(dim=-1)  # B H N M
    slices = torch.einsum("bhnc,bhng->bhgc", fx, weights) / (weights.sum(dim=2)[..., None] + 1e-5)
    q, k, v = (getattr(attention.mix, part)(slices) for part in ("query", "key", "value"))
    mixed = (q @ k.mT / 8**0.5).softmax(dim=-1) @ v
    physics = torch.einsum("bhgc,bhng->bhnc", mixed, weights).transpose(1, 2)
    ours = linear_attention(
        x.transpose(1, 2),
        attention.query.weight.T,
        attention.query.weight.T,
        1 / tau.flatten(),
        1 / tau.flatten(),
        value=fx.transpose(1, 2),
        bias_query=attention.query.bias,
        bias_key=attention.query.bias,
        psi="sum",
        mix=attention.mix,
        eps=1e-5,
    )
    torch.testing.assert_close(ours, physics)
    torch.testing.assert_close(attention(h)[0], attention.merge(physics.flatten(-2)))


@pytest.mark.parametrize("row", ABLATIONS)
def test_each_row_of_the_ablation_is_a_setting(row):
    model = LinearNO(coords=2, outputs=1, **SMALL, **ABLATIONS[row])
    attention = model.blocks[0].attention
    assert (attention.key is None) == ("tied" in ABLATIONS[row])
    assert isinstance(attention.mix, SelfAttention) == ("mix" in ABLATIONS[row])
    model(points()).square().mean().backward()
    idle = {name for name, weight in model.named_parameters() if weight.grad is None}
    assert not idle


def test_without_generalisation_psi_is_the_softmax_over_points_of_phi():
    attention = LinearNO(coords=2, outputs=1, **SMALL, tied=True, psi="phi").blocks[0].attention
    nn.init.normal_(attention.query.weight)
    phi, psi = attention.weights(torch.randn(2, 37, 24))
    torch.testing.assert_close(psi, phi.softmax(dim=-2))


@pytest.mark.parametrize("phi", ["M", "N"])
@pytest.mark.parametrize("psi", ["M", "N"])
def test_the_weights_that_are_drawn_are_the_weights_that_act(phi, psi):
    attention = LinearNO(coords=2, outputs=1, **SMALL, phi=phi, psi=psi).blocks[0].attention
    for linear in (attention.query, attention.key):
        nn.init.normal_(linear.weight)
    h = torch.randn(2, 37, 24)
    phi_weights, psi_weights = attention.weights(h)
    values = attention.value(attention.stem(h).unflatten(-1, (3, 8))).transpose(1, 2)
    out = (phi_weights @ (psi_weights.mT @ values)).transpose(1, 2).flatten(-2)
    torch.testing.assert_close(attention(h)[0], attention.merge(out), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model", [LinearNO, Transolver])
def test_an_encoded_mesh_answers_at_its_own_points_what_the_model_answers(model):
    net = model(coords=2, inputs=1, outputs=2, **SMALL)
    coords, inputs = points(), torch.randn(2, 37, 1)
    states = net.encode(coords, inputs)
    some = torch.tensor([3, 17, 30])
    asked = net.query(coords[:, some], states, inputs[:, some])
    torch.testing.assert_close(asked, net(coords, inputs)[:, some], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("model", [LinearNO, Transolver])
def test_a_pointwise_model_does_not_care_for_the_order_of_points(model):
    net = model(coords=2, outputs=1, **SMALL)
    coords, order = points(), torch.randperm(37)
    torch.testing.assert_close(net(coords[:, order]), net(coords)[:, order], rtol=1e-4, atol=1e-6)


def test_the_placeholder_joins_when_there_are_no_inputs():
    bare, fed = (LinearNO(coords=2, inputs=c, outputs=1, **SMALL) for c in (0, 1))
    bare(points()).sum().backward()
    fed(points(), torch.randn(2, 37, 1)).sum().backward()
    assert bare.placeholder.grad is not None
    assert fed.placeholder.grad is None


def test_initialisation_is_the_published_one():
    model = LinearNO(coords=2, inputs=1, outputs=1, width=64, depth=1, heads=4, stem="conv", grid=(5, 5))
    conv = model.blocks[0].attention.stem.conv
    assert conv.weight.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.05)
    assert model.blocks[0].mlp[0].weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert all(not t.any() for name, t in model.named_parameters() if name.endswith("bias"))
    assert model.blocks[0].attention.temperature_query.value.tolist() == [0.5] * 4


def test_settings_are_checked_with_a_word_on_what_would_do():
    with pytest.raises(UserError, match="depht: no such field; did you mean 'depth'"):
        LinearNO(coords=2, outputs=1, depht=3)
    with pytest.raises(UserError, match="width=100 is not a multiple of heads=8; the next that is: 104"):
        LinearNO(coords=2, outputs=1, width=100)
    with pytest.raises(UserError, match=r"needs grid=\(rows, columns\)"):
        LinearNO(coords=2, outputs=1, stem="conv")
    with pytest.raises(UserError, match="needs tied=True"):
        LinearNO(coords=2, outputs=1, psi="phi")


def test_a_wrong_mesh_is_refused_in_words():
    grid = LinearNO(coords=2, outputs=1, **SMALL, stem="conv", grid=(5, 6))
    with pytest.raises(UserError, match=r"grid \(5, 6\) = 30 points, got 37"):
        grid(points())
    with pytest.raises(UserError, match="cannot be queried elsewhere"):
        grid.encode(points(30))
    plain = LinearNO(coords=2, inputs=1, outputs=1, **SMALL)
    with pytest.raises(UserError, match="takes 3 features a point, got 2"):
        plain(points())
    with pytest.raises(UserError, match="takes no time input"):
        plain(points(), torch.zeros(2, 37, 1), time=torch.zeros(2, 1))


def test_help_shows_the_settings_as_keywords():
    parameters = inspect.signature(LinearNO).parameters
    assert parameters["slices"].default == 64
    assert list(parameters)[:3] == ["coords", "inputs", "outputs"]
