"""Random subsets of the points of a mesh for training. Axes: N points of the mesh, K drawn points."""

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from linearno.data.field_data import FieldData


def draw_points(
    points: int, count: int, generator: torch.Generator, first: Bool[Tensor, "N"] | None = None
) -> Int64[Tensor, "K"]:
    """Indices of at most `count` random points, in ascending order.

    Args:
        points: N, number of points.
        count: number of points to draw.
        generator: random generator.
        first: mask of the points that are drawn before any other.
    """
    if count >= points:
        return torch.arange(points)
    priority = torch.rand(points, generator=generator, dtype=torch.float64)
    if first is not None:
        priority[first] -= 1
    return priority.topk(count, largest=False).indices.sort().values


def points_and_surface(data: FieldData, sample: int) -> tuple[int, Tensor | None]:
    """Number of points of a sample, and the mask of its surface points."""
    if data.offsets is not None:
        start, stop = data.offsets[sample : sample + 2].tolist()
        return stop - start, None if data.surface is None else data.surface[start:stop]
    surface = data.surface
    if surface is not None and surface.dim() > 1:
        surface = surface[sample]
    return data.coords.shape[-2], surface
