"""A 3×3 (×3) convolution of points (B, N, W) on a grid with a border of zeros, by the library or by taps.

On an H200 the library's exact float32 convolutions of 256 channels take many times as long as the matrix
products that they are made of. Wide ones are taken tap by tap there: the images with their borders are a list
of rows, a tap shifts it by a fixed number of them, and the product of those rows and the tap's weight is
added to what is there. Up to 128 channels, and in the gradient of the weight, the library is the faster one.
"""

from collections.abc import Iterator
from itertools import product
from math import prod

import torch
from torch import Tensor
from torch.nn import functional as F

MAX_LIBRARY_CHANNELS = 128  # channels


def convolve(x: Tensor, weight: Tensor, grid: tuple[int, ...]) -> Tensor:
    """The convolution (B, N, L) with `weight` (L, W, 3, 3 …)."""
    if not use_tap_products(x, weight):
        return convolve_by_library(x, weight, None, grid)
    rows = _padded_rows(x, grid)
    out = rows.new_zeros(len(rows), len(weight))
    for tap, inner, shifted in _taps(len(rows), grid):
        out[inner].addmm_(rows[shifted], weight[tap].mT)
    padded_grid = [side + 2 for side in grid]
    inside = out.unflatten(0, (len(x), *padded_grid))[:, *(slice(1, -1) for _ in grid)]
    return inside.flatten(1, -2)


def convolve_by_library(x: Tensor, weight: Tensor, bias: Tensor | None, grid: tuple[int, ...]) -> Tensor:
    convolution = F.conv2d if len(grid) == 2 else F.conv3d
    return convolution(_image(x, grid), weight, bias, padding=1).movedim(1, -1).flatten(1, -2)


def weight_gradient(d_out: Tensor, x: Tensor, weight: Tensor, grid: tuple[int, ...]) -> Tensor:
    """The gradient of the weight, given that of the convolution."""
    ones, zeros = [1] * len(grid), [0] * len(grid)
    return torch.ops.aten.convolution_backward(
        _image(d_out, grid), _image(x, grid), weight, None, ones, ones, ones, False, zeros, 1,
        [False, True, False],
    )[1]  # fmt: skip


def use_tap_products(x: Tensor, weight: Tensor) -> bool:
    """Whether a convolution is wide, and its products are exact float32 on CUDA."""
    exact = not (torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32)
    return x.is_cuda and x.dtype == torch.float32 and exact and max(weight.shape[:2]) > MAX_LIBRARY_CHANNELS


def _image(x: Tensor, grid: tuple[int, ...]) -> Tensor:
    return x.unflatten(-2, grid).movedim(-1, 1)


def _padded_rows(x: Tensor, grid: tuple[int, ...]) -> Tensor:
    """The rows of the images, one after another, each with a border of zeros."""
    return F.pad(x.unflatten(-2, grid), (0, 0, *([1, 1] * len(grid)))).flatten(0, -2)


def _taps(rows: int, grid: tuple[int, ...]) -> Iterator[tuple[tuple[slice | int, ...], slice, slice]]:
    """Each tap as an index into a weight, the rows from the first inner one to the last, and those that the
    tap looks at from there."""
    strides = [prod(side + 2 for side in grid[axis + 1 :]) for axis in range(len(grid))]
    margin = sum(strides)
    for tap in product(range(3), repeat=len(grid)):
        shift = sum((index - 1) * stride for index, stride in zip(tap, strides, strict=True))
        inner, shifted = slice(margin, rows - margin), slice(margin + shift, rows - margin + shift)
        yield (slice(None), slice(None), *tap), inner, shifted
