"""Stretched positions of grid lines, in batches, with spacings chosen at the ends.

Positions are smooth functions of the index: with a refinement r they are evaluated at r times as many
indices, of which every r-th is a whole one.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float64
from torch import Tensor

BISECTIONS = 60
MAX_RATE = 60.0  # of hyperbolic stretching
UNIFORM = 1e-6  # smaller rates are uniform to rounding
MAX_GROWTH = 2.0  # logarithm of the size ratio of neighbouring cells


def two_sided_positions(
    first: Float64[Tensor, "B"],
    last: Float64[Tensor, "B"],
    total: Float64[Tensor, "B"],
    cells: int,
    refinement: int,
) -> Float64[Tensor, "B n"]:
    """Positions from 0 to `total` with cells of sizes near `first` and `last` at the ends (Vinokur, 1983).

    Args:
        first: size of the first cell.
        last: size of the last cell.
        total: length.
        cells: number of cells before refinement.
        refinement: positions per cell.
    """
    skew, ratio = torch.sqrt(last / first), total / (cells * torch.sqrt(first * last))
    share = torch.linspace(0, 1, cells * refinement + 1, dtype=first.dtype, device=first.device)
    hyperbolic = _rate(lambda y: torch.sinh(y) / y, ratio, MAX_RATE)[:, None]
    circular = _rate(lambda y: -torch.sin(y) / y, -ratio, torch.pi - UNIFORM)[:, None]
    clustered = 0.5 * (1 + torch.tanh(hyperbolic * (share - 0.5)) / torch.tanh(hyperbolic / 2))
    thinned = 0.5 * (1 + torch.tan(circular * (share - 0.5)) / torch.tan(circular / 2))
    u = torch.where((ratio > 1)[:, None], clustered, thinned)
    skew = skew[:, None]
    positions = total[:, None] * u / (skew + (1 - skew) * u)
    positions[:, -1] = total  # equal up to rounding
    return positions


def geometric_positions(
    first: Float64[Tensor, "B N"], total: Float64[Tensor, "B N"], cells: int, refinement: int
) -> Float64[Tensor, "B N n"]:
    """Positions from 0 to `total` of cells that grow by a constant ratio from size `first`.

    Args:
        first: size of the first cell, below `total` over `cells`.
        total: length.
        cells: number of cells before refinement.
        refinement: positions per cell.
    """
    growth = _rate(lambda y: torch.expm1(cells * y) / torch.expm1(y), total / first, MAX_GROWTH)[..., None]
    index = torch.linspace(0, cells, cells * refinement + 1, dtype=first.dtype, device=first.device)
    return total[..., None] * torch.expm1(index * growth) / torch.expm1(cells * growth)


def _rate(increasing: Callable[[Tensor], Tensor], value: Tensor, largest: float) -> Tensor:
    """Solve increasing(y) = value for y between `UNIFORM` and `largest` by bisection."""
    low, high = torch.full_like(value, UNIFORM), torch.full_like(value, largest)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        beyond = increasing(middle) > value
        low, high = torch.where(beyond, low, middle), torch.where(beyond, middle, high)
    return (low + high) / 2
