"""Linear attention agrees with its dense twin, whose kernel is formed."""

import pytest
import torch

from linearno.nn.latent_attention import merge_heads, split_heads
from linearno.nn.linear_attention import LinearAttention, mean_product, normalised_product

SEEN = [33, 1, 20]  # points of each sample that exist


def draw(*shape):
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def dense_mean(query, key, value):
    return (query @ key.mT / key.shape[2]) @ value


def dense_normalised(query, key, value):
    kernel = query @ key.mT
    return (kernel / kernel.sum(dim=-1, keepdim=True)) @ value


def mask():
    return torch.arange(max(SEEN)) < torch.tensor(SEEN)[:, None]


@pytest.mark.parametrize(
    ("fast", "dense"), [(mean_product, dense_mean), (normalised_product, dense_normalised)]
)
def test_products_agree_with_the_dense_kernel_in_value_and_gradient(fast, dense):
    torch.manual_seed(0)
    query, key, value = draw(3, 2, 17, 5), draw(3, 2, 33, 5), draw(3, 2, 33, 4)
    given = [query.exp(), key.exp(), value]  # positive, so that no sum of weights vanishes
    whole, padded = fast(*given), fast(*given, mask())
    expected = dense(*given)
    torch.testing.assert_close(whole, expected)
    apart = [
        dense(given[0][i, None], given[1][i, None, :, :n], given[2][i, None, :, :n])
        for i, n in enumerate(SEEN)
    ]
    torch.testing.assert_close(padded, torch.cat(apart))
    cotangent = torch.randn_like(whole)
    for found, true in ((whole, expected), (padded, torch.cat(apart))):
        slopes = [
            torch.autograd.grad(out, [query, key, value], cotangent, retain_graph=True)
            for out in (found, true)
        ]
        torch.testing.assert_close(*slopes)


def dense_attention(layer, x, y):
    query, key, value = (
        split_heads(part(z), layer.heads) for part, z in ((layer.query, x), (layer.key, y), (layer.value, y))
    )
    query = query.softmax(dim=-1)
    if layer.form == "efficient":
        out = query @ key.softmax(dim=2).mT @ value / query.shape[-1] ** 0.5
    else:
        dense = dense_mean if layer.form == "galerkin" else dense_normalised
        out = dense(query, key.softmax(dim=-1), value) + query
    return layer.merge(merge_heads(out))


@pytest.mark.parametrize("form", ["galerkin", "normalised", "efficient"])
@pytest.mark.parametrize("bias", [True, False])
def test_attention_agrees_with_its_dense_twin(form, bias):
    torch.manual_seed(0)
    layer = LinearAttention(12, 3, form, bias=bias).double()
    x, y = draw(3, 7, 12), draw(3, 33, 12)
    torch.testing.assert_close(layer(x), dense_attention(layer, x, x))
    torch.testing.assert_close(layer(x, y), dense_attention(layer, x, y))
    apart = [dense_attention(layer, x[i, None], y[i, None, :n]) for i, n in enumerate(SEEN)]
    torch.testing.assert_close(layer(x, y, mask()), torch.cat(apart))


@pytest.mark.parametrize("form", ["galerkin", "normalised", "efficient"])
def test_repeating_the_gathered_points_changes_nothing(form):
    torch.manual_seed(0)
    layer = LinearAttention(12, 3, form).double()
    x, y = draw(2, 7, 12), draw(2, 5, 12)
    torch.testing.assert_close(layer(x, y.repeat(1, 3, 1)), layer(x, y))
