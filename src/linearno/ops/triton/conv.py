"""Bias and weight layout for cuDNN's 3×3 (×3) convolution of points (B, N, W) on a grid."""

from math import prod

import triton
import triton.language as tl
from torch import Tensor

from linearno.ops.triton.common import dependent_launch, wait_for_previous_kernel


@triton.jit
def _add_bias(x_ptr, bias_ptr, size, C: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    wait_for_previous_kernel(DEPENDENT)
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < size, other=0.0).to(tl.float32)
    tl.store(x_ptr + i, x + tl.load(bias_ptr + i % C).to(tl.float32), mask=i < size)


@triton.jit
def _flip_taps(
    weight_ptr, out_ptr, L, W, SL, SW, ST, TAPS: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr
):
    """out[w, T−1−t, l] = weight[l, w, t] for taps t < T; one tile of one tap per program."""
    wait_for_previous_kernel(DEPENDENT)
    tap = tl.program_id(0)
    o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    w = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    tile = tl.load(
        weight_ptr + o[:, None] * SL + w[None, :] * SW + tap * ST,
        mask=(o < L)[:, None] & (w < W)[None, :],
        other=0.0,
    )
    index = (w[:, None] * TAPS + TAPS - 1 - tap) * L + o[None, :]
    tl.store(out_ptr + index, tl.trans(tile), mask=(w < W)[:, None] & (o < L)[None, :])


def add_bias_(x: Tensor, bias: Tensor) -> None:
    """Add a bias (C,) to every row of x (…, C) in place."""
    _add_bias[(-(-x.numel() // 2048),)](
        x, bias, x.numel(), len(bias), 2048, num_warps=4, **dependent_launch(x.device)
    )


def flip_taps(weight: Tensor) -> Tensor:
    """The weight (W, L, 3, 3) of the transposed convolution, with the taps of `weight` (L, W, 3, 3) reversed.

    Weights are channels last, with contiguous taps.
    """
    outputs, inputs, *kernel_size = weight.shape
    out, taps = weight.new_empty(inputs, *kernel_size, outputs), prod(kernel_size)
    _flip_taps[(taps, -(-outputs // 64), -(-inputs // 64))](
        weight, out, outputs, inputs, weight.stride(0), weight.stride(1), weight.stride(-1), taps, 64,
        num_warps=4, **dependent_launch(weight.device),
    )  # fmt: skip
    return out.movedim(-1, 1)
