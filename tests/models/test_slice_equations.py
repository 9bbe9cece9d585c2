"""Published LinearNO and Transolver without stored outputs, against plain references from their equations."""

import pytest
import torch
from torch.nn.functional import conv2d, gelu, silu

from linearno import from_published
from tests.models.drawn_weights import (
    Drawn,
    assert_same,
    attention,
    distances,
    heads_of,
    joined,
    rand,
    time_waves,
)

W, H, M = 16, 2, 5


def slice_model(w, z, attend, mlp_ratio, outputs, *, depth=2, time=None, placeholder=True):
    """Lift, blocks and head of LinearNO and Transolver; `attend(prefix, x)` is the attention."""
    f = w.mlp("preprocess.linear_pre.0", "preprocess.linear_post", z, 2 * W, W)
    shift = w.get("placeholder", W, scale=0.3)
    f = f + shift if placeholder else f
    if time is not None:
        f = f + w.mlp("time_fc.0", "time_fc.2", time_waves(time, W), W, W, silu)
    for i in range(depth):
        f = f + attend(f"blocks.{i}.Attn.", w.norm(f"blocks.{i}.ln_1", f))
        hidden = w.norm(f"blocks.{i}.ln_2", f)
        names = (f"blocks.{i}.mlp.linear_pre.0", f"blocks.{i}.mlp.linear_post")
        f = f + w.mlp(*names, hidden, mlp_ratio * W, W)
    last = f"blocks.{depth - 1}."
    return w.linear(f"{last}mlp2", w.norm(f"{last}ln_3", f), outputs)


