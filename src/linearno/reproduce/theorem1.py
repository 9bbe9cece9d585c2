"""Measure Theorem 1: attention on N random points converges to an integral operator as N^(−1/2)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from linearno.ops import gather, scatter

SIZES = tuple(2**k for k in range(6, 15))


@dataclass(frozen=True)
class Convergence:
    """Measured convergence.

    Args:
        sizes: numbers of points N.
        errors: RMS error over probes and draws, relative to the limit.
        slope: slope of log error over log N.
    """

    sizes: list[int]
    errors: list[float]
    slope: float


def theorem1(sizes: tuple[int, ...] = SIZES, draws: int = 64, seed: int = 0) -> Convergence:
    """Compare a fixed layer and feature field on N uniform random points with the integral over Ω.

    The integral is computed on a uniform lattice of 512² cell centres, with an error O(h²) of about 1e-6.

    Args:
        sizes: numbers of points N.
        draws: random point sets per size.
        seed: seed of weights and points.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(sample: Callable[..., Tensor], *shape: int) -> Tensor:
        return sample(*shape, generator=generator, dtype=torch.float64)

    heads, head_width, slices = 2, 8, 16
    lift = draw(torch.randn, 2, heads * head_width)
    w_key, w_query = (draw(torch.randn, head_width, slices) for _ in range(2))

    def features(points: Tensor) -> Tensor:
        return torch.tanh(points @ lift).unflatten(-1, (heads, head_width))

    def field(points: Tensor) -> Tensor:
        return scatter(probes, w_query, None, gather(features(points), w_key))

    probes = features(draw(torch.rand, 64, 2))
    axis = (torch.arange(512, dtype=torch.float64) + 0.5) / 512
    limit = field(torch.cartesian_prod(axis, axis))
    errors = []
    for n in sizes:
        outputs = torch.stack([field(draw(torch.rand, n, 2)) for _ in range(draws)])
        errors.append(((outputs - limit).square().mean() / limit.square().mean()).sqrt().item())
    slope = float(np.polyfit(np.log(sizes), np.log(errors), 1)[0])
    return Convergence(list(sizes), errors, slope)
