"""Which points of a mesh are trained on, where not all of them are. Axes: N points of the mesh, K kept."""

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from linearno.data.field_data import FieldData


def draw_points(
    points: int, count: int, generator: torch.Generator, first: Bool[Tensor, "N"] | None = None
) -> Int64[Tensor, "K"]:
    """At most `count` of so many points, in their order; those marked by `first` before any other."""
    if count >= points:
        return torch.arange(points)
    lots = torch.rand(points, generator=generator, dtype=torch.float64)
    if first is not None:
        lots[first] -= 1
    return lots.topk(count, largest=False).indices.sort().values


def points_and_surface(data: FieldData, sample: int) -> tuple[int, Tensor | None]:
    """How many points a sample has, and which of them are on a surface."""
    if data.offsets is not None:
        start, stop = data.offsets[sample : sample + 2].tolist()
        return stop - start, None if data.surface is None else data.surface[start:stop]
    surface = data.surface
    own = surface if surface is None or surface.dim() == 1 else surface[sample]
    return data.coords.shape[-2], own