def linear_attention(w, *, grid=None, bounds=None, spelling="temperature", layers=1, unused=False):
    """φ(ψᵀ v) with projections shared by the heads."""

    def scale(name):
        tau = w.get(name, 1, H, 1, 1, scale=0.5, shift=0.4)
        return tau.clamp(*bounds)

    def attend(prefix, x):
        if unused:
            w.get(f"{prefix}temperature", 1, H, 1, 1)
        if grid is None:
            x = w.linear(f"{prefix}in_project_x", x, W)
        else:
            weight = w.get(f"{prefix}in_project_x.weight", W, W, 3, 3)
            bias = w.get(f"{prefix}in_project_x.bias", W, scale=0.1)
            image = conv2d(x.mT.unflatten(-1, grid), weight, bias, padding=1)
            x = image.flatten(2).mT
        x = heads_of(x, H)
        query, key = (w.linear(f"{prefix}to_{part}", x, M, bias=False) for part in "qk")
        value = w.linear(f"{prefix}to_v", x, W // H, bias=False)
        if bounds is not None:
            query = query / scale(f"{prefix}{spelling}_q")
            key = key / scale(f"{prefix}{spelling}_k")
        out = joined(query.softmax(dim=-1) @ (key.softmax(dim=-2).mT @ value))
        if layers == 1:
            return w.linear(f"{prefix}to_out.0", out, W)
        return w.mlp(f"{prefix}to_out.0", f"{prefix}to_out.2", out, W, W)

    return attend


def test_linearno_with_convolutions_and_a_time():
    w, grid, time = Drawn(), (5, 4), torch.tensor([[0.3], [0.9]])
    x, a = rand(2, 20, 2), rand(2, 20, 1)
    attend = linear_attention(w, grid=grid, layers=2)
    expected = slice_model(w, torch.cat([x, a], -1), attend, 1, 4, time=time, placeholder=False)
    model = from_published(w, heads=H, grid=grid, coords=2)
    assert_same(model(x, a, time=time), expected)


@pytest.mark.parametrize("coords", [2, 7])
def test_linearno_for_airfrans_whichever_features_count_as_coordinates(coords):
    w, features, positions = Drawn(), rand(2, 23, 7), 3 * rand(2, 23, 2) - 1
    axes = torch.linspace(-2, 4, 3), torch.linspace(-1.5, 1.5, 3)
    z = torch.cat([features, distances(positions, axes)], dim=-1)
    expected = slice_model(w, z, linear_attention(w, unused=True), 2, 4)
    model = from_published(w, heads=H, unified_pos=3, coords=coords)
    a = features[..., coords:] if coords < 7 else None
    assert_same(model(features[..., :coords], a, positions=positions), expected)


@pytest.mark.parametrize("coords", [3, 7])
def test_linearno_for_cars_whichever_features_count_as_coordinates(coords):
    w, features = Drawn(), rand(1, 23, 7)
    attend = linear_attention(w, bounds=(0.1, 2.0), spelling="tempreature", layers=2)
    expected = slice_model(w, features, attend, 2, 4)
    model = from_published(w, heads=H, coords=coords)
    assert_same(model(features[..., :coords], features[..., coords:] if coords < 7 else None), expected)


def physics_attention(w, *, bounds=None):
    """Slices with a sum-norm, attention among them, and the same weights back."""

    def attend(prefix, x):
        x, value = (heads_of(w.linear(f"{prefix}in_project_{part}", x, W), H) for part in ("x", "fx"))
        tau = w.get(f"{prefix}temperature", 1, H, 1, 1, scale=0.3, shift=0.8)
        tau = tau.clamp(*bounds) if bounds else tau
        weights = (w.linear(f"{prefix}in_project_slice", x, M) / tau).softmax(dim=-1)
        slices = weights.mT @ value / (weights.sum(dim=2)[..., None] + 1e-5)
        parts = (w.linear(f"{prefix}to_{part}", slices, W // H, bias=False) for part in "qkv")
        return w.linear(f"{prefix}to_out.0", joined(weights @ attention(*parts)), W)

    return attend


def test_transolver_for_cars_with_inputs_apart():
    w, features = Drawn(), rand(1, 23, 7)
    expected = slice_model(w, features, physics_attention(w), 2, 4)
    model = from_published(w, coords=3)
    assert_same(model(features[..., :3], features[..., 3:]), expected)


def test_transolver_with_distances_on_scattered_points():
    w, x, a = Drawn(), rand(2, 23, 2), rand(2, 23, 1)
    axes = torch.linspace(0, 1, 3), torch.linspace(0, 1, 3)
    expected = slice_model(w, torch.cat([distances(x, axes), a], -1), physics_attention(w), 1, 1)
    assert_same(from_published(w, unified_pos=3)(x, a), expected)


def test_the_placeholder_of_the_library_s_transolver_always_joins():
    w, x, a = Drawn(), rand(2, 20, 2), rand(2, 20, 1)

    def attend(prefix, h):
        weights = [w.get(f"{prefix}in_project_{part}.weight", W, W, 3, 3) for part in ("x", "fx")]
        biases = [w.get(f"{prefix}in_project_{part}.bias", W, scale=0.1) for part in ("x", "fx")]
        image = h.mT.unflatten(-1, (5, 4))
        h, value = (
            heads_of(conv2d(image, *own, padding=1).flatten(2).mT, H)
            for own in zip(weights, biases, strict=True)
        )
        tau = w.get(f"{prefix}temperature", 1, H, 1, 1, scale=3.0, shift=1.0).clamp(0.1, 5)
        share = (w.linear(f"{prefix}in_project_slice", h, M) / tau).softmax(dim=-1)
        slices = share.mT @ value / (share.sum(dim=2)[..., None] + 1e-5)
        parts = (w.linear(f"{prefix}to_{part}", slices, W // H, bias=False) for part in "qkv")
        return w.linear(f"{prefix}to_out.0", joined(share @ attention(*parts)), W)

    expected = slice_model(w, torch.cat([x, a], -1), attend, 2, 1)
    assert_same(from_published(w, grid=(5, 4), coords=2, placeholder="always")(x, a), expected)


def test_transolver_plus_draws_noise_in_evaluation_as_published():
    w, x = Drawn(), rand(1, 23, 3)
    draws = rand(1, H, 23, M)

    def attend(prefix, h):
        h = heads_of(w.linear(f"{prefix}in_project_x", h, W), H)
        names = (f"{prefix}proj_temperature.0", f"{prefix}proj_temperature.2")
        tau = gelu(w.mlp(*names, h, M, 1)) + w.get(f"{prefix}bias", 1, H, 1, 1, scale=0.1, shift=0.5)
        noise = -torch.log(-torch.log(draws + 1e-8) + 1e-8)
        scores = (w.linear(f"{prefix}in_project_slice", h, M) + noise) / tau.clamp(min=0.01)
        weights = scores.softmax(dim=-1)
        slices = weights.mT @ h / (weights.sum(dim=2)[..., None] + 1e-5)
        parts = (w.linear(f"{prefix}to_{part}", slices, W // H, bias=False) for part in "qkv")
        return w.linear(f"{prefix}to_out.0", joined(weights @ attention(*parts)), W)

    expected = slice_model(w, x, attend, 2, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("linearno.models.transolver_plus.draw_uniform", lambda scores: draws)
        assert_same(from_published(w).eval()(x), expected)
    quiet = from_published(w, noise="never").eval()
    assert torch.equal(quiet(x), quiet(x))
