"""Networks on a grid between layers at points: lift, network on the grid, head.

Axes: B batch, N points, X coordinates, C channels, F features, W width, G grid.
"""

from collections.abc import Callable
from math import prod
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from linearno.core.errors import UserError
from linearno.nn.config import ReferenceDistances
from linearno.nn.deformation import Deformation, GridToPoints, PointsToGrid, waves_at
from linearno.nn.embeddings import TimeEmbedding, UnifiedPosition, unit_grid
from linearno.nn.padding import Padding
from linearno.nn.protocol import GRID_NEED
from linearno.nn.spectral import full_precision, modes_per_axis, require_resolved
from linearno.ops import Segments

Grid = tuple[int, ...]
Coords = Float[Tensor, "B N X"]
Inputs = Float[Tensor, "B N C_in"] | None
Output = Float[Tensor, "B N C_out"]
Features = Float[Tensor, "B N W"]
Image = Float[Tensor, "B C *G"]
Append = Literal["grid", "coords"]


def grid_needs(settings: Any) -> tuple[str, ...]:
    """What a model of this kind needs: a grid unless it has a latent one, and a time if it takes one."""
    needs = {GRID_NEED: settings.latent is None, "time": settings.time}
    return tuple(need for need, needed in needs.items() if needed)


def frame_of(
    grid: Grid | None,
    latent: int | None,
    *,
    coords: int,
    width: int,
    modes: int | tuple[int, ...],
    padding: int = 0,
    multiple: int = 1,
) -> "PaddedGrid | LatentGrid":
    """The padded grid of the points or, with `latent`, a latent grid of that side."""
    if latent is not None:
        return LatentGrid(coords, width, modes_per_axis(modes, 2), latent)
    if grid is None:
        raise ValueError(
            "this model needs the grid of its points, such as grid=(85, 85), or a latent one: latent=96"
        )
    return PaddedGrid(grid, padding, multiple)


def lift_of(channels: int, width: int, layers: int) -> nn.Module:
    """One linear layer, or two with a hidden width of 2 · `width`."""
    return nn.Linear(channels, width) if layers == 1 else mlp(channels, 2 * width, width)


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Linear, GELU, linear."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.GELU(), nn.Linear(hidden, outputs))


class PointFeatures(nn.Module):
    """What the first layer sees of each point: its coordinates, then the inputs.

    Args:
        coords: number of coordinates X.
        inputs: number of input channels.
        grid: grid of the points in C order; None for scattered points.
        unified: distances to reference points in place of the coordinates.
        append: more features between both: "grid", the position on the unit cube of the grid, or "coords",
            the coordinates once more.
    """

    fixed: Tensor | None

    def __init__(
        self,
        coords: int,
        inputs: int,
        grid: Grid | None,
        unified: ReferenceDistances | None,
        append: Append | None,
    ):
        super().__init__()
        on_grid = unified is not None and unified.place == "grid"
        if grid is None and (on_grid or append == "grid"):
            setting = "unified.place=grid" if on_grid else "append=grid"
            raise ValueError(
                f"{setting} needs points of a grid, these are scattered; choose coords, or leave it out"
            )
        if unified is not None and unified.place == "positions":
            raise ValueError(
                "unified.place=positions: this model measures distances from the grid or the coords"
            )
        self.append, self.inputs = append, inputs
        self.unified: UnifiedPosition | None = None
        position = coords
        fixed = None if grid is None else unit_grid(grid)
        if unified is not None:
            axes = len(grid) if on_grid and grid is not None else coords
            self.unified = UnifiedPosition(unified.ref, unified.box or ((0.0, 1.0),) * axes)
            position = self.unified.features
        more = {None: 0, "coords": coords, "grid": len(grid or ())}[append]
        self.channels = position + more + inputs
        self.measure_grid = on_grid
        self.register_buffer("fixed", fixed if on_grid or append == "grid" else None, persistent=False)

    @property
    def grid_free_settings(self) -> str:
        """Settings without which the features would not depend on the grid; empty if they do not."""
        ties = {"unified.place=coords": self.measure_grid, "append=null": self.append == "grid"}
        return " and ".join(setting for setting, tied in ties.items() if tied)

    def forward(self, coords: Coords, inputs: Inputs) -> Float[Tensor, "B N F"]:
        own = None if self.fixed is None else self.fixed.to(coords).expand(coords.shape[0], -1, -1)
        if own is not None and own.shape[1] != coords.shape[1]:
            raise UserError(f"this model was built for {own.shape[1]} points, got {coords.shape[1]}")
        position = coords
        if self.unified is not None:
            position = self.unified(own if self.measure_grid and own is not None else coords)
        more = own if self.append == "grid" else coords if self.append == "coords" else None
        parts = [part for part in (position, more, inputs) if part is not None]
        features = torch.cat(parts, dim=-1)
        if features.shape[-1] != self.channels:
            given = 0 if inputs is None else inputs.shape[-1]
            raise UserError(
                f"this model takes {self.inputs} inputs at a point, got {given} "
                f"(and {coords.shape[-1]} coordinates)"
            )
        return features


