"""Nyström attention approximates softmax attention, and packed samples are computed as each by itself."""

import pytest
import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from linearno.metrics.cost import count_flops
from linearno.nn.latent_attention import merge_heads, split_heads
from linearno.nn.nystrom_attention import INVERSE_ITERATIONS, NystromAttention, approximate_inverse


def layer(landmarks, width=12, heads=3):
    torch.manual_seed(0)
    return NystromAttention(width, heads, landmarks).double()


def published_steps(attention, h):
    """The steps of the published code for one sample: zeros in front, three dense kernels."""
    m, heads = attention.landmarks, attention.heads
    padded = pad(h, (0, 0, -h.shape[1] % m, 0))
    query, key, value = (
        split_heads(part, heads) for part in attention.query_key_value(padded).chunk(3, dim=-1)
    )
    query = query * query.shape[-1] ** -0.5
    query_marks, key_marks = (part.unflatten(2, (m, -1)).mean(dim=3) for part in (query, key))
    first, between, last = (
        (a @ b.mT).softmax(dim=-1)
        for a, b in ((query, key_marks), (query_marks, key_marks), (query_marks, key))
    )
    inverse = between.mT / between.sum(dim=-2).max()
    identity = torch.eye(m, dtype=h.dtype)
    for _ in range(INVERSE_ITERATIONS):
        z = between @ inverse
        inverse = 0.25 * inverse @ (13 * identity - z @ (15 * identity - z @ (7 * identity - z)))
    out = first @ inverse @ (last @ value) + attention.convolution(value)
    return attention.merge(merge_heads(out))[:, -h.shape[1] :]


@pytest.mark.parametrize("points", [1, 7, 8, 33])
def test_it_agrees_with_the_published_steps_in_value_and_gradient(points):
    attention = layer(landmarks=8)
    h = torch.randn(1, points, 12, dtype=torch.float64, requires_grad=True)
    found, expected = attention(h), published_steps(attention, h)
    torch.testing.assert_close(found, expected)
    arguments, cotangent = [h, *attention.parameters()], torch.randn_like(found)
    slopes = [torch.autograd.grad(out, arguments, cotangent) for out in (found, expected)]
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("landmarks", [8, 3, 40])
def test_masked_samples_are_computed_as_each_by_itself(landmarks):
    attention, sizes = layer(landmarks), [33, 1, 20]
    h = torch.randn(3, 33, 12, dtype=torch.float64)
    mask = torch.arange(33) < torch.tensor(sizes)[:, None]
    found = attention(h, mask)
    for sample, points in enumerate(sizes):
        torch.testing.assert_close(found[sample, :points], attention(h[sample : sample + 1, :points])[0])


def test_with_a_landmark_for_each_point_it_is_softmax_attention():
    attention = layer(landmarks=9)
    torch.nn.init.zeros_(attention.convolution.weight)
    with torch.no_grad():
        attention.query_key_value.weight.mul_(6)  # distinct rows of the kernel, which then has an inverse
    h = torch.randn(1, 9, 12, dtype=torch.float64)
    query, key, value = (split_heads(part, 3) for part in attention.query_key_value(h).chunk(3, dim=-1))
    expected = attention.merge(merge_heads(scaled_dot_product_attention(query, key, value)))
    assert (attention(h) - expected).norm() < 0.05 * expected.norm()


def test_the_approximate_inverse_inverts_well_conditioned_matrices():
    torch.manual_seed(0)
    matrix = (torch.randn(2, 3, 7, 7, dtype=torch.float64) + 6 * torch.eye(7)).softmax(dim=-1)
    identity = torch.eye(7, dtype=torch.float64).expand(2, 3, 7, 7)
    torch.testing.assert_close(matrix @ approximate_inverse(matrix), identity, rtol=0, atol=1e-6)


def test_the_cost_is_linear_in_the_points():
    attention = layer(landmarks=8).float()
    costs = [count_flops(attention, torch.rand(1, points, 12)) for points in (64, 128, 192)]
    assert costs[2] - costs[1] == costs[1] - costs[0] > 0
