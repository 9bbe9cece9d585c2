"""3×3 (×3) convolutions of points (B, N, W) on a zero-padded grid, by cuDNN or as one product per tap.

On an H200 exact float32 convolutions of 256 channels take cuDNN many times as long as their matrix products.
Wide ones therefore run tap by tap: flattened to rows, the padded images shifted by a fixed number of rows are
multiplied by the weight of the tap and accumulated. cuDNN is faster up to 128 channels and for the gradient
of the weight.
"""

from collections.abc import Iterator
from itertools import product
from math import prod

import torch
from torch import Tensor
from torch.nn import functional as F

MAX_LIBRARY_CHANNELS = 128


def convolve(x: Tensor, weight: Tensor, grid: tuple[int, ...]) -> Tensor:
    """Convolve x (B, N, W) with `weight` (L, W, 3, 3 …) to (B, N, L)."""
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
    """The gradient of the weight from the gradient of the output."""
    ones, zeros = [1] * len(grid), [0] * len(grid)
    return torch.ops.aten.convolution_backward(
        _image(d_out, grid), _image(x, grid), weight, None, ones, ones, ones, False, zeros, 1,
        [False, True, False],
    )[1]  # fmt: skip


def use_tap_products(x: Tensor, weight: Tensor) -> bool:
    """Whether to convolve tap by tap: wide layers in exact float32 on CUDA."""
    exact = not (torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32)
    return x.is_cuda and x.dtype == torch.float32 and exact and max(weight.shape[:2]) > MAX_LIBRARY_CHANNELS


def _image(x: Tensor, grid: tuple[int, ...]) -> Tensor:
    return x.unflatten(-2, grid).movedim(-1, 1)


def _padded_rows(x: Tensor, grid: tuple[int, ...]) -> Tensor:
    """The zero-padded images, flattened to rows (B · padded points, W)."""
    return F.pad(x.unflatten(-2, grid), (0, 0, *([1, 1] * len(grid)))).flatten(0, -2)


def _taps(rows: int, grid: tuple[int, ...]) -> Iterator[tuple[tuple[slice | int, ...], slice, slice]]:
    """For each tap: its index into the weight, the range of rows written, and the range of rows read."""
    strides = [prod(side + 2 for side in grid[axis + 1 :]) for axis in range(len(grid))]
    margin = sum(strides)
    for tap in product(range(3), repeat=len(grid)):
        shift = sum((index - 1) * stride for index, stride in zip(tap, strides, strict=True))
        inner, shifted = slice(margin, rows - margin), slice(margin + shift, rows - margin + shift)
        yield (slice(None), slice(None), *tap), inner, shifted
