"""Fourier neural operator (Li et al., ICLR 2021): linear maps of the lowest Fourier modes on a grid."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from linearno.models import published_spectral as published
from linearno.models.registry import PublishedFormat, model
from linearno.nn import ReferenceDistances, TimeEmbedding
from linearno.nn.grid_operator import (
    Append,
    GridOperator,
    PointFeatures,
    frame_of,
    grid_needs,
    lift_of,
    mlp,
)
from linearno.nn.spectral import FourierLayer, FourierLayers, modes_per_axis, require_resolved


def infer_published(weights: Mapping[str, Tensor], hints: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments of an FNO of the Neural-Solver-Library."""
    if not published.from_library(weights, "conv0.weights1") or "u_net3.inc.double_conv.0.weight" in weights:
        return None
    modes = published.modes_of(weights, "conv0")
    found = {"modes": modes, "depth": len(published.numbered(weights, r"conv(\d+)\."))}
    return found | published.infer_library_arguments(weights, hints, len(modes))


PUBLISHED = PublishedFormat(
    infer=infer_published,
    names=[*published.NAMES, *published.FOURIER_LAYERS],
    hints=published.HINTS,
    unused=published.UNUSED_CODE,
    convert=published.join_corners,
)


@model("fno", needs=grid_needs, published=(PUBLISHED,), family="spectral")
class FNO(GridOperator):
    """Fourier neural operator (Li et al., 2021, https://arxiv.org/abs/2010.08895).

        h₀ = lift(x, a),   hᵢ₊₁ = σ(F⁻¹(Rᵢ · F hᵢ) + Wᵢ hᵢ),   u = head(h)

    on a grid of 1, 2 or 3 axes that is padded with zeros; σ is a GELU and left out after the last layer. The
    defaults are the form of the Neural-Solver-Library (https://github.com/thuml/Neural-Solver-Library).
    `lift_layers=1, head_width=128, append="grid", padding=8, multiple=1` is that of the Geo-FNO repository on
    structured meshes, as in `geo-fno`.

    Args:
        coords: number of coordinates X of a point.
        inputs: number of input channels at a point; 0 if the geometry is the only input.
        outputs: number of predicted channels.
        grid: points along each axis of a structured mesh, points in C order; None with `latent`.
        width: channels W of the layers.
        modes: kept Fourier modes of each axis, or one number for all; at most half the points of an axis.
        depth: number of Fourier layers.
        time: whether the model takes a time, as `forward(..., time=(B, 1))`.
        unified: distances to reference points in place of the coordinates.
        append: more features of a point: "grid", its position on the unit cube of the grid, or "coords", the
            coordinates once more, as in the library's scripts for pipe flow.
        lift_layers: layers before the network on the grid; the first of two has the width 2 · `width`.
        head_width: hidden width of the two layers after the network; None: `width`.
        padding: zeros after the end of each axis.
        multiple: then each axis is padded to a multiple of this.
        latent: side of a latent grid for scattered points of the plane, to and from which a learned
            deformation and Fourier transforms lead, as in Geo-FNO; None: the grid of the data.

    >>> model = FNO(coords=2, inputs=1, outputs=1, grid=(85, 85), width=32)
    >>> u = model(coords, a)  # (B, 7225, 2), (B, 7225, 1) → (B, 7225, 1)
    """

    def __init__(
        self,
        *,
        coords: int,
        inputs: int = 0,
        outputs: int,
        grid: tuple[int, ...] | None,
        width: PositiveInt = 64,
        modes: PositiveInt | tuple[PositiveInt, ...] = 12,
        depth: PositiveInt = 4,
        time: bool = False,
        unified: ReferenceDistances | None = None,
        append: Append | None = None,
        lift_layers: Literal[1, 2] = 2,
        head_width: PositiveInt | None = None,
        padding: NonNegativeInt = 0,
        multiple: PositiveInt = 16,
        latent: PositiveInt | None = None,
    ):
        frame = frame_of(
            grid, latent, coords=coords, width=width, modes=modes, padding=padding, multiple=multiple
        )
        modes = modes_per_axis(modes, len(frame.grid))
        require_resolved(modes, frame.grid)
        features = PointFeatures(coords, inputs, grid if latent is None else None, unified, append)
        super().__init__(
            features=features,
            lift=lift_of(features.channels, width, lift_layers),
            frame=frame,
            network=FourierLayers(*(FourierLayer(width, modes) for _ in range(depth))),
            head=mlp(width, head_width or width, outputs),
            time=TimeEmbedding(width) if time else None,
        )
