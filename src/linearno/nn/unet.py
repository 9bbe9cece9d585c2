"""A U-Net on a grid of 2 or 3 axes. Axes: B batch, C channels, X grid."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from linearno.core.errors import UserError
from linearno.nn.spectral import CONVOLUTIONS

Norm = Literal["batch", "instance"]
Image = Float[Tensor, "B C *X"]

LEVELS = 4  # times that a U-Net halves the grid
REDUCTION = 2**LEVELS  # a grid must be a multiple of it


class UNet(nn.Module):
    """Double convolutions on five levels of resolution, with skips:  width, 2, 4, 8 and 8 times width.

        x₁ = conv(h),  xᵢ₊₁ = conv(pool(xᵢ)),  y₅ = P₅ x₅,  yᵢ = conv[Pᵢ xᵢ, upsample(yᵢ₊₁)],  out = W y₁

    Pᵢ is the identity, or a layer of `levels`. Upsampling is linear with corners aligned.

    Args:
        width: channels C in and out.
        axes: grid axes, 2 or 3.
        norm: "batch", or "instance" with a learned scale and no running statistics.
        levels: a layer Pᵢ for each level, finest first; None: the identity.
    """

    def __init__(
        self, width: int, axes: int, norm: Norm = "batch", levels: Sequence[nn.Module] | None = None
    ):
        super().__init__()
        widths = level_widths(width)
        self.first = DoubleConv(width, width, width, axes, norm)
        self.down = nn.ModuleList(
            DoubleConv(fine, coarse, coarse, axes, norm) for fine, coarse in pairwise(widths)
        )
        self.up = nn.ModuleList(
            DoubleConv(2 * fine, fine, max(fine // 2, width), axes, norm) for fine in widths[-2::-1]
        )
        self.last = CONVOLUTIONS[axes](width, width, 1)
        self.levels = None if levels is None else nn.ModuleList(levels)
        self.pool = (nn.MaxPool2d if axes == 2 else nn.MaxPool3d)(2)
        self.upsample = nn.Upsample(
            scale_factor=2, mode="bilinear" if axes == 2 else "trilinear", align_corners=True
        )

    def forward(self, h: Image) -> Image:
        features = [self.first(h)]
        for conv in self.down:
            features.append(conv(self._require_statistics(self.pool(features[-1]))))
        if self.levels is not None:
            features = [level(x) for level, x in zip(self.levels, features, strict=True)]
        y = features.pop()
        for conv in self.up:
            y = conv(torch.cat([features.pop(), self.upsample(y)], dim=1))
        return self.last(y)

    def _require_statistics(self, x: Image) -> Image:
        """Batch norms have no statistics of one value; PyTorch's own message does not say what to do."""
        if self.training and x.numel() == x.shape[1]:
            raise UserError(
                f"a U-Net on a grid of {REDUCTION} points is trained with two samples at least: "
                "set training.batch=2"
            )
        return x


class DoubleConv(nn.Sequential):
    """Twice a 3-point convolution without bias, a norm and a ReLU."""

    def __init__(self, inputs: int, hidden: int, outputs: int, axes: int, norm: Norm):
        conv = CONVOLUTIONS[axes]
        super().__init__(
            conv(inputs, hidden, 3, padding=1, bias=False),
            _norm(norm, hidden, axes),
            nn.ReLU(),
            conv(hidden, outputs, 3, padding=1, bias=False),
            _norm(norm, outputs, axes),
            nn.ReLU(),
        )


def level_widths(width: int) -> list[int]:
    """Channels of each level, finest first."""
    return [width * factor for factor in (1, 2, 4, 8, 8)]


def require_image(grid: tuple[int, ...], norm: Norm) -> None:
    """A ValueError if a U-Net cannot run on the padded grid."""
    if len(grid) not in (2, 3):
        raise ValueError(f"a U-Net needs a grid of 2 or 3 axes, got {grid}")
    if norm == "instance" and max(grid) <= REDUCTION:
        raise ValueError(
            f"norm=instance needs more than {REDUCTION} points along some axis, got a padded grid of {grid}; "
            "choose norm=batch"
        )


def _norm(norm: Norm, width: int, axes: int) -> nn.Module:
    if norm == "batch":
        return (nn.BatchNorm2d if axes == 2 else nn.BatchNorm3d)(width)
    return (nn.InstanceNorm2d if axes == 2 else nn.InstanceNorm3d)(width, affine=True)
