"""Appendix F of the paper, measured: cross-attention with learned tokens is linear attention.

Axes: N points, M tokens, H heads, D head width.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from linearno.ops import State, gather, scatter

Attend = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Equivalence:
    """Largest differences, relative to the largest value, between the two formulations.

    Args:
        value: of the outputs.
        gradient: of the gradients with respect to the features of the points.
        points: numbers of points at which they were compared.
    """

    value: float
    gradient: float
    points: list[int]


def appendix_f(points: tuple[int, ...] = (37, 1024, 4096), seed: int = 0) -> Equivalence:
    """Encode, attend among tokens, decode: by cross-attention with tokens Z, and by gather and scatter.

    Cross-attention with queries Z W_q and keys H W_k has scores H (W_k W_qᵀ Zᵀ) / √D: those of linear
    attention whose projection is the product in brackets. Both are computed in float64.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    heads, width, tokens = 4, 16, 24
    z = draw(heads, tokens, width)
    encoder, decoder, mixer = (tuple(draw(width, width) / width**0.5 for _ in range(3)) for _ in range(3))

    def mix(states: Tensor) -> Tensor:
        return scaled_dot_product_attention(*(states @ weight for weight in mixer))

    def by_cross_attention(h: Tensor) -> Tensor:
        query, key, value = encoder
        states = mix(scaled_dot_product_attention(z @ query, h @ key, h @ value))
        query, key, value = decoder
        return scaled_dot_product_attention(h @ query, z @ key, states @ value)

    def by_linear_attention(h: Tensor) -> Tensor:
        query, key, value = encoder
        psi = key @ (z @ query).mT / width**0.5  # (H, D, M)
        states = mix(torch.cat([_gathered(h[i], psi[i], h[i] @ value) for i in range(heads)]))
        query, key, value = decoder
        phi = query @ (z @ key).mT / width**0.5
        return torch.cat([_scattered(h[i], phi[i], states[i] @ value) for i in range(heads)])

    differences = [
        _difference(by_cross_attention, by_linear_attention, draw(heads, n, width)) for n in points
    ]
    values, gradients = zip(*differences, strict=True)
    return Equivalence(max(values), max(gradients), list(points))


def _gathered(h: Tensor, weight: Tensor, value: Tensor) -> Tensor:
    """ψᵀ V of one head, (1, M, D), by the ops of the package."""
    return gather(h[None, :, None], weight, value=value[None, :, None]).value[0]


def _scattered(h: Tensor, weight: Tensor, slices: Tensor) -> Tensor:
    """φ S of one head, (1, N, D)."""
    one = slices.new_ones(1, 1, len(slices))
    return scatter(h[None, :, None], weight, None, State(0 * one, one, slices[None, None]))[:, :, 0]


def _difference(first: Attend, second: Attend, h: Tensor) -> tuple[float, float]:
    """Of the outputs and of the gradients with respect to h."""
    h = h.requires_grad_()
    a, b = first(h), second(h)
    d_a, d_b = (torch.autograd.grad(out.square().sum(), h)[0] for out in (a, b))
    return ((a - b).abs().max() / a.abs().max()).item(), ((d_a - d_b).abs().max() / d_a.abs().max()).item()
