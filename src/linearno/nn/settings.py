"""Settings that the models of the family share."""

from typing import Literal

from pydantic import PositiveInt, model_validator

from linearno.core.config import Config
from linearno.core.errors import UserError


class Unified(Config):
    """Distances to ref^X reference points, in place of the coordinates or (`positions`) beside them."""

    ref: PositiveInt
    place: Literal["grid", "coords", "positions"] = "grid"  # what they are measured from
    box: tuple[tuple[float, float], ...] | None = None  # where the references lie; None: the unit cube


class ModelConfig(Config):
    """The sizes that every model of the family has."""

    name: str
    width: PositiveInt = 128
    depth: PositiveInt = 8
    heads: PositiveInt = 8
    slices: PositiveInt = 64  # M, the rank of the attention kernel
    mlp_ratio: PositiveInt = 1

    @model_validator(mode="after")
    def _heads_divide_width(self) -> "ModelConfig":
        if self.width % self.heads:
            raise ValueError(
                f"width={self.width} is not a multiple of heads={self.heads}; "
                f"the next that is: {self.width + -self.width % self.heads}"
            )
        return self


class PointConfig(ModelConfig):
    """And what a model knows of the points that it answers at."""

    stem: Literal["linear", "conv"] = "linear"
    grid: tuple[PositiveInt, ...] | None = None  # taken from the data where it is not given
    time: bool = False
    unified: Unified | None = None

    def require_grid(self) -> tuple[int, ...]:
        if self.grid is None:
            raise UserError("a convolutional stem or a unified position on a grid needs grid=(rows, columns)")
        return self.grid
