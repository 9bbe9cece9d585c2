"""Geo-FNO (Li et al., JMLR 2023): Fourier layers on body-fitted grids or deformed point clouds."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jaxtyping import Float
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from linearno.models import published_spectral as published
from linearno.models.registry import PublishedFormat, model
from linearno.nn import TimeEmbedding
from linearno.nn.embeddings import unit_grid
from linearno.nn.grid_operator import (
    Coords,
    GridOperator,
    Inputs,
    LatentGrid,
    Output,
    PaddedGrid,
    PointFeatures,
    mlp,
)
from linearno.nn.spectral import FourierLayer, FourierLayers, modes_per_axis, require_resolved
from linearno.ops import Segments


def geo_needs(settings: Any) -> tuple[str, ...]:
    """A time and a shape code, if the model takes them."""
    needs = {"time": settings.time, "code": settings.code > 0}
    return tuple(need for need, needed in needs.items() if needed)


def infer_sizes(weights: Mapping[str, Tensor], part: str) -> dict[str, Any]:
    """Arguments of a Geo-FNO of its authors, but for those that only one of its kinds has."""
    return {
        "outputs": len(weights[f"{part}fc2.bias"]),
        "width": len(weights[f"{part}fc0.bias"]),
        "modes": published.modes_of(weights, f"{part}conv0"),
        "head_width": len(weights[f"{part}fc1.bias"]),
    }


def infer_structured(weights: Mapping[str, Tensor], hints: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments of a Geo-FNO of its authors on a grid."""
    if "fc0.weight" not in weights or "conv0.weights1" not in weights:
        return None
    found = infer_sizes(weights, "") | {"depth": len(published.numbered(weights, r"conv(\d+)"))}
    features = weights["fc0.weight"].shape[1] - len(found["modes"])  # without the position on the grid
    coords = hints.get("coords", features)
    return found | {"coords": coords, "inputs": features - coords, "grid": hints.get("grid")}


