"""Weights of a published model under its own names, drawn when a plain reference first reads them."""

import math

import torch
from torch.nn.functional import gelu, layer_norm, linear


class Drawn(dict):
    """A state dict that a reference fills while it computes, from seed 0."""

    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)

    def get(self, name, *shape, scale=1.0, shift=0.0):
        if name not in self:
            fan = math.prod(shape[1:]) if len(shape) > 1 else 1
            draw = torch.randn(shape, generator=self.generator)
            self[name] = draw * scale / fan**0.5 + shift
        return self[name]

    def linear(self, name, x, outputs, bias=True):
        weight = self.get(f"{name}.weight", outputs, x.shape[-1], scale=1.2)
        return linear(x, weight, self.get(f"{name}.bias", outputs, scale=0.1) if bias else None)

    def norm(self, name, x):
        width = x.shape[-1]
        weight = self.get(f"{name}.weight", width, scale=0.1, shift=1.0)
        return layer_norm(x, (width,), weight, self.get(f"{name}.bias", width, scale=0.1))

    def mlp(self, first, last, x, hidden, outputs, act=gelu):
        return self.linear(last, act(self.linear(first, x, hidden)), outputs)

    def residual_mlp(self, name, x, width, outputs, layers):
        """r = σ(A x),  r = r + σ(A_i r),  C r."""
        r = gelu(self.linear(f"{name}.input", x, width))
        for i in range(layers):
            r = r + gelu(self.linear(f"{name}.hidden.{i}", r, width))
        return self.linear(f"{name}.output", r, outputs)


def heads_of(x, heads):
    """(B, N, W) → (B, H, N, D), channels head by head."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def joined(x):
    return x.transpose(1, 2).flatten(-2)


def attention(query, key, value):
    return (query @ key.mT / query.shape[-1] ** 0.5).softmax(dim=-1) @ value


def time_waves(time, width):
    half = width // 2
    angles = time * torch.exp(-math.log(10000) * torch.arange(half) / half)
    return torch.cat([angles.cos(), angles.sin()], dim=-1)[:, None]


def distances(points, axes):
    references = torch.cartesian_prod(*axes)
    return (points.unsqueeze(-2) - references).norm(dim=-1)


def rand(*shape):
    """Numbers in (0, 1), the same at every call."""
    generator = torch.Generator().manual_seed(1)
    return torch.rand(shape, generator=generator)


def assert_same(found, expected):
    """As for stored outputs."""
    assert expected.abs().max() > 1e-2
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5 * expected.abs().max().item())
