"""Sensor points for field reconstruction: which points of a field are observed."""

import torch
from jaxtyping import Int64
from torch import Tensor

from linearno.core.errors import UserError


def observed_count(points: int, ratio: float) -> int:
    """K = int(points · ratio), as published."""
    if not 0 < ratio <= 1:  # NaN too
        raise UserError(f"ratio={ratio}: expected the observed part of the points, above 0 and at most 1")
    if points < 1:
        raise UserError(f"points={points}: expected at least one point to observe")
    count = int(points * ratio)
    if count == 0:
        least = min(1.0, 1.01 / points)  # rounded below, and still enough
        raise UserError(f"ratio={ratio} of {points} points leaves none to observe; give {least:.3g} or more")
    return count


def draw_observed(
    points: int,
    ratio: float,
    *,
    generator: torch.Generator | None = None,
    device: torch.device | None = None,
) -> Int64[Tensor, "K"]:
    """K of N points, each at most once: one draw for all samples of a batch, `coords[:, drawn]`.

    The same generator gives the same points on every device. Without one they are drawn on `device`, by its
    own generator, and nothing waits for a copy.
    """
    count = observed_count(points, ratio)
    if generator is None:
        return torch.randperm(points, device=device)[:count]
    drawn = torch.randperm(points, generator=generator, device=generator.device)[:count]
    return drawn.to(device or generator.device)
