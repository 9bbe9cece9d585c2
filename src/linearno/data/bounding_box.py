"""The box that points fill, as its lowest and its highest corner. Axes: N points, X coordinates."""

from jaxtyping import Bool, Float
from torch import Tensor, stack


def box_of(points: Float[Tensor, "*S N X"]) -> Float[Tensor, "2 X"]:
    """The smallest box that holds all of them."""
    flat = points.reshape(-1, points.shape[-1])
    return stack([flat.amin(dim=0), flat.amax(dim=0)])


def outside_box(points: Float[Tensor, "*S N X"], box: Float[Tensor, "2 X"]) -> Bool[Tensor, "*S N"]:
    """Which points do not lie in the box; its faces belong to it."""
    lowest, highest = box
    return ((points < lowest) | (points > highest)).any(dim=-1)