class PaddedGrid(nn.Module):
    """Points of a grid as an image with zeros after the end of each axis.

    Args:
        grid: points along each axis; the points come in C order.
        padding: zeros added to each axis.
        multiple: then each axis is padded to a multiple of this.
    """

    def __init__(self, grid: Grid, padding: int = 0, multiple: int = 1):
        super().__init__()
        self.own = grid
        self.grid = tuple(-(-(n + padding) // multiple) * multiple for n in grid)
        self.pad = [
            zeros for n, m in zip(self.own[::-1], self.grid[::-1], strict=True) for zeros in (0, m - n)
        ]

    def forward(self, h: Features, coords: Coords, network: Callable[[Image], Image]) -> Features:
        if h.shape[1] != prod(self.own):
            raise UserError(
                f"this model was built for the grid {self.own} = {prod(self.own)} points, got {h.shape[1]}"
            )
        image = nn.functional.pad(h.mT.unflatten(-1, self.own), self.pad)
        image = network(image)
        for axis, points in enumerate(self.own, start=2):
            image = image.narrow(axis, 0, points)
        return image.flatten(2).mT


class LatentGrid(nn.Module):
    """Scattered points of the plane as an image on a latent grid, by Fourier transforms after a deformation.

    See `PointsToGrid`, `GridToPoints` and `Deformation`.

    Args:
        coords: number of coordinates; 2.
        width: channels W.
        modes: kept modes of both axes.
        side: points of the latent grid along each axis.
        deformation: features of the deformation.
        code: channels of a shape code that the deformation sees; 0: none.
    """

    def __init__(self, coords: int, width: int, modes: Grid, side: int, deformation: int = 32, code: int = 0):
        if coords != 2:
            raise ValueError(
                f"a latent grid takes points of the plane, got {coords} coordinates; choose another model"
            )
        super().__init__()
        self.grid, self.modes, self.code = (side, side), (modes[0], modes[1]), code
        require_resolved(self.modes, self.grid)
        self.deformation = Deformation(deformation, code)
        self.points_to_grid = PointsToGrid(width, self.modes, self.grid)
        self.grid_to_points = GridToPoints(width, self.modes)

    def forward(
        self,
        h: Features,
        coords: Coords,
        network: Callable[[Image], Image],
        *,
        code: Float[Tensor, "B S"] | None = None,
        mask: Bool[Tensor, "B N"] | None = None,
    ) -> Features:
        if (0 if code is None else code.shape[-1]) != self.code:
            given = None if code is None else tuple(code.shape)
            raise UserError(f"this model takes a shape code of {self.code} channels, got {given}")
        points = self.deformation(coords, code)
        waves = waves_at(points, self.modes)
        if mask is not None:
            h = h * mask.unsqueeze(-1)
        return self.grid_to_points(network(self.points_to_grid(h, waves)), points, waves)


class GridOperator(nn.Module):
    """Lift each point, apply a network on a grid, and read off the outputs at each point.

    Layers at points run in float32 (or float64) under autocast too: bfloat16 would merge neighbouring
    coordinates, and round the outputs.

    Args:
        features: what the first layer sees of each point.
        lift: layers from those features to W channels.
        frame: between points and the grid of the network.
        network: images of W channels to images of W channels.
        head: layers from W channels to the outputs.
        time: embedding of a time, added to the lifted features; None if the model takes no time.
        skip: a map of the coordinates, added before the head; None: none.
    """

    capturable = True

    def __init__(
        self,
        *,
        features: PointFeatures,
        lift: nn.Module,
        frame: PaddedGrid | LatentGrid,
        network: nn.Module,
        head: nn.Module,
        time: TimeEmbedding | None = None,
        skip: nn.Module | None = None,
    ):
        super().__init__()
        self.features, self.lift, self.time = features, lift, time
        self.frame, self.network, self.head = frame, network, head
        self.skip = skip

    def forward(
        self,
        coords: Coords,
        inputs: Inputs = None,
        *,
        time: Float[Tensor, "S 1"] | None = None,
        segments: Segments | None = None,
    ) -> Output:
        """Outputs (B, N, C) at the points; of meshes packed in `segments` if the grid is latent."""
        return self._predict(coords, inputs, time, segments)

    def _predict(
        self,
        coords: Tensor,
        inputs: Tensor | None,
        time: Tensor | None,
        segments: Segments | None,
        **shape: Tensor | None,
    ) -> Tensor:
        if segments is not None:
            if isinstance(self.frame, PaddedGrid):
                raise UserError("this model is bound to its grid and takes no packed meshes")
            padding = Padding(segments, coords.shape[1], coords.device)
            inputs = None if inputs is None else padding.pad(inputs)
            out = self._dense(padding.pad(coords), inputs, time, mask=padding.mask, **shape)
            return padding.unpad(out)
        return self._dense(coords, inputs, time, **shape)

    def _dense(
        self, coords: Tensor, inputs: Tensor | None, time: Tensor | None, **shape: Tensor | None
    ) -> Tensor:
        if (time is None) != (self.time is None):
            raise UserError(f"this model takes {'no' if self.time is None else 'a'} time")
        kind = coords.device.type
        with torch.autocast(kind, enabled=False):
            h = self.lift(full_precision(self.features(coords, inputs)))
            if self.time is not None and time is not None:
                h = h + self.time(time)
        h = self.frame(h, coords, self.network, **shape)
        with torch.autocast(kind, enabled=False):
            h = full_precision(h)
            return self.head(h if self.skip is None else h + self.skip(coords))
