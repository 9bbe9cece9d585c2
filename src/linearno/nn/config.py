"""Settings that several models share."""

from typing import Any, Literal

from pydantic import PositiveFloat, PositiveInt, field_validator

from linearno.core.config import Config


class ReferenceDistances(Config):
    """Distances to ref^X reference points, in place of the coordinates or (`positions`) in addition to them.

    Args:
        ref: reference points per axis.
        place: what distances are measured from: the points of the `grid`, the coordinates (`coords`), or raw
            coordinates that come with the data (`positions`).
        box: bounds of the reference points, one pair per axis; None: the unit cube.
    """

    @field_validator("box")
    @classmethod
    def _bounds_are_ordered(cls, box: tuple[tuple[float, float], ...] | None) -> Any:
        if box is not None and not all(low < high for low, high in box):
            raise ValueError(f"expected pairs of bounds, low < high; got {box}")
        return box

    ref: PositiveInt
    place: Literal["grid", "coords", "positions"] = "grid"
    box: tuple[tuple[float, float], ...] | None = None


class NeighbourGraph(Config):
    """Edges to each point from the points near it, in unscaled coordinates.

    The default is our setting: it needs no length of the data, and on a square grid 25 points are the 5 × 5
    block around a point.

    Args:
        radius: length of the longest edge; None: any, so that `neighbours` alone decides.
        neighbours: most edges to a point, from the nearest points; the first is from the point itself.
    """

    radius: PositiveFloat | None = None
    neighbours: PositiveInt = 25


GraphSource = NeighbourGraph | Literal["data"]  # how edges are found, or that the data have them
NEAREST = NeighbourGraph()
