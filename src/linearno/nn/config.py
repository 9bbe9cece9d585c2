"""Settings that several models share."""

from typing import Any, Literal

from pydantic import PositiveInt, field_validator

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
