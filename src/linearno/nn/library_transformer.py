"""Skeleton of the transformers of the Neural-Solver-Library (https://github.com/thuml/Neural-Solver-Library).

Axes: B batch, N points, X coordinates, C channels, F features, W width.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from linearno.core.errors import UserError
from linearno.nn.config import ReferenceDistances
from linearno.nn.embeddings import TimeEmbedding
from linearno.nn.grid_operator import Append, Grid, PointFeatures
from linearno.nn.latent_attention import ExactLinear
from linearno.nn.point_operator import Coords, Inputs, Output, PointOperator, Time
from linearno.nn.transformer import initialise
from linearno.ops import Segments


def time_need(settings: Any) -> tuple[str, ...]:
    """What a model with these settings takes beyond coordinates and inputs: a time, if it takes one."""
    return ("time",) * settings.time


def lift_mlp(features: int, width: int) -> nn.Sequential:
    """Linear, GELU, linear with a hidden width of 2W; the first is exact under autocast, for coordinates."""
    return nn.Sequential(ExactLinear(features, 2 * width), nn.GELU(), nn.Linear(2 * width, width))


def feed_forward(width: int, ratio: int) -> nn.Sequential:
    """Linear, GELU, linear with a hidden width of ratio · W."""
    return nn.Sequential(nn.Linear(width, ratio * width), nn.GELU(), nn.Linear(ratio * width, width))


class PositionLift(nn.Module):
    """network(features(p, a)) of points given as [p, a], coordinates and inputs side by side.

    Args:
        coords: number of coordinates.
        features: what the network sees of each point.
        network: features → lifted features.
    """

    def __init__(self, coords: int, features: PointFeatures, network: nn.Module):
        super().__init__()
        self.coords, self.features, self.network = coords, features, network

    def forward(self, z: Float[Tensor, "B N F"]) -> Float[Tensor, "B N W"]:
        return self.network(self.features(z[..., : self.coords], z[..., self.coords :]))


class LibraryTransformer(PointOperator):
    """head(blocks(lift([p, a]) + E(t) + placeholder)), where p stands for the coordinates (`PointFeatures`).

    The lift has two layers, the head is a norm and a linear map, the placeholder a learned vector that always
    joins. Linear maps start as N(0, 0.02²) with biases 0.

    Args:
        coords: number of coordinates X of a point.
        inputs: number of input channels at a point.
        outputs: number of predicted channels.
        width: feature width W.
        blocks: maps of the features; see `PointOperator`.
        time: whether the model takes a time.
        grid: points along each axis of a structured mesh; None for scattered points.
        unified: distances to reference points in place of the coordinates.
        append: more features of a point: "grid", its position on the unit cube of the grid, or "coords", the
            coordinates once more.
    """

    fixed_grid: Grid | None

    def __init__(
        self,
        *,
        coords: int,
        inputs: int,
        outputs: int,
        width: int,
        blocks: Sequence[nn.Module],
        time: bool = False,
        grid: Grid | None = None,
        unified: ReferenceDistances | None = None,
        append: Append | None = None,
    ):
        features = PointFeatures(coords, inputs, grid, unified, append)
        super().__init__(
            features=coords + inputs,
            lift=PositionLift(coords, features, lift_mlp(features.channels, width)),
            blocks=blocks,
            head=nn.Sequential(nn.LayerNorm(width), ExactLinear(width, outputs)),
            time=TimeEmbedding(width) if time else None,
        )
        self.grid_free_settings = features.grid_free_settings
        self.fixed_grid = grid if self.grid_free_settings else None
        self.apply(initialise)
        self.placeholder = nn.Parameter(torch.rand(width) / width)

    def forward(
        self,
        coords: Coords,
        inputs: Inputs = None,
        *,
        time: Time = None,
        segments: Segments | None = None,
    ) -> Output:
        self.require_packable(segments)
        return self.apply_blocks(coords, inputs, time=time, segments=segments, shift=self.placeholder)

    def require_packable(self, segments: Segments | None) -> None:
        """An error for packed meshes if the model is bound to one grid."""
        refuse_packed(segments, self.fixed_grid, self.grid_free_settings)


def refuse_packed(segments: Segments | None, fixed_grid: Grid | None, grid_free_settings: str) -> None:
    """An error for packed meshes where a model is bound to one grid."""
    if segments is not None and fixed_grid is not None:
        free = f"; build it with {grid_free_settings}" if grid_free_settings else ""
        raise UserError(f"a model tied to a grid takes no packed meshes{free}")
