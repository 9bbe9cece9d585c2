"""Published forms without stored outputs, against plain references written from their equations."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d, gelu, layer_norm, linear, pad, silu, softplus

from linearno import from_published
from linearno.core.errors import UserError
from linearno.models import lrsa
from linearno.models.galerkin import GalerkinTransformer
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
from tests.models.published_case import Case

FOLDER = Path(__file__).parents[1] / "fixtures" / "published"
W, H, M = 16, 2, 5


def test_cross_lno():
    w, p, u, q = Drawn(), rand(2, 9, 2), rand(2, 9, 1), rand(2, 14, 2)

    def scores(points):
        return w.linear("mode_mlp", w.residual_mlp("trunk_mlp", points, W, W, 3), M)

    y = w.residual_mlp("branch_mlp", torch.cat([p, u], -1), W, W, 3)
    z = scores(p).softmax(dim=1).mT @ w.linear("Wv", w.norm("ln", y), W)
    z = w.linear("encode_mlp", z, W)
    for i in range(2):
        h, own = w.norm(f"attn_blocks.{i}.ln1", z), f"attn_blocks.{i}.self_attn."
        parts = (heads_of(w.linear(f"{own}W{part}", h, W), H) for part in "qkv")
        z = z + w.linear(f"{own}proj", joined(attention(*parts)), W)
        h = w.norm(f"attn_blocks.{i}.ln2", z)
        z = z + w.mlp(f"attn_blocks.{i}.mlp.0", f"attn_blocks.{i}.mlp.2", h, 2 * W, W)
    z = w.linear("decode_mlp", z, W)
    expected = w.residual_mlp("out_mlp", scores(q).softmax(dim=-1) @ z, W, 1, 3)
    assert_same(from_published(w, heads=H)(p, u, points=q), expected)


def gnot_block(w, name, x, y, p, attn):
    """Heterogeneous normalised attention and experts gated by the position, twice."""

    def mixed(part, a, b):
        query, key, value = (
            heads_of(w.linear(f"{name}{part}{attn}.{kind}", z, W), H)
            for kind, z in (("query", a), ("key", b), ("value", b))
        )
        query, key = query.softmax(dim=-1), key.softmax(dim=-1)
        total = (query * key.sum(dim=2, keepdim=True)).sum(dim=-1, keepdim=True)
        return w.linear(f"{name}{part}{attn}.proj", joined(query + query @ (key.mT @ value) / total), W)

    def experts(part, h):
        gate = gelu(w.linear(f"{name}gatenet.0", p, 2 * W))
        gate = w.mlp(f"{name}gatenet.2", f"{name}gatenet.4", gate, 2 * W, 2).softmax(dim=-1)
        each = [w.mlp(f"{name}{part}.{e}.0", f"{name}{part}.{e}.2", h, 2 * W, W) for e in range(2)]
        return sum(gate[..., e : e + 1] * each[e] for e in range(2))

    x = x + mixed("cross", w.norm(f"{name}ln1", x), w.norm(f"{name}ln2", y))
    x = x + w.norm(f"{name}ln3", experts("moe_mlp1", x))
    h = w.norm(f"{name}ln4", x)
    x = x + mixed("self", h, h)
    return x + w.norm(f"{name}ln5", experts("moe_mlp2", x))


def test_cross_gnot():
    w, p, u, q = Drawn(), rand(2, 9, 2), rand(2, 9, 1), rand(2, 14, 2)
    y = w.residual_mlp("branch_mlp", torch.cat([p, u], -1), W, W, 3)
    x = w.residual_mlp("trunk_mlp", q, W, W, 3)
    for i in range(2):
        x = gnot_block(w, f"attn_blocks.{i}.", x, y, q, "_attn")
    expected = w.residual_mlp("out_mlp", x, W, 1, 3)
    assert_same(from_published(w, heads=H)(p, u, points=q), expected)


def test_the_library_s_gnot_with_distances_on_a_grid_and_a_time():
    """Distances stand for the coordinates but in the gates; the same x meets what each block gives."""
    w, p, a, grid, time = Drawn(), rand(2, 20, 2), rand(2, 20, 1), (5, 4), torch.tensor([[0.3], [0.9]])
    axes = torch.linspace(0, 1, 3), torch.linspace(0, 1, 3)
    points = torch.cartesian_prod(*(torch.linspace(0, 1, n) for n in grid))
    place = distances(points, axes).expand(2, -1, -1)
    y = torch.cat([place, a], dim=-1)
    y = w.mlp("preprocess_z.linear_pre.0", "preprocess_z.linear_post", y, 2 * W, W)
    y = y + w.get("placeholder", W, scale=0.3)
    y = y + w.mlp("time_fc.0", "time_fc.2", time_waves(time, W), W, W, silu)
    x = w.mlp("preprocess_x.linear_pre.0", "preprocess_x.linear_post", place, 2 * W, W)
    for i in range(2):
        y = gnot_block(w, f"blocks.{i}.", x, y, p, "attn")
    expected = w.mlp("fc1", "fc2", y, 2 * W, 1)
    model = from_published(w, heads=H, grid=grid, unified_pos=3)
    assert_same(model(p, a, time=time), expected)
    with pytest.raises(UserError, match=r"takes no packed meshes; build it with unified\.place=coords"):
        model(p[:1], a[:1], time=time, segments=torch.tensor([0, 12, 20]))


def test_the_simplified_f_fno():
    """On the first axis acts the first weight, on a grid that is padded to 16 × 32 points."""
    w, x, a, grid = Drawn(), rand(2, 15 * 18, 2), rand(2, 15 * 18, 1), (15, 18)
    z = torch.cat([x, a], -1)
    f = w.mlp("preprocess.linear_pre.0", "preprocess.linear_post", z, 2 * W, W)
    image = pad(f.mT.unflatten(-1, grid), (0, 14, 0, 1))
    for i in range(2):
        total = 0
        for number, axis in enumerate((-2, -1)):
            weight = w.get(f"spectral_layers.{i}.fourier_weight.{number}", W, W, 3, 2)
            spectrum = torch.fft.rfft(image, dim=axis, norm="ortho").movedim(axis, -1)
            kept = torch.zeros_like(spectrum)
            mixed = torch.einsum("bcnk,cdk->bdnk", spectrum[..., :3], torch.view_as_complex(weight))
            kept[..., :3] = mixed
            n = image.shape[axis]
            total = total + torch.fft.irfft(kept, n=n, norm="ortho").movedim(-1, axis)
        image = image + total
    f = image[..., :15, :18].flatten(2).mT
    expected = w.mlp("fc1", "fc2", f, W, 1)
    assert_same(from_published(w, grid=grid, coords=2)(x, a), expected)


def test_a_geo_fno_that_is_given_no_shape_code():
    """Its deformation, with the published map for calls without a code; all else is as with a code."""
    w = Case(FOLDER / "geofno_irregular_official.npz").weights
    with_code, without = from_published(w, latent=12), from_published(w, latent=12, code=0)
    x, width = rand(2, 23, 2), len(w["iphi.fc0.bias"])
    offset = x - 1e-4
    polar = torch.stack([torch.atan2(offset[..., 1], offset[..., 0]), offset.norm(dim=-1)], dim=-1)
    seen = torch.cat([x, polar], dim=-1)
    angles = (seen[..., None] * torch.pi * 2.0 ** torch.arange(width // 4)).flatten(-2)

    def layer(name, h):
        return linear(h, w[f"iphi.{name}.weight"], w[f"iphi.{name}.bias"])

    h = layer("fc_no_code", torch.cat([layer("fc0", seen), angles.sin(), angles.cos()], dim=-1))
    for number in (1, 2, 3):
        h = layer(f"fc{number}", h).tanh()
    assert_same(without.frame.deformation(x), x + x * layer("fc4", h))
    others = {key: part for key, part in without.state_dict().items() if ".shape." not in key}
    expected = with_code.state_dict()
    assert all(torch.equal(part, expected[key]) for key, part in others.items() if "unused" not in key)


def test_an_lrsa_block_with_layer_norms():
    w, h, d = Drawn(), rand(2, 23, W), W // H

    def norm(name, x):
        weight = w.get(f"{name}.weight", x.shape[-1], scale=0.1, shift=1.0)
        return layer_norm(x, x.shape[-1:], weight)

    def ffn(name, x):
        gated = gelu(w.linear(f"{name}.gate_proj", x, 16)) * w.linear(f"{name}.up_proj", x, 16)
        return w.linear(f"{name}.down_proj", gated, W)

    def split(name, x):
        return heads_of(w.linear(f"attn.{name}", x, W), H)

    fx = norm("attn_norm", h)
    latents = w.get("attn.slice_features", H, M, d, scale=2.0)
    key, value = norm("attn.k_norm", split("to_k", fx)), split("to_v", fx)
    z = joined(attention(norm("attn.q_norm", latents).expand(2, -1, -1, -1), key, value))
    z = w.linear("attn.to_out", z, W)
    z = z + ffn("attn.channel_mixing_1", norm("attn.channel_norm_1", z))
    n = norm("attn.sm_norm", z)
    query, key = norm("attn.sm_q_norm", split("sm_to_q", n)), norm("attn.sm_k_norm", split("sm_to_k", n))
    z = z + w.linear("attn.sm_to_out", joined(attention(query, key, split("sm_to_v", n))), W)
    z = z + ffn("attn.channel_mixing_2", norm("attn.channel_norm_2", z))
    z = norm("attn.out_slice_norm", z)
    query, key = norm("attn.q_norm_2", split("to_q_2", fx)), norm("attn.k_norm_2", split("to_k_2", z))
    out = h + w.linear("attn.to_out_2", joined(attention(query, key, split("to_v_2", z))), W)
    expected = out + ffn("ffn", norm("ffn_ln", out))

    block = lrsa.LrsaBlock(W, H, M, hidden=16, bias="all", gated=True, norm="layer")
    block.load_state_dict(block_weights(w))
    assert_same(block(h), expected)


def block_weights(weights):
    """Weights of one LRSA block under our names."""
    renamed = {f"blocks.0.{name}": value for name, value in weights.items()}
    for pattern, replacement in lrsa.PUBLISHED.names:
        renamed = {re.sub(pattern, replacement, name): value for name, value in renamed.items()}
    return {name.removeprefix("blocks.0."): value for name, value in lrsa.PUBLISHED.convert(renamed).items()}


def test_the_original_galerkin_transformer():
    """Cao (2021): norms of keys and values in each head, coordinates beside queries, keys and values."""
    torch.manual_seed(0)
    model = GalerkinTransformer(
        coords=2, inputs=1, outputs=1, width=W, depth=2, heads=H, form="original"
    ).double()
    for part in model.parameters():
        nn.init.normal_(part, std=0.4)
    x, a = rand(2, 23, 2).double(), rand(2, 23, 1).double()
    lift = model.lift.network
    h = lift[2](gelu(lift[0](torch.cat([x, a], -1)))) + model.placeholder
    p = x[:, None].expand(-1, H, -1, -1)
    for block in model.blocks:
        own = block.attention
        query, key, value = (heads_of(part(h), H) for part in (own.query, own.key, own.value))
        key, value = (
            (part - part.mean(-1, keepdim=True))
            / (part.var(-1, keepdim=True, correction=0) + 1e-7).sqrt()
            * norm.weight
            + norm.bias
            for part, norm in ((key, own.norm_key), (value, own.norm_value))
        )
        query, key, value = (torch.cat([p, part], dim=-1) for part in (query, key, value))
        h = h + own.merge(joined(query @ (key.mT @ value) / 23))
        h = h + block.mlp[2](gelu(block.mlp[0](h)))
    torch.testing.assert_close(model(x, a), model.head(h))


def test_ono_with_nystrom_attention_and_distances_on_a_grid_in_evaluation():
    """The published pseudoinverse is scaled by the batch; here without a covariance of the features."""
    w, x, a, landmarks = Drawn(), rand(2, 24, 2), rand(2, 24, 1), 256
    axes = torch.linspace(0, 1, 3), torch.linspace(0, 1, 3)
    points = torch.cartesian_prod(torch.linspace(0, 1, 6), torch.linspace(0, 1, 4))
    z = torch.cat([distances(points, axes).expand(2, -1, -1), a], -1)
    h = w.mlp("preprocess_x.linear_pre.0", "preprocess_x.linear_post", z, 2 * W, W)
    f = w.mlp("preprocess_z.linear_pre.0", "preprocess_z.linear_post", z, 2 * W, W)
    f = f + w.get("placeholder", W, scale=0.3)
    for i in range(2):
        name = f"blocks.{i}."
        n = pad(w.norm(f"{name}ln_1", h), (0, 0, landmarks - 24, 0))
        parts = w.linear(f"{name}Attn.to_qkv", n, 3 * W, bias=False).chunk(3, dim=-1)
        query, key, value = (heads_of(part, H) for part in parts)
        first = (query @ key.mT * (W // H) ** -0.5).softmax(dim=-1)  # a landmark for each point
        inverse = first.mT / first.sum(dim=-2).max()
        eye = torch.eye(landmarks)
        for _ in range(6):
            az = first @ inverse
            inverse = 0.25 * inverse @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az)))
        kernel = w.get(f"{name}Attn.res_conv.weight", H, 1, 33, 1)
        local = conv2d(value, kernel, padding=(16, 0), groups=H)
        out = joined(first @ inverse @ (first @ value) + local)[:, -24:]
        h = h + w.linear(f"{name}Attn.to_out.0", out, W)
        n = w.norm(f"{name}ln_2", h)
        h = h + w.mlp(f"{name}mlp.linear_pre.0", f"{name}mlp.linear_post", n, 2 * W, W)
        phi = w.linear(f"{name}proj", h, 3)  # the covariance is the identity before training
        f = f + phi * softplus(w.get(f"{name}mu", 3)) @ (phi.mT @ f)
        f = w.norm(f"{name}ln_3", f)
        names = (f"{name}mlp2.linear_pre.0", f"{name}mlp2.linear_post")
        f = w.mlp(*names, f, 2 * W, W) if i == 0 else w.linear(f"{name}mlp2", f, 1)
    assert_same(from_published(w, coords=2, grid=(6, 4), unified_pos=3).eval()(x, a), f)
