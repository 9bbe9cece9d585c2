"""Axis-aligned bounding boxes: lowest and highest corner. Axes: N points, X coordinates."""

from jaxtyping import Bool, Float
from torch import Tensor, stack


def box_of(points: Float[Tensor, "*S N X"]) -> Float[Tensor, "2 X"]:
    """Smallest box that contains all points."""
    flat = points.reshape(-1, points.shape[-1])
    return stack([flat.amin(dim=0), flat.amax(dim=0)])


def outside_box(points: Float[Tensor, "*S N X"], box: Float[Tensor, "2 X"]) -> Bool[Tensor, "*S N"]:
    """Mask of the points outside the box; its faces count as inside."""
    lowest, highest = box
    return ((points < lowest) | (points > highest)).any(dim=-1)