def infer_scattered(weights: Mapping[str, Tensor], hints: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments of a Geo-FNO of its authors on scattered points; its two parts are named `fno` and `iphi`.

    It has maps both for deformations with a shape code and for those without, of which a call uses one.
    """
    if "fno.fc0.weight" not in weights or "iphi.fc0.weight" not in weights:
        return None
    if hints.get("code") == 0:
        return None
    features = weights["fno.fc0.weight"].shape[1]
    coords = hints.get("coords", 2)
    found = infer_sizes(weights, "fno.") | {name: hints[name] for name in ("latent",) if name in hints}
    return found | {
        "coords": coords,
        "inputs": features - coords,
        "grid": None,
        "depth": len(published.numbered(weights, r"fno\.conv(\d+)")) - 1,
        "deformation": len(weights["iphi.fc0.bias"]),
        "code": weights["iphi.fc_code.weight"].shape[1],
    }


def infer_without_code(weights: Mapping[str, Tensor], hints: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments of the same, if its deformation is to see no shape code."""
    if hints.get("code") != 0:
        return None
    others = {name: value for name, value in hints.items() if name != "code"}
    found = infer_scattered(weights, others)
    return None if found is None else found | {"code": 0}


def convert_scattered(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The first and the last convolution lead to the latent grid and back."""
    last = max(published.numbered(weights, r"conv(\d+)"))
    layers = {0: "frame.points_to_grid", last: "frame.grid_to_points"}
    layers |= {i: f"network.layers.{i - 1}.spectral" for i in range(1, last)}
    names = [(rf"^conv{i}\.", f"{layer}.mixing.") for i, layer in layers.items()]
    names += [(rf"^w{i}\.", f"network.layers.{i - 1}.local.") for i in range(1, last)]
    names += [(rf"^b{last}\.", "skip."), (r"^b(\d+)\.", r"network.biases.\1.")]
    weights = published.join_corners(published.rename(weights, names))
    return weights | {"skip.weight": weights["skip.weight"].squeeze(-1)}


LAYERS = [(r"^fc0\.", "lift."), (r"^fc1\.", "head.0."), (r"^fc2\.", "head.2.")]
STRUCTURED = PublishedFormat(
    infer=infer_structured,
    names=[*LAYERS, *published.FOURIER_LAYERS],
    hints=("grid", "coords"),
    convert=published.join_corners,
)
SCATTERED = PublishedFormat(
    infer=infer_scattered,
    names=[*published.DEFORMATION, (r"^fno\.", ""), *LAYERS],
    hints=("coords", "latent"),
    unused=r"^iphi\.fc_no_code\.",
    convert=convert_scattered,
)
WITHOUT_CODE = replace(
    SCATTERED, infer=infer_without_code, hints=("coords", "latent", "code"), unused=r"^iphi\.fc_code\."
)


@model("geo-fno", needs=geo_needs, published=(STRUCTURED, SCATTERED, WITHOUT_CODE), family="spectral")
class GeoFNO(GridOperator):
    """Geometry-aware Fourier neural operator (Li et al., 2023, https://arxiv.org/abs/2207.05209).

    On data with a grid: the Fourier neural operator on x, the position on the unit cube of the grid, and a,
    padded with zeros.

        hᵢ₊₁ = σ(F⁻¹(Rᵢ · F hᵢ) + Wᵢ hᵢ)

    On any number N of scattered points of the plane: a learned deformation ξ(x) to the torus, a Fourier
    transform of the points, Fourier layers on a latent grid, and the transform back at the points.

        g₀ = σ(F⁻¹(R₀ · Σ_n h_n e^(−2πi k·ξ_n)) + B₀ y),   gᵢ₊₁ = σ(F⁻¹(Rᵢ · F gᵢ) + Wᵢ gᵢ + Bᵢ y)
        h = Re Σ_k (R · F g)_k e^(2πi k·ξ) + B x

    with y the points of the latent grid on the unit square. Coordinates should lie in about the unit square.
    This is the form of https://github.com/neuraloperator/Geo-FNO, where the published results come from; that
    of the Neural-Solver-Library is `fno` with `latent`.

    Args:
        coords: number of coordinates X of a point; 2 for scattered points.
        inputs: number of input channels at a point; 0 if the geometry is the only input.
        outputs: number of predicted channels.
        grid: points along each axis of a structured mesh, points in C order; None: scattered points.
        width: channels W of the layers.
        modes: kept Fourier modes of each axis, or one number for all; at most half the points of an axis.
        depth: number of Fourier layers; on scattered points one more leads back to the points.
        head_width: hidden width of the two layers after the Fourier layers.
        time: whether the model takes a time, as `forward(..., time=(B, 1))`.
        padding: zeros after the end of each axis of a structured mesh.
        latent: side of the latent grid for scattered points.
        deformation: features of the deformation; a multiple of 4.
        code: channels of a code of each sample's shape that the deformation sees, an auxiliary field `code`
            of the data, passed as `forward(..., code=(B, ·))`; 0: none.

    >>> model = GeoFNO(coords=2, outputs=1, grid=None, width=32)
    >>> u = model(coords)  # (B, N, 2) → (B, N, 1)
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
        head_width: PositiveInt = 128,
        time: bool = False,
        padding: NonNegativeInt = 8,
        latent: PositiveInt = 40,
        deformation: PositiveInt = 32,
        code: NonNegativeInt = 0,
    ):
        modes = modes_per_axis(modes, 2 if grid is None else len(grid))
        if grid is None:
            frame: PaddedGrid | LatentGrid = LatentGrid(coords, width, modes, latent, deformation, code)
            layers: nn.Module = BiasedLayers(width, modes, depth - 1, (latent, latent))
        else:
            if code:
                raise ValueError(
                    "code: a shape code is for scattered points, these are on a grid; leave it out"
                )
            frame = PaddedGrid(grid, padding)
            require_resolved(modes, frame.grid)
            layers = FourierLayers(*(FourierLayer(width, modes) for _ in range(depth)))
        features = PointFeatures(coords, inputs, grid, None, None if grid is None else "grid")
        super().__init__(
            features=features,
            lift=nn.Linear(features.channels, width),
            frame=frame,
            network=layers,
            head=mlp(width, head_width, outputs),
            time=TimeEmbedding(width) if time else None,
            skip=nn.Linear(coords, width) if grid is None else None,
        )
        self.fixed_grid = grid
        self.grid_free_settings = ""

    def forward(
        self,
        coords: Coords,
        inputs: Inputs = None,
        *,
        time: Float[Tensor, "S 1"] | None = None,
        code: Float[Tensor, "S K"] | None = None,
        segments: Segments | None = None,
    ) -> Output:
        """Outputs (B, N, C) at the points; of meshes packed in `segments` if the points are scattered."""
        shape = {} if code is None else {"code": code}
        return self._predict(coords, inputs, time, segments, **shape)


class BiasedLayers(nn.Module):
    """Fourier layers on the latent grid, each with a linear map of the grid's own points added.

        g₀ = σ(image + B₀ y),   gᵢ₊₁ = σ(F⁻¹(Rᵢ · F gᵢ) + Wᵢ gᵢ + Bᵢ y)

    Args:
        width: channels C in and out.
        modes: kept modes, one number for each axis.
        depth: number of Fourier layers.
        grid: points along each axis.
    """

    points: Tensor

    def __init__(self, width: int, modes: tuple[int, ...], depth: int, grid: tuple[int, int]):
        super().__init__()
        self.layers = nn.ModuleList(FourierLayer(width, modes) for _ in range(depth))
        self.biases = nn.ModuleList(nn.Conv2d(2, width, 1) for _ in range(depth + 1))
        self.register_buffer("points", unit_grid(grid).mT.unflatten(1, grid)[None], persistent=False)

    def forward(self, image: Float[Tensor, "B C *X"]) -> Float[Tensor, "B C *X"]:
        h = nn.functional.gelu(image + self.biases[0](self.points))
        for layer, bias in zip(self.layers, self.biases[1:], strict=True):
            h = nn.functional.gelu(layer(h) + bias(self.points))
        return h
