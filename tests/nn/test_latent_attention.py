"""Attention between points and slices is what its equations say, for packed meshes too."""

import pytest
import torch
from torch import nn

from linearno.core.errors import UserError
from linearno.nn.latent_attention import (
    ExactLinear,
    RmsNorm,
    gather_by_scores,
    gather_points,
    scatter_by_scores,
    scatter_slices,
)
from linearno.nn.padding import Padding
from linearno.ops.ragged import offsets_of

CPU = torch.device("cpu")


def rand(*shape):
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def agree(found, expected, *leaves):
    torch.testing.assert_close(found, expected)
    cotangent = torch.randn_like(found)
    torch.testing.assert_close(
        torch.autograd.grad(found, leaves, cotangent), torch.autograd.grad(expected, leaves, cotangent)
    )


def test_gather_is_a_softmax_over_the_points():
    query, key, value, mass = rand(3, 5, 4), rand(2, 3, 33, 4), rand(2, 3, 33, 4), rand(2, 33)
    mask = torch.rand(2, 33) < 0.7
    scores = query @ key.mT / 2 + mass[:, None, None]
    dense = scores.masked_fill(~mask[:, None, None], -torch.inf).softmax(dim=-1) @ value
    agree(gather_points(query, key, value, mask=mask, log_mass=mass), dense, query, key, value, mass)


def test_scatter_is_a_softmax_over_the_slices():
    query, key, value = rand(2, 3, 33, 4), rand(3, 5, 4), rand(2, 3, 5, 4)
    dense = (query @ key.mT * 1.5).softmax(dim=-1) @ value
    agree(scatter_slices(query, key, value, scale=1.5), dense, query, key, value)


def test_both_softmaxes_of_linear_scores():
    scores = nn.Linear(4, 5, dtype=torch.float64)
    x, value = rand(2, 33, 4), rand(2, 33, 3)
    gathered = gather_by_scores(scores, x, value)
    agree(gathered, scores(x).softmax(dim=1).mT @ value, x, value, scores.weight)
    slices = rand(2, 5, 3)
    dense = scores(x).softmax(dim=-1) @ slices
    agree(scatter_by_scores(scores, x, slices), dense, x, slices, scores.weight, scores.bias)


def test_padding_is_undone_and_masked():
    sizes = [3, 1, 7]
    padding, x = Padding(offsets_of(sizes), 11, CPU), rand(1, 11, 2)
    padded = padding.pad(x)
    assert padded.shape == (3, 7, 2)
    assert padding.mask.sum(dim=1).tolist() == sizes
    torch.testing.assert_close(padding.unpad(padded), x)
    for mesh, part in zip(padded, x.split(sizes, dim=1), strict=True):
        torch.testing.assert_close(mesh[: part.shape[1]], part[0])
        assert (mesh[part.shape[1] :] == part[0, -1]).all()


def test_segments_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match="segment 1 has 0 points"):
        Padding(offsets_of([3, 0, 5]), 8, CPU)
    with pytest.raises(UserError, match="from 0 to 9, the number of points"):
        Padding(offsets_of([3, 5]), 9, CPU)


def test_exact_layers_keep_the_precision_of_their_weights_under_autocast():
    linear, norm, x = ExactLinear(4, 3), RmsNorm(4), torch.randn(2, 4)
    expected = linear(x), norm(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert nn.Linear(4, 3)(x).dtype == torch.bfloat16
        torch.testing.assert_close((linear(x), norm(x)), expected, rtol=0, atol=0)
        assert linear(x.bfloat16()).dtype == torch.float32
