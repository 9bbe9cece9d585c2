"""Latent spectral model (Wu et al., ICML 2023): attention between patches and latent tokens in a U-Net."""

from collections.abc import Mapping
from math import pi
from typing import Any, Literal

import torch
from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor, nn

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
from linearno.nn.spectral import CONVOLUTIONS
from linearno.nn.unet import REDUCTION, Norm, UNet, level_widths, require_image


def infer_published(weights: Mapping[str, Tensor], hints: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments of an LSM of the Neural-Solver-Library."""
    if not published.from_library(weights, "process1.latent"):
        return None
    heads, tokens, _ = weights["process1.latent"].shape
    found: dict[str, Any] = {
        "heads": heads,
        "tokens": tokens,
        "basis": weights["process1.weights"].shape[1] // 2,
        "norm": "batch" if "inc.double_conv.1.running_mean" in weights else "instance",
    }
    if "fftproject_in.weights1" in weights:
        found["modes"] = published.modes_of(weights, "fftproject_in")
    axes = weights["outc.conv.weight"].dim() - 2
    return found | published.infer_library_arguments(weights, hints, axes, head=2)


PUBLISHED = PublishedFormat(
    infer=infer_published,
    names=[
        *published.NAMES,
        *((rf"^process{i + 1}\.", f"levels.{i}.") for i in range(5)),
        *published.UNET,
        (r"^(first|down|up|last|levels)\.", r"network.\1."),
        (r"\.weights$", ".coefficients"),
        (r"\.latent$", ".tokens"),
        (r"\.encoder_attn\.", ".key_value."),
        (r"\.decoder_attn\.", ".query."),
    ],
    hints=published.HINTS,
    unused=published.UNUSED_CODE,
    convert=published.join_corners,
)


@model("lsm", needs=grid_needs, published=(PUBLISHED,), family="spectral")
class LSM(GridOperator):
    """Latent spectral model (Wu et al., 2023, https://arxiv.org/abs/2301.12664).

    A U-Net on a grid of 2 or 3 axes, padded with zeros to a multiple of 16, with a `NeuralSpectralBlock` on
    each of its five levels. A patch has a sixteenth of the padded grid's points along each axis, at every
    level. The defaults are the form of the Neural-Solver-Library; `lift_layers=1, head_width=128`, with
    `append="grid"` on body-fitted meshes, is that of https://github.com/thuml/Latent-Spectral-Models.

    Args:
        coords: number of coordinates X of a point.
        inputs: number of input channels at a point; 0 if the geometry is the only input.
        outputs: number of predicted channels.
        grid: points along each axis of a structured mesh, points in C order; None with `latent`.
        width: channels W of the finest level; a multiple of `heads`.
        heads: attention heads.
        tokens: latent tokens of each patch and head.
        basis: frequencies of the map of latent tokens.
        norm: of the U-Net: "batch" (the library's for steady problems) or "instance" (its other problems).
        time: whether the model takes a time, as `forward(..., time=(B, 1))`.
        unified: distances to reference points in place of the coordinates.
        append: more features of a point: "grid", its position on the unit cube of the grid, or "coords", the
            coordinates once more, as in the library's scripts for pipe flow.
        lift_layers: layers before the network on the grid; the first of two has the width 2 · `width`.
        head_width: hidden width of the two layers after the network; None: 2 · `width`.
        latent: side of a latent grid for scattered points of the plane, to and from which a learned
            deformation and Fourier transforms lead, as in Geo-FNO; None: the grid of the data.
        modes: Fourier modes of each axis between scattered points and the latent grid.

    >>> model = LSM(coords=2, inputs=1, outputs=1, grid=(85, 85), width=64)
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
        heads: PositiveInt = 8,
        tokens: PositiveInt = 4,
        basis: PositiveInt = 12,
        norm: Norm = "batch",
        time: bool = False,
        unified: ReferenceDistances | None = None,
        append: Append | None = None,
        lift_layers: Literal[1, 2] = 2,
        head_width: PositiveInt | None = None,
        latent: PositiveInt | None = None,
        modes: PositiveInt | tuple[PositiveInt, ...] = 12,
    ):
        if width % heads:
            next_width = width + -width % heads
            raise ValueError(f"width={width} is not a multiple of heads={heads}; the next is {next_width}")
        frame = frame_of(grid, latent, coords=coords, width=width, modes=modes, multiple=REDUCTION)
        require_image(frame.grid, norm)
        patch = tuple(n // REDUCTION for n in frame.grid)
        levels = [NeuralSpectralBlock(each, heads, tokens, basis, patch) for each in level_widths(width)]
        features = PointFeatures(coords, inputs, grid if latent is None else None, unified, append)
        super().__init__(
            features=features,
            lift=lift_of(features.channels, width, lift_layers),
            frame=frame,
            network=UNet(width, len(patch), norm, levels),
            head=mlp(width, head_width or 2 * width, outputs),
            time=TimeEmbedding(width) if time else None,
        )


class NeuralSpectralBlock(nn.Module):
    """Points of each patch gathered in latent tokens T, a map of the tokens, and back to the points.

        T ← T + softmax(T Kᵀ) V,   T ← T + Σ_m (A_m sin(mπT/M) + B_m cos(mπT/M)),   h ← h + softmax(Q Tᵀ) T

    with m = 0 … M − 1, K, V and Q linear in h, and one learned initial T for all patches.

    Args:
        width: channels C of the level.
        heads: attention heads.
        tokens: latent tokens of each head.
        basis: number of frequencies M.
        patch: points of a patch along each axis; the grid is a multiple of it.
    """

    def __init__(self, width: int, heads: int, tokens: int, basis: int, patch: tuple[int, ...]):
        super().__init__()
        self.patch, self.heads, self.basis = patch, heads, basis
        convolution = CONVOLUTIONS[len(patch)]
        self.key_value = convolution(width, 2 * width, 1)  # channels (heads, width / heads, key or value)
        self.query = convolution(width, width, 1)
        self.tokens = nn.Parameter(torch.rand(heads, tokens, width // heads) / width**2)
        self.coefficients = nn.Parameter(torch.rand(width, 2 * basis) / width**2)

    def forward(self, h: Float[Tensor, "B C *X"]) -> Float[Tensor, "B C *X"]:
        query, key_value = self._patches(self.query(h)), self._patches(self.key_value(h))
        key, value = key_value.unflatten(-1, (-1, 2)).unbind(dim=-1)
        start = self.tokens.to(key)
        tokens = self._mapped(start + (start @ key.mT).softmax(dim=-1).to(value) @ value).to(query)
        return h + self._image((query @ tokens.mT).softmax(dim=-1).to(tokens) @ tokens, h.shape)

    def _mapped(self, tokens: Float[Tensor, "P H T D"]) -> Float[Tensor, "P H T D"]:
        """Tokens in float32 (or float64): the frequencies reach M times their size."""
        with torch.autocast(tokens.device.type, enabled=False):
            coefficients = self.coefficients.view(self.heads, -1, 2 * self.basis)
            tokens = tokens.to(coefficients)
            angles = tokens.unsqueeze(-1) * (torch.arange(self.basis).to(tokens) * (pi / self.basis))
            waves = torch.cat([angles.sin(), angles.cos()], dim=-1)
            return tokens + torch.einsum("phtdm,hdm->phtd", waves, coefficients)

    def _patches(self, image: Float[Tensor, "B C *X"]) -> Float[Tensor, "P H N D"]:
        """The points of each patch, channels split among the heads."""
        axes = len(self.patch)
        for axis in range(axes, 0, -1):
            image = image.unflatten(axis + 1, (-1, self.patch[axis - 1]))  # B C X1 p1 X2 p2 …
        counts, insides = range(2, 2 + 2 * axes, 2), range(3, 3 + 2 * axes, 2)
        points = image.permute(0, *counts, *insides, 1).flatten(1 + axes, 2 * axes).flatten(0, axes)
        return points.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def _image(self, points: Float[Tensor, "P H N D"], shape: torch.Size) -> Float[Tensor, "B C *X"]:
        """The opposite of `_patches`."""
        counts = [n // p for n, p in zip(shape[2:], self.patch, strict=True)]
        axes = len(counts)
        image = (
            points.transpose(1, 2)
            .flatten(2)
            .unflatten(0, (shape[0], *counts))
            .unflatten(1 + axes, self.patch)
        )
        order = [each for axis in range(axes) for each in (1 + axis, 1 + axes + axis)]
        return image.permute(0, -1, *order).reshape(shape)
