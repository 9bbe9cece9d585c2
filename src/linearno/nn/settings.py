"""Settings that several models share."""

from typing import Literal

from pydantic import PositiveInt

from linearno.core.config import Config


class Unified(Config):
    """Distances to ref^X reference points, in place of the coordinates or (`positions`) in addition to them.

    Args:
        ref: reference points per axis.
        place: what distances are measured from: the points of the `grid`, the coordinates (`coords`), or raw
            coordinates that come with the data (`positions`).
        box: bounds of the reference points, one pair per axis; None: the unit cube.
    """

    ref: PositiveInt
    place: Literal["grid", "coords", "positions"] = "grid"
    box: tuple[tuple[float, float], ...] | None = None
