"""Factorised Fourier neural operator (Tran et al., ICLR 2023): one axis at a time."""

from collections.abc import Mapping
from typing import Any, Literal

from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor, nn

from linearno.models import published_spectral as published
from linearno.models.registry import PublishedFormat, model
from linearno.nn import ReferenceDistances, TimeEmbedding
from linearno.nn.grid_operator import Append, GridOperator, PointFeatures, frame_of, grid_needs, mlp
from linearno.nn.spectral import FactorisedSpectralConv, modes_per_axis, require_resolved

Form = Literal["original", "simplified"]

HEAD_WIDTH = 128  # default of the original form


def infer_published(weights: Mapping[str, Tensor], hints: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments of an F-FNO of its authors or of the Neural-Solver-Library."""
    first, own = "spectral_layers.0.fourier_weight.", "in_proj.weight_v" in weights
    if f"{first}0" not in weights:
        return None
    axes = published.numbered(weights, r"spectral_layers\.0\.fourier_weight\.(\d+)")
    modes = tuple(weights[f"{first}{axis}"].shape[2] for axis in axes)
    found = {
        "modes": modes,
        "depth": len(published.numbered(weights, r"spectral_layers\.(\d+)")),
        "form": "original" if own else "simplified",
    }
    if not own:
        return found | published.infer_library_arguments(weights, hints, len(modes))
    width, features = weights["in_proj.weight_v"].shape
    hints = {"coords": features - len(modes), "append": "grid", **hints}
    found["factor"] = len(weights["spectral_layers.0.backcast_ff.layers.0.0.bias"]) // width
    hidden = len(weights["out.0.bias"])
    found["head_width"] = None if hidden == HEAD_WIDTH else hidden
    found |= {"width": width, "outputs": len(weights["out.1.bias"])}
    return found | {"grid": hints.get("grid")} | published.infer_features(features, hints, len(modes))


def convert(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Modes first, (C, C, m, 2) → (2, m, C, C), and transforms of scattered points by `join_corners`."""
    return published.join_corners(
        {
            name: tensor.permute(3, 2, 0, 1) if ".mixings." in name else tensor
            for name, tensor in weights.items()
        }
    )


PUBLISHED = PublishedFormat(
    infer=infer_published,
    names=[
        *published.NAMES,
        (r"^in_proj\.", "lift."),
        (r"^out\.", "head."),
        (r"^spectral_layers\.(\d+)\.fourier_weight\.(\d+)$", r"network.spectral.\1.mixings.\2.weight"),
        (r"^spectral_layers\.(\d+)\.backcast_ff\.layers\.0\.0\.", r"network.feed_forward.\1.0."),
        (r"^spectral_layers\.(\d+)\.backcast_ff\.layers\.1\.0\.", r"network.feed_forward.\1.2."),
        (r"\.weight_g$", ".length"),
        (r"\.weight_v$", ".direction"),
    ],
    hints=published.HINTS,
    unused=published.UNUSED_CODE,
    convert=convert,
)


@model("f-fno", needs=grid_needs, published=(PUBLISHED,), family="spectral")
class FFNO(GridOperator):
    """Factorised Fourier neural operator (Tran et al., 2023, https://arxiv.org/abs/2111.13802).

        bᵢ = W₂ ReLU(W₁ Kᵢ hᵢ),   hᵢ₊₁ = hᵢ + bᵢ,   u = head(b of the last layer)

    with Kᵢ the sum of spectral convolutions along each axis, and each row of a weight matrix learned as a
    direction and a length. The grid is padded with 8 zeros after the end of each axis; the head is two linear
    layers without an activation. This is the form of https://github.com/alasdairtran/fourierflow, where the
    published results come from. The simplified form of the Neural-Solver-Library has linear layers
    hᵢ₊₁ = hᵢ + Kᵢ hᵢ between a lift and a head with a GELU each, on a grid padded to a multiple of 16.

    Args:
        coords: number of coordinates X of a point.
        inputs: number of input channels at a point; 0 if the geometry is the only input.
        outputs: number of predicted channels.
        grid: points along each axis of a structured mesh, points in C order; None with `latent`.
        width: channels W of the layers.
        modes: kept Fourier modes of each axis, or one number for all; at most half the points of an axis + 1.
        depth: number of layers.
        form: "original", or "simplified" as in the Neural-Solver-Library.
        factor: hidden width of W₁ and W₂, in multiples of `width`; original form only.
        head_width: hidden width of the head; None: 128, or `width` in the simplified form.
        time: whether the model takes a time, as `forward(..., time=(B, 1))`.
        unified: distances to reference points in place of the coordinates.
        append: more features of a point: "grid", its position on the unit cube of the grid, or "coords", the
            coordinates once more, as in the library's scripts for pipe flow; "grid" is
            the original one on structured meshes.
        latent: side of a latent grid for scattered points of the plane, to and from which a learned
            deformation and Fourier transforms lead, as in Geo-FNO; None: the grid of the data.

    >>> model = FFNO(coords=2, inputs=1, outputs=1, grid=(85, 85), width=32, append="grid")
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
        modes: PositiveInt | tuple[PositiveInt, ...] = 16,
        depth: PositiveInt = 4,
        form: Form = "original",
        factor: PositiveInt = 4,
        head_width: PositiveInt | None = None,
        time: bool = False,
        unified: ReferenceDistances | None = None,
        append: Append | None = None,
        latent: PositiveInt | None = None,
    ):
        original = form == "original"
        padding = {"padding": 8} if original else {"multiple": 16}
        frame = frame_of(grid, latent, coords=coords, width=width, modes=modes, **padding)
        modes = modes_per_axis(modes, len(frame.grid))
        require_resolved(modes, frame.grid, factorised=True)
        features = PointFeatures(coords, inputs, grid if latent is None else None, unified, append)
        if original:
            hidden = head_width or HEAD_WIDTH
            lift: nn.Module = WeightNormLinear(features.channels, width)
            head: nn.Module = nn.Sequential(
                WeightNormLinear(width, hidden), WeightNormLinear(hidden, outputs)
            )
        else:
            lift, head = mlp(features.channels, 2 * width, width), mlp(width, head_width or width, outputs)
        super().__init__(
            features=features,
            lift=lift,
            frame=frame,
            network=FactorisedLayers(width, modes, depth, factor if original else None),
            head=head,
            time=TimeEmbedding(width) if time else None,
        )


class FactorisedLayers(nn.Module):
    """Residual factorised spectral convolutions, each with a feed-forward network unless `factor` is None.

    The result is the last layer's own addition with feed-forward networks, and the whole sum without.

    Args:
        width: channels C in and out.
        modes: kept modes, one number for each axis.
        depth: number of layers.
        factor: hidden width of the feed-forward networks, in multiples of `width`.
    """

    def __init__(self, width: int, modes: tuple[int, ...], depth: int, factor: int | None):
        super().__init__()
        self.spectral = nn.ModuleList(FactorisedSpectralConv(width, modes) for _ in range(depth))
        self.feed_forward = (
            None
            if factor is None
            else nn.ModuleList(
                nn.Sequential(
                    WeightNormLinear(width, factor * width),
                    nn.ReLU(),
                    WeightNormLinear(factor * width, width),
                )
                for _ in range(depth)
            )
        )

    def forward(self, image: Float[Tensor, "B C *X"]) -> Float[Tensor, "B C *X"]:
        h = branch = image.movedim(1, -1)
        for number, spectral in enumerate(self.spectral):
            branch = spectral(h)
            if self.feed_forward is not None:
                branch = self.feed_forward[number](branch)
            h = h + branch
        return (h if self.feed_forward is None else branch).movedim(-1, 1)


class WeightNormLinear(nn.Module):
    """A linear map whose rows are directions with learned lengths:  W = g v / ‖v‖.

    Args:
        inputs: channels in.
        outputs: channels out.
    """

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        start = nn.Linear(inputs, outputs)
        self.direction, self.bias = start.weight, start.bias
        self.length = nn.Parameter(self.direction.detach().norm(dim=1, keepdim=True))

    def forward(self, x: Float[Tensor, "*rows C"]) -> Float[Tensor, "*rows C_out"]:
        scale = self.length / self.direction.norm(dim=1, keepdim=True)
        return nn.functional.linear(x, self.direction * scale, self.bias)
