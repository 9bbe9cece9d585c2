"""Rotary positions enter products as differences, and linear attention is its dense twin."""

import pytest
import torch
from torch.nn.functional import layer_norm

from linearno.nn.latent_attention import merge_heads, split_heads
from linearno.nn.rotary_attention import Rotary, RotaryLinearAttention


def draw(*shape):
    return torch.randn(shape, dtype=torch.float64)


@pytest.mark.parametrize("coords", [1, 2, 3])
def test_products_of_rotated_vectors_depend_on_differences_of_positions(coords):
    torch.manual_seed(0)
    rotary = Rotary(12, coords, scale=3.0).double()
    query, key = draw(2, 3, 7, 12), draw(2, 3, 5, 12)
    p, q, shift = draw(2, 7, coords), draw(2, 5, coords), draw(2, 1, coords)
    products = rotary(query, p) @ rotary(key, q).mT
    moved = rotary(query, p + shift) @ rotary(key, q + shift).mT
    torch.testing.assert_close(moved, products)
    assert not torch.allclose(rotary(query, p + shift) @ rotary(key, q).mT, products)


def test_rotations_keep_lengths_and_leave_points_at_the_origin():
    torch.manual_seed(0)
    rotary, x = Rotary(12, 2, scale=3.0).double(), draw(2, 3, 7, 12)
    torch.testing.assert_close(rotary(x, draw(2, 7, 2)).norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(rotary(x, torch.zeros(2, 7, 2, dtype=torch.float64)), x)


def test_each_coordinate_rotates_its_own_channels():
    """As complex numbers, channels p and p + P of a coordinate x turn by x · scale · 10000^(−p/P)."""
    torch.manual_seed(0)
    rotary, x, p = Rotary(12, 2, scale=3.0).double(), draw(1, 1, 1, 12), draw(1, 1, 2)
    found = rotary(x, p).flatten()
    for coordinate in range(2):
        own = slice(6 * coordinate, 6 * coordinate + 6)
        a, b = x.flatten()[own].chunk(2)
        angles = p[0, 0, coordinate] * 3.0 * 10000 ** (-torch.arange(3, dtype=torch.float64) / 3)
        turned = torch.complex(a, b) * torch.polar(torch.ones_like(angles), angles)
        torch.testing.assert_close(found[own], torch.cat([turned.real, turned.imag]), rtol=1e-5, atol=1e-6)


def test_attention_agrees_with_its_dense_twin_in_value_and_gradient():
    torch.manual_seed(0)
    layer = RotaryLinearAttention(12, 3, coords=2, scale=3.0).double()
    x, p = draw(2, 9, 12).requires_grad_(), draw(2, 9, 2)
    query, key, value = (split_heads(part(x), 3) for part in (layer.query, layer.key, layer.value))
    key, value = (layer_norm(part, (12,)) for part in (key, value))
    kernel = layer.rotary(query, p) @ layer.rotary(key, p).mT / 9
    expected, found = layer.merge(merge_heads(kernel @ value)), layer(x, p)
    torch.testing.assert_close(found, expected)
    cotangent, arguments = torch.randn_like(found), [x, *layer.parameters()]
    slopes = [torch.autograd.grad(out, arguments, cotangent) for out in (found, expected)]
    torch.testing.assert_close(*slopes)


def test_queries_start_as_an_orthogonal_matrix_and_the_identity_in_each_head():
    layer = RotaryLinearAttention(12, 3, coords=2, scale=1.0)
    for head in layer.query.weight.detach().chunk(3):
        orthogonal = 12 * head - torch.eye(12)
        torch.testing.assert_close(orthogonal @ orthogonal.mT, torch.eye(12), rtol=0, atol=1e-5)
