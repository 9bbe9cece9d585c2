"""Colour maps fit for colour-blind readers, and their limits."""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
from jaxtyping import Float
from numpy import ndarray

SEQUENTIAL, DIVERGING, SPREAD, WEIGHTS, MEDIUM = "viridis", "RdBu_r", "cividis", "viridis", "cividis"
COLORS = 33  # control points of a map
SIGNED_SHARE = 0.05  # of the larger side that the smaller one must have for a diverging map


class Scale(NamedTuple):
    """A colour map and its limits."""

    colormap: str
    low: float
    high: float

    @property
    def css(self) -> str:
        """The map as a CSS gradient."""
        colors = ", ".join(mpl.colors.to_hex(color) for color in colors_of(self.colormap))
        return f"linear-gradient(90deg, {colors})"


@cache
def colors_of(colormap: str) -> tuple[tuple[float, float, float], ...]:
    """Colours of a map from its low to its high end."""
    return tuple(tuple(color[:3]) for color in mpl.colormaps[colormap](np.linspace(0, 1, COLORS)).tolist())


def scale_of(values: Sequence[Float[ndarray, "..."]], sequential: str = SEQUENTIAL) -> Scale:
    """One scale for several fields: diverging around zero if their values have both signs."""
    finite = np.concatenate([np.asarray(part)[np.isfinite(part)].ravel() for part in values])
    if not finite.size:
        return Scale(sequential, 0.0, 1.0)
    low, high = float(finite.min()), float(finite.max())
    if low < 0 < high and min(-low, high) > SIGNED_SHARE * max(-low, high):
        return symmetric_scale(values)
    if high <= low:
        high = low + (abs(low) or 1.0)
    return Scale(sequential, low, high)


def symmetric_scale(values: Sequence[Float[ndarray, "..."]]) -> Scale:
    """A diverging scale around zero, for differences and signed fields."""
    largest = max((float(np.nanmax(np.abs(part))) for part in values if np.isfinite(part).any()), default=1.0)
    return Scale(DIVERGING, -(largest or 1.0), largest or 1.0)


def positive_scale(values: Sequence[Float[ndarray, "..."]], colormap: str = SPREAD) -> Scale:
    """A scale from zero, for deviations and weights."""
    largest = max((float(np.nanmax(part)) for part in values if np.isfinite(part).any()), default=1.0)
    return Scale(colormap, 0.0, largest if largest > 0 else 1.0)
