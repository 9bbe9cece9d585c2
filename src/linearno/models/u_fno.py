"""U-FNO (Wen et al., 2022): Fourier layers, the later ones with a U-Net alongside."""

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
from linearno.nn.unet import REDUCTION, Norm, UNet, require_image


def infer_published(weights: Mapping[str, Tensor], hints: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments of a U-FNO of the Neural-Solver-Library."""
    unets = published.numbered(weights, r"u_net(\d+)\.")
    if not unets or not published.from_library(weights, "conv0.weights1"):
        return None
    modes, depth = published.modes_of(weights, "conv0"), len(published.numbered(weights, r"conv(\d+)\."))
    norm = "batch" if any(name.endswith(".running_mean") for name in weights) else "instance"
    found = {"modes": modes, "depth": depth, "unets": len(unets), "norm": norm}
    return found | published.infer_library_arguments(weights, hints, len(modes))


PUBLISHED = PublishedFormat(
    infer=infer_published,
    names=[
        *published.NAMES,
        *published.FOURIER_LAYERS,
        (r"^u_net(\d+)\.", r"network.\1.branch."),
        *published.UNET,
    ],
    hints=published.HINTS,
    unused=rf"^u_net\d+\.(preprocess|time_fc|fc1|fc2|fftproject_in|fftproject_out|iphi)\.|{published.UNUSED_CODE}",
    convert=published.join_corners,
)


@model("u-fno", needs=grid_needs, published=(PUBLISHED,), family="spectral")
class UFNO(GridOperator):
    """U-FNO (Wen et al., 2022, https://arxiv.org/abs/2109.03697), in the form of the Neural-Solver-Library.

        hᵢ₊₁ = σ(F⁻¹(Rᵢ · F hᵢ) + Wᵢ hᵢ [+ Uᵢ hᵢ]),   u = head(h)

    on a grid of 2 or 3 axes that is padded with zeros to a multiple of 16; Uᵢ is a U-Net, in the last layers
    only. σ is a GELU and left out after the last layer. The original (https://github.com/gegewen/ufno) has
    three layers of either kind, ReLU and a smaller U-Net with strides; its licence forbids derivatives.

    Args:
        coords: number of coordinates X of a point.
        inputs: number of input channels at a point; 0 if the geometry is the only input.
        outputs: number of predicted channels.
        grid: points along each axis of a structured mesh, points in C order; None with `latent`.
        width: channels W of the layers.
        modes: kept Fourier modes of each axis, or one number for all; at most half the points of an axis.
        depth: number of Fourier layers.
        unets: how many of them, the last ones, have a U-Net.
        norm: of the U-Nets: "batch" (the library's for steady problems) or "instance" (its other problems).
        time: whether the model takes a time, as `forward(..., time=(B, 1))`.
        unified: distances to reference points in place of the coordinates.
        append: more features of a point: "grid", its position on the unit cube of the grid, or "coords", the
            coordinates once more, as in the library's scripts for pipe flow.
        lift_layers: layers before the network on the grid; the first of two has the width 2 · `width`.
        head_width: hidden width of the two layers after the network; None: `width`.
        latent: side of a latent grid for scattered points of the plane, to and from which a learned
            deformation and Fourier transforms lead, as in Geo-FNO; None: the grid of the data.

    >>> model = UFNO(coords=2, inputs=1, outputs=1, grid=(85, 85), width=32)
    >>> u = model(coords, a)  # (B, 7225, 2), (B, 7225, 1) → (B, 7225, 1)
    """

    def __init__(
        self,
        *,
        coords: int,
        inputs: int = 0,
        outputs: int,
        grid: tuple[int, ...] | None,
        width: PositiveInt = 32,
        modes: PositiveInt | tuple[PositiveInt, ...] = 12,
        depth: PositiveInt = 4,
        unets: NonNegativeInt = 2,
        norm: Norm = "batch",
        time: bool = False,
        unified: ReferenceDistances | None = None,
        append: Append | None = None,
        lift_layers: Literal[1, 2] = 2,
        head_width: PositiveInt | None = None,
        latent: PositiveInt | None = None,
    ):
        if unets > depth:
            raise ValueError(f"unets={unets}: there are only depth={depth} layers")
        frame = frame_of(grid, latent, coords=coords, width=width, modes=modes, multiple=REDUCTION)
        require_image(frame.grid, norm)
        modes = modes_per_axis(modes, len(frame.grid))
        require_resolved(modes, frame.grid)
        branches = [UNet(width, len(modes), norm) if i >= depth - unets else None for i in range(depth)]
        features = PointFeatures(coords, inputs, grid if latent is None else None, unified, append)
        super().__init__(
            features=features,
            lift=lift_of(features.channels, width, lift_layers),
            frame=frame,
            network=FourierLayers(*(FourierLayer(width, modes, branch) for branch in branches)),
            head=mlp(width, head_width or width, outputs),
            time=TimeEmbedding(width) if time else None,
        )
