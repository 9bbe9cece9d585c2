"""Draw the observed points of field reconstruction."""

import torch
from jaxtyping import Int64
from torch import Tensor

from linearno.core.errors import UserError


def observed_count(points: int, ratio: float) -> int:
    """Number of observed points K = int(points · ratio), as published."""
    if not 0 < ratio <= 1:  # NaN too
        raise UserError(f"ratio={ratio}: expected the observed part of the points, above 0 and at most 1")
    if points < 1:
        raise UserError(f"points={points}: expected at least one point to observe")
    count = int(points * ratio)
    if count == 0:
        smallest = min(1.0, 1.01 / points)  # 1.01 covers rounding in the message
        raise UserError(
            f"ratio={ratio} of {points} points leaves none to observe; give {smallest:.3g} or more"
        )
    return count


def draw_observed(
    points: int,
    ratio: float,
    *,
    generator: torch.Generator | None = None,
    device: torch.device | None = None,
) -> Int64[Tensor, "K"]:
    """Indices of K distinct random points, shared by all samples of a batch.

    Args:
        points: N, number of points.
        ratio: observed fraction of the points.
        generator: random generator, for the same points on every device; the default generator of `device`
            if None, which needs no copy between devices.
        device: device of the result.
    """
    count = observed_count(points, ratio)
    if generator is None:
        return torch.randperm(points, device=device)[:count]
    drawn = torch.randperm(points, generator=generator, device=generator.device)[:count]
    return drawn.to(device or generator.device)
